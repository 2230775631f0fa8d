//! [`WorkerPass`]: one worker's pass, as a public type.

use super::deals::{Dealer, Deals};
use super::position::Position;
use super::steps::Steps;
use crate::hand::NewFiles;
use crate::plan::ends::StepCounts;
use crate::{Error, Result};
use distribute_tensor::{Leaf, Nest, Tree};
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

/// One worker's pass over a [`Distribution`](super::Distribution).
///
/// Workers that read different data decide together before each step whether to take it.
/// [`prepare`](WorkerPass::prepare) returns the counts of this worker, and [`finish`](WorkerPass::finish) takes
/// the sum over all workers. If files are dealt, [`deal`](WorkerPass::deal) is called between the two.
pub struct WorkerPass<T> {
    steps: Steps,
    begun: Position,
    /// Whether every worker reads the same batches.
    same_batches: bool,
    dealing: Dealing,
    nest: PhantomData<fn() -> T>,
}

/// The way in which a pass deals files.
pub(super) enum Dealing {
    /// Files are not dealt.
    None,
    /// The pass of worker `worker`. The passes of the other workers have equal dealers.
    Own { dealer: Dealer, worker: usize },
    /// The pass repeats the steps of earlier workers. Its stage deals files to all of them, possibly before the steps
    /// are taken, so `log` contains the deals of each step.
    Repeated { log: DealLog, latest: Deals },
}

/// A log of deals, each with the number of steps after which they apply.
#[derive(Clone, Default)]
pub(super) struct DealLog(Arc<Mutex<VecDeque<(u64, Deals)>>>);

impl DealLog {
    /// Records the deals after `steps` steps.
    pub(super) fn push(&self, steps: u64, deals: &Deals) {
        let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Deals only grow.
        if log.back().is_none_or(|(_, latest)| latest.count() < deals.count()) {
            log.push_back((steps, deals.clone()));
        }
    }

    /// Returns the checksum of the latest deals within the first `steps` steps; `None` if the log has none.
    fn checksum(&self, steps: u64) -> Option<u32> {
        let log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        log.iter().take_while(|(at, _)| *at <= steps).last().map(|(_, deals)| deals.checksum())
    }

    /// Removes the deals within the first `steps` steps from the log, and returns the latest of them; `None` if there
    /// are none.
    fn pop(&self, steps: u64) -> Option<Deals> {
        let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut latest = None;
        while log.front().is_some_and(|(at, _)| *at <= steps) {
            latest = log.pop_front().map(|(_, deals)| deals);
        }
        latest
    }
}

impl Dealing {
    /// Returns a checksum of the deals that all workers have made when step `step` is prepared.
    fn checksum(&self, step: u64) -> u32 {
        match self {
            Dealing::None => 0,
            Dealing::Own { dealer, .. } => dealer.deals().checksum(),
            Dealing::Repeated { log, latest } => {
                log.checksum(step.saturating_add(1)).unwrap_or_else(|| latest.checksum())
            }
        }
    }
}

impl<T> std::fmt::Debug for WorkerPass<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerPass").field("same_batches", &self.same_batches).finish_non_exhaustive()
    }
}

impl<T: Nest> WorkerPass<T> {
    pub(super) fn new(steps: Steps, begun: Position, same_batches: bool, dealing: Dealing) -> Self {
        Self { steps, begun, same_batches, dealing, nest: PhantomData }
    }

    /// Returns the sum of the counts of all workers for the prepared step. `counts` are ordered by worker. Also
    /// checks that workers that read the same batches reach the end in the same step, and that all workers have dealt
    /// the same files.
    ///
    /// # Errors
    /// - [`Error::OtherData`]: the workers read the same batches, but one of them reached the end before the others, or
    ///   a worker has dealt other files than the first one.
    pub fn total(&self, counts: &[StepCounts]) -> Result<StepCounts> {
        self.require_same_deals(counts)?;
        let all: StepCounts = counts.iter().copied().sum();
        let ended = counts.iter().position(|counts| counts.missing > 0);
        match ended.filter(|_| self.same_batches && all.present > 0) {
            Some(worker) => Err(self.other_data(worker, "is at the end of the data, but others are not")),
            None => Ok(all),
        }
    }

    /// Returns the current position: after the steps that have been taken.
    pub fn position(&self) -> Position {
        let steps = self.steps.taken();
        let deals = match &self.dealing {
            Dealing::Own { dealer, .. } => Some(dealer.deals().clone()),
            Dealing::Repeated { latest, .. } => Some(latest.clone()),
            Dealing::None => None,
        };
        Position { steps, deals: deals.filter(|_| steps > 0), ..self.begun.clone() }
    }

    /// Prepares the per-replica batches of the next step, and returns their counts.
    ///
    /// # Errors
    /// Returns any error of the pipeline, or of the function that prepares batches. The error ends the pass.
    pub fn prepare(&mut self) -> Result<StepCounts> {
        let counts = self.steps.prepare()?;
        Ok(StepCounts { deals: self.dealing.checksum(self.steps.taken()), ..counts })
    }

    fn other_data(&self, worker: usize, what: &'static str) -> Error {
        Error::OtherData { step: self.steps.taken(), worker, what }
    }

    /// Checks that all workers have dealt the same files, so that none is read twice or not at all.
    fn require_same_deals(&self, counts: &[StepCounts]) -> Result<()> {
        let first = counts.first().map_or(0, |counts| counts.deals);
        match counts.iter().position(|counts| counts.deals != first) {
            Some(worker) => Err(self.other_data(worker, "has dealt other files than worker 0")),
            None => Ok(()),
        }
    }

    /// Deals files to the workers that need some. `counts` are the counts of all workers for the prepared step, ordered
    /// by worker. The passes of all workers deal alike. Returns `true` if a worker had no file for the step; all
    /// workers [prepare](Self::prepare) it again in that case. Returns `false` if files are not dealt.
    ///
    /// # Errors
    /// - [`Error::NotDealt`]: there are not the counts of all workers, or a worker asks for files after the last one.
    /// - [`Error::OtherData`]: a worker has dealt other files than the first one.
    pub fn deal(&mut self, counts: &[StepCounts]) -> Result<bool> {
        self.require_same_deals(counts)?;
        let Dealing::Own { dealer, worker } = &mut self.dealing else { return Ok(false) };
        let answers = round(dealer, counts)?;
        if let Some(files) = answers.into_iter().nth(*worker).flatten() {
            self.steps.give(files);
        }
        Ok(counts.iter().any(|counts| counts.lacks_file > 0))
    }

    /// Takes the prepared step, and returns a batch for each replica of this worker. `all` is the sum of the
    /// counts of all workers. Returns `None` if the workers do not take the step, because the pass is over.
    ///
    /// # Errors
    /// - [`Error::NoEmptyBatch`]: a replica of any worker has no data, and an empty batch cannot be created for it.
    /// - [`Error::NotDealt`]: a worker needs a file for this step; see [`deal`](Self::deal).
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
    /// - [`Error::NotDealt`]: a worker needs a file for this step; see [`deal`](Self::deal).
    pub fn finish_trees(&mut self, all: StepCounts) -> Result<Option<Vec<Tree<Leaf>>>> {
        let finished = self.steps.finish(all)?;
        match &mut self.dealing {
            Dealing::None => {}
            Dealing::Own { dealer, .. } => dealer.step_taken(),
            Dealing::Repeated { log, latest } => {
                *latest = log.pop(self.steps.taken()).unwrap_or(latest.clone())
            }
        }
        Ok(finished)
    }

    /// Prepares and takes the next step, and returns a batch for each replica; `None` at the end of the pass. Call
    /// this only with a single worker, or if all workers reach the end in the same step.
    ///
    /// # Errors
    /// Returns the errors of [`prepare`](WorkerPass::prepare) and [`finish`](WorkerPass::finish).
    pub fn step(&mut self) -> Result<Option<Vec<T>>> {
        let mine = self.prepare()?;
        self.finish(mine)
    }
}

/// Deals files to the workers whose counts ask for them. Returns an answer for each worker; `None` if the worker did
/// not ask.
pub(super) fn round(dealer: &mut Dealer, counts: &[StepCounts]) -> Result<Vec<Option<NewFiles>>> {
    let needs: Vec<bool> =
        counts.iter().map(|counts| counts.needs_file > 0 || counts.lacks_file > 0).collect();
    let dealt = dealer.round(&needs).map_err(|error| Error::NotDealt { why: error.to_string() })?;
    let more = dealer.has_more();
    Ok(dealt.into_iter().zip(needs).map(|(files, needs)| needs.then_some(NewFiles { files, more })).collect())
}
