//! What has to hold, whatever happens.

use crate::course::Weights;
use crate::network::Pid;
use crate::script::{Outcome, Script};
use distribute_cluster::{Blame, Fault};
use std::collections::BTreeMap;

/// A generation, the number of a session and that of a round.
type Round = (u64, u64, u64);

/// How much of the script's outcome is certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certain {
    /// Nothing but the script disturbs the calls.
    All,
    /// Workers may be late, and none is lost.
    NobodyLost,
    /// Workers may be lost, and none is late: who goes on does so until all is done.
    NobodyLate,
    /// Anything may happen to calls.
    Nothing,
}

#[derive(Clone, Debug, PartialEq)]
enum Made {
    Agreed(f32),
    Blamed(Blame),
    /// The session is over, too.
    Over,
}

/// What workers have come to, and what is wrong with it.
#[derive(Debug)]
pub struct Checks {
    script: Script,
    certain: Certain,
    one_blame: bool,
    rounds: BTreeMap<Round, BTreeMap<usize, Made>>,
    ends: BTreeMap<Round, BTreeMap<usize, Blame>>,
    broken: Vec<String>,
    /// Processes that go on in a generation after so many updates, or can't, and have not been compared with the others.
    met: Vec<(Pid, u64, Option<u64>)>,
    /// Processes that have begun a step, and have not been looked at.
    begun: Vec<Pid>,
    /// How often the workers of a training were lost, and how many updates they made.
    losses: usize,
    updates: usize,
    /// What they ended with.
    trained: Vec<Weights>,
}

impl Checks {
    /// Nothing has happened.
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

    /// A process goes on in a generation after so many updates.
    pub fn meet(&mut self, pid: Pid, generation: u64, updates: u64) {
        self.met.push((pid, generation, Some(updates)));
    }

    /// A process has been told that nobody's state is whole.
    pub fn torn(&mut self, pid: Pid, generation: u64) {
        self.met.push((pid, generation, None));
    }

    /// A process begins a step.
    pub fn begun(&mut self, pid: Pid) {
        self.begun.push(pid);
    }

    /// Those that have begun a step.
    pub fn take_begun(&mut self) -> Vec<Pid> {
        std::mem::take(&mut self.begun)
    }

    /// Those that have not been compared with the others.
    pub fn take_met(&mut self) -> Vec<(Pid, u64, Option<u64>)> {
        std::mem::take(&mut self.met)
    }

    /// A worker has lost another, and goes on.
    pub fn lost(&mut self) {
        self.losses += 1;
    }

    /// A worker has made an update.
    pub fn updated(&mut self) {
        self.updates += 1;
    }

    /// A worker has trained to the end.
    pub fn trained(&mut self, weights: Weights) {
        self.trained.push(weights);
    }

    /// The states that workers have ended with.
    pub fn states(&self) -> &[Weights] {
        &self.trained
    }

    /// Something that must not be has happened.
    pub fn broken(&mut self, what: String) {
        self.broken.push(what);
    }

    /// What must not have been.
    pub fn into_broken(self) -> Vec<String> {
        self.broken
    }

    /// Whether nothing has gone wrong so far.
    pub fn hold(&self) -> bool {
        self.broken.is_empty()
    }

    /// How many rounds all have agreed in, and how many have been blamed or ended. Of trainings, the updates and the losses of
    /// all workers.
    pub fn counts(&self) -> (usize, usize) {
        let agreed =
            |made: &&BTreeMap<usize, Made>| made.values().all(|made| matches!(made, Made::Agreed(_)));
        let all = self.rounds.values().filter(agreed).count();
        (all + self.updates, self.rounds.len() - all + self.losses)
    }

    /// A worker has the data of all.
    pub fn agreed(&mut self, round: Round, rank: usize, call: u64, sum: f32) {
        self.expect(round, rank, call, Made::Agreed(sum));
    }

    /// A worker has a blame.
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

    /// The session is over for a worker, in this round.
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
        // INV-2. How a worker was lost, each knows by itself. Who comes to the end in a round that others have behind them may do
        // so for another reason than they do in a later one.
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
