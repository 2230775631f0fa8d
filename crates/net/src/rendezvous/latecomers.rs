//! Those who come when the world has been made.

use super::meeting::latecomer;
use super::reception::Reception;
use super::waiting::WaitingRoom;
use crate::background::Latecomers;
use crate::handshake::{Hello, Names, Reason, Refusal};
use rustix::event::PollFd;
use std::sync::Arc;

/// Tells those who come when the world has been made why nobody is let in, and remembers who waits for the next one.
#[derive(Debug)]
pub(super) struct Door {
    reception: Reception,
    guests: Guests,
}

/// What those are told that come.
#[derive(Debug)]
struct Guests {
    me: usize,
    names: Names,
    /// The places of the world's workers.
    members: Vec<usize>,
    waiting: Arc<WaitingRoom>,
}

impl Door {
    /// The door of the world of these places. `waiting` tells who waits for the next one.
    pub fn new(reception: Reception, names: Names, members: Vec<usize>, waiting: Arc<WaitingRoom>) -> Self {
        let me = reception.mine().rank;
        Self { reception, guests: Guests { me, names, members, waiting } }
    }
}

impl Guests {
    /// Nobody may stay. `lost` says which workers of the world are, `over` whether there will be no other world.
    fn refuse(&mut self, hello: &Hello, lost: &dyn Fn(usize) -> bool, over: bool) -> Refusal {
        let (mine, theirs) = (self.names.of(self.me), self.names.of(hello.rank));
        if over {
            let text = format!("the training has ended on all workers, and {mine} waits for no {theirs}");
            return Refusal::new(Reason::Ended, text);
        }
        match self.members.iter().position(|place| *place == hello.rank) {
            Some(worker) => latecomer(&mine, &theirs, lost(worker)),
            None => {
                self.waiting.knock(hello.rank, hello.generation);
                let text = format!("a world was made without {theirs}, which takes part when all meet again");
                Refusal::new(Reason::Early, text)
            }
        }
    }
}

impl Latecomers for Door {
    fn interests(&self) -> Vec<PollFd<'_>> {
        self.reception.interests()
    }

    fn attend(&mut self, lost: &dyn Fn(usize) -> bool, over: bool) {
        let Self { reception, guests } = self;
        guests.waiting.look();
        let _ = reception.attend(&mut |hello| Err(guests.refuse(hello, lost, over)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handshake::Purpose;

    // INV-34, INV-43
    #[test]
    fn who_was_not_there_waits_for_the_next_world_and_is_counted_once() {
        let room = Arc::<WaitingRoom>::default();
        let (names, members) = (Names::default(), vec![0, 2, 3]);
        let mut guests = Guests { me: 0, names, members, waiting: room.clone() };
        let mut refuse = |rank, lost: &[usize]| {
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
            guests.refuse(&hello, &|worker| lost.contains(&worker), false).reason
        };
        assert_eq!(refuse(2, &[]), Reason::Complete);
        // By its number in this world: places are numbers in the cluster.
        assert_eq!(refuse(2, &[1]), Reason::Early);
        assert_eq!(room.count(), 0);
        assert_eq!((refuse(1, &[]), refuse(1, &[])), (Reason::Early, Reason::Early));
        assert_eq!(room.count(), 1);
    }
}
