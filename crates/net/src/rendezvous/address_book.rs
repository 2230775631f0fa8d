//! The addresses of tasks that a process has learned in its rendezvous.

use distribute_cluster::Address;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The addresses of tasks that a process has learned, by position in the cluster. Clones share them. Each rendezvous of
/// a process [with elections](super::Rendezvous::elect) gets the same book, so that the process finds the others in the
/// next one.
#[derive(Clone, Debug, Default)]
pub struct AddressBook(Arc<Mutex<BTreeMap<usize, Address>>>);

impl AddressBook {
    /// Returns the addresses by position.
    pub fn addresses(&self) -> BTreeMap<usize, Address> {
        self.0.lock().clone()
    }

    /// Adds addresses, which replace earlier ones of the same tasks.
    pub fn add(&self, addresses: impl IntoIterator<Item = (usize, Address)>) {
        self.0.lock().extend(addresses);
    }
}
