//! The operation that repeats a dataset.

use crate::chunk::Chunk;
use crate::pipeline::{Operation, Pipeline, Sharding, one_input};
use crate::stage::Stage;
use crate::{Cardinality, Dataset, Error, Result};
use distribute_tensor::Nest;

impl<T: Nest> Dataset<T> {
    /// Repeats the dataset `times` times. Shuffles in the dataset have a different order in each repetition.
    ///
    /// Repetitions without elements count as well, but after 100 consecutive ones the pass returns
    /// [`Error::EmptyPasses`], unless the dataset is known to be empty.
    #[doc(alias = "tf.data.Dataset.repeat")]
    pub fn repeat(&self, times: usize) -> Self {
        Self::of(Repeat { input: self.pipeline().clone(), times: Some(times) })
    }

    /// Repeats the dataset forever. Shuffles in the dataset have a different order in each repetition.
    ///
    /// A dataset that is known to be empty ends immediately. For any other, the pass returns [`Error::EmptyPasses`]
    /// after 100 consecutive repetitions without elements.
    #[doc(alias = "tf.data.Dataset.repeat")]
    pub fn repeat_forever(&self) -> Self {
        Self::of(Repeat { input: self.pipeline().clone(), times: None })
    }
}

#[derive(Clone)]
struct Repeat {
    input: Pipeline,
    /// The number of repetitions; `None` means forever.
    times: Option<usize>,
}

impl Operation for Repeat {
    one_input!();

    /// Returns the input, because its first element is the same, unless it is repeated 0 times.
    fn lean(&self) -> Option<Pipeline> {
        (self.times != Some(0)).then(|| self.input.clone())
    }

    fn describe(&self) -> String {
        match self.times {
            Some(times) => format!("repeat {times} times"),
            None => "repeat forever".into(),
        }
    }

    fn cardinality(&self) -> Cardinality {
        match (self.times, self.input.cardinality()) {
            (Some(0), _) | (None, Cardinality::Finite(0)) => Cardinality::Finite(0),
            (Some(times), cardinality) => cardinality.map(|n| n.saturating_mul(times)),
            (None, _) => Cardinality::Infinite,
        }
    }

    fn sharding(&self) -> Sharding {
        Sharding::Through
    }

    fn reads_once(&self) -> bool {
        false
    }

    fn start(&self, epoch: u64) -> Box<dyn Stage> {
        Box::new(RepeatStage::new(self.input.clone(), self.times, epoch))
    }
}

struct RepeatStage {
    input: Pipeline,
    times: Option<usize>,
    first_epoch: u64,
    started: usize,
    current: Option<Box<dyn Stage>>,
    /// The number of consecutive repetitions without elements, including the current one.
    empty: usize,
}

/// The number of consecutive empty repetitions that is considered an error. Without a limit, a filter that keeps
/// nothing would run forever.
const MAX_EMPTY: usize = 100;

/// A counter with which a stage detects that it drops all elements of a repeated dataset.
#[derive(Default)]
pub(super) struct EmptyPassCounter {
    /// The number of completed passes when the first of the dropped elements was received; `None` if the last element
    /// was kept. Earlier passes do not count, because their elements may still be in buffers of earlier stages.
    since: Option<usize>,
    /// The number of consecutive calls of [`nothing`](Self::nothing). It is limited as well, because a few batches or
    /// windows may extend over many passes.
    calls: usize,
}

impl EmptyPassCounter {
    /// Records that an element was kept.
    pub(super) fn found(&mut self) {
        (self.since, self.calls) = (None, 0);
    }

    /// Records that none of the last elements was kept. `passes` is the number of completed
    /// [passes](Stage::passes). Returns an error if there are too many without a kept element.
    pub(super) fn nothing(&mut self, operation: &'static str, passes: usize) -> Result<()> {
        let passes = passes.saturating_sub(*self.since.get_or_insert(passes));
        self.calls = self.calls.saturating_add(1);
        if passes < MAX_EMPTY || self.calls < MAX_EMPTY {
            Ok(())
        } else {
            Err(Error::EmptyPasses { operation, passes })
        }
    }
}

impl RepeatStage {
    /// Creates a stage for pass `epoch`. Repetition `r` is epoch `epoch * times + r` of the input, so one pass
    /// over `repeat(3)` shuffles like three passes over the input. Infinite repetitions have 2³² epochs for each
    /// pass.
    fn new(input: Pipeline, times: Option<usize>, epoch: u64) -> Self {
        let first_epoch = epoch.wrapping_mul(times.map_or(1 << 32, |times| times as u64));
        Self { input, times, first_epoch, started: 0, current: None, empty: 0 }
    }

    /// Returns the current repetition, or starts the next one; `None` after the last. An empty repetition is not
    /// the last one, because a `take_while` may keep elements in a different order.
    fn current(&mut self) -> Result<Option<&mut Box<dyn Stage>>> {
        if self.current.is_none() {
            let over = self.times.is_some_and(|times| self.started >= times);
            if over || self.input.cardinality() == Cardinality::Finite(0) {
                return Ok(None);
            }
            if self.empty >= MAX_EMPTY {
                return Err(Error::EmptyPasses { operation: "repeat", passes: self.empty });
            }
            let epoch = self.first_epoch.wrapping_add(self.started as u64);
            self.started = self.started.saturating_add(1);
            self.empty += 1;
            self.current = Some(self.input.start(epoch));
        }
        Ok(self.current.as_mut())
    }
}

impl Stage for RepeatStage {
    fn next(&mut self, max: usize) -> Option<Result<Chunk>> {
        loop {
            let stage = match self.current() {
                Ok(stage) => stage?,
                Err(error) => return Some(Err(error)),
            };
            if let Some(chunk) = stage.next(max) {
                self.empty = 0;
                return Some(chunk);
            }
            self.current = None;
        }
    }

    fn skip(&mut self, count: usize) -> Result<usize> {
        let mut left = count;
        while left > 0 {
            let Some(stage) = self.current()? else { break };
            let skipped = stage.skip(left)?;
            if skipped > 0 {
                self.empty = 0;
            }
            if skipped < left {
                self.current = None;
            }
            left -= skipped;
        }
        Ok(count - left)
    }

    fn passes(&self) -> usize {
        self.started - usize::from(self.current.is_some())
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::values;
    use crate::{AtDatasetEnd, Dataset, Error, Interleave, Packing};
    use distribute_tensor::HostTensor;

    #[test]
    fn repeats_and_ends() {
        assert_eq!(values(&Dataset::range(2).repeat(3)), [0, 1, 0, 1, 0, 1]);
        assert_eq!(values(&Dataset::range(2).repeat(0)), [0i64; 0]);
        assert_eq!(values(&Dataset::range(2).repeat_forever().take(5)), [0, 1, 0, 1, 0]);
        assert_eq!(values(&Dataset::range(0).repeat_forever()), [0i64; 0]);
        assert_eq!(values(&Dataset::range(0).repeat(usize::MAX)), [0i64; 0]);
    }

    #[test]
    fn a_dataset_without_elements_has_only_the_spec_of_all_elements() {
        let vectors = Dataset::range(3).map(|x| HostTensor::vector(vec![x]));
        for data in [vectors.repeat(0), vectors.take(0), vectors.skip(3), vectors.repeat(0).map(|x| x)] {
            assert_eq!((data.element_spec(), data.iter().count()), (None, 0), "{}", data.explain());
        }
        let batches = [vectors.batch_exact(4), vectors.batch(2).repeat(0).batch(1).unbatch()];
        assert!(batches.iter().all(|data| data.element_spec().is_none()));
        assert!(vectors.repeat(1).map(|x| x).element_spec().is_some());
        // The spec of numbers does not depend on an element.
        assert_eq!(Dataset::range(3).repeat(0).element_spec(), Dataset::range(3).element_spec());
    }

    #[test]
    fn passes_without_elements_end_with_an_error_that_says_so() {
        let nothing = Dataset::range(3).filter(|_| false);
        for data in
            [nothing.repeat(usize::MAX), nothing.repeat_forever(), nothing.repeat(1000).batch(2).unbatch()]
        {
            let mut pass = data.iter();
            let error = pass.next().unwrap().unwrap_err();
            assert!(matches!(error, Error::EmptyPasses { operation: "repeat", passes: 100 }), "{error}");
            assert!(error.to_string().contains("filters"), "{error}");
            assert!(pass.next().is_none());
            assert!(data.skip(1).iter().next().unwrap().is_err());
        }
        assert_eq!(values(&nothing.repeat(100)), [0i64; 0]);
        assert_eq!(values(&Dataset::range(0).map(|x| x).repeat_forever()), [0i64; 0]);
    }

    fn choose(choices: &[i64], datasets: &[Dataset<i64>]) -> Dataset<i64> {
        let choices = Dataset::from_items(choices.to_vec()).repeat_forever();
        Dataset::choose_from_datasets(datasets, &choices, AtDatasetEnd::Skip)
    }

    fn sample(weights: &[f64], datasets: &[Dataset<i64>]) -> Dataset<i64> {
        Dataset::sample_from_datasets(datasets, weights, 7, AtDatasetEnd::Skip)
    }

    /// Packs sequences of one number, and returns the first number of each row.
    fn packed(data: &Dataset<i64>, packing: Packing) -> Dataset<i64> {
        let rows = data.map(|x| HostTensor::vector(vec![x])).pack_sequences(packing);
        rows.map(|row| row.values.as_slice::<i64>().unwrap()[0])
    }

    #[test]
    fn so_do_elements_that_are_dropped_pass_after_pass() {
        distribute_testing::watched(|| {
            let endless = Dataset::range(3).repeat_forever();
            let many = Dataset::range(3).filter(|_| true).repeat(usize::MAX);
            let never = |x: &i64| *x > 7;
            for data in [
                endless.filter(never),
                many.filter(never),
                endless.take(usize::MAX).skip(1).filter(|_| true).map(|x| x + 1).filter(never).map(|x| x),
                endless.shuffle(1000, 1).filter(never),
                endless.prefetch(1000).filter(never).prefetch(1),
                endless.map_parallel(2, |x| x).filter(never),
                endless.batch(2).filter(|_| false).unbatch(),
                endless.batch(2).unbatch::<i64>().filter(never),
                endless.batch(2).rebatch(&[3]).unbatch::<i64>().filter(never),
                endless.shard(2, 1).filter(never),
                Dataset::range(5).concatenate(&endless).filter(never),
                endless.concatenate(&Dataset::range(9)).filter(never),
                endless.take_while(|_| true).filter(never),
                endless.flat_map(Dataset::range).filter(never),
                endless
                    .interleave(Dataset::range, Interleave { ahead: 2, ..Interleave::default() })
                    .filter(never),
                endless.window(2).flat_map(|window| window).filter(never),
                endless.group_by_window(|x| *x, |_| 4, |_, group| group).filter(never),
                choose(&[0, 1], &[endless.clone(), many]).filter(never),
                choose(&[0, 0], &[endless.clone(), Dataset::range(9)]).filter(never),
                choose(&[0, 1], &[endless.clone(), Dataset::range(5)]).filter(never),
                sample(&[0.5, 0.5, 0.], &[endless.clone(), endless.clone(), Dataset::range(9)]).filter(never),
                packed(&endless, Packing::new(2)).filter(never),
                packed(&endless, Packing::new(4).open_rows(3)).filter(never),
            ] {
                let mut pass = data.iter();
                let error = pass.next().unwrap().unwrap_err();
                assert!(matches!(error, Error::EmptyPasses { operation: "filter", .. }), "{error}");
                assert!(pass.next().is_none());
                assert!(data.skip(1).iter().next().unwrap().is_err());
            }
        });
    }

    #[test]
    fn so_do_datasets_and_batches_that_are_empty_pass_after_pass() {
        distribute_testing::watched(|| {
            let endless = Dataset::range(3).repeat_forever();
            let none = |x: i64| Dataset::range(x..x);
            let two = Interleave { cycle_length: 2, ..Interleave::default() };
            let no_rows = endless.map(|_| HostTensor::vector(Vec::<i64>::new()));
            for (operation, data) in [
                ("flat_map", endless.flat_map(none)),
                ("interleave", endless.interleave(none, two)),
                ("interleave", endless.interleave(none, Interleave { ahead: 1, ..two })),
                ("window", endless.window(2).flat_map(|window| window.take(0))),
                ("window", endless.window(2).shift(5).flat_map(|window| window.filter(|_| false))),
                ("group_by_window", endless.group_by_window(|x| x % 2, |_| 2, |_, group| group.take(0))),
                ("unbatch", no_rows.unbatch()),
                ("rebatch", no_rows.rebatch(&[2]).unbatch()),
            ] {
                let mut pass = data.iter();
                let error = pass.next().unwrap().unwrap_err();
                let Error::EmptyPasses { operation: found, passes } = &error else { panic!("{error}") };
                assert!(*found == operation && *passes >= 100, "{error}");
                assert!(pass.next().is_none());
                assert!(data.skip(1).iter().next().unwrap().is_err());
            }
        });
    }

    /// Checks that buffers of stages, and elements that depend on the number of the pass, do not end the pass with an
    /// error.
    #[test]
    fn an_element_that_comes_after_many_passes_comes() {
        distribute_testing::watched(|| {
            let endless = Dataset::range(3).repeat_forever();
            let late = endless.enumerate().filter(|(i, _)| *i == 2000).map(|(_, x)| x);
            let paired = Dataset::range(5000).repeat_forever().zip(&endless);
            let paired = paired.filter(|(i, _)| *i == 4000).map(|(_, x)| x);
            for (data, expected) in [(late, 2000 % 3), (paired, 4000 % 3)] {
                assert_eq!(values(&data.take(1)), [expected]);
            }
            // A dataset of an early pass ends with the element, and those of later passes are empty.
            let two = Interleave { cycle_length: 2, ..Interleave::default() };
            let first = Dataset::range(1).concatenate(&Dataset::range(1..2).repeat_forever());
            let long = first.interleave(|x| Dataset::range(if x == 0 { 5000 } else { 0 }), two);
            assert_eq!(values(&long.filter(|x| *x == 4000).take(1)), [4000]);
            // The first batches and windows extend over many passes, and are not alike.
            let third = |batch: &HostTensor| batch.as_slice::<i64>().unwrap()[0] == 2;
            assert!(endless.batch(1000).filter(third).iter().next().unwrap().is_ok());
            let third = |window: Dataset<i64>| window.take(1).filter(|x| *x == 2);
            assert_eq!(values(&endless.window(1000).flat_map(third).take(2)), [2, 2]);
            // A group of many passes is kept, and those of each pass are not.
            let reduce = |key, group: Dataset<i64>| group.take(key as usize);
            let rare = endless.group_by_window(|x| x / 2, |key| if key == 1 { 1000 } else { 2 }, reduce);
            assert_eq!(values(&rare.take(2)), [2, 2]);
            // One dataset for many passes, then another.
            let choices: Vec<i64> = (0..2000).map(|i| i / 1000).collect();
            let second = Dataset::from_items([5, 6, 7]).repeat_forever();
            let two = choose(&choices, &[endless.clone(), second]).filter(|x| *x == 2);
            assert_eq!(two.iter().take(1000).filter(|x| matches!(x, Ok(2))).count(), 1000);
            // Every second element, after buffers of many passes.
            for data in [endless.shuffle(5000, 1), endless.prefetch(5000), endless.map_parallel(4, |x| x)] {
                let odd = data.filter(|x| *x == 1);
                assert!(odd.iter().take(3000).all(|x| x.unwrap() == 1));
            }
        });
    }

    #[test]
    fn a_pass_that_happens_to_be_empty_is_not_the_last() {
        let data = Dataset::range(4).shuffle(4, 1).take_while(|x| *x < 2);
        let epochs: Vec<Vec<i64>> = (0..20).map(|e| data.epoch(e).map(Result::unwrap).collect()).collect();
        assert!(epochs.iter().any(Vec::is_empty));
        assert_eq!(values(&data.repeat(20)), epochs.concat());
        assert_eq!(values(&data.repeat(20).skip(3)), epochs.concat()[3..]);
    }

    #[test]
    fn repeating_shuffles_as_iterating_again_does() {
        let shuffled = Dataset::range(20).shuffle(20, 5);
        let epochs: Vec<i64> = (0..6).flat_map(|e| shuffled.epoch(e).map(Result::unwrap)).collect();
        let three = shuffled.repeat(3);
        let twice: Vec<i64> = (0..2).flat_map(|_| values(&three)).collect();
        assert_eq!(twice, epochs);
        assert_eq!(values(&shuffled.repeat_forever().take(120)), epochs);
    }
}
