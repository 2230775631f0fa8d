//! The assignment of a limited number of connections to their sources. This module opens no socket and reads no clock.
//!
//! Connections that have not authenticated yet are [`Guests`]. A new guest is always admitted; if there are too many,
//! another guest is evicted. Authenticated connections take a [seat](Seats), and keep it until they leave. No source
//! gets all seats, unless there is only one.

// - INV-83: the oldest guest is closed, from the address with most of them, and a silent one never replaces one
//   that sends. No task and no address gets all connections of a server, and the process may have as many sockets
//   as the system allows (`net/src/descriptors.rs`). Tests: `cluster/src/admission.rs`, `net/src/descriptors.rs`,
//   `net/tests/it/refusals.rs`, `rpc/tests/it/calls.rs`, `monitor/src/server/tests.rs`.

use crate::Task;
use core::cmp::Reverse;
use core::net::{IpAddr, Ipv6Addr};

/// The origin of a connection: its IP address and, if it is known, its task. An IPv6 address is reduced to its /64
/// network, because one machine may use all addresses of its network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    network: IpAddr,
    task: Option<Task>,
}

impl Source {
    /// Creates a source from an IP address, without a task.
    pub fn new(address: IpAddr) -> Self {
        let network = match address.to_canonical() {
            IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
            address => address,
        };
        Self { network, task: None }
    }

    /// Sets the task from which the connection comes.
    pub fn task(self, task: Task) -> Self {
        Self { task: Some(task), ..self }
    }
}

/// The progress of a guest towards authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The guest was asked to close the connection.
    Leaving,
    /// The guest has not sent anything valid yet.
    Silent,
    /// The guest has begun to authenticate.
    Speaking,
}

/// The id of a guest. A later guest has a larger id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GuestId(u64);

/// The guests of a server: connections that have not authenticated yet.
#[derive(Debug)]
pub struct Guests {
    max: usize,
    next: u64,
    all: Vec<Guest>,
}

#[derive(Debug)]
struct Guest {
    id: GuestId,
    source: Source,
    stage: Stage,
}

impl Guests {
    /// Creates an empty set with a capacity of `max` guests.
    pub fn new(max: usize) -> Self {
        Self { max, next: 0, all: Vec::new() }
    }

    /// Adds a guest and returns its id. If there are now too many guests, one is evicted, and its id is returned as
    /// well.
    ///
    /// A leaving guest is evicted first. Without one, a silent guest is evicted if silent guests occupy more than half
    /// of the places, and otherwise a guest that has begun to authenticate. Among these guests, the oldest one of the
    /// source with the most guests is evicted.
    ///
    /// So a source that occupies all places loses them to other sources. However many silent guests arrive, guests that
    /// are authenticating keep half of the places, and some of them have time to finish.
    pub fn enter(&mut self, source: Source) -> (GuestId, Option<GuestId>) {
        let id = GuestId(self.next);
        self.next += 1;
        self.all.push(Guest { id, source, stage: Stage::Silent });
        let to_evict = if self.all.len() > self.max { self.to_evict(id) } else { None };
        if let Some(to_evict) = to_evict {
            self.leave(to_evict);
        }
        (id, to_evict)
    }

    /// Returns the guest to evict so that `newcomer` can stay, if there is one.
    fn to_evict(&self, newcomer: GuestId) -> Option<GuestId> {
        let count = |stage| self.all.iter().filter(|guest| guest.stage == stage).count();
        let stage = if count(Stage::Leaving) > 0 {
            Stage::Leaving
        } else if count(Stage::Silent) > self.max / 2 {
            Stage::Silent
        } else {
            Stage::Speaking
        };
        let mut sources: Vec<(&Source, usize, GuestId)> = Vec::new();
        for guest in self.all.iter().filter(|guest| guest.stage == stage && guest.id != newcomer) {
            match sources.iter_mut().find(|(source, ..)| *source == &guest.source) {
                Some((_, count, _)) => *count += 1,
                // The guests are in order of arrival.
                None => sources.push((&guest.source, 1, guest.id)),
            }
        }
        let largest = sources.into_iter().max_by_key(|(_, count, oldest)| (*count, Reverse(*oldest)));
        // If there is room for one guest only, the other guest may be at another stage.
        let other = || self.all.iter().map(|guest| guest.id).find(|id| *id != newcomer);
        largest.map(|(.., oldest)| oldest).or_else(other)
    }

    /// Sets the stage of a guest. Has no effect if the guest no longer exists.
    pub fn advance(&mut self, id: GuestId, stage: Stage) {
        if let Some(guest) = self.all.iter_mut().find(|guest| guest.id == id) {
            guest.stage = stage;
        }
    }

    /// Removes a guest that has disconnected or has authenticated. Has no effect if the guest no longer exists.
    pub fn leave(&mut self, id: GuestId) {
        self.all.retain(|guest| guest.id != id);
    }
}

/// The seats of a server for authenticated connections.
#[derive(Debug)]
pub struct Seats {
    max: usize,
    taken: Vec<Source>,
}

/// The reason why a connection gets no seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// No seat is left.
    #[error("this server has reached its maximum number of connections")]
    All,
    /// The remaining seats are reserved for other sources.
    #[error("this task, or its machine, has reached its share of this server's connections")]
    Share,
}

impl Seats {
    /// Creates `max` seats. `taken` lists the sources of the connections that already occupy some of them.
    pub fn new(max: usize, taken: Vec<Source>) -> Self {
        Self { max, taken }
    }

    /// Takes a seat for a connection from `source`.
    ///
    /// A source gets another seat only while it has fewer seats than are left, so it gets at most half of them, rounded
    /// up. All sources at one address together get another seat only while they have fewer than three times the number
    /// of seats that are left. An address that has all other seats never gets the last one, unless there is only one
    /// seat.
    ///
    /// # Errors
    /// - [`Full::All`]: no seat is left.
    /// - [`Full::Share`]: the remaining seats are reserved for other sources.
    pub fn take(&mut self, source: Source) -> Result<(), Full> {
        let left = self.max.saturating_sub(self.taken.len());
        if left == 0 {
            return Err(Full::All);
        }
        let own = self.taken.iter().filter(|taken| **taken == source).count();
        let near = self.taken.iter().filter(|taken| taken.network == source.network).count();
        let would_have_all = self.max > 1 && near + 1 >= self.max;
        if own >= left || near >= left.saturating_mul(3) || would_have_all {
            return Err(Full::Share);
        }
        self.taken.push(source);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Job;

    fn at(host: u8) -> Source {
        Source::new(IpAddr::from([10, 0, 0, host]))
    }

    /// Creates guests that have come from these hosts.
    fn guests(max: usize, hosts: &[u8]) -> (Guests, Vec<GuestId>) {
        let mut guests = Guests::new(max);
        let ids = hosts.iter().map(|host| guests.enter(at(*host)).0).collect();
        (guests, ids)
    }

    // INV-83
    #[test]
    fn a_new_guest_gets_in_and_the_oldest_silent_one_goes() {
        let (mut guests, ids) = guests(4, &[1; 4]);
        for oldest in ids {
            assert_eq!(guests.enter(at(1)).1, Some(oldest));
        }
        assert_eq!(guests.all.len(), 4);
    }

    // INV-83
    #[test]
    fn the_source_with_most_guests_makes_room_for_all_others() {
        let (mut guests, ids) = guests(6, &[7, 1, 1, 2, 1, 2]);
        assert_eq!(guests.enter(at(3)).1, Some(ids[1]));
        // Host 2 has the same number as host 1: the oldest of both goes.
        assert_eq!(guests.enter(at(4)).1, Some(ids[2]));
        guests.leave(ids[4]);
        guests.enter(at(1));
        assert_eq!(guests.enter(at(5)).1, Some(ids[3]));
        assert_eq!(Source::new("fd00::1".parse().unwrap()), Source::new("fd00::2".parse().unwrap()));
        assert_ne!(Source::new("fd00::1".parse().unwrap()), Source::new("fd00:0:0:1::1".parse().unwrap()));
        assert_eq!(Source::new("::ffff:10.0.0.1".parse().unwrap()), at(1));
    }

    // INV-83
    #[test]
    fn however_many_silent_ones_come_who_speaks_stays_and_the_other_way_round() {
        let (mut guests, ids) = guests(8, &[1; 8]);
        for speaks in &ids[2..6] {
            guests.advance(*speaks, Stage::Speaking);
        }
        for _ in 0..1000 {
            let (_, to_evict) = guests.enter(at(1));
            assert!(!ids[2..6].contains(&to_evict.unwrap()), "{to_evict:?}");
        }
        // More than half authenticate, so one of them makes room, and silent guests get time to begin.
        let newest = guests.enter(at(1)).0;
        guests.advance(newest, Stage::Speaking);
        assert_eq!(guests.enter(at(1)).1, Some(ids[2]));
        assert!(guests.all.iter().filter(|guest| guest.stage == Stage::Silent).count() >= 4);
    }

    // INV-83
    #[test]
    fn leaving_guests_make_room_first_and_removed_ones_take_no_place() {
        let (mut guests, ids) = guests(3, &[1, 2, 3]);
        guests.advance(ids[1], Stage::Leaving);
        assert_eq!(guests.enter(at(1)).1, Some(ids[1]));
        guests.leave(ids[2]);
        assert_eq!(guests.enter(at(1)).1, None);
        let mut lone = Guests::new(1);
        let speaks = lone.enter(at(1)).0;
        lone.advance(speaks, Stage::Speaking);
        assert_eq!(lone.enter(at(1)).1, Some(speaks));
    }

    // INV-83
    #[test]
    fn no_task_and_no_machine_gets_all_seats() {
        let of = |host, task| at(host).task(Job::Worker.task(task));
        let take = |seats: &mut Seats, source: &dyn Fn(usize) -> Source| {
            (0..2000).take_while(|n| seats.take(source(*n)).is_ok()).count()
        };
        let mut seats = Seats::new(1024, Vec::new());
        assert_eq!(take(&mut seats, &|_| of(1, 0)), 512);
        assert_eq!(seats.take(of(1, 0)), Err(Full::Share));
        // Another task of that machine, or one that claims another task each time.
        assert_eq!(take(&mut seats, &|_| of(1, 1)), 256);
        assert!(take(&mut seats, &|task| of(1, task)) < 2);
        // Another machine has its share in any case.
        assert_eq!(take(&mut seats, &|_| of(2, 0)), 128);
        assert_eq!(take(&mut seats, &|n| of(100 + (n % 100) as u8, n)), 128);
        assert_eq!(seats.take(of(3, 0)), Err(Full::All));
        assert!(Seats::new(1, Vec::new()).take(of(1, 0)).is_ok());
    }

    // INV-83
    #[test]
    fn however_few_seats_there_are_each_source_leaves_one() {
        for max in 2..40 {
            let take = |source: &dyn Fn(usize) -> Source| {
                let mut seats = Seats::new(max, Vec::new());
                let taken = (0..).take_while(|n| seats.take(source(*n)).is_ok()).count();
                (taken, seats)
            };
            let (task, mut seats) = take(&|_| at(1).task(Job::Worker.task(0)));
            assert!(task == max.div_ceil(2) && seats.take(at(2)).is_ok(), "{task} of {max}");
            // Each connection claims to be of another task.
            let (machine, mut seats) = take(&|n| at(1).task(Job::Worker.task(n)));
            assert!(machine < max && machine >= max / 2, "{machine} of {max}");
            assert!(seats.take(at(2)).is_ok(), "{machine} of {max}");
        }
    }
}
