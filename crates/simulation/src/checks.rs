//! The rules that must hold in every simulation.

use crate::course::Weights;
use crate::network::Pid;
use crate::script::{Outcome, Script};
use distribute_cluster::{Blame, Fault};
use std::collections::BTreeMap;

/// The numbers of a generation, a session and a round.
type Round = (u64, u64, u64);

/// The certainty about the outcomes of the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certain {
    /// Only the script disturbs the calls.
    All,
    /// Workers may time out, but no worker is lost.
    NobodyLost,
    /// Workers may be lost, but none times out: a worker that continues does so until everything is done.
    NobodyLate,
    /// Anything may happen to calls.
    Nothing,
}

#[derive(Clone, Debug, PartialEq)]
enum Made {
    Agreed(f32),
    Blamed(Blame),
    /// The session is over as well.
    Over,
}

/// The results of workers, and the broken rules.
#[derive(Debug)]
pub struct Checks {
    script: Script,
    certain: Certain,
    one_blame: bool,
    rounds: BTreeMap<Round, BTreeMap<usize, Made>>,
    ends: BTreeMap<Round, BTreeMap<usize, Blame>>,
    broken: Vec<String>,
    /// Processes not yet compared with the others, with their generation. They continue after this number of
    /// updates, or cannot continue.
    met: Vec<(Pid, u64, Option<u64>)>,
    /// Processes that have begun a step, not yet checked.
    begun: Vec<Pid>,
    /// The number of losses of workers in a training, and the number of updates.
    losses: usize,
    updates: usize,
    /// The final states.
    trained: Vec<Weights>,
}

impl Checks {
    /// Creates checks without results.
    pub fn new(script: Script, certain: Certain, one_blame: bool) -> Self {
        Self {
            script,
            certain,
            one_blame,
            rounds: BTreeMap::new(),
            ends: BTreeMap::new(),
            broken: Vec::new(),
            met: Vec::new(),
            begun: Vec::new(),
            losses: 0,
            updates: 0,
            trained: Vec::new(),
        }
    }

    /// Records that a process continues in a generation after this number of updates.
    pub fn meet(&mut self, pid: Pid, generation: u64, updates: u64) {
        self.met.push((pid, generation, Some(updates)));
    }

    /// Records that a process was notified that no state is complete.
    pub fn torn(&mut self, pid: Pid, generation: u64) {
        self.met.push((pid, generation, None));
    }

    /// Records that a process begins a step.
    pub fn begun(&mut self, pid: Pid) {
        self.begun.push(pid);
    }

    /// Takes the processes that have begun a step.
    pub fn take_begun(&mut self) -> Vec<Pid> {
        std::mem::take(&mut self.begun)
    }

    /// Takes the processes that have not been compared with the others.
    pub fn take_met(&mut self) -> Vec<(Pid, u64, Option<u64>)> {
        std::mem::take(&mut self.met)
    }

    /// Records that a worker has lost another, and continues.
    pub fn lost(&mut self) {
        self.losses += 1;
    }

    /// Records that a worker has made an update.
    pub fn updated(&mut self) {
        self.updates += 1;
    }

    /// Records that a worker has trained to the end.
    pub fn trained(&mut self, weights: Weights) {
        self.trained.push(weights);
    }

    /// Returns the final states of workers.
    pub fn states(&self) -> &[Weights] {
        &self.trained
    }

    /// Records a broken rule.
    pub fn broken(&mut self, what: String) {
        self.broken.push(what);
    }

    /// Returns the broken rules.
    pub fn into_broken(self) -> Vec<String> {
        self.broken
    }

    /// Whether no rule is broken so far.
    pub fn hold(&self) -> bool {
        self.broken.is_empty()
    }

    /// Returns the number of rounds in which all agreed, and the number that were blamed or ended. For
    /// trainings, returns the updates and the losses of all workers.
    pub fn counts(&self) -> (usize, usize) {
        let agreed =
            |made: &&BTreeMap<usize, Made>| made.values().all(|made| matches!(made, Made::Agreed(_)));
        let all = self.rounds.values().filter(agreed).count();
        (all + self.updates, self.rounds.len() - all + self.losses)
    }

    /// Records that a worker has the data of all.
    pub fn agreed(&mut self, round: Round, rank: usize, call: u64, sum: f32) {
        self.expect(round, rank, call, Made::Agreed(sum));
    }

    /// Records that a worker has a blame.
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
            (Made::Blamed(blame), Outcome::Blamed(_), _) => !matches!(blame.fault, Fault::Late | Fault::Lost),
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

    /// Records that the session is over for a worker, in this round.
    pub fn over(&mut self, round: Round, rank: usize, blame: &Blame) {
        if matches!(self.certain, Certain::All | Certain::NobodyLost) && blame.fault == Fault::Lost {
            self.broken.push(format!("worker {rank} takes one for lost that is not: {blame}"));
        }
        if self.certain == Certain::NobodyLate && blame.fault == Fault::Late {
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
