//! Replies to processes that connect after the world was formed. This module contains only pure functions and values.

use super::state::latecomer;
use super::waiting::WaitingProcesses;
use crate::handshake::{Hello, Names, Purpose, Reason, Refusal};
use distribute_cluster::Address;
use std::time::Duration;

/// The rules by which a worker replies to processes that connect to its complete world.
#[derive(Debug)]
pub struct LateJoinReplies {
    me: usize,
    names: Names,
    /// The positions in the cluster of the world's workers.
    members: Vec<usize>,
    /// The generation of the world.
    generation: u64,
    /// The maximum number of workers of a world.
    maximum: usize,
    /// The position and address of the leader, if it was elected. Otherwise the first worker leads.
    leader: Option<(usize, Address)>,
}

impl LateJoinReplies {
    /// Creates the replies of the worker at position `me`, in the world of this generation whose workers have the
    /// positions `members`.
    pub fn new(me: usize, names: Names, members: Vec<usize>, generation: u64) -> Self {
        Self { me, names, members, generation, maximum: usize::MAX, leader: None }
    }

    /// Sets the maximum number of workers of a world. Once the world has this number, the leader accepts other
    /// processes as spares.
    pub fn maximum(mut self, maximum: usize) -> Self {
        self.maximum = maximum;
        self
    }

    /// Sets the position and address of the leader, if it was elected. Any other worker sends processes there.
    pub fn elected(mut self, leader: Option<(usize, Address)>) -> Self {
        self.leader = leader;
        self
    }

    /// Decides whether a process that connects while this world exists is accepted as a spare.
    ///
    /// `lost` returns whether the worker of a given rank is disconnected. `over` is `true` if there will be no other
    /// world. Otherwise a process that is no member of this world is recorded in `waiting_processes`, because it waits
    /// for the next one.
    ///
    /// # Errors
    /// Returns the refusal of a process that is not accepted as a spare.
    pub fn answer(
        &self,
        hello: &Hello,
        lost: &dyn Fn(usize) -> bool,
        over: bool,
        waiting_processes: &mut WaitingProcesses,
        now: Duration,
    ) -> Result<(), Refusal> {
        let (mine, theirs) = (self.names.task(self.me), self.names.task(hello.rank));
        let generation = waiting_processes.raised(self.generation);
        if over {
            let text = format!("the training has ended on all workers, and {mine} waits for no {theirs}");
            return Err(Refusal::new(Reason::Ended, text));
        }
        self.send_elsewhere(hello, generation, lost)?;
        if let Some(worker) = self.members.iter().position(|place| *place == hello.rank) {
            return Err(self.not_yet(latecomer(&mine, &theirs, lost(worker)), generation));
        }
        if self.is_spare(hello, generation) {
            if waiting_processes.spares().contains(&hello.rank) {
                let text = format!("{theirs} is a spare already: each process needs a unique number");
                return Err(Refusal::new(Reason::Taken, text));
            }
            // Another process with the same number may follow at once.
            waiting_processes.add_spare(hello.rank);
            return Ok(());
        }
        // A process that links has the table of another world, and joins this one later.
        if hello.purpose != Purpose::Link {
            waiting_processes.record(hello.rank, hello.generation, now);
        }
        let text = format!("the group was formed without {theirs}, which joins when the group re-forms");
        Err(self.not_yet(Refusal::new(Reason::Early, text), generation))
    }

    /// Adds the generation that members of this world claim to the refusal of a process that comes too early, if
    /// leaders are elected: no leader with an earlier state may begin without them.
    fn not_yet(&self, refusal: Refusal, generation: u64) -> Refusal {
        match (refusal.reason, &self.leader) {
            (Reason::Early, Some(_)) => Refusal::busy(refusal.text, generation),
            _ => refusal,
        }
    }

    /// Checks that this worker leads, if the leader was elected and a process wants to join the world, whose members
    /// claim this generation.
    ///
    /// # Errors
    /// Returns the refusal of the process, which is sent to the leader.
    fn send_elsewhere(
        &self,
        hello: &Hello,
        generation: u64,
        lost: &dyn Fn(usize) -> bool,
    ) -> Result<(), Refusal> {
        let (Some((leader, address)), Purpose::Join { .. } | Purpose::Spare { .. }) =
            (&self.leader, &hello.purpose)
        else {
            return Ok(());
        };
        if *leader == self.me {
            return Ok(());
        }
        let [mine, leads] = [self.me, *leader].map(|place| self.names.task(place));
        if self.members.iter().position(|place| place == leader).is_some_and(lost) {
            let text =
                format!("{mine} has lost {leads}, which led it, and accepts others when the group re-forms");
            return Err(Refusal::busy(text, generation));
        }
        let text = format!("{mine} follows {leads}: join that one");
        Err(Refusal::elsewhere(text, *leader, address.clone(), generation))
    }

    /// Returns whether a process that is no member is a spare: the world is full, and the process was in no other world
    /// that is at least as late as the `generation` that members claim.
    fn is_spare(&self, hello: &Hello, generation: u64) -> bool {
        let joins = match &hello.purpose {
            Purpose::Join { .. } => hello.generation < generation,
            Purpose::Spare { .. } => true,
            Purpose::Link | Purpose::Call { .. } => false,
        };
        let leads = self.leader.as_ref().map_or(0, |(leader, _)| *leader) == self.me;
        joins && leads && self.members.len() >= self.maximum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(rank: usize, generation: u64, purpose: fn(String) -> Purpose) -> Hello {
        let (job, purpose) = ("a".to_owned(), purpose("10.0.0.1:7".to_owned()));
        Hello { job, generation, table: 0, rank, workers: 5, replicas: 1, digest: [0; 32], purpose }
    }

    const JOIN: fn(String) -> Purpose = |address| Purpose::Join { address, unformed: None };
    const SPARE: fn(String) -> Purpose = |address| Purpose::Spare { address, unformed: None };

    // INV-34, INV-43
    #[test]
    fn who_was_not_there_waits_for_the_next_world_and_is_counted_once() {
        let late_join_replies = LateJoinReplies::new(0, Names::default(), vec![0, 2, 3], 1);
        let mut waiting_processes = WaitingProcesses::default();
        let mut refuse = |rank, lost: &[usize], over| {
            let lost = |worker| lost.contains(&worker);
            let (hello, now) = (hello(rank, 0, JOIN), Duration::ZERO);
            let answer = late_join_replies.answer(&hello, &lost, over, &mut waiting_processes, now);
            (answer.unwrap_err().reason, waiting_processes.count())
        };
        assert_eq!(refuse(2, &[], false), (Reason::Complete, 0));
        // The rank in this world is passed, not the position in the cluster.
        assert_eq!(refuse(2, &[1], false), (Reason::Early, 0));
        assert_eq!(refuse(1, &[], true), (Reason::Ended, 0));
        assert_eq!(refuse(1, &[], false), (Reason::Early, 1));
        assert_eq!(refuse(1, &[], false), (Reason::Early, 1));
        // It has the table of another world, and does not wait for this one.
        let mut none = WaitingProcesses::default();
        let link = Hello { purpose: Purpose::Link, ..hello(1, 1, JOIN) };
        let answer = late_join_replies.answer(&link, &|_| false, false, &mut none, Duration::ZERO);
        assert_eq!((answer.unwrap_err().reason, none.count()), (Reason::Early, 0));
    }

    // INV-111
    #[test]
    fn workers_that_follow_send_processes_to_the_leader_unless_it_is_lost() {
        let address: Address = "10.0.0.2:7".parse().unwrap();
        let replies = |me| {
            let replies = LateJoinReplies::new(me, Names::default(), vec![1, 2, 3], 3).maximum(3);
            replies.elected(Some((2, address.clone())))
        };
        let answer = |me, hello: &Hello, lost: &[usize], over| {
            let (mut waiting, now) = (WaitingProcesses::default(), Duration::ZERO);
            replies(me).answer(hello, &|worker| lost.contains(&worker), over, &mut waiting, now)
        };
        for hello in [hello(0, 0, JOIN), hello(0, 2, SPARE), hello(1, 3, JOIN)] {
            let sent = answer(3, &hello, &[], false).unwrap_err();
            assert_eq!(
                (sent.reason, sent.leader.as_deref().cloned()),
                (Reason::Elsewhere, Some((2, address.clone())))
            );
            // The rank of the leader in this world is 1.
            let busy = answer(3, &hello, &[1], false).unwrap_err();
            assert_eq!((busy.reason, busy.generation), (Reason::Busy, 3));
            assert_eq!(answer(3, &hello, &[], true).unwrap_err().reason, Reason::Ended);
        }
        assert_eq!(answer(2, &hello(0, 0, JOIN), &[], false), Ok(()));
        assert_eq!(answer(2, &hello(1, 3, JOIN), &[], false).unwrap_err().reason, Reason::Complete);
        // The leader has lost that one.
        let busy = answer(2, &hello(1, 0, JOIN), &[0], false).unwrap_err();
        assert_eq!((busy.reason, busy.generation), (Reason::Busy, 3));
    }

    // INV-100
    #[test]
    fn a_full_world_accepts_spares_and_no_members_of_a_later_world() {
        let replies = |me, members: &[usize]| {
            LateJoinReplies::new(me, Names::default(), members.to_vec(), 3).maximum(3)
        };
        let answer = |replies: &LateJoinReplies, hello: &Hello, over| {
            let mut waiting_processes = WaitingProcesses::default();
            waiting_processes.set_spares([4].into());
            let answer = replies.answer(hello, &|_| false, over, &mut waiting_processes, Duration::ZERO);
            (answer.map_err(|refusal| refusal.reason), waiting_processes.count())
        };
        let full = replies(0, &[0, 2, 3]);
        for accepted in [hello(1, 0, JOIN), hello(1, 2, JOIN), hello(1, 2, SPARE), hello(1, 7, SPARE)] {
            assert_eq!(answer(&full, &accepted, false), (Ok(()), 0), "{accepted:?}");
        }
        assert_eq!(answer(&full, &hello(4, 2, SPARE), false), (Err(Reason::Taken), 0));
        let (mut waiting_processes, one) = (WaitingProcesses::default(), hello(1, 2, SPARE));
        let mut twice =
            || full.answer(&one, &|_| false, false, &mut waiting_processes, Duration::ZERO).is_ok();
        assert_eq!([twice(), twice()], [true, false]);
        assert_eq!(answer(&full, &hello(1, 2, SPARE), true), (Err(Reason::Ended), 0));
        // It has the state of a world that is at least as late, unless this one continues from a later state.
        assert_eq!(answer(&full, &hello(1, 3, JOIN), false), (Err(Reason::Early), 1));
        let mut raised = WaitingProcesses::default();
        raised.raise(4);
        assert!(full.answer(&hello(1, 3, JOIN), &|_| false, false, &mut raised, Duration::ZERO).is_ok());
        // There is room for it, and the leader decides.
        assert_eq!(answer(&replies(0, &[0, 2]), &hello(1, 2, SPARE), false), (Err(Reason::Early), 1));
        assert_eq!(answer(&replies(2, &[0, 2, 3]), &hello(1, 2, SPARE), false), (Err(Reason::Early), 1));
    }
}
