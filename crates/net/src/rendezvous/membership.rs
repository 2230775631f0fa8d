//! The workers that have connected to this worker, may connect, or are missing. This module contains only pure
//! functions and values.

// - **INV-34** The members of a world have one generation, which the leader creates when all have joined: one more
//   than the last of which any of them was a member. A process that was in an earlier one than the leader is
//   refused, and joins like one that has just started, which can take any free position; an elected leader accepts it
//   after the members of later ones. Links are made between
//   workers that have received the same generation. A worker that leaves a world to re-form the group announces it
//   (`Mesh::leave`), and a worker that is still joining the old world then joins the next one. Tests:
//   `net/src/rendezvous/membership/tests.rs`, `retries.rs`, `claim.rs`, `simulation/tests/it/scenarios.rs`,
//   `simulation/tests/it/found.rs`.

mod choice;

use super::Missing;
use crate::handshake::{Hello, Names, Purpose, Reason, Refusal, UnformedWorld};
use distribute_cluster::{Address, Task};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// The workers for which this worker waits in a rendezvous. The leader waits until all others join it. Any other worker
/// waits until those with higher positions link to it.
#[derive(Clone, Debug)]
pub struct Membership {
    me: usize,
    /// The position of the leader; `None` while this worker knows none.
    leader: Option<usize>,
    /// Whether the leader is elected.
    is_elected: bool,
    names: Names,
    /// The addresses of the workers by position, as far as this worker knows them.
    addresses: Vec<Address>,
    connected: Vec<bool>,
    /// The origin of the process that is or was connected, by position.
    origins: Vec<Origin>,
    /// The generation that a process claims, by position.
    generations: Vec<u64>,
    /// The id of the table of the world of which a process is a spare, by position.
    tables: Vec<u64>,
    /// The world of which the process knows that it was never complete, by position.
    unformed: Vec<Option<UnformedWorld>>,
    /// The pairs of workers that could not link to each other.
    apart: Apart,
    /// The positions of the world's workers, in order, once they are known.
    members: Option<Vec<usize>>,
    /// The generation of the last world of which this worker was a member; 0 if there was none.
    before: u64,
    /// The latest generation of which a connected worker was a member. Generations that spares know of do not count,
    /// because one of their members may still connect and supplant the new world.
    latest: u64,
    /// The generation of the new world, once it is known.
    generation: Option<u64>,
    /// The id of the table of the new world: the one that this worker sends, or has received.
    table: u64,
    /// The generation and the id of the table of the world of which this worker is a spare that leads; 0 if it is none.
    spare_of: (u64, u64),
}

/// Pairs of workers that could not link to each other, each with the number of further rendezvous in which the leader
/// remembers it. The lower position is first.
pub type Apart = BTreeMap<(usize, usize), u32>;

/// The number of rendezvous in which a leader remembers a pair of workers that could not link to each other.
const REMEMBERED: u32 = 4;

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
        let (generations, tables) = (vec![0; addresses.len()], vec![0; addresses.len()]);
        let unformed = vec![None; addresses.len()];
        let (apart, members, before, latest, generation, table) = Default::default();
        let (spare_of, is_elected) = Default::default();
        Self {
            me,
            leader: Some(0),
            is_elected,
            names,
            connected,
            origins,
            generations,
            tables,
            unformed,
            addresses,
            apart,
            members,
            before,
            latest,
            generation,
            table,
            spare_of,
        }
    }

    /// Makes the leader the one that is elected. `leader` is the position of the first one; `None` if there is none.
    pub fn elected(mut self, leader: Option<usize>) -> Self {
        (self.is_elected, self.leader) = (true, leader);
        self
    }

    /// Sets the leader after an election. The workers that had connected to this one must connect to that leader.
    pub fn follow(&mut self, leader: Option<usize>) {
        self.leader = leader;
        self.connected.fill(false);
    }

    /// Makes this worker, which is a spare of the world of this generation and table, the leader.
    pub fn lead_as_spare(&mut self, generation: u64, table: u64) {
        self.follow(Some(self.me));
        self.spare_of = (generation, table);
    }

    /// Sets the random id of the table that this worker sends if it leads.
    pub fn table_id(mut self, table: u64) -> Self {
        self.table = table;
        self
    }

    /// Returns the id of the table of the new world, which this worker sends as the leader or has received.
    pub fn table(&self) -> u64 {
        self.table
    }

    /// Returns the position of the leader; `None` while this worker knows none.
    pub fn leader(&self) -> Option<usize> {
        self.leader
    }

    /// Returns whether this worker leads.
    pub fn leads(&self) -> bool {
        self.leader == Some(self.me)
    }

    /// Sets the generation of the last world of which worker `me` was a member; 0 means that there was none.
    pub fn after(mut self, generation: u64) -> Self {
        (self.before, self.latest) = (generation, generation);
        self
    }

    /// Sets the world of which this worker knows that it was never complete.
    pub fn set_unformed(&mut self, world: Option<UnformedWorld>) {
        if let Some(own) = self.unformed.get_mut(self.me) {
            *own = world;
        }
    }

    /// Sets the pairs of workers that could not link to each other, as this worker knows from its last rendezvous.
    pub fn set_apart(&mut self, apart: Apart) {
        let later = apart.into_iter().filter_map(|(pair, times)| Some((pair, times.checked_sub(1)?)));
        self.apart = later.collect();
    }

    /// Returns the pairs of workers that could not link to each other, as far as this worker knows.
    pub fn apart(&self) -> &Apart {
        &self.apart
    }

    /// Returns the world of which this worker knows that it was never complete.
    pub fn unformed(&self) -> Option<UnformedWorld> {
        self.unformed.get(self.me).copied().flatten()
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
            if has_spare || self.spare_of.0 > 0 { next.max(WITH_SPARES) } else { next }
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
        if let Purpose::Join { address, .. } | Purpose::Spare { address, .. } = &hello.purpose
            && let Err(error) = address.parse::<Address>()
        {
            return refusal(Reason::Protocol, format!("{theirs} cannot be reported to the others: {error}"));
        }
        match (&hello.purpose, self.leads()) {
            (Purpose::Join { .. } | Purpose::Spare { .. }, true) | (Purpose::Link, false) => {}
            (Purpose::Join { .. } | Purpose::Spare { .. }, false) => {
                let leader = self.task(self.leader.unwrap_or_default());
                return refusal(Reason::Rank, format!("{mine} does not lead this world: join {leader}"));
            }
            (Purpose::Call { .. }, _) => {
                return refusal(Reason::Purpose, format!("{mine} of a world accepts no calls"));
            }
            (Purpose::Link, _) => {
                // In an election, this worker may have lost a world of which the other one has the table.
                let reason = if self.is_elected { Reason::Early } else { Reason::Rank };
                return refusal(reason, format!("{theirs} has to join {mine} first"));
            }
        }
        self.of_my_generation(hello)?;
        let is_ahead = if self.leads() { rank != me } else { rank > me };
        if !is_ahead {
            let text = format!("{mine} is the one that connects to {theirs}, not the other way");
            return refusal(Reason::Rank, text);
        }
        if let (Purpose::Link, Some(members)) = (&hello.purpose, &self.members)
            && (!members.contains(&rank) || hello.table != self.table)
        {
            // It has a table that another leader has sent, which may have the same generation and this worker.
            let text = format!("{theirs} is in no world with {mine}");
            return refusal(Reason::Early, text);
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
            // An elected leader accepts members of earlier worlds as such. Its own last world may not have been
            // complete, so that these have the state.
            (Purpose::Join { .. }, _) if self.is_elected && hello.generation <= self.before => return Ok(()),
            // A spare has missed any number of worlds, but none that is later than the leader's. An elected leader
            // waits for the members of a later one.
            (Purpose::Spare { .. }, _)
                if hello.generation <= self.before || self.before == 0 || self.is_elected =>
            {
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
        if let (Some(of), Some(generation), Some(table)) = (
            self.origins.get_mut(hello.rank),
            self.generations.get_mut(hello.rank),
            self.tables.get_mut(hello.rank),
        ) {
            (*of, *generation, *table) = (origin, hello.generation, hello.table);
        }
        if let (
            Purpose::Join { address, unformed } | Purpose::Spare { address, unformed },
            Some(known),
            Some(world),
        ) = (&hello.purpose, self.addresses.get_mut(hello.rank), self.unformed.get_mut(hello.rank))
        {
            *world = *unformed;
            if let Some(unreached) = unformed.and_then(|world| world.unreached) {
                let pair = (hello.rank.min(unreached), hello.rank.max(unreached));
                self.apart.insert(pair, REMEMBERED);
            }
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

    /// Returns whether the members of the new world are decided.
    pub fn is_closed(&self) -> bool {
        self.members.is_some()
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

    /// Sets the world of the leader: its generation, the id of its table, and the positions and addresses of its
    /// workers. If it is not later than this worker's last one, or positions are not sorted or lack the leader or this
    /// worker, returns `false`, unchanged.
    pub fn locate(&mut self, generation: u64, table: u64, members: Vec<(usize, Address)>) -> bool {
        let positions: Vec<_> = members.iter().map(|(place, _)| *place).collect();
        let is_world = generation > self.before
            && self.leader.is_some_and(|leader| positions.contains(&leader))
            && positions.is_sorted_by(|one, next| one < next)
            && positions.last().is_some_and(|last| *last < self.addresses.len())
            && positions.contains(&self.me);
        if is_world {
            for (place, address) in members {
                self.addresses[place] = address;
            }
            (self.generation, self.members, self.table) = (Some(generation), Some(positions), table);
        }
        is_world
    }

    /// Returns the workers for which this worker still waits: without a leader, all that have not connected.
    pub fn missing(&self) -> Vec<Missing> {
        let is_linked_by = |place: usize| match self.leader {
            Some(leader) if leader != self.me => place > self.me && place != leader,
            _ => place != self.me,
        };
        let all = self.connected.iter().zip(&self.addresses).enumerate();
        let waited = all.filter(|(place, _)| is_linked_by(*place));
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
mod tests;
