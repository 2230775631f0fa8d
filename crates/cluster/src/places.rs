//! The assignment of a limited number of places. Pure: no socket, no clock.
//!
//! Connections that have not authenticated yet have a place among [`Guests`]: a new one always gets in, and
//! evicts another one. Authenticated connections get a [seat](Seats), and keep it as long as they want. One
//! source therefore never gets all seats.

use crate::Task;
use core::cmp::Reverse;
use core::net::{IpAddr, Ipv6Addr};

/// The origin of a connection: an address and, if it is known, a task. An IPv6 address is reduced to its
/// network, since one machine has all addresses of its network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    network: IpAddr,
    task: Option<Task>,
}

impl Source {
    /// Creates a source from an address.
    pub fn new(address: IpAddr) -> Self {
        let network = match address.to_canonical() {
            IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
            address => address,
        };
        Self { network, task: None }
    }

    /// Sets the task of the source.
    pub fn task(self, task: Task) -> Self {
        Self { task: Some(task), ..self }
    }
}

/// The progress of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The guest has been asked to leave.
    Leaving,
    /// The guest has sent nothing valid yet.
    Silent,
    /// The guest has begun to authenticate.
    Speaking,
}

/// The number of a guest's place: a later guest has a larger number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place(u64);

/// The guests of an acceptor: connections that have not authenticated yet.
#[derive(Debug)]
pub struct Guests {
    most: usize,
    next: u64,
    all: Vec<Guest>,
}

#[derive(Debug)]
struct Guest {
    place: Place,
    source: Source,
    stage: Stage,
}

impl Guests {
    /// Creates a set of `most` places.
    pub fn new(most: usize) -> Self {
        Self { most, next: 0, all: Vec::new() }
    }

    /// Adds a guest, and returns its place. If places are short, another guest is evicted and returned: a
    /// leaving guest first; otherwise a silent one, if more than half are silent; otherwise one that has
    /// begun to authenticate. It is the oldest guest of the source that has the most of them.
    ///
    /// A source that fills all places therefore loses them to other sources. Within a source, silent guests
    /// never evict those that authenticate, which have half of the places, and time to finish.
    pub fn enter(&mut self, source: Source) -> (Place, Option<Place>) {
        let place = Place(self.next);
        self.next += 1;
        self.all.push(Guest { place, source, stage: Stage::Silent });
        let goes = if self.all.len() > self.most { self.goes(place) } else { None };
        if let Some(goes) = goes {
            self.leave(goes);
        }
        (place, goes)
    }

    /// Returns the guest to evict for this one.
    fn goes(&self, newcomer: Place) -> Option<Place> {
        let count = |stage| self.all.iter().filter(|guest| guest.stage == stage).count();
        let stage = if count(Stage::Leaving) > 0 {
            Stage::Leaving
        } else if count(Stage::Silent) > self.most / 2 {
            Stage::Silent
        } else {
            Stage::Speaking
        };
        let mut sources: Vec<(&Source, usize, Place)> = Vec::new();
        for guest in self.all.iter().filter(|guest| guest.stage == stage && guest.place != newcomer) {
            match sources.iter_mut().find(|(source, ..)| *source == &guest.source) {
                Some((_, count, _)) => *count += 1,
                // The guests are in order of arrival.
                None => sources.push((&guest.source, 1, guest.place)),
            }
        }
        let most = sources.into_iter().max_by_key(|(_, count, oldest)| (*count, Reverse(*oldest)));
        // With a single place, the only other guest may be at another stage.
        let other = || self.all.iter().map(|guest| guest.place).find(|place| *place != newcomer);
        most.map(|(.., oldest)| oldest).or_else(other)
    }

    /// Sets the stage of a guest.
    pub fn advance(&mut self, place: Place, stage: Stage) {
        if let Some(guest) = self.all.iter_mut().find(|guest| guest.place == place) {
            guest.stage = stage;
        }
    }

    /// Removes a guest that has left or has authenticated.
    pub fn leave(&mut self, place: Place) {
        self.all.retain(|guest| guest.place != place);
    }
}

/// The seats of authenticated connections.
#[derive(Debug)]
pub struct Seats {
    most: usize,
    taken: Vec<Source>,
}

/// The reason that there is no seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// No seat is left.
    #[error("all connections that this server may have are taken")]
    All,
    /// The remaining seats are reserved for other sources.
    #[error(
        "this task, or its machine, has so many of this server's connections that the others are kept for others"
    )]
    Share,
}

impl Seats {
    /// Creates `most` seats, of which `taken` are occupied.
    pub fn new(most: usize, taken: Vec<Source>) -> Self {
        Self { most, taken }
    }

    /// Takes a seat. A task at an address gets no more seats than are left, so at most about half. All tasks
    /// at an address get at most three times the number that are left. Some seats therefore remain for
    /// others.
    ///
    /// # Errors
    /// - [`Full::All`]: no seat is left.
    /// - [`Full::Share`]: the remaining seats are reserved for other sources.
    pub fn take(&mut self, source: Source) -> Result<(), Full> {
        let left = self.most.saturating_sub(self.taken.len());
        if left == 0 {
            return Err(Full::All);
        }
        let own = self.taken.iter().filter(|taken| **taken == source).count();
        let near = self.taken.iter().filter(|taken| taken.network == source.network).count();
        if own > left || near > left.saturating_mul(3) {
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
    fn guests(most: usize, hosts: &[u8]) -> (Guests, Vec<Place>) {
        let mut guests = Guests::new(most);
        let places = hosts.iter().map(|host| guests.enter(at(*host)).0).collect();
        (guests, places)
    }

    // INV-83
    #[test]
    fn a_new_guest_gets_in_and_the_oldest_silent_one_goes() {
        let (mut guests, places) = guests(4, &[1; 4]);
        for oldest in places {
            assert_eq!(guests.enter(at(1)).1, Some(oldest));
        }
        assert_eq!(guests.all.len(), 4);
    }

    // INV-83
    #[test]
    fn the_source_with_most_guests_makes_room_for_all_others() {
        let (mut guests, places) = guests(6, &[7, 1, 1, 2, 1, 2]);
        assert_eq!(guests.enter(at(3)).1, Some(places[1]));
        // Host 2 has the same number as host 1: the oldest of both goes.
        assert_eq!(guests.enter(at(4)).1, Some(places[2]));
        guests.leave(places[4]);
        guests.enter(at(1));
        assert_eq!(guests.enter(at(5)).1, Some(places[3]));
        assert_eq!(Source::new("fd00::1".parse().unwrap()), Source::new("fd00::2".parse().unwrap()));
        assert_ne!(Source::new("fd00::1".parse().unwrap()), Source::new("fd00:0:0:1::1".parse().unwrap()));
        assert_eq!(Source::new("::ffff:10.0.0.1".parse().unwrap()), at(1));
    }

    // INV-83
    #[test]
    fn however_many_silent_ones_come_who_speaks_stays_and_the_other_way_round() {
        let (mut guests, places) = guests(8, &[1; 8]);
        for speaks in &places[2..6] {
            guests.advance(*speaks, Stage::Speaking);
        }
        for _ in 0..1000 {
            let (_, goes) = guests.enter(at(1));
            assert!(!places[2..6].contains(&goes.unwrap()), "{goes:?}");
        }
        // More than half authenticate, so one of them makes room, and silent guests get time to begin.
        let newest = guests.enter(at(1)).0;
        guests.advance(newest, Stage::Speaking);
        assert_eq!(guests.enter(at(1)).1, Some(places[2]));
        assert!(guests.all.iter().filter(|guest| guest.stage == Stage::Silent).count() >= 4);
    }

    // INV-83
    #[test]
    fn who_was_told_to_go_makes_room_first_and_who_is_known_has_none_of_these_places() {
        let (mut guests, places) = guests(3, &[1, 2, 3]);
        guests.advance(places[1], Stage::Leaving);
        assert_eq!(guests.enter(at(1)).1, Some(places[1]));
        guests.leave(places[2]);
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
        assert_eq!(take(&mut seats, &|_| of(1, 0)), 513);
        assert_eq!(seats.take(of(1, 0)), Err(Full::Share));
        // Another task of that machine, or one that claims another task each time.
        assert_eq!(take(&mut seats, &|_| of(1, 1)), 256);
        assert!(take(&mut seats, &|task| of(1, task)) < 2);
        // Another machine has its share in any case.
        assert_eq!(take(&mut seats, &|_| of(2, 0)), 128);
        assert_eq!(take(&mut seats, &|n| of(100 + (n % 100) as u8, n)), 127);
        assert_eq!(seats.take(of(3, 0)), Err(Full::All));
        // With few seats the shares are negligible.
        assert!(Seats::new(1, Vec::new()).take(of(1, 0)).is_ok());
        assert_eq!(take(&mut Seats::new(2, Vec::new()), &|_| of(1, 0)), 2);
    }
}
