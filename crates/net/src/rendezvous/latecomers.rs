//! Replies to processes that connect after the world was made. Pure: no socket, no clock.

use super::meeting::latecomer;
use super::waiting::Knocks;
use crate::handshake::{Hello, Names, Reason, Refusal};
use std::time::Duration;

/// The replies of a world's worker to processes that connect.
#[derive(Debug)]
pub struct Latecomers {
    me: usize,
    names: Names,
    /// The positions of the world's workers.
    members: Vec<usize>,
}

impl Latecomers {
    /// Creates the replies of the worker at position `me`, in the world of these positions.
    pub fn new(me: usize, names: Names, members: Vec<usize>) -> Self {
        Self { me, names, members }
    }

    /// Refuses a process, with the reason. `lost` returns whether a worker of the world is disconnected, by
    /// its rank. `over` is whether there will be no other world. A process that waits for the next one is
    /// recorded in `knocks`.
    pub fn refuse(
        &self,
        hello: &Hello,
        lost: &dyn Fn(usize) -> bool,
        over: bool,
        knocks: &mut Knocks,
        now: Duration,
    ) -> Refusal {
        let (mine, theirs) = (self.names.of(self.me), self.names.of(hello.rank));
        if over {
            let text = format!("the training has ended on all workers, and {mine} waits for no {theirs}");
            return Refusal::new(Reason::Ended, text);
        }
        match self.members.iter().position(|place| *place == hello.rank) {
            Some(worker) => latecomer(&mine, &theirs, lost(worker)),
            None => {
                knocks.knock(hello.rank, hello.generation, now);
                let text = format!("a world was made without {theirs}, which takes part when all meet again");
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
        let latecomers = Latecomers::new(0, Names::default(), vec![0, 2, 3]);
        let mut knocks = Knocks::default();
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
            let reason = latecomers.refuse(&hello, &lost, over, &mut knocks, Duration::ZERO).reason;
            (reason, knocks.count())
        };
        assert_eq!(refuse(2, &[], false), (Reason::Complete, 0));
        // The rank in this world is passed, not the position in the cluster.
        assert_eq!(refuse(2, &[1], false), (Reason::Early, 0));
        assert_eq!(refuse(1, &[], true), (Reason::Ended, 0));
        assert_eq!(refuse(1, &[], false), (Reason::Early, 1));
        assert_eq!(refuse(1, &[], false), (Reason::Early, 1));
    }
}
