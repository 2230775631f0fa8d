//! The operation that shuffles elements.

use crate::chunk::{Chunk, Picks};
use crate::error::at_least_one;
use crate::pipeline::{Operation, Pipeline, Sharding, one_input};
use crate::random::EpochRng;
use crate::room::fits;
use crate::rows::Rows;
use crate::stage::Stage;
use crate::{Cardinality, Dataset, Error, Result};
use distribute_tensor::{Leaf, Nest, Tree};
use std::sync::Arc;

impl<T: Nest> Dataset<T> {
    /// Shuffles elements by drawing at random from a buffer of `buffer` elements. The buffer is refilled after
    /// each draw.
    ///
    /// If the buffer is at least as large as the dataset, every order is equally likely. The order depends only on
    /// `seed` and the epoch. Every pass, and every repetition of a later [`repeat`](Dataset::repeat), therefore has a
    /// different order. Tensors in memory and ranges are shuffled as row indices of 8 bytes each.
    ///
    /// A `buffer` of 0 results in [`Error::Parameter`] in the pass.
    #[doc(alias = "tf.data.Dataset.shuffle")]
    #[doc(alias = "reshuffle_each_iteration")]
    pub fn shuffle(&self, buffer: usize, seed: u64) -> Self {
        Self::of(Shuffle { input: self.pipeline().clone(), buffer, seed })
    }
}

#[derive(Clone)]
struct Shuffle {
    input: Pipeline,
    buffer: usize,
    seed: u64,
}

impl Operation for Shuffle {
    one_input!();

    fn lean(&self) -> Option<Pipeline> {
        Some(self.input.clone())
    }

    fn describe(&self) -> String {
        format!("shuffle, buffer {}, seed {}", self.buffer, self.seed)
    }

    fn cardinality(&self) -> Cardinality {
        self.input.cardinality()
    }

    fn check(&self) -> Result<()> {
        at_least_one("shuffle", "the buffer", self.buffer)?;
        fits("shuffle", "the buffer", self.buffer, self.input.cardinality())
    }

    fn sharding(&self) -> Sharding {
        Sharding::Through
    }

    fn takes_ahead(&self) -> bool {
        true
    }

    fn start(&self, epoch: u64) -> Box<dyn Stage> {
        Box::new(ShuffleStage::new(self.input.start(epoch), self.buffer, self.seed, epoch))
    }
}

/// A stage that draws elements at random from a buffer, and refills it from the input after each draw.
///
/// If the buffer is at least as large as the dataset, every order is equally likely. The order depends only on
/// the seed, the epoch, the size of the buffer and the number of elements.
struct ShuffleStage {
    input: Box<dyn Stage>,
    buffer: usize,
    rng: EpochRng,
    pool: Pool,
    ended: bool,
    /// The index of a drawn element that could not be appended to the previous chunk. The next chunk begins with this
    /// element.
    kept: Option<usize>,
    /// The error to return after the elements that were returned last.
    failed: Option<Error>,
}

/// The contents of the buffer: row indices if all elements are rows of one source, otherwise values.
enum Pool {
    Rows(Arc<Rows>, Vec<usize>),
    Values(Vec<Tree<Leaf>>),
}

impl Pool {
    fn len(&self) -> usize {
        match self {
            Pool::Rows(_, rows) => rows.len(),
            Pool::Values(values) => values.len(),
        }
    }

    fn add(&mut self, chunk: Chunk) -> Result<()> {
        let chunk = match (&mut *self, chunk) {
            (Pool::Rows(mine, rows), Chunk::Rows(theirs, picks)) if Arc::ptr_eq(mine, &theirs) => {
                return picks.extend(rows);
            }
            (Pool::Values(values), Chunk::Rows(source, picks)) if values.is_empty() => {
                *self = Pool::Rows(source, picks.into_list()?);
                return Ok(());
            }
            (_, chunk) => chunk,
        };
        let mut values = self.take_values()?;
        values.extend(chunk.into_values()?);
        *self = Pool::Values(values);
        Ok(())
    }

    /// Removes all elements from the pool, and returns them as values.
    fn take_values(&mut self) -> Result<Vec<Tree<Leaf>>> {
        match std::mem::replace(self, Pool::Values(Vec::new())) {
            Pool::Rows(source, rows) => Chunk::Rows(source, Picks::List(rows)).into_values(),
            Pool::Values(values) => Ok(values),
        }
    }

    /// Removes element `i`, moves the last element to its position, and appends the removed one to `drawn`. Returns
    /// `false` without drawing if it cannot be appended to `drawn`, which then holds elements of another source or
    /// kind.
    fn draw(&mut self, i: usize, drawn: &mut Option<Chunk>) -> bool {
        match (self, &mut *drawn) {
            (Pool::Rows(pool, rows), Some(Chunk::Rows(source, Picks::List(list))))
                if Arc::ptr_eq(pool, source) =>
            {
                list.push(rows.swap_remove(i));
            }
            (Pool::Values(values), Some(Chunk::Values(list))) => list.push(values.swap_remove(i)),
            (Pool::Rows(pool, rows), None) => {
                *drawn = Some(Chunk::Rows(pool.clone(), Picks::List(vec![rows.swap_remove(i)])));
            }
            (Pool::Values(values), None) => *drawn = Some(Chunk::Values(vec![values.swap_remove(i)])),
            _ => return false,
        }
        true
    }
}

impl ShuffleStage {
    fn new(input: Box<dyn Stage>, buffer: usize, seed: u64, epoch: u64) -> Self {
        Self {
            input,
            buffer,
            rng: EpochRng::new(seed, epoch),
            pool: Pool::Values(Vec::new()),
            ended: false,
            kept: None,
            failed: None,
        }
    }

    /// Fills the buffer from the input, as far as the input has elements.
    fn fill(&mut self) -> Result<()> {
        while !self.ended && self.pool.len() < self.buffer {
            match self.input.next(self.buffer - self.pool.len()) {
                Some(chunk) => self.pool.add(chunk?)?,
                None => self.ended = true,
            }
        }
        Ok(())
    }

    /// Draws up to `max` elements. For each draw, the buffer is as full as the input allows, so the order does
    /// not depend on `max`.
    fn draw(&mut self, max: usize) -> Result<Option<Chunk>> {
        let mut drawn = None;
        for _ in 0..max {
            match self.fill() {
                Ok(()) => {}
                Err(error) if drawn.is_none() => return Err(error),
                Err(error) => {
                    self.failed = Some(error);
                    break;
                }
            }
            let waiting = self.pool.len();
            if waiting == 0 {
                break;
            }
            let i = self.kept.take().unwrap_or_else(|| self.rng.below(waiting));
            if !self.pool.draw(i, &mut drawn) {
                self.kept = Some(i);
                break;
            }
        }
        Ok(drawn)
    }
}

impl Stage for ShuffleStage {
    fn next(&mut self, max: usize) -> Option<Result<Chunk>> {
        match self.failed.take() {
            Some(error) => Some(Err(error)),
            None => self.draw(max).transpose(),
        }
    }

    fn passes(&self) -> usize {
        self.input.passes()
    }
}

#[cfg(test)]
mod tests {
    use crate::Dataset;
    use crate::testing::{ids, values};
    use distribute_tensor::HostTensor;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_shuffle_is_a_reproducible_permutation(n in 0usize..60, buffer in 1usize..70, seed: u64, epoch in 0u64..4) {
            let data = Dataset::range(n as i64).shuffle(buffer, seed);
            let once: Vec<i64> = data.epoch(epoch).map(Result::unwrap).collect();
            let again: Vec<i64> = data.epoch(epoch).map(Result::unwrap).collect();
            prop_assert_eq!(&once, &again);
            for (place, id) in once.iter().enumerate() {
                // No element can come before it has entered the buffer.
                prop_assert!((*id as usize) < place + buffer);
            }
            let mut sorted = once;
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (0..n as i64).collect::<Vec<_>>());
        }

        #[test]
        fn the_order_does_not_depend_on_how_elements_travel(n in 0usize..40, buffer in 1usize..50, batch in 1usize..9) {
            let rows = Dataset::range(n as i64).shuffle(buffer, 3);
            let alone = values(&rows);
            prop_assert_eq!(&ids(&rows.clone().batch(batch)).concat(), &alone);
            let mapped = Dataset::range(n as i64).map(|x| x).shuffle(buffer, 3);
            prop_assert_eq!(&ids(&mapped.batch(batch)).concat(), &alone);
            let tensor = HostTensor::vector((0..n as i64).collect::<Vec<_>>());
            let slices = Dataset::from_slices(tensor).unwrap().shuffle(buffer, 3);
            prop_assert_eq!(&ids(&slices.batch(batch)).concat(), &alone);
        }
    }

    #[test]
    fn every_epoch_has_its_own_order() {
        let data = Dataset::range(100).shuffle(100, 42);
        let epochs: Vec<_> = (0..3).map(|_| values(&data)).collect();
        assert!(epochs[0] != epochs[1] && epochs[1] != epochs[2] && epochs[0] != epochs[2]);
        let same_seed = Dataset::range(100).shuffle(100, 42);
        assert_eq!((0..3).map(|_| values(&same_seed)).collect::<Vec<_>>(), epochs);
        assert_ne!(values(&Dataset::range(100).shuffle(100, 43)), epochs[0]);
    }

    #[test]
    fn all_orders_are_about_equally_likely_with_a_large_buffer() {
        let data = Dataset::range(3).shuffle(3, 9);
        let mut counts = std::collections::BTreeMap::new();
        for _ in 0..6000 {
            *counts.entry(values(&data)).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 6);
        assert!(counts.values().all(|c| (850..1150).contains(c)), "{counts:?}");
    }

    #[test]
    fn elements_of_several_sources_mix() {
        let two = Dataset::range(4).map(|x| x).repeat(2).shuffle(3, 1);
        let mut all = values(&two);
        all.sort_unstable();
        assert_eq!(all, [0, 0, 1, 1, 2, 2, 3, 3]);
    }
}
