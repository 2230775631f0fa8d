//! The operation that splits batches into other sizes, across their boundaries.

use super::repeat::EmptyPassCounter;
use crate::chunk::Chunk;
use crate::error::at_least_one;
use crate::pipeline::{Batching, Look, Operation, Pipeline, Sharding, one_input};
use crate::room::fits;
use crate::stage::Stage;
use crate::{Cardinality, Dataset, ElementSpec, Error, Result};
use distribute_tensor::{Leaf, Nest, Tree};
use std::sync::Arc;

impl<T: Nest> Dataset<T> {
    /// Concatenates the rows of all batches, and splits them into batches of the given sizes, which are used in
    /// turn and repeated. The last batch may be shorter.
    ///
    /// A size of 0 gives an empty batch. If no size is positive, the pass returns [`Error::Parameter`]. Elements that
    /// are not batches result in [`Error::Scalar`], [`Error::UnequalRows`] or [`Error::NoTensor`].
    ///
    /// ```
    /// # use distribute_data::Dataset;
    /// let batches = Dataset::range(7).batch(3).rebatch(&[2]);
    /// let sizes: Vec<_> = batches.iter().map(|batch| batch.unwrap().dims()[0]).collect();
    /// assert_eq!(sizes, [2, 2, 2, 1]);
    /// ```
    #[doc(alias = "tf.data.Dataset.rebatch")]
    pub fn rebatch(&self, sizes: &[usize]) -> Self {
        Self::of(Rebatch { input: self.pipeline().clone(), sizes: sizes.into(), drop_remainder: false })
    }

    /// Splits batches like [`rebatch`](Dataset::rebatch), but drops the last batch if it is not full.
    #[doc(alias = "drop_remainder")]
    pub fn rebatch_exact(&self, sizes: &[usize]) -> Self {
        Self::of(Rebatch { input: self.pipeline().clone(), sizes: sizes.into(), drop_remainder: true })
    }
}

#[derive(Clone)]
struct Rebatch {
    input: Pipeline,
    sizes: Arc<[usize]>,
    drop_remainder: bool,
}

impl Operation for Rebatch {
    one_input!();

    fn describe(&self) -> String {
        let remainder = if self.drop_remainder { ", remainder dropped" } else { "" };
        format!("rebatch to {:?}{remainder}", self.sizes)
    }

    fn cardinality(&self) -> Cardinality {
        match self.input.cardinality() {
            Cardinality::Finite(n) if n > 0 => Cardinality::Unknown,
            other => other,
        }
    }

    fn batching(&self) -> Batching {
        match self.sizes.as_ref() {
            [size] => Batching::Batches(*size),
            _ => Batching::Unknown,
        }
    }

    fn spec(&self, look: Look) -> Option<ElementSpec> {
        let rows = match self.sizes.as_ref() {
            [size] if self.drop_remainder => Some(*size),
            _ => None,
        };
        Some(self.input.spec(look)?.map(&mut |spec| spec.with_rows(rows)))
    }

    fn check(&self) -> Result<()> {
        let largest = self.sizes.iter().copied().max().unwrap_or(0);
        at_least_one("rebatch", "the largest size", largest)?;
        let rows = match self.input.batching() {
            Batching::Batches(rows) => rows,
            _ => 1,
        };
        let rows = self.input.cardinality().map(|batches| batches.saturating_mul(rows));
        fits("rebatch", "the largest size", largest, rows)
    }

    fn sharding(&self) -> Sharding {
        Sharding::Whole
    }

    fn start(&self, epoch: u64) -> Box<dyn Stage> {
        let stage = RebatchStage::new(self.input.start(epoch), self.sizes.clone());
        Box::new(RebatchStage { drop_remainder: self.drop_remainder, ..stage })
    }
}

/// A stage that splits the rows of a stream of batches into batches whose sizes repeat in a cycle.
pub(crate) struct RebatchStage {
    input: Box<dyn Stage>,
    sizes: Arc<[usize]>,
    turn: usize,
    rows: Rest,
    ended: bool,
    drop_remainder: bool,
    empty_passes: EmptyPassCounter,
}

/// The remaining rows of the batch that was read last.
struct Rest {
    batch: Tree<Leaf>,
    start: usize,
    rows: usize,
}

impl RebatchStage {
    /// Creates a stage. At least one of the sizes must be positive.
    pub(crate) fn new(input: Box<dyn Stage>, sizes: Arc<[usize]>) -> Self {
        let rows = Rest { batch: Tree::None, start: 0, rows: 0 };
        let empty_passes = EmptyPassCounter::default();
        Self { input, sizes, turn: 0, rows, ended: false, drop_remainder: false, empty_passes }
    }

    /// Reads batches until one has rows. Returns `false` at the end.
    fn fill(&mut self) -> Result<bool> {
        while self.rows.start == self.rows.rows && !self.ended {
            match self.input.next(1) {
                Some(chunk) => {
                    let Some(batch) = chunk?.into_values()?.pop() else { continue };
                    let rows = crate::split::rows(&batch, "rebatch")?;
                    self.rows = Rest { batch, start: 0, rows };
                    match rows {
                        0 => self.empty_passes.nothing("rebatch", self.input.passes())?,
                        _ => self.empty_passes.found(),
                    }
                }
                None => self.ended = true,
            }
        }
        Ok(self.rows.start < self.rows.rows)
    }

    fn piece(&mut self) -> Result<Option<Tree<Leaf>>> {
        let size = self.sizes.get(self.turn % self.sizes.len().max(1)).copied().unwrap_or_default();
        // The form of an empty piece is only known once there is a batch.
        let more = self.fill()?;
        if (size > 0 && !more) || matches!(self.rows.batch, Tree::None) {
            return Ok(None);
        }
        self.turn += 1;
        let mut parts = Vec::new();
        let mut wanted = size;
        while wanted > 0 && self.fill()? {
            let len = wanted.min(self.rows.rows - self.rows.start);
            parts.push(self.rows.batch.narrow_rows(self.rows.start, len)?);
            self.rows.start += len;
            wanted -= len;
        }
        if self.drop_remainder && wanted > 0 {
            return Ok(None);
        }
        match parts.len() {
            0 => Ok(Some(self.rows.batch.narrow_rows(0, 0)?)),
            1 => Ok(parts.pop()),
            _ => {
                let elements = parts.len();
                let batch = self.turn - 1;
                let stacked = Tree::concat_rows(parts);
                stacked.map(Some).map_err(|source| Error::Stack { batch, elements, source })
            }
        }
    }
}

impl Stage for RebatchStage {
    fn next(&mut self, _max: usize) -> Option<Result<Chunk>> {
        self.piece().transpose().map(|piece| piece.map(Chunk::one))
    }

    fn passes(&self) -> usize {
        self.input.passes()
    }
}

#[cfg(test)]
mod tests {
    use crate::plan::recut::recut;
    use crate::testing::ids;
    use crate::{Dataset, Error};
    use proptest::prelude::*;

    #[test]
    fn batches_are_cut_over_their_borders() {
        let batches = Dataset::range(8).batch(3);
        assert_eq!(ids(&batches.rebatch(&[2])), [[0, 1], [2, 3], [4, 5], [6, 7]]);
        assert_eq!(ids(&batches.rebatch(&[5])), [vec![0, 1, 2, 3, 4], vec![5, 6, 7]]);
        assert_eq!(ids(&batches.rebatch(&[4, 0])), [vec![0, 1, 2, 3], vec![], vec![4, 5, 6, 7], vec![]]);
        assert_eq!(ids(&batches.take(0).rebatch(&[4])), [[0i64; 0]; 0]);
        assert_eq!(ids(&batches.rebatch_exact(&[5])), [[0, 1, 2, 3, 4]]);
        assert_eq!(ids(&batches.rebatch_exact(&[6, 2])), [vec![0, 1, 2, 3, 4, 5], vec![6, 7]]);
    }

    #[test]
    fn invalid_batches_and_sizes_are_errors() {
        let first = |data: Dataset<i64>| data.iter().next().unwrap().unwrap_err();
        assert!(matches!(first(Dataset::range(3).rebatch(&[1])), Error::Scalar { .. }));
        assert!(matches!(first(Dataset::range(3).rebatch(&[0, 0])), Error::Parameter { .. }));
        assert!(matches!(first(Dataset::range(3).rebatch(&[])), Error::Parameter { .. }));
    }

    proptest! {
        #[test]
        fn pieces_are_those_of_the_plan(
            n in 0usize..40, batch in 1usize..9, sizes in proptest::collection::vec(0usize..7, 1..5),
        ) {
            prop_assume!(n > 0 && sizes.iter().any(|size| *size > 0));
            let expected: Vec<Vec<i64>> =
                recut(n, &sizes).into_iter().map(|piece| piece.map(|id| id as i64).collect()).collect();
            prop_assert_eq!(ids(&Dataset::range(n as i64).batch(batch).rebatch(&sizes)), expected);
        }
    }
}
