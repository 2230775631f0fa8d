//! The election of the worker that leads a rendezvous, in a cluster with a fixed number of workers and spares. This
//! module contains only pure functions and values.
//!
//! Every process asks all others that it can reach. A process accepts those that it [precedes](Precedence), and refuses
//! all others. A process that was accepted follows: it sends away the processes that it had accepted, and tells later
//! ones the address of the process that leads it. So all processes that reach each other end at one, which leads.
//!
//! The leader begins a world only if [fewer tasks are missing](Electorate::needed) than a world has workers. The
//! missing ones are too few for a world of their own, and each process is in one world at a time. A world makes no step
//! without all of its workers. So of two worlds at most one makes steps, whatever the network does, and no vote has to
//! be remembered.
//!
//! A leader may count a process whose link is lost, until the silence of the link is noticed. Two rules keep such a
//! leader from a second world. All leaders choose members in one order (origin, generation, position), so of the same
//! processes they choose the same. And a leader that misses a worker of its last world waits longer than the silence.
//!
//! A process that follows a leader which too few can reach moves to one that precedes it, and after a minute to any
//! other. So two groups that only their leaders cannot join do not wait for each other.
//!
//! A follower that is asked repeatedly by processes that its leader misses, and that are enough with it, leaves that
//! leader and leads these. So a process that only one other reaches does not keep that one from the rest. A leader with
//! enough followers does not resign for a process of no later world.
//!
//! A leader that has just started, or whose last world may have been followed by another, begins only after each
//! process that has not connected has answered or could not be reached, or after 5 s.
//!
//! A worker that has the table and cannot link to another one ends the attempt after 10 s, and names that one when it
//! joins again. If there are enough others, the leader leaves out those that cannot link to most.
//!
//! A leader does not begin a world while a process answers that still is in a later one: that process has the state. It
//! also waits if a spare knows of a later one, unless a worker in the table of that one has lost it before it was
//! complete.
//!
//! A process ends if the leader of a complete world refuses it for good. Other refusals must be unanimous.

// - **INV-111** In a cluster with a fixed number of workers and spares, no task is indispensable to the rendezvous. A
//   world is formed only if fewer tasks are missing than it has workers, so at most one world at a time has all of its
//   workers, provided that each task has at most one process. A process follows one leader at a time, and a leader that
//   follows another has no followers. It does not begin a world while a process of a later one answers, and waits for
//   half of its patience if it only knows of a later one, unless a worker of that one knows that it was never complete.
//   An answer that the training has ended, or that this process has been replaced, counts if no other process answers
//   otherwise, and a wrong message of one process ends no other. Before a leader begins, each process that could be in
//   a later world has answered or was missed, or 5 s have passed. Workers that cannot link to each other are not in one
//   world again if there are enough others. Tests:
//   `net/src/rendezvous/election.rs`, `net/src/rendezvous/state/following/tests.rs`,
//   `net/src/rendezvous/state/others/tests.rs`, `net/tests/it/election.rs`, `simulation/tests/it/scenarios.rs`,
//   `simulation/tests/it/found.rs`, `clusters/recovery/elected.rs`.

use super::state::Call;
use crate::handshake::{Hello, Purpose, Reason, Refusal};
use distribute_cluster::Address;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The time after which a worker of an earlier world asks processes that are unlikely to lead.
const UNLIKELY: Duration = Duration::from_millis(100);

/// The time after which a process that has just started asks another process than the first task.
const NOT_FIRST: Duration = Duration::from_secs(1);

/// The time after which a process asks one again that has sent it a wrong message.
const DISTRUSTED: Duration = Duration::from_secs(5);

/// The time after which a process believes that the training has ended, if none has joined it.
const ENDED_ALONE: Duration = Duration::from_secs(5);

/// The time after which a process to which others have connected believes that the training has ended.
const ENDED_TOGETHER: Duration = Duration::from_secs(30);

/// The tasks among which a leader is elected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Electorate {
    tasks: usize,
    workers: usize,
}

impl Electorate {
    /// Creates the electorate of a cluster with this number of tasks, which include spares, and of workers in a world.
    pub fn new(tasks: usize, workers: usize) -> Self {
        Self { tasks, workers }
    }

    /// Returns the minimum number of processes that must be connected, including the leader, before a world begins:
    /// the world is full, and the missing tasks cannot form another one.
    ///
    /// ```
    /// use distribute_net::rendezvous::election::Electorate;
    /// assert_eq!(Electorate::new(4, 3).needed(), 3); // one spare: one task is missing at most
    /// assert_eq!(Electorate::new(5, 2).needed(), 4); // of two missing tasks, each could be a worker
    /// ```
    pub fn needed(&self) -> usize {
        self.workers.max((self.tasks + 1).saturating_sub(self.workers))
    }

    /// Returns the number of tasks, including spares.
    pub fn tasks(&self) -> usize {
        self.tasks
    }
}

/// The precedence of a process as leader: members of the latest world, then members of earlier ones, then processes
/// that have just started. Among equals, the lowest position precedes. The smaller value precedes. A spare leads if it
/// finds no other leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Precedence(Reverse<u64>, usize);

impl Precedence {
    /// Returns the precedence of a process that was a member of the world of this generation; 0 if it has just started.
    pub fn new(generation: u64, position: usize) -> Self {
        Self(Reverse(generation), position)
    }

    /// Returns the generation of the last world of which the process was a member; 0 if it has just started.
    pub fn generation(self) -> u64 {
        self.0.0
    }

    /// Returns the precedence of the process that has sent a hello; `None` for a spare, which every other process
    /// precedes.
    pub fn of(hello: &Hello) -> Option<Self> {
        matches!(hello.purpose, Purpose::Join { .. }).then(|| Self::new(hello.generation, hello.rank))
    }
}

/// The latest answer of a process at one address.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    /// A refusal that a repetition would not change.
    Refused(Refusal),
    /// The process follows the one at this position.
    SentTo(usize),
    /// The process accepts this one later, or does not know yet.
    Other,
    /// There was no answer.
    Missing,
}

/// The part of one process in an election: whom it asks, and what they have answered.
#[derive(Clone, Debug)]
pub struct Election {
    me: usize,
    /// The addresses of the cluster by position. Port 0 means that the port is unknown.
    configured: Vec<Address>,
    /// The latest address of a task that another process or an earlier world has told, by position.
    learned: BTreeMap<usize, Address>,
    /// Whether `learned` has changed since [`take_learned`](Self::take_learned) was called.
    is_changed: bool,
    /// The positions that probably lead, which are asked at once.
    likely: BTreeSet<usize>,
    /// The time after which the others are asked.
    patience: Duration,
    /// Positions to ask again at once, because they have asked this process and precede it.
    hurried: BTreeSet<usize>,
    /// The latest answers, by position and address.
    answers: BTreeMap<(usize, Address), Answer>,
    /// The positions of processes that have sent a wrong message as leaders. They are asked after the others.
    distrusted: BTreeSet<usize>,
    /// The first answer that the training has ended, and its time, since another process has answered otherwise.
    ended: Option<(Call, Refusal, Duration)>,
}

impl Election {
    /// Creates the part of the process at position `me`. `configured` are the addresses of the cluster, and `learned`
    /// those that this process has learned since.
    pub fn new(me: usize, configured: Vec<Address>, learned: BTreeMap<usize, Address>) -> Self {
        let (is_changed, hurried, answers) = Default::default();
        let (likely, patience) = ([0].into(), NOT_FIRST);
        let (distrusted, ended) = Default::default();
        Self { me, configured, learned, is_changed, likely, patience, hurried, answers, distrusted, ended }
    }

    /// Sets the positions that probably lead, because they were in the last world of this process.
    pub fn with_likely(mut self, likely: BTreeSet<usize>) -> Self {
        (self.likely, self.patience) = (likely, UNLIKELY);
        self
    }

    /// Records the address at which another process says that a task is reached. Returns whether it was unknown.
    pub fn learn(&mut self, position: usize, address: &Address) -> bool {
        let is_task = position < self.configured.len() && position != self.me && address.port() != 0;
        if !is_task || self.addresses(position).any(|known| known == address) {
            return false;
        }
        self.learned.insert(position, address.clone());
        self.answers.retain(|(of, _), _| *of != position);
        self.is_changed = true;
        true
    }

    /// Records that a process was sent to the task at this position, which therefore probably leads.
    pub fn suspect(&mut self, position: usize) {
        self.likely.insert(position);
    }

    /// Records that a process has asked this one, and precedes it.
    pub fn hurry(&mut self, position: usize) {
        self.likely.insert(position);
        self.hurried.insert(position);
    }

    /// Removes and returns the positions to ask again at once.
    pub fn take_hurried(&mut self) -> BTreeSet<usize> {
        std::mem::take(&mut self.hurried)
    }

    /// Records the members of a complete world, which know who leads the next one.
    pub fn learn_world(&mut self, members: &[(usize, Address)]) {
        for (position, address) in members {
            self.learn(*position, address);
        }
        self.likely = members.iter().map(|(position, _)| *position).collect();
        self.patience = UNLIKELY;
    }

    /// Returns the addresses that were learned if they have changed since the last call, and `None` otherwise.
    pub fn take_learned(&mut self) -> Option<BTreeMap<usize, Address>> {
        std::mem::take(&mut self.is_changed).then(|| self.learned.clone())
    }

    /// Returns the addresses at which a task may be reached: that of the cluster, and the one that was learned.
    fn addresses(&self, position: usize) -> impl Iterator<Item = &Address> {
        let configured = self.configured.get(position).filter(|address| address.port() != 0);
        let learned = self.learned.get(&position).filter(|learned| Some(*learned) != configured);
        configured.into_iter().chain(learned)
    }

    /// Returns the positions and addresses to ask, and how long to wait before each is asked first. `connected` are the
    /// positions that need not be asked.
    pub fn candidates(
        &self,
        connected: &BTreeSet<usize>,
    ) -> impl Iterator<Item = (usize, &Address, Duration)> {
        let others = (0..self.configured.len()).filter(|position| *position != self.me);
        let missing: Vec<_> = others.filter(|position| !connected.contains(position)).collect();
        missing.into_iter().flat_map(move |position| {
            let wait = match position {
                _ if self.distrusted.contains(&position) => DISTRUSTED,
                _ if self.likely.contains(&position) => Duration::ZERO,
                _ => self.patience,
            };
            self.addresses(position).map(move |address| (position, address, wait))
        })
    }

    /// Records a refusal that a repetition would not change. Returns whether no process is left that could answer
    /// otherwise: all have refused for good. A refusal of a leader without a world is enough if all others
    /// follow that leader or this process, or cannot be reached. `followers` are those that follow this process.
    pub fn refuse(&mut self, call: &Call, refusal: Refusal, followers: &BTreeSet<usize>) -> bool {
        let is_of_a_leader = refusal.reason.is_of_a_leader();
        self.answers.insert((call.worker, call.address.clone()), Answer::Refused(refusal));
        let refuses = |position: usize| {
            let mut all = self.answers.iter();
            all.any(|((of, _), answer)| *of == position && matches!(answer, Answer::Refused(_)))
        };
        self.candidates(&BTreeSet::new()).all(|(position, address, _)| {
            match self.answers.get(&(position, address.clone())) {
                Some(Answer::Refused(_)) => true,
                _ if !is_of_a_leader => false,
                _ if followers.contains(&position) => true,
                Some(Answer::SentTo(leader)) => refuses(*leader),
                Some(Answer::Missing) => true,
                Some(Answer::Other) | None => false,
            }
        })
    }

    /// Records an answer after which the process is asked again.
    pub fn hear(&mut self, call: &Call, refusal: &Refusal) {
        let answer = match (refusal.reason, &refusal.leader) {
            (Reason::Elsewhere, Some(leader)) => Answer::SentTo(leader.0),
            // It has not refused for good yet.
            (Reason::Taken | Reason::Complete, _) => return,
            (reason, _) if reason.is_retried() => Answer::Other,
            _ => return,
        };
        self.answers.insert((call.worker, call.address.clone()), answer);
    }

    /// Returns the positions of the tasks that are not `connected`, and of whose processes it is unknown what they do:
    /// they have not answered, or that they follow another one, which may be lost. A process that could not be reached
    /// is not among them.
    pub fn unheard(&self, connected: &BTreeSet<usize>) -> BTreeSet<usize> {
        let answers = self.candidates(connected).map(|(position, address, _)| {
            let answer = self.answers.get(&(position, address.clone()));
            (position, answer.filter(|answer| !matches!(answer, Answer::SentTo(_))))
        });
        let answers: Vec<_> = answers.collect();
        let has_answered = |position: usize| {
            let answer = |(of, answer): &(usize, Option<&Answer>)| {
                *of == position && answer.is_some_and(|answer| *answer != Answer::Missing)
            };
            answers.iter().any(answer)
        };
        let unknown =
            answers.iter().filter(|(position, answer)| answer.is_none() && !has_answered(*position));
        unknown.map(|(position, _)| *position).collect()
    }

    /// Records that the process could not be reached.
    pub fn miss(&mut self, call: &Call) {
        let answer = self.answers.entry((call.worker, call.address.clone())).or_insert(Answer::Missing);
        // The error at the deadline names a process of another job, even if it has gone.
        if !matches!(answer, Answer::Refused(refusal) if !refusal.reason.is_of_a_leader()) {
            *answer = Answer::Missing;
        }
    }

    /// Records that the process that has accepted a call has sent a wrong message as the leader. Returns whether no
    /// process is left that could answer otherwise.
    pub fn distrust(&mut self, call: &Call, refusal: Refusal) -> bool {
        self.distrusted.insert(call.worker);
        self.refuse(call, refusal, &BTreeSet::new())
    }

    /// Records the answer of a process that the training has ended.
    pub fn hear_ended(&mut self, call: &Call, refusal: Refusal, now: Duration) {
        self.ended.get_or_insert((call.clone(), refusal, now));
    }

    /// Records that the process at this position has answered that the training goes on.
    pub fn hear_other(&mut self, position: usize) {
        if self.ended.as_ref().is_some_and(|(call, ..)| call.worker != position) {
            self.ended = None;
        }
    }

    /// Records that this process follows one that was in a world, or is the spare of one: the training continues.
    pub fn goes_on(&mut self) {
        self.ended = None;
    }

    /// Returns whether a process has answered that the training has ended, and none has answered otherwise since.
    pub fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Returns the answer that the training has ended, if no other process has answered otherwise for some time. The
    /// time is longer unless this process is alone, without processes that have joined it.
    pub fn ended(&self, now: Duration, is_alone: bool) -> Option<(&Call, &Refusal)> {
        let (call, refusal, since) = self.ended.as_ref()?;
        let patience = if is_alone { ENDED_ALONE } else { ENDED_TOGETHER };
        (now.saturating_sub(*since) >= patience).then_some((call, refusal))
    }

    /// Returns the refusals that a repetition would not change, as texts with the address.
    pub fn refusals(&self) -> impl Iterator<Item = String> {
        self.answers.iter().filter_map(|((_, address), answer)| match answer {
            Answer::Refused(refusal) => Some(format!("{address} ({refusal})")),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // INV-111
    #[test]
    fn the_missing_tasks_are_never_enough_for_another_world() {
        for workers in 2..12 {
            for spares in 1..12 {
                let (tasks, electorate) = (workers + spares, Electorate::new(workers + spares, workers));
                let needed = electorate.needed();
                assert!((workers..=tasks).contains(&needed));
                assert!(tasks - needed < workers, "{workers} workers, {spares} spares");
                assert!(needed == workers || tasks - (needed - 1) >= workers, "one fewer would be enough");
                if spares < workers {
                    assert_eq!(needed, workers, "each spare can be used up");
                }
            }
        }
    }

    // INV-111
    #[test]
    fn members_of_the_latest_world_precede_and_then_the_lowest_position() {
        let mut all = [(0, 0), (4, 3), (5, 2), (0, 1), (5, 1), (4, 0)].map(|(g, at)| Precedence::new(g, at));
        all.sort();
        let order = [(5, 1), (5, 2), (4, 0), (4, 3), (0, 0), (0, 1)].map(|(g, at)| Precedence::new(g, at));
        assert_eq!(all, order);
    }

    fn election(ports: &[u16]) -> Election {
        let at = |(position, port): (usize, &u16)| format!("10.0.0.{position}:{port}").parse().unwrap();
        Election::new(1, ports.iter().enumerate().map(at).collect(), BTreeMap::new())
    }

    fn asked(election: &Election, connected: &[usize]) -> Vec<(String, bool)> {
        let connected = connected.iter().copied().collect();
        let all = election.candidates(&connected);
        all.map(|(_, address, wait)| (address.to_string(), wait.is_zero())).collect()
    }

    // INV-111
    #[test]
    fn all_known_addresses_are_asked_and_those_that_probably_lead_at_once() {
        let mut election = election(&[7, 7, 0, 7]);
        let text = |address: &str, at_once| (address.to_owned(), at_once);
        assert_eq!(asked(&election, &[]), [text("10.0.0.0:7", true), text("10.0.0.3:7", false)]);
        let found = "10.0.0.9:9".parse().unwrap();
        assert!(election.learn(2, &found) && !election.learn(2, &found));
        assert!(!election.learn(1, &found) && !election.learn(4, &found), "itself, and no task");
        assert_eq!(election.take_learned(), Some([(2, found.clone())].into()));
        assert_eq!(election.take_learned(), None);
        election.suspect(2);
        assert_eq!(asked(&election, &[0]), [text("10.0.0.9:9", true), text("10.0.0.3:7", false)]);
        // Both addresses of a task that has moved: one of them may be wrong.
        assert!(election.learn(3, &found));
        assert_eq!(asked(&election, &[0, 2]).len(), 2);
        election.learn_world(&[(2, found), (3, "10.0.0.3:7".parse().unwrap())]);
        assert_eq!(asked(&election, &[2, 3]), [text("10.0.0.0:7", false)]);
    }

    fn call(worker: usize) -> Call {
        let (address, purpose) = (format!("10.0.0.{worker}:7").parse().unwrap(), Purpose::Link);
        Call { worker, address, purpose, generation: 0, table: 0, before: None }
    }

    // INV-111
    #[test]
    fn one_wrong_answer_ends_nothing_and_all_together_do() {
        let mut election = election(&[7, 7, 7]);
        let refuse = |election: &mut Election, worker: usize, reason, text: &str| {
            election.refuse(&call(worker), Refusal::new(reason, text), &[2].into())
        };
        assert!(!refuse(&mut election, 0, Reason::Job, "another job"));
        assert!(!refuse(&mut election, 0, Reason::Job, "another job"));
        assert_eq!(election.refusals().collect::<Vec<_>>(), ["10.0.0.0:7 (another job)"]);
        // It may be started yet.
        election.miss(&call(2));
        assert!(!refuse(&mut election, 0, Reason::Job, "another job"));
        assert!(refuse(&mut election, 2, Reason::Cluster, "another cluster"));
        // There is a new address, which may be right.
        assert!(election.learn(0, &"10.0.0.9:7".parse().unwrap()));
        assert!(!refuse(&mut election, 2, Reason::Cluster, "another cluster"));
    }

    // INV-111
    #[test]
    fn a_leader_without_a_world_is_believed_if_no_other_process_that_answers_says_otherwise() {
        let nobody = BTreeSet::new();
        let early = |text| Refusal::new(Reason::Early, text);
        for reason in [Reason::Generation, Reason::Taken] {
            let mut election = election(&[7, 7, 7, 7]);
            let refuse = |election: &mut Election, followers: &BTreeSet<usize>| {
                election.refuse(&call(0), Refusal::new(reason, "no"), followers)
            };
            election.hear(&call(2), &early("it leads itself"));
            election.miss(&call(3));
            assert!(!refuse(&mut election, &nobody), "worker 2 may accept it");
            assert!(refuse(&mut election, &[2].into()), "worker 2 follows it, and they are too few");
            let to = |position| Refusal::elsewhere("", position, "10.0.0.9:7".parse().unwrap(), 0);
            election.hear(&call(2), &to(3));
            assert!(!refuse(&mut election, &nobody), "worker 2 follows another");
            election.hear(&call(2), &to(0));
            assert!(refuse(&mut election, &nobody));
            // Attempts that may succeed are no answer, and a process that has gone has no say any more.
            election.hear(&call(0), &Refusal::new(Reason::Taken, "not yet given up"));
            assert!(refuse(&mut election, &nobody));
            election.hear(&call(3), &early("a spare without a leader"));
            assert!(!refuse(&mut election, &nobody));
            election.miss(&call(3));
            assert!(refuse(&mut election, &nobody));
        }
        let mut election = election(&[7, 7, 7]);
        election.refuse(&call(0), Refusal::new(Reason::Job, "another job"), &nobody);
        election.refuse(&call(2), Refusal::new(Reason::Taken, "taken"), &nobody);
        [0, 2].into_iter().for_each(|worker| election.miss(&call(worker)));
        assert_eq!(election.refusals().collect::<Vec<_>>(), ["10.0.0.0:7 (another job)"]);
    }
}
