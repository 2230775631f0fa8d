//! A server between the one that follows it and the one that it follows.

use super::asking::Asking;
use super::feeder::Feeder;
use super::mirror::Replicas;
use crate::store::{Core, Store};
use distribute_cluster::Task;
use distribute_server::ClientBuilder;
use std::io;
use std::sync::{Arc, OnceLock};

/// A store whose changes go to a follower, and which asks the server that it follows for its copy: each if it was told to.
#[derive(Debug)]
pub(crate) struct Replicated {
    store: Store,
    feeder: OnceLock<Feeder>,
    asking: OnceLock<Asking>,
}

impl Replicated {
    /// A store that nobody follows yet.
    pub fn new(store: Store) -> Self {
        Self { store, feeder: OnceLock::new(), asking: OnceLock::new() }
    }

    pub fn core(&self) -> &Core {
        self.store.core()
    }

    /// Has another server follow this one, if none does yet.
    pub fn follow(&self, by: (ClientBuilder, Task, u64)) -> io::Result<()> {
        if self.feeder.get().is_none() {
            let _ = self.feeder.set(Feeder::start(self.store.core(), by)?);
        }
        Ok(())
    }

    /// Returns the copies of servers that this one follows, and begins to ask `of`, one of these, for its copy.
    pub fn replicas(self: &Arc<Self>, clients: ClientBuilder, of: Task) -> io::Result<Replicas> {
        let replicas = Replicas::beside(self.clone(), self.core().follows().clone());
        if self.asking.get().is_none() {
            let _ = self.asking.set(Asking::start(clients, of, replicas.run())?);
        }
        Ok(replicas)
    }

    /// Notes that a task asks for its copy of server `number`, and returns whether it follows it.
    pub fn asked(&self, by: (&Task, u64), run: u64) -> bool {
        self.feeder.get().is_some_and(|feeder| feeder.asked(by, run))
    }
}
