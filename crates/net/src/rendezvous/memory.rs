//! The memory of a process between its rendezvous: addresses of tasks, and worlds that it has not taken part in.

use super::membership::Apart;
use crate::handshake::UnformedWorld;
use distribute_cluster::Address;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The memory of a process between its rendezvous. Clones share it. Each rendezvous of a process [with
/// elections](super::Rendezvous::elect) gets the same memory, so that the process finds the others in the next one.
///
/// The memory has the addresses of tasks that the process has learned, the last world of which it has lost the table,
/// the world whose spare it is, and the workers that could not link to each other when it led.
#[derive(Clone, Debug, Default)]
pub struct Memory(Arc<Mutex<Entries>>);

#[derive(Debug, Default)]
struct Entries {
    addresses: BTreeMap<usize, Address>,
    unformed: Option<UnformedWorld>,
    apart: Apart,
    spare_of: Option<(u64, u64)>,
}

impl Memory {
    /// Returns the addresses by position.
    pub fn addresses(&self) -> BTreeMap<usize, Address> {
        self.0.lock().addresses.clone()
    }

    /// Adds addresses, which replace earlier ones of the same tasks.
    pub fn add(&self, addresses: impl IntoIterator<Item = (usize, Address)>) {
        self.0.lock().addresses.extend(addresses);
    }

    /// Returns the world of which the process knows that it was never complete.
    pub fn unformed(&self) -> Option<UnformedWorld> {
        self.0.lock().unformed
    }

    /// Returns the latest world that the process has received a note of as its spare: the generation, and the id of the
    /// table. Returns `None` if the process was a member of a world since.
    pub fn spare_of(&self) -> Option<(u64, u64)> {
        self.0.lock().spare_of
    }

    /// Sets the world of which the process is a spare: the generation, and the id of the table.
    pub fn set_spare_of(&self, world: Option<(u64, u64)>) {
        self.0.lock().spare_of = world;
    }

    /// Returns the pairs of workers that could not link to each other in the last rendezvous that this process led.
    pub fn apart(&self) -> Apart {
        self.0.lock().apart.clone()
    }

    /// Sets the pairs of workers that could not link to each other.
    pub fn set_apart(&self, apart: Apart) {
        self.0.lock().apart = apart;
    }

    /// Sets the world of which the process knows that it was never complete.
    pub fn set_unformed(&self, world: Option<UnformedWorld>) {
        self.0.lock().unformed = world;
    }
}
