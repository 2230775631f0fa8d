//! What those are told that come when the world has been made. Pure: no socket, no clock.

use super::meeting::latecomer;
use super::waiting::Knocks;
use crate::handshake::{Hello, Names, Reason, Refusal};
use std::time::Duration;

/// What a worker of a world tells those that come.
#[derive(Debug)]
pub struct Latecomers {
    me: usize,
    names: Names,
    /// The places of the world's workers.
    members: Vec<usize>,
}

impl Latecomers {
    /// To the world of these places, as the worker in place `me` says it.
    pub fn new(me: usize, names: Names, members: Vec<usize>) -> Self {
        Self { me, names, members }
    }

    /// Nobody may stay. `lost` says which workers of the world are, by their numbers in it, and `over` whether there will be no other
    /// world. Who waits for one has knocked.
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
        // By its number in this world: places are numbers in the cluster.
        assert_eq!(refuse(2, &[1], false), (Reason::Early, 0));
        assert_eq!(refuse(1, &[], true), (Reason::Ended, 0));
        assert_eq!(refuse(1, &[], false), (Reason::Early, 1));
        assert_eq!(refuse(1, &[], false), (Reason::Early, 1));
    }
}
