//! The side of a call that listens.

use super::end::CALLED;
use super::{Endpoint, JOB, ListenError, hello, too_long};
use crate::handshake::{Hello, Purpose, Reason, Refusal};
use crate::identity::{Access, PolicyError};
use crate::poll::{self, Waker};
use crate::rendezvous::error::advice;
use crate::rendezvous::listener::{Listener, OpenError};
use crate::rendezvous::reception::{self, Reception};
use crate::stream::Stream;
use crate::{Receiver, Settings, SharedMemory};
use distribute_cluster::admission::Full;
use distribute_cluster::{Address, Deadline, Task};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// A listener for calls from other tasks of the same job.
///
/// Connections that are not such calls are rejected, and logged at a limited rate. As in a
/// [rendezvous](crate::Rendezvous), they do not delay the accepted ones. Each caller decides whether its connection
/// uses shared memory.
#[derive(Debug)]
pub struct Acceptor {
    reception: Reception,
    at: SocketAddr,
    waker: Arc<Waker>,
    settings: Settings,
}

/// A handle that interrupts a wait for callers.
#[derive(Clone, Debug)]
pub struct AcceptorWaker(Arc<Waker>);

impl AcceptorWaker {
    /// Makes the current call of [`Acceptor::accept`] return early, or the next call if none is in progress.
    pub fn wake(&self) {
        self.0.wake();
    }
}

/// An accepted call, whose connection is not open yet.
#[derive(Debug)]
pub struct IncomingConnection {
    caller: Task,
    from: SocketAddr,
    stream: Stream,
    settings: Settings,
}

impl Acceptor {
    /// Creates an acceptor that listens at `address` for calls to the task `me`. With port 0 the system chooses a port.
    /// Resolving a host name takes at most `patience`.
    ///
    /// # Errors
    /// - [`ListenError::Bind`]: the acceptor cannot listen at the address.
    /// - [`ListenError::Policy`]: connections would be unprotected.
    /// - [`ListenError::Name`]: the name of the task's job is too long.
    /// - [`ListenError::System`]: a socket cannot be opened.
    pub fn bind(
        me: Task,
        address: &Address,
        access: Access,
        patience: Duration,
    ) -> Result<Self, ListenError> {
        let listener = Listener::open(address, &access, Deadline::after(patience));
        let listener = listener.map_err(|error| match error {
            OpenError::Policy(error) => ListenError::Policy(error),
            OpenError::System(source) => {
                let advice = advice(&source);
                ListenError::Bind { task: me.clone(), address: address.to_string(), source, advice }
            }
        })?;
        Self::new(me, listener, access)
    }

    /// Equivalent to [`bind`](Self::bind), with a socket that is already listening.
    ///
    /// # Errors
    /// - [`ListenError::Policy`]: connections would be unprotected.
    /// - [`ListenError::Name`]: the name of the task's job is too long.
    /// - [`ListenError::System`]: a socket cannot be opened.
    pub fn new(me: Task, listener: Listener, access: Access) -> Result<Self, ListenError> {
        if let Some(name) = too_long(JOB, &[&me]) {
            return Err(ListenError::Name { name });
        }
        let at = listener.address()?;
        if !access.allows(at.ip()) {
            return Err(PolicyError::PlainTextOnTheNetwork { address: at.to_string() }.into());
        }
        let reception = Reception::new(listener, access, hello(JOB, me.clone(), me), SharedMemory::Auto);
        Ok(Self { reception, at, waker: Arc::new(Waker::new()?), settings: Settings::default() })
    }

    /// Sets the name of the job, which must be the same at both ends.
    ///
    /// # Errors
    /// - [`ListenError::Name`]: the name is too long.
    pub fn job(mut self, name: &str) -> Result<Self, ListenError> {
        if let Some(name) = too_long(name, &[]) {
            return Err(ListenError::Name { name });
        }
        self.reception.mine_mut().job = name.to_owned();
        Ok(self)
    }

    /// Sets the options of connections.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Returns the address at which this acceptor listens.
    pub fn address(&self) -> SocketAddr {
        self.at
    }

    /// Returns a handle that interrupts a wait in [`accept`](Self::accept).
    pub fn waker(&self) -> AcceptorWaker {
        AcceptorWaker(self.waker.clone())
    }

    /// Waits for callers for at most `patience`, performs their handshakes, and returns the accepted ones.
    ///
    /// At most `room` callers are accepted; all others receive a refusal that asks them to retry. The result may be
    /// empty before `patience` has passed.
    ///
    /// # Errors
    /// Returns an I/O error if the wait fails.
    pub fn accept(&mut self, patience: Duration, room: usize) -> io::Result<Vec<IncomingConnection>> {
        let mut left = room;
        self.accept_if(patience, &mut |_, _| {
            left = left.checked_sub(1).ok_or(Full::All)?;
            Ok(())
        })
    }

    /// Equivalent to [`accept`](Self::accept), except that `admit` decides whether there is room for a caller. `admit`
    /// is called once for each caller, with the caller's task and IP address. If it fails, the caller receives a
    /// refusal that asks it to retry.
    ///
    /// # Errors
    /// Returns an I/O error if the wait fails.
    pub fn accept_if(
        &mut self,
        patience: Duration,
        admit: &mut dyn FnMut(&Task, IpAddr) -> Result<(), Full>,
    ) -> io::Result<Vec<IncomingConnection>> {
        let mut sockets = self.reception.interests();
        sockets.push(self.waker.interest());
        // Handshakes have deadlines of their own.
        poll::wait(&mut sockets, patience.min(Duration::from_millis(200)))?;
        self.waker.drain();
        let mut decide = |hello: &Hello, from: SocketAddr| match &hello.purpose {
            Purpose::Call { from: caller, .. } => {
                let full = |full: Full| Refusal::new(Reason::Crowded, format!("{full}: try again"));
                admit(caller, from.ip()).map_err(full)
            }
            // The handshake accepts only calls.
            _ => Err(Refusal::new(Reason::Purpose, "this address only accepts calls")),
        };
        let arrivals = self.reception.advance(&mut decide);
        Ok(arrivals.into_iter().filter_map(|arrival| self.arrival(arrival)).collect())
    }

    fn arrival(&self, arrival: reception::Accepted) -> Option<IncomingConnection> {
        let reception::Accepted { hello, from, stream } = arrival;
        // The handshake accepts only calls.
        let Purpose::Call { from: caller, .. } = hello.purpose else { return None };
        Some(IncomingConnection { caller, from, stream, settings: self.settings })
    }
}

impl IncomingConnection {
    /// Returns the task that calls.
    pub fn caller(&self) -> &Task {
        &self.caller
    }

    /// Returns the address from which the task calls.
    pub fn from(&self) -> SocketAddr {
        self.from
    }

    /// Opens the connection, whose messages are delivered to `receiver`.
    ///
    /// # Errors
    /// Returns an I/O error if a socket or a thread cannot be created.
    pub fn open(self, receiver: Arc<dyn Receiver>) -> io::Result<Endpoint> {
        let Self { caller, from, stream, settings } = self;
        Endpoint::new(stream, CALLED, caller, from.to_string(), receiver, settings)
    }
}
