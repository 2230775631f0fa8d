//! [`WorkerPass`]: one worker's pass, as a public type.

use super::position::Position;
use super::steps::Steps;
use crate::plan::ends::StepCounts;
use crate::{Error, Result};
use distribute_tensor::{Leaf, Nest, Tree};
use std::marker::PhantomData;

/// One worker's pass over a [`Distribution`](super::Distribution).
///
/// Workers that read different data decide together before each step whether to take it.
/// [`prepare`](WorkerPass::prepare) returns the counts of this worker, and [`finish`](WorkerPass::finish) takes
/// the sum over all workers.
pub struct WorkerPass<T> {
    steps: Steps,
    begun: Position,
    /// Whether every worker reads the same batches.
    same_batches: bool,
    nest: PhantomData<fn() -> T>,
}

impl<T> std::fmt::Debug for WorkerPass<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerPass").field("same_batches", &self.same_batches).finish_non_exhaustive()
    }
}

impl<T: Nest> WorkerPass<T> {
    /// Creates a pass that began at the position `begun`.
    pub(super) fn new(steps: Steps, begun: Position, same_batches: bool) -> Self {
        Self { steps, begun, same_batches, nest: PhantomData }
    }

    /// Returns the sum of the counts of all workers for the prepared step. `counts` are ordered by worker. Also
    /// checks that workers that read the same batches reach the end in the same step.
    ///
    /// # Errors
    /// - [`Error::OtherData`]: the workers read the same batches, but one of them reached the end before the
    ///   others.
    pub fn total(&self, counts: &[StepCounts]) -> Result<StepCounts> {
        let all: StepCounts = counts.iter().copied().sum();
        let ended = counts.iter().position(|counts| counts.missing > 0);
        match ended.filter(|_| self.same_batches && all.present > 0) {
            Some(worker) => Err(Error::OtherData { step: self.steps.taken(), worker }),
            None => Ok(all),
        }
    }

    /// Returns the current position: after the steps that have been taken.
    pub fn position(&self) -> Position {
        Position { steps: self.steps.taken(), ..self.begun.clone() }
    }

    /// Prepares the per-replica batches of the next step, and returns their counts.
    ///
    /// # Errors
    /// Returns any error of the pipeline, or of the function that prepares batches. The error ends the pass.
    pub fn prepare(&mut self) -> Result<StepCounts> {
        self.steps.prepare()
    }

    /// Takes the prepared step, and returns a batch for each replica of this worker. `all` is the sum of the
    /// counts of all workers. Returns `None` if the workers do not take the step, because the pass is over.
    ///
    /// # Errors
    /// - [`Error::NoEmptyBatch`]: a replica of any worker has no data, and an empty batch cannot be created for it.
    /// - [`Error::Type`]: a per-replica batch cannot be converted to `T`.
    pub fn finish(&mut self, all: StepCounts) -> Result<Option<Vec<T>>> {
        let Some(pieces) = self.finish_trees(all)? else { return Ok(None) };
        let typed = |(index, piece)| {
            T::from_tree(piece).map_err(|source| Error::Type { operation: "distribute", index, source })
        };
        pieces.into_iter().enumerate().map(typed).collect::<Result<_>>().map(Some)
    }

    /// Takes the prepared step like [`finish`](WorkerPass::finish), but returns batches whose structure is known
    /// only at run time.
    ///
    /// # Errors
    /// - [`Error::NoEmptyBatch`]: a replica of any worker has no data, and an empty batch cannot be created for it.
    pub fn finish_trees(&mut self, all: StepCounts) -> Result<Option<Vec<Tree<Leaf>>>> {
        self.steps.finish(all)
    }

    /// Prepares and takes the next step, and returns a batch for each replica; `None` at the end of the pass. This is
    /// for a single worker, or for workers that can only reach the end in the same step.
    ///
    /// # Errors
    /// Returns the errors of [`prepare`](WorkerPass::prepare) and [`finish`](WorkerPass::finish).
    pub fn step(&mut self) -> Result<Option<Vec<T>>> {
        let mine = self.prepare()?;
        self.finish(mine)
    }
}
