//! Replies to processes that connect after the world was formed. This module contains only pure functions and values.

use super::state::latecomer;
use super::waiting::WaitingProcesses;
use crate::handshake::{Hello, Names, Reason, Refusal};
use std::time::Duration;

/// The replies that a worker of the world sends to processes that connect.
#[derive(Debug)]
pub struct LateJoinReplies {
    me: usize,
    names: Names,
    /// The positions of the world's workers.
    members: Vec<usize>,
}

impl LateJoinReplies {
    /// Creates the replies of the worker at position `me`, in the world whose workers have the positions `members`.
    pub fn new(me: usize, names: Names, members: Vec<usize>) -> Self {
        Self { me, names, members }
    }

    /// Returns the refusal to send to a process that connects while this world exists. `lost` returns whether the
    /// worker of a given rank is disconnected. `over` is `true` if there will be no other world. Otherwise, a process
    /// that is no member of this world is recorded in `waiting_processes`, because it waits for the next one.
    pub fn refuse(
        &self,
        hello: &Hello,
        lost: &dyn Fn(usize) -> bool,
        over: bool,
        waiting_processes: &mut WaitingProcesses,
        now: Duration,
    ) -> Refusal {
        let (mine, theirs) = (self.names.task(self.me), self.names.task(hello.rank));
        if over {
            let text = format!("the training has ended on all workers, and {mine} waits for no {theirs}");
            return Refusal::new(Reason::Ended, text);
        }
        match self.members.iter().position(|place| *place == hello.rank) {
            Some(worker) => latecomer(&mine, &theirs, lost(worker)),
            None => {
                waiting_processes.record(hello.rank, hello.generation, now);
                let text =
                    format!("the group was formed without {theirs}, which joins when the group re-forms");
                Refusal::new(Reason::Early, text)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handshake::Purpose;

    // INV-34, INV-43
    #[test]
    fn who_was_not_there_waits_for_the_next_world_and_is_counted_once() {
        let late_join_replies = LateJoinReplies::new(0, Names::default(), vec![0, 2, 3]);
        let mut waiting_processes = WaitingProcesses::default();
        let mut refuse = |rank, lost: &[usize], over| {
            let purpose = Purpose::Join { address: "10.0.0.1:7".into() };
            let hello = Hello {
                job: "a".into(),
                generation: 0,
                rank,
                workers: 4,
                replicas: 1,
                digest: [0; 32],
                purpose,
            };
            let lost = |worker| lost.contains(&worker);
            let reason =
                late_join_replies.refuse(&hello, &lost, over, &mut waiting_processes, Duration::ZERO).reason;
            (reason, waiting_processes.count())
        };
        assert_eq!(refuse(2, &[], false), (Reason::Complete, 0));
        // The rank in this world is passed, not the position in the cluster.
        assert_eq!(refuse(2, &[1], false), (Reason::Early, 0));
        assert_eq!(refuse(1, &[], true), (Reason::Ended, 0));
        assert_eq!(refuse(1, &[], false), (Reason::Early, 1));
        assert_eq!(refuse(1, &[], false), (Reason::Early, 1));
    }
}
