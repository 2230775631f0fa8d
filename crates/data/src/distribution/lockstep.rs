//! [`Lockstep`]: all workers of a distribution, running together on one thread.

use super::Distribution;
use super::steps::Steps;
use crate::chunk::Chunk;
use crate::plan::ends::StepCounts;
use crate::stage::Stage;
use crate::{Error, Result};
use distribute_tensor::{Leaf, Nest, Tree};
use std::marker::PhantomData;

impl<T: Nest> Distribution<T> {
    /// Starts pass `epoch` of all workers on the calling thread. The iterator yields the per-replica batches of each
    /// step, as `[worker][replica]`.
    ///
    /// # Errors
    /// Returns the errors of [`worker`](Distribution::worker).
    pub fn lockstep(&self, epoch: u64) -> Result<Lockstep<T>> {
        Ok(Lockstep { all_steps: self.all_steps(epoch)?, ended: false, nest: PhantomData })
    }

    /// Starts pass `epoch` of all workers.
    pub(super) fn all_steps(&self, epoch: u64) -> Result<AllSteps> {
        Ok(AllSteps((0..self.layout.workers).map(|worker| self.steps(worker, epoch)).collect::<Result<_>>()?))
    }
}

/// An iterator over the steps of all workers in one process, for inspecting the data of each replica. Yields the
/// per-replica batches of each step, as `[worker][replica]`.
pub struct Lockstep<T> {
    all_steps: AllSteps,
    ended: bool,
    nest: PhantomData<fn() -> T>,
}

impl<T> std::fmt::Debug for Lockstep<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lockstep").field("ended", &self.ended).finish_non_exhaustive()
    }
}

/// The steps of all workers.
pub(super) struct AllSteps(pub(super) Vec<Steps>);

impl AllSteps {
    /// Skips `steps` steps.
    pub(super) fn skip(&mut self, steps: u64) -> Result<()> {
        self.0.iter_mut().try_for_each(|worker| worker.skip(steps))
    }

    /// Returns the per-replica batches of the next step, as `[worker][replica]`; `None` at the end.
    fn step(&mut self) -> Result<Option<Vec<Vec<Tree<Leaf>>>>> {
        let mut all = StepCounts::default();
        for worker in &mut self.0 {
            all = all + worker.prepare()?;
        }
        self.0.iter_mut().map(|worker| worker.finish(all)).collect()
    }
}

impl<T: Nest> Iterator for Lockstep<T> {
    type Item = Result<Vec<Vec<T>>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let step = self.all_steps.step().transpose();
        self.ended = !matches!(step, Some(Ok(_)));
        let typed = |(index, piece)| {
            T::from_tree(piece).map_err(|source| Error::Type { operation: "distribute", index, source })
        };
        let worker = |pieces: Vec<Tree<Leaf>>| pieces.into_iter().enumerate().map(typed).collect();
        step.map(|step| step.and_then(|workers| workers.into_iter().map(worker).collect()))
    }
}

/// A stage that yields each step of all workers as one batch, which is to be split again: the rows of all
/// replicas, in their global order.
pub(super) struct Gathered(pub(super) AllSteps);

impl Gathered {
    fn batch(&mut self) -> Result<Option<Chunk>> {
        let Some(step) = self.0.step()? else { return Ok(None) };
        let mut pieces = step.concat();
        // If no per-replica batch has rows, one is kept.
        let filled = pieces.iter().filter(|piece| piece.rows().is_ok_and(|rows| rows > 0)).count();
        if filled > 0 {
            pieces.retain(|piece| piece.rows().is_ok_and(|rows| rows > 0));
        } else {
            pieces.truncate(1);
        }
        let elements = pieces.len();
        let batch = match pieces.len() {
            1 => pieces.pop(),
            _ => Some(Tree::concat_rows(pieces).map_err(|source| Error::Stack {
                batch: 0,
                elements,
                source,
            })?),
        };
        Ok(batch.map(Chunk::one))
    }
}

impl Stage for Gathered {
    fn next(&mut self, _max: usize) -> Option<Result<Chunk>> {
        self.batch().transpose()
    }
}
