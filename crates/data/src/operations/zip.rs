//! The operation that zips two datasets.

use super::pairing::Pairing;
use crate::chunk::Chunk;
use crate::pipeline::{Batching, Look, Operation, Pipeline, Sharding};
use crate::stage::Stage;
use crate::{Cardinality, Dataset, ElementSpec, Error, Result};
use distribute_tensor::{Nest, Tree};
use std::sync::Arc;

impl<T: Nest> Dataset<T> {
    /// Returns a dataset of pairs of one element from each dataset. The result ends with the shorter dataset. To zip
    /// more than two datasets, zip again. If necessary, [`typed`](Dataset::typed) flattens the type `((a, b), c)`.
    ///
    /// ```
    /// # use distribute_data::Dataset;
    /// let data = Dataset::range(2).zip(&Dataset::range(10..20));
    /// assert_eq!(data.iter().collect::<Result<Vec<_>, _>>()?, [(0, 10), (1, 11)]);
    /// # Ok::<(), distribute_data::Error>(())
    /// ```
    #[doc(alias = "tf.data.Dataset.zip")]
    pub fn zip<U: Nest>(&self, other: &Dataset<U>) -> Dataset<(T, U)> {
        Dataset::of(Zip { inputs: [self.pipeline().clone(), other.pipeline().clone()], exact: false })
    }

    /// Zips like [`zip`](Dataset::zip), but requires that both datasets have the same length. Otherwise the pass
    /// returns [`Error::UnequalZip`]: before anything is read if both lengths are known, or else when one dataset ends
    /// before the other.
    pub fn zip_equal<U: Nest>(&self, other: &Dataset<U>) -> Dataset<(T, U)> {
        Dataset::of(Zip { inputs: [self.pipeline().clone(), other.pipeline().clone()], exact: true })
    }
}

struct Zip {
    inputs: [Pipeline; 2],
    exact: bool,
}

impl Operation for Zip {
    fn inputs(&self) -> &[Pipeline] {
        &self.inputs
    }

    fn over(&self, f: &mut dyn FnMut(&Pipeline) -> Pipeline) -> Option<Pipeline> {
        Some(Arc::new(Zip { inputs: self.inputs.each_ref().map(f), exact: self.exact }))
    }

    fn describe(&self) -> String {
        if self.exact { "zip, equally long".into() } else { "zip".into() }
    }

    fn cardinality(&self) -> Cardinality {
        match self.inputs.each_ref().map(|input| input.cardinality()) {
            [Cardinality::Finite(a), Cardinality::Finite(b)] => Cardinality::Finite(a.min(b)),
            [Cardinality::Finite(0), _] | [_, Cardinality::Finite(0)] => Cardinality::Finite(0),
            [known, Cardinality::Infinite] | [Cardinality::Infinite, known] => known,
            _ => Cardinality::Unknown,
        }
    }

    fn batching(&self) -> Batching {
        let [first, second] = &self.inputs;
        first.batching().or(second.batching())
    }

    fn spec(&self, look: Look) -> Option<ElementSpec> {
        let [first, second] = &self.inputs;
        Some(Tree::Tuple(vec![first.spec(look)?, second.spec(look)?]))
    }

    fn check(&self) -> Result<()> {
        let [first, second] = self.inputs.each_ref().map(|input| input.cardinality());
        let unequal = |shorter, len, other| Err(Error::UnequalZip { shorter, len, other });
        match (first, second) {
            _ if !self.exact => Ok(()),
            (Cardinality::Finite(a), Cardinality::Finite(b)) if a < b => unequal("first", a, second),
            (Cardinality::Finite(a), Cardinality::Finite(b)) if b < a => unequal("second", b, first),
            (Cardinality::Finite(a), Cardinality::Infinite) => unequal("first", a, second),
            (Cardinality::Infinite, Cardinality::Finite(b)) => unequal("second", b, first),
            _ => Ok(()),
        }
    }

    fn sharding(&self) -> Sharding {
        Sharding::Whole
    }

    fn start(&self, epoch: u64) -> Box<dyn Stage> {
        // Expensive elements are made one by one, so that none is made beyond the end of the shorter dataset.
        let at_once = if self.costly() { 1 } else { MAX_AT_ONCE };
        let [first, second] = self.inputs.each_ref().map(|input| input.start(epoch));
        let pairing = Pairing::default();
        Box::new(ZipStage { first, second, exact: self.exact, at_once, index: 0, pairing, ended: false })
    }
}

/// The maximum number of pairs that are created at a time.
const MAX_AT_ONCE: usize = 1024;

struct ZipStage {
    first: Box<dyn Stage>,
    second: Box<dyn Stage>,
    exact: bool,
    at_once: usize,
    index: usize,
    pairing: Pairing,
    ended: bool,
}

impl ZipStage {
    /// Handles the end of one dataset before the other. `ended` is the name of the shorter one.
    fn end(&mut self, ended: &'static str) -> Result<()> {
        self.ended = true;
        if self.exact {
            Err(Error::UnequalZip { shorter: ended, len: self.index, other: Cardinality::Unknown })
        } else {
            Ok(())
        }
    }

    /// Handles the end of the first dataset. If the lengths must be equal, checks that the second one ends as
    /// well.
    fn end_both(&mut self) -> Result<()> {
        self.ended = true;
        if self.exact && self.second.skip(1)? > 0 { self.end("first") } else { Ok(()) }
    }

    fn pairs(&mut self, max: usize) -> Result<Option<Chunk>> {
        let Some(first) = self.first.next(max.min(self.at_once)).transpose()? else {
            return self.end_both().map(|()| None);
        };
        let Some(second) = self.second.next(first.len()).transpose()? else {
            return self.end("second").map(|()| None);
        };
        let pairs = self.rest(first, second)?;
        self.index += pairs.len();
        Ok(Some(pairs))
    }

    /// Pairs two chunks. If `second` is shorter, first reads the missing elements. If the second dataset ends before
    /// that, the result is shorter than `first`.
    fn rest(&mut self, first: Chunk, second: Chunk) -> Result<Chunk> {
        if second.len() == first.len() {
            return self.pairing.pair(first, second);
        }
        let wanted = first.len();
        let mut seconds = second.into_values()?;
        while seconds.len() < wanted {
            match self.second.next(wanted - seconds.len()) {
                Some(chunk) => seconds.extend(chunk?.into_values()?),
                None => {
                    self.ended = true;
                    break;
                }
            }
        }
        self.pairing.pair(first, Chunk::Values(seconds))
    }
}

/// A stage that yields pairs. Skipping reads both inputs, because an input that is skipped separately could fail
/// beyond the end of the other.
impl Stage for ZipStage {
    fn next(&mut self, max: usize) -> Option<Result<Chunk>> {
        match (self.ended, self.exact) {
            (true, false) => None,
            (true, true) => Some(self.end("second").map(|()| Chunk::Values(Vec::new()))),
            (false, _) => self.pairs(max).transpose(),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Batching, Cardinality, Dataset, Error, Result};
    use distribute_tensor::HostTensor;
    use distribute_testing::watched;
    use proptest::prelude::*;

    /// Returns a dataset of the numbers `0..n`, whose kind is selected by `kind`: rows, values, unknown length, several
    /// sources, or prepared early.
    fn of_kind(n: i64, kind: usize) -> Dataset<i64> {
        match kind {
            0 => Dataset::range(n),
            1 => Dataset::range(n).map(|x| x),
            2 => Dataset::range(n).filter(|_| true),
            3 => Dataset::range(n / 2).concatenate(&Dataset::range(n / 2..n)),
            _ => Dataset::range(n).prefetch(2),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn pairs_end_with_the_shorter(
            a in 0i64..30, b in 0i64..30, kinds in (0usize..5, 0usize..5), skip in 0usize..12, batch in 1usize..8,
        ) {
            watched(move || {
                let (first, second) = (of_kind(a, kinds.0), of_kind(b, kinds.1).map(|x| x + 100));
                let second = if kinds.1 == 0 { Dataset::range(100..100 + b) } else { second };
                let data = first.zip(&second);
                let expected: Vec<_> = (0..a.min(b)).map(|i| (i, i + 100)).collect();
                assert_eq!(data.iter().collect::<Result<Vec<_>>>().unwrap(), expected);
                let skipped = data.skip(skip).iter().collect::<Result<Vec<_>>>().unwrap();
                assert_eq!(skipped, expected[skip.min(expected.len())..]);
                let mut together = Vec::new();
                for pair in data.batch(batch).iter() {
                    let (x, y) = pair.unwrap();
                    let (x, y) = (x.to_vec::<i64>().unwrap(), y.to_vec::<i64>().unwrap());
                    together.extend(x.into_iter().zip(y));
                }
                assert_eq!(together, expected);
                let exact: Result<Vec<_>> = first.zip_equal(&second).skip(skip.min(a.min(b) as usize)).iter().collect();
                assert_eq!(exact.is_ok(), a == b, "{exact:?}");
            });
        }
    }

    #[test]
    fn unequal_lengths_are_named() {
        let range = Dataset::range(3);
        let error = range.zip_equal(&Dataset::range(5)).check().unwrap_err().to_string();
        assert_eq!(
            error,
            "zip_equal: the first dataset ends after 3 elements, the other doesn't (5 elements)"
        );
        assert!(matches!(
            range.repeat_forever().zip_equal(&range).check(),
            Err(Error::UnequalZip { shorter: "second", len: 3, other: Cardinality::Infinite })
        ));
        let unknown = Dataset::range(5).filter(|x| *x < 2);
        let mut pass = range.zip_equal(&unknown).iter();
        assert_eq!(pass.by_ref().take(2).map(Result::unwrap).collect::<Vec<_>>(), [(0, 0), (1, 1)]);
        let error = pass.next().unwrap().unwrap_err().to_string();
        assert_eq!(
            error,
            "zip_equal: the second dataset ends after 2 elements, the other doesn't (length unknown)"
        );
        let error = unknown.zip_equal(&range).iter().last().unwrap().unwrap_err();
        assert!(matches!(error, Error::UnequalZip { shorter: "first", len: 2, .. }), "{error}");
    }

    #[test]
    fn nothing_behind_the_end_of_the_shorter_is_made() {
        let fails = Dataset::range(9).try_map(|x| if x > 2 { Err("behind the end") } else { Ok(x) });
        assert_eq!(fails.zip(&Dataset::range(2)).batch(9).iter().filter(Result::is_ok).count(), 1);
        assert_eq!(Dataset::range(2).zip(&fails).batch(9).iter().filter(Result::is_ok).count(), 1);
    }

    #[test]
    fn pairs_of_rows_are_cut_out_in_one_piece() {
        let x = HostTensor::vector(vec![1i64, 2, 3]);
        let data = Dataset::from_slices(x.clone()).unwrap();
        let (a, b) = data.zip(&data).batch(3).iter().next().unwrap().unwrap();
        for tensor in [a, b] {
            assert!(std::ptr::eq(tensor.as_slice::<i64>().unwrap(), x.as_slice::<i64>().unwrap()), "copied");
        }
        let shuffled = data.zip(&data).shuffle(3, 1).batch(3).iter().next().unwrap().unwrap();
        assert_eq!(shuffled.0, shuffled.1);
    }

    #[test]
    fn an_end_too_early_is_found_by_a_skip_too() {
        let short = Dataset::range(7).batch(3).unbatch::<i64>();
        let mut stage = Dataset::range(20).zip_equal(&short).pipeline().start(0);
        assert_eq!(stage.next(20).unwrap().unwrap().len(), 7);
        assert!(matches!(stage.skip(1), Err(Error::UnequalZip { .. })));
    }

    // DIST-3
    #[test]
    fn common_batch_sizes_and_element_specs_are_kept() {
        let batched = |size| Dataset::range(7).batch(size);
        assert_eq!(batched(3).zip(&batched(3)).batching(), Batching::Batches(3));
        assert_eq!(batched(3).zip(&batched(2)).batching(), Batching::Unknown);
        assert_eq!(batched(3).zip(&batched(2)).cardinality(), Cardinality::Finite(3));
        assert_eq!(batched(3).repeat_forever().zip(&batched(2)).cardinality(), Cardinality::Finite(4));
        let described =
            batched(3).zip(&batched(2)).element_spec().unwrap().describe(&|spec| spec.to_string());
        assert_eq!(described, "(int64 [?], int64 [?])");
    }
}
