//! The side that is called.

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
use distribute_cluster::places::Full;
use distribute_cluster::{Address, Deadline, Task};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// Lets those in that belong to the job and mean to call this task. Strangers are refused, logged, few and not waited for, as
/// where workers meet. Whether messages go through shared memory is for those to say who connect.
#[derive(Debug)]
pub struct Acceptor {
    reception: Reception,
    at: SocketAddr,
    waker: Arc<Waker>,
    settings: Settings,
}

/// Ends a wait for callers.
#[derive(Clone, Debug)]
pub struct Alarm(Arc<Waker>);

impl Alarm {
    /// Ends the wait under way, or the next one.
    pub fn ring(&self) {
        self.0.wake();
    }
}

/// A task that has connected and may stay.
#[derive(Debug)]
pub struct Arrival {
    caller: Task,
    from: SocketAddr,
    stream: Stream,
    settings: Settings,
}

impl Acceptor {
    /// Listens for those that call `me`. With port 0 the system chooses one. A name is looked up for at most `patience`.
    ///
    /// # Errors
    /// [`ListenError`].
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

    /// As [`bind`](Self::bind), with a socket that listens already.
    ///
    /// # Errors
    /// [`ListenError`].
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

    /// The name of the job, the same at both ends.
    ///
    /// # Errors
    /// [`ListenError::Name`] for one that is too long.
    pub fn job(mut self, name: &str) -> Result<Self, ListenError> {
        if let Some(name) = too_long(name, &[]) {
            return Err(ListenError::Name { name });
        }
        self.reception.mine_mut().job = name.to_owned();
        Ok(self)
    }

    /// How connections behave.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.at
    }

    /// What ends a wait in [`accept`](Self::accept).
    pub fn alarm(&self) -> Alarm {
        Alarm(self.waker.clone())
    }

    /// Waits for callers for at most `patience`, and talks to those that have come; at most `room` of them are let in, and the
    /// others told to try again. Gives those that may stay, if there are any: it may return before.
    ///
    /// # Errors
    /// The errors of the system.
    pub fn accept(&mut self, patience: Duration, room: usize) -> io::Result<Vec<Arrival>> {
        let mut left = room;
        self.accept_if(patience, &mut |_, _| {
            left = left.checked_sub(1).ok_or(Full::All)?;
            Ok(())
        })
    }

    /// Equivalent to [`accept`](Self::accept), where `admit` says of each task that calls, and the address that it calls from, whether
    /// there is room for it. It is told of each once, before it is let in.
    ///
    /// # Errors
    /// The errors of the system.
    pub fn accept_if(
        &mut self,
        patience: Duration,
        admit: &mut dyn FnMut(&Task, IpAddr) -> Result<(), Full>,
    ) -> io::Result<Vec<Arrival>> {
        let mut sockets = self.reception.interests();
        sockets.push(self.waker.interest());
        // Guests have deadlines of their own.
        poll::wait(&mut sockets, patience.min(Duration::from_millis(200)))?;
        self.waker.drain();
        let mut decide = |hello: &Hello, from: SocketAddr| match &hello.purpose {
            Purpose::Call { from: caller, .. } => {
                let full = |full: Full| Refusal::new(Reason::Crowded, format!("{full}: try again"));
                admit(caller, from.ip()).map_err(full)
            }
            // The handshake lets nobody else in.
            _ => Err(Refusal::new(Reason::Purpose, "there are calls here, and nothing else")),
        };
        let arrivals = self.reception.attend(&mut decide);
        Ok(arrivals.into_iter().filter_map(|arrival| self.arrival(arrival)).collect())
    }

    fn arrival(&self, arrival: reception::Arrival) -> Option<Arrival> {
        let reception::Arrival { hello, from, stream } = arrival;
        // The handshake lets nobody else in.
        let Purpose::Call { from: caller, .. } = hello.purpose else { return None };
        Some(Arrival { caller, from, stream, settings: self.settings })
    }
}

impl Arrival {
    /// Who has connected.
    pub fn caller(&self) -> &Task {
        &self.caller
    }

    /// Where from.
    pub fn from(&self) -> SocketAddr {
        self.from
    }

    /// Opens the connection: what is sent over it goes to `receiver`.
    ///
    /// # Errors
    /// Those of the system, which has no thread to spare.
    pub fn open(self, receiver: Arc<dyn Receiver>) -> io::Result<Endpoint> {
        let Self { caller, from, stream, settings } = self;
        Endpoint::new(stream, CALLED, caller, from.to_string(), receiver, settings)
    }
}
