//! A server with its follower, and the server that it follows.

use super::asking::Asking;
use super::feeder::Feeder;
use super::mirror::Replicas;
use crate::store::{Core, Store};
use distribute_cluster::Task;
use distribute_rpc::ClientBuilder;
use std::io;
use std::sync::{Arc, OnceLock};

/// A store that sends its changes to a follower, and requests its copy from the server that it follows; both
/// are optional.
#[derive(Debug)]
pub(crate) struct Replicated {
    store: Store,
    feeder: OnceLock<Feeder>,
    asking: OnceLock<Asking>,
}

impl Replicated {
    /// Creates a store without a follower.
    pub fn new(store: Store) -> Self {
        Self { store, feeder: OnceLock::new(), asking: OnceLock::new() }
    }

    pub fn core(&self) -> &Core {
        self.store.core()
    }

    /// Adds a follower, unless there is one.
    pub fn follow(&self, by: (ClientBuilder, Task, u64)) -> io::Result<()> {
        if self.feeder.get().is_none() {
            let _ = self.feeder.set(Feeder::start(self.store.core(), by)?);
        }
        Ok(())
    }

    /// Returns the copies of the servers that this one follows, and begins to request the copy of `of`, one of
    /// these.
    pub fn replicas(self: &Arc<Self>, clients: ClientBuilder, of: Task) -> io::Result<Replicas> {
        let replicas = Replicas::beside(self.clone(), self.core().follows().clone());
        if self.asking.get().is_none() {
            let _ = self.asking.set(Asking::start(clients, of, replicas.run())?);
        }
        Ok(replicas)
    }

    /// Records that a task requests its copy of server `number`, and returns whether it follows this server.
    pub fn asked(&self, by: (&Task, u64), run: u64) -> bool {
        self.feeder.get().is_some_and(|feeder| feeder.asked(by, run))
    }
}
