//! [`Lockstep`]: all workers of a distribution, running together on one thread.

use super::Distribution;
use super::deals::{Dealer, Deals};
use super::pass::{DealLog, round};
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
        Ok(Lockstep { all_steps: self.all_steps(epoch, Deals::default())?, ended: false, nest: PhantomData })
    }

    /// Starts pass `epoch` of all workers. `deals` are the files that have been dealt in this pass, if files are dealt.
    pub(super) fn all_steps(&self, epoch: u64, deals: Deals) -> Result<AllSteps> {
        let steps = |worker| self.steps(worker, epoch, &deals);
        let workers = (0..self.layout.workers).map(steps).collect::<Result<_>>()?;
        Ok(AllSteps { workers, dealer: self.dealer(deals) })
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

/// The steps of all workers. If files are dealt, also the dealer, which gives files to the workers that need them.
pub(super) struct AllSteps {
    workers: Vec<Steps>,
    dealer: Option<Dealer>,
}

impl AllSteps {
    pub(super) fn skip(&mut self, steps: u64) -> Result<()> {
        self.workers.iter_mut().try_for_each(|worker| worker.skip(steps))
    }

    /// Returns the per-replica batches of the next step, as `[worker][replica]`; `None` at the end.
    fn step(&mut self) -> Result<Option<Vec<Vec<Tree<Leaf>>>>> {
        let all = loop {
            let counts = self.workers.iter_mut().map(Steps::prepare).collect::<Result<Vec<_>>>()?;
            let all: StepCounts = counts.iter().copied().sum();
            if let Some(dealer) = &mut self.dealer {
                for (worker, files) in self.workers.iter_mut().zip(round(dealer, &counts)?) {
                    files.into_iter().for_each(|files| worker.give(files));
                }
            }
            if all.lacks_file == 0 || self.dealer.is_none() {
                break all;
            }
        };
        self.dealer.iter_mut().for_each(Dealer::step_taken);
        self.workers.iter_mut().map(|worker| worker.finish(all)).collect()
    }

    /// Records the deals as of the latest step, if files are dealt.
    fn log(&self, log: &DealLog) {
        if let (Some(dealer), Some(worker)) = (&self.dealer, self.workers.first()) {
            log.push(worker.taken(), dealer.deals());
        }
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

/// A stage that yields each step of all workers as one batch: the rows of all replicas, in their global order. The
/// batch is then split again.
pub(super) struct Gathered {
    pub(super) all_steps: AllSteps,
    /// The deals of each step that has been yielded.
    pub(super) log: DealLog,
}

impl Gathered {
    fn batch(&mut self) -> Result<Option<Chunk>> {
        let Some(step) = self.all_steps.step()? else { return Ok(None) };
        self.all_steps.log(&self.log);
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
