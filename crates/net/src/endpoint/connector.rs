//! The side of a call that connects.

use super::end::CALLING;
use super::{ConnectError, Endpoint, JOB, hello, too_long};
use crate::handshake::{Names, Purpose};
use crate::identity::Access;
use crate::poll;
use crate::rendezvous::attempt::CallContext;
use crate::rendezvous::dialer::{Dialer, Failed};
use crate::rendezvous::state::Call;
use crate::{Receiver, Settings, SharedMemory};
use distribute_cluster::{Address, Deadline, Stopwatch, Task};
use std::sync::Arc;

/// A factory of connections from one task to other tasks of its job.
#[derive(Clone, Debug)]
pub struct Connector {
    from: Task,
    job: String,
    access: Access,
    settings: Settings,
    shared_memory: SharedMemory,
}

impl Connector {
    /// Creates a connector for calls from the task `from`.
    pub fn new(from: Task, access: Access) -> Self {
        let (settings, shared_memory) = (Settings::default(), SharedMemory::Never);
        Self { from, job: JOB.to_owned(), access, settings, shared_memory }
    }

    /// Sets the name of the job, which must be the same at both ends.
    pub fn job(mut self, name: impl Into<String>) -> Self {
        self.job = name.into();
        self
    }

    /// Sets the options of connections.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Sets whether messages are sent through shared memory if the other side is on this machine. By default they are
    /// sent through sockets, which are fast enough for a few calls.
    pub fn shared_memory(mut self, shared_memory: SharedMemory) -> Self {
        self.shared_memory = shared_memory;
        self
    }

    /// Returns the task that calls.
    pub fn from(&self) -> &Task {
        &self.from
    }

    /// Connects to a task, and retries until the task is running or the deadline has passed.
    ///
    /// # Errors
    /// - [`ConnectError::Refused`]: one side rejects the other, and a retry would not help.
    /// - [`ConnectError::Policy`]: the connection would be unprotected.
    /// - [`ConnectError::Name`]: the name of the job or of a task's job is too long.
    /// - [`ConnectError::System`]: a socket cannot be opened, or a thread cannot be started.
    /// - [`ConnectError::Unreachable`]: the deadline has passed. The error contains the reason for the latest failure.
    pub fn connect(
        &self,
        to: &Task,
        address: &Address,
        receiver: Arc<dyn Receiver>,
        mut deadline: Deadline,
    ) -> Result<Endpoint, ConnectError> {
        let (task, at) = (to.clone(), address.to_string());
        if let Some(name) = too_long(&self.job, &[&self.from, to]) {
            return Err(ConnectError::Name { name });
        }
        let waited = Stopwatch::start();
        let hello = hello(&self.job, self.from.clone(), to.clone());
        let purpose = Purpose::Call { from: self.from.clone(), to: to.clone() };
        let context = CallContext {
            hello,
            access: self.access.clone(),
            names: Names::default(),
            shared_memory: self.shared_memory,
        };
        let mut dialer = Dialer::new(Call {
            worker: 0,
            address: address.clone(),
            purpose,
            generation: 0,
            table: 0,
            before: None,
        });
        loop {
            match dialer.advance(&context) {
                Ok(None) => {}
                Ok(Some(stream)) => {
                    let opened =
                        Endpoint::new(stream, CALLING, task.clone(), at.clone(), receiver, self.settings);
                    return opened.map_err(|source| ConnectError::System { task, address: at, source });
                }
                Err(Failed::Refused(refusal)) => {
                    return Err(ConnectError::Refused { task, address: at, refusal });
                }
                Err(Failed::Policy(error)) => return Err(ConnectError::Policy { task, error }),
            }
            let slice = deadline.look();
            if slice.is_zero() {
                let last = dialer.last();
                return Err(ConnectError::Unreachable { task, address: at, waited: waited.elapsed(), last });
            }
            let patience = dialer.pause().map_or(slice, |pause| pause.min(slice));
            let mut sockets: Vec<_> = dialer.interest().into_iter().collect();
            if let Err(source) = poll::wait(&mut sockets, patience) {
                return Err(ConnectError::System { task, address: at, source });
            }
            deadline.look();
        }
    }
}
