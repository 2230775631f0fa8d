//! The script that workers run, as a function of the seed.

use distribute_cluster::Fault;
use distribute_testing::SplitMix;
use std::time::Duration;

/// The action of a worker when it should make a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// The worker makes the same call as the others, or a different one.
    Call {
        /// Whether the worker makes a different call.
        other: bool,
    },
    /// The worker has failed, and does not participate in the call.
    Decline,
    /// The worker ends the session for all workers.
    Abandon,
    /// The worker's replicas have returned, so it leaves the session.
    Leave,
}

/// The outcome of a call, if only the script disturbs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All workers receive the data of all workers.
    Agreed,
    /// All workers that make the call receive the same blame, and can make the next call.
    Blamed(Fault),
    /// The session is over for all workers, since this call or an earlier one.
    Over,
}

/// A program of several steps, each with a separate session and several calls.
#[derive(Clone, Debug)]
pub struct Script {
    /// The seed of all random choices.
    pub seed: u64,
    /// The number of workers.
    pub workers: usize,
    /// The number of steps.
    pub steps: u64,
    /// The number of calls in each step.
    pub calls: u64,
    /// The timeout of a call.
    pub timeout: Duration,
    /// The minimum and maximum time between two calls.
    pub compute: [Duration; 2],
    /// The percentage of calls in which a worker acts differently.
    pub odd: u64,
    /// The actions that may replace a call.
    pub oddities: &'static [Deed],
}

impl Script {
    fn draw(&self, what: [u64; 4]) -> SplitMix {
        let mut draw = SplitMix(self.seed);
        for number in what {
            draw = SplitMix(draw.bits() ^ number);
        }
        draw
    }

    /// Returns the time for which a worker computes before a call.
    pub fn compute(&self, generation: u64, rank: usize, step: u64, call: u64) -> Duration {
        let [least, most] = self.compute;
        let span = (most - least).as_micros() as u64;
        least + Duration::from_micros(self.draw([generation, rank as u64, step, call]).bits() % (span + 1))
    }

    /// Returns the action that replaces a call, a worker that performs it, and the source of further random choices;
    /// `None` if all workers make the call normally.
    fn oddity(&self, generation: u64, step: u64, call: u64) -> Option<(Deed, usize, SplitMix)> {
        let mut draw = self.draw([generation, u64::MAX, step, call]);
        if self.oddities.is_empty() || draw.bits() % 100 >= self.odd {
            return None;
        }
        let deed = draw.of(self.oddities);
        let rank = draw.below(self.workers);
        Some((deed, rank, draw))
    }

    /// Returns the action of a worker at a call. A worker that leaves the session does so at all later calls of the
    /// step as well.
    pub fn deed(&self, generation: u64, rank: usize, step: u64, call: u64) -> Deed {
        if (1..call).any(|call| self.leaves(generation, rank, step, call)) {
            return Deed::Leave;
        }
        match self.oddity(generation, step, call) {
            Some((deed, first, _)) if rank == first => deed,
            // Others may do the same, but one session has one end.
            Some((deed @ (Deed::Call { .. } | Deed::Decline), _, mut draw)) => {
                let same = (0..=rank).map(|_| draw.below(3)).last() == Some(0);
                if same { deed } else { Deed::Call { other: false } }
            }
            _ => Deed::Call { other: false },
        }
    }

    fn leaves(&self, generation: u64, rank: usize, step: u64, call: u64) -> bool {
        matches!(self.oddity(generation, step, call), Some((Deed::Leave, first, _)) if first == rank)
    }

    /// Returns the outcome of a call, if only the script disturbs it.
    pub fn outcome(&self, generation: u64, step: u64, call: u64) -> Outcome {
        let deeds = |call| (0..self.workers).map(move |rank| self.deed(generation, rank, step, call));
        let abandoned = |call| deeds(call).any(|deed| deed == Deed::Abandon);
        if (1..=call).any(abandoned) {
            return Outcome::Over;
        }
        let has = |wanted: Deed| deeds(call).any(|deed| deed == wanted);
        match (has(Deed::Decline), has(Deed::Call { other: true }), has(Deed::Call { other: false })) {
            (_, true, true) => Outcome::Blamed(Fault::Mismatch),
            (true, ..) => Outcome::Blamed(Fault::Failed),
            _ if has(Deed::Leave) => Outcome::Blamed(Fault::Returned),
            _ => Outcome::Agreed,
        }
    }
}
