//! Splits a worker's batches into per-replica batches.

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

/// The way a worker's batches are split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Every worker reads the same batches. Each batch has `of` pieces, and this worker takes `pieces`, in
    /// this order.
    Own { rule: SplitRule, of: usize, pieces: Vec<usize> },
    /// Every worker reads its own batches, of `full` rows if that is known, and takes its share in each step.
    Shares { full: Option<usize>, layout: Layout, worker: usize },
    /// Batches are cut across their boundaries, into a cycle of sizes.
    Stream { sizes: Vec<usize> },
    /// Elements are passed on as they are.
    Not,
}

impl Cut {
    /// Returns a stage of per-replica batches, in the order of steps and of replicas within a step.
    pub(crate) fn start(self, batches: Box<dyn Stage>) -> Box<dyn Stage> {
        match self {
            Cut::Not => batches,
            Cut::Stream { sizes } => Box::new(RebatchStage::new(batches, sizes.into())),
            Cut::Own { .. } | Cut::Shares { .. } => {
                Box::new(CutStage { input: batches, cut: self, ready: VecDeque::new() })
            }
        }
    }

    /// Returns the rows of a first batch of `rows` rows: one range for each of the worker's replicas, for
    /// each step that the batch lasts.
    pub(crate) fn pieces(&self, rows: usize) -> Vec<Range<usize>> {
        match self {
            Cut::Stream { sizes } => recut(rows, sizes),
            Cut::Not => std::iter::once(0..rows).collect(),
            Cut::Own { rule, of, pieces } => pieces.iter().map(|k| rule.piece(rows, *of, *k)).collect(),
            Cut::Shares { full, layout, worker } => {
                shares::steps(rows, full.unwrap_or(rows), layout.workers, layout.replicas, *worker).concat()
            }
        }
    }

    /// Returns the number of pieces of every batch, if it is constant.
    fn pieces_of_a_batch(&self) -> Option<usize> {
        match self {
            Cut::Own { pieces, .. } => Some(pieces.len()),
            Cut::Not => Some(1),
            Cut::Shares { .. } | Cut::Stream { .. } => None,
        }
    }
}

/// Splits one batch after another.
struct CutStage {
    input: Box<dyn Stage>,
    cut: Cut,
    ready: VecDeque<Tree<Leaf>>,
}

impl CutStage {
    fn piece(&mut self) -> Result<Option<Chunk>> {
        while self.ready.is_empty() {
            let Some(chunk) = self.input.next(1) else { return Ok(None) };
            match chunk? {
                Chunk::Batch(batch) => {
                    let pieces = self.cut.pieces(batch.len());
                    self.ready.extend(batch.cut(pieces)?);
                }
                chunk => {
                    for batch in chunk.into_values()? {
                        let pieces = self.cut.pieces(batch_rows(&batch)?);
                        self.ready.extend(pieces_of(&batch, &pieces)?);
                    }
                }
            }
        }
        Ok(self.ready.pop_front().map(Chunk::one))
    }
}

impl Stage for CutStage {
    fn next(&mut self, _max: usize) -> Option<Result<Chunk>> {
        self.piece().transpose()
    }

    /// Skips whole batches without splitting them, if the number of their pieces is known.
    fn skip(&mut self, count: usize) -> Result<usize> {
        let mut left = count;
        if let (Some(each), true) = (self.cut.pieces_of_a_batch().filter(|n| *n > 0), self.ready.is_empty()) {
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
