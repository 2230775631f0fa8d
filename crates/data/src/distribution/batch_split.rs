//! The splitting of a worker's batches into per-replica batches.

use crate::Result;
use crate::chunk::Chunk;
use crate::operations::rebatch::RebatchStage;
use crate::plan::layout::Layout;
use crate::plan::recut::recut;
use crate::plan::shares;
use crate::plan::split::SplitRule;
use crate::split::{batch_rows, pieces_of};
use crate::stage::Stage;
use distribute_tensor::{Leaf, Tree};
use std::collections::VecDeque;
use std::ops::Range;

/// The way in which a worker's batches are split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BatchSplit {
    /// Each batch is split into `of` per-replica batches by `rule`. This worker takes those with the indices in
    /// `pieces`, in this order. Workers that read the same batches take different ones.
    Own { rule: SplitRule, of: usize, pieces: Vec<usize> },
    /// Every worker reads its own batches, of the global size. In each step, all workers' shares of their batches
    /// together form a global batch; see [`shares`]. `full` is the number of rows of a full batch, if it is known.
    Shares { full: Option<usize>, layout: Layout, worker: usize },
    /// Batches are split across their boundaries, into per-replica batches whose sizes repeat in a cycle.
    Stream { sizes: Vec<usize> },
    /// Batches are not split.
    Not,
}

impl BatchSplit {
    /// Returns a stage that yields per-replica batches, in the order of steps, and of replicas within a step.
    pub(crate) fn start(self, batches: Box<dyn Stage>) -> Box<dyn Stage> {
        match self {
            BatchSplit::Not => batches,
            BatchSplit::Stream { sizes } => Box::new(RebatchStage::new(batches, sizes.into())),
            BatchSplit::Own { .. } | BatchSplit::Shares { .. } => {
                Box::new(SplitStage { input: batches, batch_split: self, ready: VecDeque::new() })
            }
        }
    }

    /// Returns the ranges of rows into which a batch of `rows` rows is split; for [`Stream`](Self::Stream), into which
    /// the first batch is split. There is one range for each of the worker's replicas in each step that uses the batch,
    /// in the order of steps.
    pub(crate) fn pieces(&self, rows: usize) -> Vec<Range<usize>> {
        match self {
            BatchSplit::Stream { sizes } => recut(rows, sizes),
            BatchSplit::Not => std::iter::once(0..rows).collect(),
            BatchSplit::Own { rule, of, pieces } => {
                pieces.iter().map(|k| rule.piece(rows, *of, *k)).collect()
            }
            BatchSplit::Shares { full, layout, worker } => {
                shares::steps(rows, full.unwrap_or(rows), layout.workers, layout.replicas, *worker).concat()
            }
        }
    }

    /// Returns the number of per-replica batches of every batch; `None` if it is not constant.
    fn pieces_of_a_batch(&self) -> Option<usize> {
        match self {
            BatchSplit::Own { pieces, .. } => Some(pieces.len()),
            BatchSplit::Not => Some(1),
            BatchSplit::Shares { .. } | BatchSplit::Stream { .. } => None,
        }
    }
}

/// A stage that splits one batch after another.
struct SplitStage {
    input: Box<dyn Stage>,
    batch_split: BatchSplit,
    ready: VecDeque<Tree<Leaf>>,
}

impl SplitStage {
    fn piece(&mut self) -> Result<Option<Chunk>> {
        while self.ready.is_empty() {
            let Some(chunk) = self.input.next(1) else { return Ok(None) };
            match chunk? {
                Chunk::Batch(batch) => {
                    let pieces = self.batch_split.pieces(batch.len());
                    self.ready.extend(batch.cut(pieces)?);
                }
                chunk => {
                    for batch in chunk.into_values()? {
                        let pieces = self.batch_split.pieces(batch_rows(&batch)?);
                        self.ready.extend(pieces_of(&batch, &pieces)?);
                    }
                }
            }
        }
        Ok(self.ready.pop_front().map(Chunk::one))
    }
}

impl Stage for SplitStage {
    fn next(&mut self, _max: usize) -> Option<Result<Chunk>> {
        self.piece().transpose()
    }

    /// Skips complete batches without splitting them, if the number of their pieces is known.
    fn skip(&mut self, count: usize) -> Result<usize> {
        let mut left = count;
        if let (Some(each), true) =
            (self.batch_split.pieces_of_a_batch().filter(|n| *n > 0), self.ready.is_empty())
        {
            let batches = self.input.skip(left / each)?;
            left -= batches * each;
            if left >= each {
                return Ok(count - left);
            }
        }
        while left > 0 && self.piece()?.is_some() {
            left -= 1;
        }
        Ok(count - left)
    }
}
