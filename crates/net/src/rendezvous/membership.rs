//! The workers that have connected to this worker, may connect, or are missing. This module contains only pure
//! functions and values.

// - **INV-34** The members of a world have one generation, which the leader creates when all have joined: one more
//   than the last of which any of them was a member. A process that was in an earlier one than the leader is
//   refused, and joins like one that has just started, which can take any free position. Links are made between
//   workers that have received the same generation. A worker that leaves a world to re-form the group announces it
//   (`Mesh::leave`), and a worker that is still joining the old world then joins the next one. Tests:
//   `net/src/rendezvous/membership.rs`, `retries.rs`, `claim.rs`, `simulation/tests/it/scenarios.rs`,
//   `simulation/tests/it/found.rs`.

use super::Missing;
use crate::handshake::{Hello, Names, Purpose, Reason, Refusal};
use distribute_cluster::{Address, Task};
use std::cmp::{Ordering, Reverse};
use std::collections::BTreeSet;

/// The workers for which this worker waits in a rendezvous. The leader waits until all others join it. Any other worker
/// waits until those with higher positions link to it.
#[derive(Clone, Debug)]
pub struct Membership {
    me: usize,
    names: Names,
    /// The addresses of the workers by position, as far as this worker knows them.
    addresses: Vec<Address>,
    connected: Vec<bool>,
    /// The origin of the process that is or was connected, by position.
    origins: Vec<Origin>,
    /// The generation that a process claims, by position.
    generations: Vec<u64>,
    /// The positions of the world's workers, in order, once they are known.
    members: Option<Vec<usize>>,
    /// The generation of the last world of which this worker was a member; 0 if there was none.
    before: u64,
    /// The latest generation of which a connected worker was a member. Generations that spares know of do not count,
    /// because one of their members may still connect and supplant the new world.
    latest: u64,
    /// The generation of the new world, once it is known.
    generation: Option<u64>,
}

/// The earliest generation of a world that has a spare. In the first generation, all workers build their models
/// together, which a spare has done alone.
const WITH_SPARES: u64 = 2;

/// The origin of a process that joins, in the order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Origin {
    /// The process was a member of a world.
    Member,
    /// The process has built its model as a spare.
    Spare,
    /// The process has just started.
    Started,
}

impl Membership {
    /// Creates the state of worker `me`, before any other has connected.
    pub fn new(me: usize, names: Names, addresses: Vec<Address>) -> Self {
        let (connected, origins) = (vec![false; addresses.len()], vec![Origin::Started; addresses.len()]);
        let generations = vec![0; addresses.len()];
        let (members, before, latest, generation) = Default::default();
        Self { me, names, connected, origins, generations, addresses, members, before, latest, generation }
    }

    /// Sets the generation of the last world of which worker `me` was a member; 0 means that there was none.
    pub fn after(mut self, generation: u64) -> Self {
        (self.before, self.latest) = (generation, generation);
        self
    }

    /// Returns the generation of the last world of which this worker was a member; 0 if there was none.
    pub fn before(&self) -> u64 {
        self.before
    }

    /// Returns the generation of the new world, as far as this worker knows it.
    ///
    /// The leader chooses the generation after the latest one of which a connected worker was a member. With a spare in
    /// the world, the generation is at least 2.
    pub fn generation(&self) -> u64 {
        let is_in = |place: usize| self.members.as_ref().is_none_or(|members| members.contains(&place));
        let next = self.latest.saturating_add(1);
        self.generation.unwrap_or_else(|| {
            let has_spare = self.connected_from(Origin::Spare).any(|(place, _)| is_in(place));
            if has_spare { next.max(WITH_SPARES) } else { next }
        })
    }

    /// Checks that a worker, which belongs to the job, can be accepted now.
    ///
    /// # Errors
    /// Returns the refusal to send to the worker.
    pub fn decide(&self, hello: &Hello) -> Result<(), Refusal> {
        let refusal = |reason, text| Err(Refusal::new(reason, text));
        let (me, rank) = (self.me, hello.rank);
        let (mine, theirs) = (self.task(me), self.task(rank));
        if let Purpose::Join { address } | Purpose::Spare { address } = &hello.purpose
            && let Err(error) = address.parse::<Address>()
        {
            return refusal(Reason::Protocol, format!("{theirs} cannot be reported to the others: {error}"));
        }
        match (&hello.purpose, me) {
            (Purpose::Join { .. } | Purpose::Spare { .. }, 0) | (Purpose::Link, 1..) => {}
            (Purpose::Join { .. } | Purpose::Spare { .. }, _) => {
                return refusal(
                    Reason::Rank,
                    format!("{mine} does not lead this world: join {}", self.task(0)),
                );
            }
            (Purpose::Call { .. }, _) => {
                return refusal(Reason::Purpose, format!("{mine} of a world accepts no calls"));
            }
            (Purpose::Link, _) => {
                return refusal(Reason::Rank, format!("{theirs} has to join {mine} first"));
            }
        }
        self.of_my_generation(hello)?;
        if rank <= me {
            let text = format!("{mine} is the one that connects to {theirs}, not the other way");
            return refusal(Reason::Rank, text);
        }
        match (self.connected.get(rank), self.addresses.get(rank)) {
            (Some(false), _) => Ok(()),
            (Some(true), Some(address)) => {
                let text =
                    format!("{theirs} has already joined, at {address}: each process needs a unique number");
                refusal(Reason::Taken, text)
            }
            _ => refusal(
                Reason::Rank,
                format!("there is no worker {rank}: the world has {}", self.connected.len()),
            ),
        }
    }

    /// Checks that the generation that a worker claims fits the new world.
    ///
    /// # Errors
    /// Returns the refusal if the worker belongs to another generation, or links before this worker knows the new
    /// generation.
    fn of_my_generation(&self, hello: &Hello) -> Result<(), Refusal> {
        let (mine, theirs) = (self.task(self.me), self.task(hello.rank));
        let own = match (&hello.purpose, self.generation) {
            // A new process can take any free position. A leader that is new does not know of earlier
            // generations.
            (Purpose::Join { .. }, _) if hello.generation == 0 || self.before == 0 => return Ok(()),
            // A spare has missed any number of worlds, but none that is later than the leader's.
            (Purpose::Spare { .. }, _) if hello.generation <= self.before || self.before == 0 => {
                return Ok(());
            }
            (Purpose::Join { .. } | Purpose::Spare { .. }, _) => self.before,
            (_, Some(generation)) => generation,
            (_, None) => {
                let text = format!("{mine} has not received the addresses of the others yet");
                return Err(Refusal::new(Reason::Early, text));
            }
        };
        let (reason, which) = match hello.generation.cmp(&own) {
            Ordering::Equal => return Ok(()),
            Ordering::Less => {
                (Reason::Generation, "the worker that has connected has been replaced, and must exit")
            }
            Ordering::Greater => (Reason::Replaced, "the worker that was connected to has been replaced"),
        };
        let text = format!(
            "{theirs} is of generation {}, and {mine} of generation {own}: {which}",
            hello.generation
        );
        Err(Refusal::new(reason, text))
    }

    /// Returns the name of a worker.
    pub fn task(&self, worker: usize) -> Task {
        self.names.task(worker)
    }

    /// Records that a worker has connected, and its address if the worker joins.
    pub fn connect(&mut self, hello: &Hello) {
        if let Some(connected) = self.connected.get_mut(hello.rank) {
            *connected = true;
        }
        let origin = match &hello.purpose {
            Purpose::Spare { .. } => Origin::Spare,
            Purpose::Join { .. } if hello.generation == 0 => Origin::Started,
            _ => Origin::Member,
        };
        if origin == Origin::Member {
            self.latest = self.latest.max(hello.generation);
        }
        if let (Some(of), Some(generation)) =
            (self.origins.get_mut(hello.rank), self.generations.get_mut(hello.rank))
        {
            (*of, *generation) = (origin, hello.generation);
        }
        if let (Purpose::Join { address } | Purpose::Spare { address }, Some(known)) =
            (&hello.purpose, self.addresses.get_mut(hello.rank))
        {
            // The address was checked before.
            if let Ok(address) = address.parse() {
                *known = address;
            }
        }
    }

    /// Records that a worker has disconnected. It may connect again.
    pub fn leave(&mut self, worker: usize) {
        if let Some(connected) = self.connected.get_mut(worker) {
            *connected = false;
        }
    }

    /// Returns the positions of the connected workers and of this one.
    pub fn connected(&self) -> BTreeSet<usize> {
        let connected =
            self.connected.iter().enumerate().filter(|(_, connected)| **connected).map(|(place, _)| place);
        connected.chain([self.me]).collect()
    }

    /// Returns the positions of the connected processes that have built their models as spares.
    pub fn spares(&self) -> BTreeSet<usize> {
        self.connected_from(Origin::Spare).map(|(place, _)| place).collect()
    }

    /// Returns the number of workers that were members of an earlier world: the connected ones, and this one.
    pub fn resuming(&self) -> usize {
        self.connected_from(Origin::Member).count() + 1
    }

    /// Returns whether to wait for members of an earlier world of which a spare knows. None of its members has
    /// connected yet, and one still may. Members of even earlier worlds do not have its state. This worker was in no
    /// world.
    pub fn awaits_members(&self) -> bool {
        let latest = |origin| self.connected_from(origin).map(|(_, generation)| generation).max();
        let may_connect = self.connected().len() < self.connected.len();
        self.before == 0 && may_connect && latest(Origin::Spare) > latest(Origin::Member)
    }

    /// Returns whether the members of the new world are decided.
    pub fn is_closed(&self) -> bool {
        self.members.is_some()
    }

    /// Returns the position of each connected process of an origin, and the generation that the process claims.
    fn connected_from(&self, origin: Origin) -> impl Iterator<Item = (usize, u64)> {
        let all = self.connected.iter().zip(&self.origins).zip(&self.generations).enumerate();
        all.filter(move |(_, ((connected, of), _))| **connected && **of == origin)
            .map(|(place, (_, generation))| (place, *generation))
    }

    /// Decides the members of the world: the connected workers, but at most `maximum` of them, including this one.
    /// Members of earlier worlds take precedence over spares, and spares over processes that have just started. Among
    /// processes of the same origin, a later generation takes precedence.
    pub fn close(&mut self, maximum: usize) {
        let mut others: Vec<_> = self.connected().into_iter().filter(|place| *place != self.me).collect();
        others.sort_by_key(|place| {
            let generation = self.generations.get(*place).copied();
            (self.origins.get(*place).copied(), Reverse(generation), *place)
        });
        others.truncate(maximum.saturating_sub(1));
        others.push(self.me);
        others.sort_unstable();
        self.members = Some(others);
    }

    /// Returns the positions in the cluster of the world's workers, by rank. Before they are decided, returns all
    /// positions.
    pub fn members(&self) -> Vec<usize> {
        self.members.clone().unwrap_or_else(|| (0..self.connected.len()).collect())
    }

    /// Returns the addresses of all workers by position in the cluster, as far as this worker knows them.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Returns the address of a worker as text, or an empty string if there is no such worker.
    pub fn address(&self, worker: usize) -> String {
        self.addresses.get(worker).map(Address::to_string).unwrap_or_default()
    }

    /// Sets the world of the leader: its generation, and the positions and addresses of its workers. If it is not later
    /// than this worker's last one, or positions are not sorted or lack 0 or this worker, returns `false`, unchanged.
    pub fn locate(&mut self, generation: u64, members: Vec<(usize, Address)>) -> bool {
        let positions: Vec<_> = members.iter().map(|(place, _)| *place).collect();
        let is_world = generation > self.before
            && positions.first() == Some(&0)
            && positions.is_sorted_by(|one, next| one < next)
            && positions.last().is_some_and(|last| *last < self.addresses.len())
            && positions.contains(&self.me);
        if is_world {
            for (place, address) in members {
                self.addresses[place] = address;
            }
            (self.generation, self.members) = (Some(generation), Some(positions));
        }
        is_world
    }

    /// Returns the workers for which this worker still waits.
    pub fn missing(&self) -> Vec<Missing> {
        let waited = self.connected.iter().zip(&self.addresses).enumerate().skip(self.me + 1);
        let is_member = |place| self.members.as_ref().is_none_or(|members| members.contains(&place));
        waited
            .filter(|(place, (connected, _))| !**connected && is_member(*place))
            .map(|(worker, (_, address))| Missing {
                worker,
                task: self.task(worker),
                address: address.to_string(),
                last: None,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(rank: usize, purpose: Purpose) -> Hello {
        Hello { job: "a".into(), generation: 1, rank, workers: 3, replicas: 1, digest: [0; 32], purpose }
    }

    fn join(rank: usize) -> Hello {
        hello(rank, Purpose::Join { address: format!("10.0.0.{rank}:7") })
    }

    fn spare(rank: usize, generation: u64) -> Hello {
        let purpose = Purpose::Spare { address: format!("10.0.0.{rank}:7") };
        Hello { generation, ..hello(rank, purpose) }
    }

    fn at(me: usize) -> Membership {
        Membership::new(
            me,
            Names::default(),
            (0..3).map(|worker| format!("10.0.0.{worker}:0").parse().unwrap()).collect(),
        )
    }

    #[test]
    fn the_leader_takes_each_worker_once_and_again_when_it_has_gone() {
        let mut members = at(0);
        assert_eq!(members.missing().len(), 2);
        members.decide(&join(2)).unwrap();
        members.connect(&join(2));
        assert_eq!(
            members.addresses()[1..].iter().map(Address::to_string).collect::<Vec<_>>(),
            ["10.0.0.1:0", "10.0.0.2:7"]
        );
        let taken = members.decide(&join(2)).unwrap_err();
        assert_eq!(taken.reason, Reason::Taken);
        assert!(taken.text.contains("worker 2 has already joined, at 10.0.0.2:7"), "{taken}");
        members.leave(2);
        members.decide(&join(2)).unwrap();
        members.connect(&join(2));
        members.connect(&join(1));
        assert_eq!(members.missing(), []);
    }

    fn located(me: usize) -> Membership {
        let mut members = at(me);
        locate(&mut members, 1);
        members
    }

    fn locate(members: &mut Membership, generation: u64) {
        let all = members.addresses().iter().cloned().enumerate().collect();
        assert!(members.locate(generation, all));
    }

    // INV-34
    #[test]
    fn the_leader_makes_the_generation_after_all_that_there_were_and_refuses_who_has_missed_one() {
        let of = |rank, generation| Hello { generation, ..join(rank) };
        // This is the generation of a first world.
        assert_eq!(at(0).generation(), 1);
        // A new leader learns the latest generation from the others.
        let mut started = at(0);
        for (rank, last) in [(1, 4), (2, 0)] {
            started.decide(&of(rank, last)).unwrap();
            started.connect(&of(rank, last));
        }
        assert_eq!(started.generation(), 5);
        // An earlier member accepts new processes as well as other earlier members.
        let mut there = at(0).after(4);
        there.decide(&of(1, 0)).unwrap();
        there.decide(&of(2, 4)).unwrap();
        there.connect(&of(2, 4));
        assert_eq!(there.generation(), 5);
        let refusal = there.decide(&of(1, 3)).unwrap_err();
        assert_eq!(refusal.reason, Reason::Generation);
        assert!(
            refusal.text.starts_with("worker 1 is of generation 3, and worker 0 of generation 4"),
            "{refusal}"
        );
        assert_eq!(there.decide(&of(1, 5)).unwrap_err().reason, Reason::Replaced);
    }

    // INV-34
    #[test]
    fn links_connect_workers_that_received_the_same_world() {
        let of = |generation| Hello { generation, ..hello(2, Purpose::Link) };
        let mut members = at(1).after(6);
        assert_eq!(members.decide(&of(7)).unwrap_err().reason, Reason::Early);
        locate(&mut members, 7);
        members.decide(&of(7)).unwrap();
        assert_eq!(members.decide(&of(6)).unwrap_err().reason, Reason::Generation);
        assert_eq!(members.decide(&of(8)).unwrap_err().reason, Reason::Replaced);
    }

    // INV-43
    #[test]
    fn a_partial_world_has_the_present_workers_and_waits_for_no_others() {
        let mut leader = at(0);
        leader.connect(&join(2));
        assert_eq!((leader.connected(), leader.missing().len()), ([0, 2].into(), 1));
        leader.close(3);
        assert_eq!((leader.members(), leader.missing()), (vec![0, 2], vec![]));
        let table = |positions: &[usize]| -> Vec<(usize, Address)> {
            positions.iter().map(|place| (*place, format!("10.0.0.{place}:8").parse().unwrap())).collect()
        };
        let mut member = at(1);
        for no_world in [&[][..], &[0, 2], &[1], &[1, 0], &[0, 1, 1], &[0, 1, 3]] {
            assert!(!member.locate(1, table(no_world)), "{no_world:?}");
        }
        assert!(!member.locate(0, table(&[0, 1])), "of a generation that is over");
        assert!(member.locate(1, table(&[0, 1])));
        assert_eq!((member.members(), member.missing()), (vec![0, 1], vec![]));
    }

    // INV-100
    #[test]
    fn members_take_precedence_over_spares_and_spares_over_new_processes() {
        let of = |rank, generation| Hello { generation, ..join(rank) };
        let addresses = (0..5).map(|worker| format!("10.0.0.{worker}:0").parse().unwrap()).collect();
        let mut leader = Membership::new(0, Names::default(), addresses);
        leader.connect(&spare(2, 4));
        leader.connect(&of(1, 0));
        assert!(leader.awaits_members());
        assert_eq!((leader.spares(), leader.resuming()), ([2].into(), 1));
        leader.connect(&of(4, 4));
        assert!(!leader.awaits_members());
        assert_eq!(leader.resuming(), 2);
        for (maximum, members) in
            [(1, &[0][..]), (2, &[0, 4]), (3, &[0, 2, 4]), (4, &[0, 1, 2, 4]), (5, &[0, 1, 2, 4])]
        {
            leader.close(maximum);
            assert_eq!((leader.members(), leader.generation()), (members.to_vec(), 5));
        }
        // A leader that was in generation 4 accepts a spare of any earlier one, and of no later one.
        let mut there = at(0).after(4);
        there.connect(&spare(2, 4));
        assert!(!there.awaits_members());
        there.decide(&spare(1, 2)).unwrap();
        there.decide(&spare(1, 4)).unwrap();
        assert_eq!(there.decide(&spare(1, 5)).unwrap_err().reason, Reason::Replaced);
    }

    // INV-100
    #[test]
    fn members_of_the_latest_world_take_precedence_and_the_world_of_a_spare_does_not_count() {
        let of = |rank, generation| Hello { generation, ..join(rank) };
        let addresses: Vec<Address> =
            (0..5).map(|worker| format!("10.0.0.{worker}:0").parse().unwrap()).collect();
        let mut leader = Membership::new(0, Names::default(), addresses);
        leader.connect(&spare(4, 5));
        // Members of generation 5 can supplant the new world.
        assert_eq!(leader.generation(), 2);
        // Worker 1 was cut off, and generation 5 was made without it.
        leader.connect(&of(1, 4));
        assert!(leader.awaits_members());
        leader.connect(&of(3, 5));
        assert!(!leader.awaits_members());
        leader.close(2);
        assert_eq!((leader.members(), leader.generation()), (vec![0, 3], 6));
        leader.close(3);
        assert_eq!(leader.members(), [0, 1, 3]);
    }

    #[test]
    fn a_worker_that_contacts_the_wrong_worker_gets_an_error() {
        for (members, caller, text) in [
            (at(0), join(3), "there is no worker 3"),
            (at(0), join(0), "worker 0 is the one that connects to worker 0"),
            (at(0), hello(1, Purpose::Link), "worker 1 has to join worker 0 first"),
            (at(1), join(2), "worker 1 does not lead this world: join worker 0"),
            (located(2), hello(1, Purpose::Link), "worker 2 is the one that connects to worker 1"),
        ] {
            let refusal = members.decide(&caller).unwrap_err();
            assert_eq!(refusal.reason, Reason::Rank);
            assert!(refusal.text.contains(text), "{refusal}");
        }
        let mut members = at(1);
        locate(&mut members, 1);
        members.decide(&hello(2, Purpose::Link)).unwrap();
        members.connect(&hello(2, Purpose::Link));
        assert_eq!(members.missing(), []);
    }
}
