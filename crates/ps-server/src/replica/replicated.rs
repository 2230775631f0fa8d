//! A server with its follower, and with a copy of the server that it follows.

use super::copy_requester::CopyRequester;
use super::mirror::Replicas;
use super::sender::ChangeSender;
use crate::store::{Core, Store};
use distribute_cluster::Task;
use distribute_rpc::ClientBuilder;
use std::io;
use std::sync::{Arc, OnceLock};

/// A store that sends its changes to a follower, and requests a copy of the server that it follows. It may have either,
/// both or none.
#[derive(Debug)]
pub(crate) struct Replicated {
    store: Store,
    sender: OnceLock<ChangeSender>,
    copy_requester: OnceLock<CopyRequester>,
}

impl Replicated {
    /// Creates a store without a follower.
    pub fn new(store: Store) -> Self {
        Self { store, sender: OnceLock::new(), copy_requester: OnceLock::new() }
    }

    pub fn core(&self) -> &Core {
        self.store.core()
    }

    /// Adds a follower, unless there already is one. `by` contains a builder of clients, the follower's task, and the
    /// number of this server.
    pub fn follow(&self, by: (ClientBuilder, Task, u64)) -> io::Result<()> {
        if self.sender.get().is_none() {
            let _ = self.sender.set(ChangeSender::start(self.store.core(), by)?);
        }
        Ok(())
    }

    /// Returns a service that keeps the copies of the servers that this one follows. The first call also begins to
    /// request the copy of task `of`, which is one of these servers.
    pub fn replicas(self: &Arc<Self>, clients: ClientBuilder, of: Task) -> io::Result<Replicas> {
        let replicas = Replicas::beside(self.clone(), self.core().follows().clone());
        if self.copy_requester.get().is_none() {
            let _ = self.copy_requester.set(CopyRequester::start(clients, of, replicas.run())?);
        }
        Ok(replicas)
    }

    /// Records that a task, running as process `run`, has requested its copy of this server, and returns `true`. `by`
    /// is the task and the number of the server that it requests. If the task is not this server's follower, or the
    /// number is that of another server, does nothing and returns `false`.
    pub fn asked(&self, by: (&Task, u64), run: u64) -> bool {
        self.sender.get().is_some_and(|sender| sender.asked(by, run))
    }
}
