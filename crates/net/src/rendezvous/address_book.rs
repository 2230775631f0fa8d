//! The addresses of tasks that a process has learned in its rendezvous, and the last table that it has lost.

use super::membership::Apart;
use crate::handshake::UnformedWorld;
use distribute_cluster::Address;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The addresses of tasks that a process has learned, by position in the cluster. Clones share them. Each rendezvous of
/// a process [with elections](super::Rendezvous::elect) gets the same book, so that the process finds the others in the
/// next one. The book also has the last world of which the process has lost the table, and the one whose spare it is.
#[derive(Clone, Debug, Default)]
pub struct AddressBook(Arc<Mutex<Entries>>);

#[derive(Debug, Default)]
struct Entries {
    addresses: BTreeMap<usize, Address>,
    unformed: Option<UnformedWorld>,
    apart: Apart,
    spare_of: Option<u64>,
}

impl AddressBook {
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

    /// Returns the generation of the latest world of which the process was told that it is a spare of it; `None` if it
    /// was a member of a world since.
    pub fn spare_of(&self) -> Option<u64> {
        self.0.lock().spare_of
    }

    /// Sets the generation of the world of which the process is a spare.
    pub fn set_spare_of(&self, generation: Option<u64>) {
        self.0.lock().spare_of = generation;
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
