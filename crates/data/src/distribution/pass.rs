//! [`WorkerPass`]: the public interface of one worker's pass.

use super::position::Position;
use super::steps::Steps;
use crate::plan::ends::StepCounts;
use crate::{Error, Result};
use distribute_tensor::{Leaf, Nest, Tree};
use std::marker::PhantomData;

/// One worker's pass over a [`Distribution`](super::Distribution).
///
/// Workers that read their own data decide together in each step whether there is one more:
/// [`prepare`](WorkerPass::prepare) returns this worker's counts, and [`finish`](WorkerPass::finish) takes
/// the sum over all workers.
pub struct WorkerPass<T> {
    steps: Steps,
    begun: Position,
    /// Whether every worker reads the same batches.
    same_batches: bool,
    nest: PhantomData<fn() -> T>,
}

impl<T: Nest> WorkerPass<T> {
    /// Creates a pass that began at the position `begun`.
    pub(super) fn new(steps: Steps, begun: Position, same_batches: bool) -> Self {
        Self { steps, begun, same_batches, nest: PhantomData }
    }

    /// Returns the sum of all workers' counts for the step that was prepared. Workers that read the same
    /// batches have to reach the end together.
    ///
    /// # Errors
    /// - [`Error::OtherData`]: one of several workers that read the same batches has ended before the others.
    pub fn total(&self, counts: &[StepCounts]) -> Result<StepCounts> {
        let all: StepCounts = counts.iter().copied().sum();
        let ended = counts.iter().position(|counts| counts.missing > 0);
        match ended.filter(|_| self.same_batches && all.present > 0) {
            Some(worker) => Err(Error::OtherData { step: self.steps.taken(), worker }),
            None => Ok(all),
        }
    }

    /// Returns the position after the steps that were taken.
    pub fn position(&self) -> Position {
        Position { steps: self.steps.taken(), ..self.begun.clone() }
    }

    /// Makes the per-replica batches of the next step, and returns their counts.
    ///
    /// # Errors
    /// Any error of the pipeline. It ends the pass.
    pub fn prepare(&mut self) -> Result<StepCounts> {
        self.steps.prepare()
    }

    /// Returns the step that was prepared: a batch for each replica of this worker. `None` if the workers
    /// don't take the step, because the pass is over. `all` is the sum of the counts of all workers.
    ///
    /// # Errors
    /// - [`Error::NoEmptyBatch`]: a replica has no data, and its empty batch cannot be made.
    /// - [`Error::Type`]: a per-replica batch is not a `T`.
    pub fn finish(&mut self, all: StepCounts) -> Result<Option<Vec<T>>> {
        let Some(pieces) = self.finish_trees(all)? else { return Ok(None) };
        let typed = |(index, piece)| {
            T::from_tree(piece).map_err(|source| Error::Type { operation: "distribute", index, source })
        };
        pieces.into_iter().enumerate().map(typed).collect::<Result<_>>().map(Some)
    }

    /// Returns the step as [`finish`](WorkerPass::finish) does, with a structure that is known only at run
    /// time.
    ///
    /// # Errors
    /// - [`Error::NoEmptyBatch`]: a replica has no data, and its empty batch cannot be made.
    pub fn finish_trees(&mut self, all: StepCounts) -> Result<Option<Vec<Tree<Leaf>>>> {
        self.steps.finish(all)
    }

    /// Returns the next step, for a single worker, or for workers that can only reach the end together.
    ///
    /// # Errors
    /// The errors of [`prepare`](WorkerPass::prepare) and [`finish`](WorkerPass::finish).
    pub fn step(&mut self) -> Result<Option<Vec<T>>> {
        let mine = self.prepare()?;
        self.finish(mine)
    }
}
