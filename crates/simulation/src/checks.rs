//! The rules that must hold in every simulation.

use crate::course::Weights;
use crate::network::Pid;
use crate::script::{Outcome, Script};
use distribute_cluster::{Blame, Fault};
use std::collections::BTreeMap;

/// The sequence numbers of a generation, a session and a round.
type Round = (u64, u64, u64);

/// The way in which faults may affect the outcomes of calls. Regardless of the faults, all workers may agree on a call
/// only if they agree on it according to the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certain {
    /// Only the script disturbs the calls, so all outcomes can be predicted.
    All,
    /// Workers may time out, but no worker is lost.
    NobodyLost,
    /// Workers may be lost, but none times out. A process may fail only if the others do not need it or, in worlds that
    /// grow and shrink, if all workers of a world have finished.
    NobodyLate,
    /// Workers may time out and be lost in any call.
    Nothing,
}

#[derive(Clone, Debug, PartialEq)]
enum Made {
    Agreed(f32),
    Blamed(Blame),
    /// The call failed, and the session is over for the worker.
    Over,
}

/// The results of workers, and the rules that were broken.
#[derive(Debug)]
pub struct Checks {
    script: Script,
    certain: Certain,
    one_blame: bool,
    rounds: BTreeMap<Round, BTreeMap<usize, Made>>,
    ends: BTreeMap<Round, BTreeMap<usize, Blame>>,
    broken: Vec<String>,
    /// The processes that have completed the agreement after a rendezvous, and have not been compared with the others
    /// yet. Each entry contains the generation, and the number of updates after which the process continues; `None` if
    /// no worker has a complete state.
    met: Vec<(Pid, u64, Option<u64>)>,
    /// The decisions before steps, by generation and number of steps: the cluster index of the worker whose place a
    /// spare takes; `None` if the step begins. Only in plans without faults.
    decisions: BTreeMap<(u64, u64), Option<usize>>,
    /// The processes that have begun a step which has not been checked yet.
    begun: Vec<Pid>,
    /// The number of failed calls after which a worker of a training run has taken part in another rendezvous.
    losses: usize,
    updates: usize,
    /// The states of the workers that have completed their training run.
    trained: Vec<Weights>,
}

impl Checks {
    /// Creates checks without any results.
    pub fn new(script: Script, certain: Certain, one_blame: bool) -> Self {
        Self {
            script,
            certain,
            one_blame,
            rounds: BTreeMap::new(),
            ends: BTreeMap::new(),
            broken: Vec::new(),
            met: Vec::new(),
            decisions: BTreeMap::new(),
            begun: Vec::new(),
            losses: 0,
            updates: 0,
            trained: Vec::new(),
        }
    }

    /// Records that a process continues in a generation after the given number of updates.
    pub fn meet(&mut self, pid: Pid, generation: u64, updates: u64) {
        self.met.push((pid, generation, Some(updates)));
    }

    /// Records that a process has found that no worker has a complete state.
    pub fn torn(&mut self, pid: Pid, generation: u64) {
        self.met.push((pid, generation, None));
    }

    /// Records the decision of a worker before a step of a generation: the cluster index of the worker whose place a
    /// spare takes; `None` if the step begins. Checks that all workers decide alike.
    pub fn decided(&mut self, before: (u64, u64), replaced: Option<usize>) {
        let first = *self.decisions.entry(before).or_insert(replaced);
        if first != replaced {
            self.broken.push(format!("before {before:?}, {first:?} and {replaced:?} are to be replaced"));
        }
    }

    /// Returns whether a spare takes the place of a worker in the world of this generation, in plans without faults.
    pub fn is_replaced_in(&self, generation: u64, place: usize) -> bool {
        let mut before = self.decisions.range((generation.saturating_sub(1), 0)..(generation, 0));
        before.any(|(_, replaced)| *replaced == Some(place))
    }

    /// Records that a process has begun a step.
    pub fn begun(&mut self, pid: Pid) {
        self.begun.push(pid);
    }

    /// Removes and returns the processes that have begun a step.
    pub fn take_begun(&mut self) -> Vec<Pid> {
        std::mem::take(&mut self.begun)
    }

    /// Removes and returns the processes that have not been compared with the others, each with its generation and the
    /// number of updates after which it continues; `None` if no worker has a complete state.
    pub fn take_met(&mut self) -> Vec<(Pid, u64, Option<u64>)> {
        std::mem::take(&mut self.met)
    }

    /// Records that a call of a training run has failed for a worker, which then takes part in another rendezvous.
    pub fn lost(&mut self) {
        self.losses += 1;
    }

    /// Records that a worker has made an update.
    pub fn updated(&mut self) {
        self.updates += 1;
    }

    /// Records the state of a worker that has completed its training run.
    pub fn trained(&mut self, weights: Weights) {
        self.trained.push(weights);
    }

    /// Returns the states of the workers that have completed their training run.
    pub fn states(&self) -> &[Weights] {
        &self.trained
    }

    /// Records that a rule was broken.
    pub fn broken(&mut self, what: String) {
        self.broken.push(what);
    }

    /// Returns the rules that were broken.
    pub fn into_broken(self) -> Vec<String> {
        self.broken
    }

    /// Returns `true` if no rule has been broken so far.
    pub fn hold(&self) -> bool {
        self.broken.is_empty()
    }

    /// Returns the number of rounds in which all workers agreed, and the number of rounds that failed or ended the
    /// session for a worker. For training runs, returns the number of updates that the workers have made, added up over
    /// all workers, and the number of failed calls after which a worker took part in another rendezvous.
    pub fn counts(&self) -> (usize, usize) {
        let agreed =
            |made: &&BTreeMap<usize, Made>| made.values().all(|made| matches!(made, Made::Agreed(_)));
        let all = self.rounds.values().filter(agreed).count();
        (all + self.updates, self.rounds.len() - all + self.losses)
    }

    /// Records that a worker has received the data of all workers in a round, and checks that this was possible. `sum`
    /// is the sum of the numbers in the data.
    pub fn agreed(&mut self, round: Round, rank: usize, call: u64, sum: f32) {
        self.expect(round, rank, call, Made::Agreed(sum));
    }

    /// Records that a round failed for a worker with the given blame, and checks that this was possible. `over` is
    /// whether the session is over for this worker.
    pub fn blamed(&mut self, round: Round, rank: usize, call: u64, blame: &Blame, over: bool) {
        let made = if over { Made::Over } else { Made::Blamed(blame.clone()) };
        self.expect(round, rank, call, made);
    }

    fn expect(&mut self, round: Round, rank: usize, call: u64, made: Made) {
        let (generation, session, _) = round;
        let outcome = self.script.outcome(generation, session, call);
        let expected = match (&made, outcome, self.certain) {
            (Made::Agreed(_), Outcome::Agreed, _) => true,
            (Made::Agreed(_), ..) => false,
            (Made::Blamed(blame), Outcome::Blamed(fault), Certain::All) => blame.fault == fault,
            (Made::Over, Outcome::Over, Certain::All) => true,
            (_, _, Certain::All) => false,
            (Made::Blamed(blame), Outcome::Blamed(_), _) => {
                !matches!(blame.fault, Fault::TimedOut | Fault::Lost)
            }
            (Made::Blamed(_), ..) => false,
            (Made::Over, ..) => true,
        };
        if !expected {
            self.broken.push(format!(
                "worker {rank} came to {made:?} in call {call} of {round:?}, whose outcome is {outcome:?}"
            ));
        }
        let all = self.rounds.entry(round).or_default();
        // INV-2, INV-25
        let differs =
            all.iter().find(|(_, other)| **other != made && **other != Made::Over && made != Made::Over);
        if let Some((other, theirs)) = differs {
            self.broken.push(format!(
                "in {round:?} worker {other} came to {theirs:?} and worker {rank} to {made:?}"
            ));
        }
        all.insert(rank, made);
    }

    /// Checks the reason why the session is over for a worker in this round, and records it.
    pub fn over(&mut self, round: Round, rank: usize, blame: &Blame) {
        if matches!(self.certain, Certain::All | Certain::NobodyLost) && blame.fault == Fault::Lost {
            self.broken.push(format!("worker {rank} takes one for lost that is not: {blame}"));
        }
        if self.certain == Certain::NobodyLate && blame.fault == Fault::TimedOut {
            self.broken.push(format!("worker {rank} takes one for late that is not: {blame}"));
        }
        if blame.culprits.is_empty() {
            self.broken.push(format!("worker {rank} blames nobody: {blame}"));
        }
        // INV-2. Each worker has its own reason why another was lost. A worker may reach the end in a round
        // that others have completed, and then have another reason than they have in a later round.
        let same = |theirs: &Blame| match blame.fault {
            Fault::Lost => (theirs.fault, &theirs.culprits) == (blame.fault, &blame.culprits),
            _ => theirs == blame,
        };
        let all = self.ends.entry(round).or_default();
        if let (true, Some((other, theirs))) = (self.one_blame, all.iter().find(|(_, theirs)| !same(theirs)))
        {
            self.broken.push(format!(
                "in {round:?} the session is over for worker {other}, as {theirs}\n    but for worker {rank}, as {blame}"
            ));
        }
        all.insert(rank, blame.clone());
    }
}
