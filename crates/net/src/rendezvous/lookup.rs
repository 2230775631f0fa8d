//! The lookup of a host name's addresses on a separate thread, because it may block for a minute.

use crate::poll::{self, Waker};
use distribute_cluster::{Address, Deadline, Host};
use rustix::event::PollFd;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, mpsc};

type Found = io::Result<Vec<SocketAddr>>;

/// A lookup that may still be running. Its thread is never joined: it exits when the system answers or times out.
#[derive(Debug)]
pub(crate) struct Lookup {
    waker: Arc<Waker>,
    found: mpsc::Receiver<Found>,
}

impl Lookup {
    /// Starts to look up the addresses of a host name on a new thread. The result for an IP address is available
    /// immediately.
    ///
    /// # Errors
    /// Returns an I/O error if the system cannot create a socket or start a thread.
    pub fn begin(address: &Address) -> io::Result<Self> {
        let port = address.port();
        match address.host() {
            Host::Ip(ip) => {
                let found = vec![SocketAddr::new(*ip, port)];
                let (here, lookup) = Self::pair()?;
                here.send(Ok(found));
                Ok(lookup)
            }
            Host::Name(name) => {
                let name = name.clone();
                Self::on_thread(move || {
                    #[cfg(test)]
                    tests::hang_if_asked(&name);
                    Ok((&*name, port).to_socket_addrs()?.collect())
                })
            }
        }
    }

    fn on_thread(look: impl FnOnce() -> Found + Send + 'static) -> io::Result<Self> {
        let (there, lookup) = Self::pair()?;
        let thread = std::thread::Builder::new().name("distribute-lookup".to_owned());
        thread.spawn(move || there.send(look()))?;
        Ok(lookup)
    }

    fn pair() -> io::Result<(LookupSender, Self)> {
        let waker = Arc::new(Waker::new()?);
        let (send, found) = mpsc::channel();
        Ok((LookupSender { waker: waker.clone(), send }, Self { waker, found }))
    }

    /// Returns the entry for [`poll::wait`] that is ready when the result is available.
    pub fn interest(&self) -> PollFd<'_> {
        self.waker.interest()
    }

    /// Returns the result, or `None` if it is not available yet. The result is returned only once.
    pub fn take(&self) -> Option<Found> {
        match self.found.try_recv() {
            Ok(Ok(found)) if found.is_empty() => Some(Err(io::Error::other("the name has no address"))),
            Ok(found) => Some(found),
            Err(mpsc::TryRecvError::Empty) => None,
            Err(mpsc::TryRecvError::Disconnected) => Some(Err(io::Error::other("the lookup has failed"))),
        }
    }

    /// Waits until the result is available or `deadline` has passed. In the second case, returns an error of the kind
    /// [`TimedOut`](io::ErrorKind::TimedOut).
    pub fn wait(&self, mut deadline: Deadline) -> Found {
        loop {
            if let Some(found) = self.take() {
                return found;
            }
            let slice = deadline.look();
            if slice.is_zero() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the name's lookup takes too long"));
            }
            poll::wait(&mut [self.interest()], slice)?;
            deadline.look();
        }
    }
}

struct LookupSender {
    waker: Arc<Waker>,
    send: mpsc::Sender<Found>,
}

impl LookupSender {
    fn send(self, found: Found) {
        // The receiver may have been dropped.
        let _ = self.send.send(found);
        self.waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Access, Connector, Credentials, Identity, JoinError, Listener, Message, Receiver, Rendezvous,
    };
    use distribute_cluster::{Job, Stopwatch, World};
    use distribute_testing::watched;
    use std::time::Duration;

    /// A name whose lookup takes longer than all of these tests.
    const HANGS: &str = "hangs.test";

    pub(super) fn hang_if_asked(name: &str) {
        if name == HANGS {
            let (_keep, never) = mpsc::channel::<()>();
            let _ = never.recv_timeout(Duration::from_secs(120));
        }
    }

    struct Nobody;

    impl Receiver for Nobody {
        fn deliver(&self, _from: usize, _message: Message) {}
        fn mark_lost(&self, _from: usize, _reason: String) {}
    }

    /// Runs a body, checks that it fails at its deadline and not at the end of the lookup, and returns the error.
    fn late<T, E: std::fmt::Display>(body: impl FnOnce(Duration) -> Result<T, E>) -> E {
        let (patience, waited) = (Duration::from_millis(300), Stopwatch::start());
        let Err(error) = body(patience) else { panic!("nobody is there") };
        let waited = waited.elapsed();
        assert!(waited >= patience && waited < Duration::from_secs(30), "after {waited:?}: {error}");
        error
    }

    #[test]
    fn deadlines_hold_while_a_name_is_looked_up_and_errors_name_the_address() {
        watched(|| {
            let addresses = || vec!["hangs.test:2222".to_owned(), "other.test:2222".to_owned()];
            let worker = |number| {
                let world = World::new(2, number, 1).unwrap();
                let credentials = Credentials::from(Identity::None).allow_plain_text_on_the_network();
                Rendezvous::new(world, addresses()).credentials(credentials)
            };
            // The leader's name, to which others connect.
            let second = worker(1).listener(Listener::bind("127.0.0.1:0").unwrap());
            let error = late(|patience| second.timeout(patience).join(Arc::new(Nobody)));
            assert!(matches!(error, JoinError::Deadline { .. }), "{error}");
            let text = "missing: worker 0 at hangs.test:2222 (its name is still being looked up)";
            assert!(error.to_string().contains(text), "{error}");
            // The worker's own name, at which it listens.
            let error = late(|patience| worker(0).timeout(patience).join(Arc::new(Nobody)));
            assert!(matches!(error, JoinError::Bind { .. }), "{error}");
            let text = "worker 0 cannot listen at hangs.test:2222: the name's lookup takes too long";
            assert!(error.to_string().contains(text), "{error}");
            // The name of a called task.
            let (ps, address) = (Job::Ps.task(0), "hangs.test:2222".parse().unwrap());
            let access = Access::new(&Identity::None, std::slice::from_ref(&address), true).unwrap();
            let chief = Connector::new(Job::Chief.task(0), access);
            let error =
                late(|patience| chief.connect(&ps, &address, Arc::new(Nobody), Deadline::after(patience)));
            let text = "ps 0 at hangs.test:2222 could not be reached";
            assert!(error.to_string().contains(text), "{error}");
            assert!(error.to_string().contains("its name is still being looked up"), "{error}");
        });
    }

    #[test]
    fn numbers_are_there_at_once_and_names_when_they_are_found() {
        let lookup = Lookup::begin(&"[::1]:7".parse().unwrap()).unwrap();
        assert_eq!(lookup.take().unwrap().unwrap(), ["[::1]:7".parse().unwrap()]);
        let lookup = Lookup::begin(&"localhost:7".parse().unwrap()).unwrap();
        let found = lookup.wait(Deadline::after(Duration::from_secs(30))).unwrap();
        assert!(found.iter().all(|at| at.ip().is_loopback() && at.port() == 7), "{found:?}");
    }

    #[test]
    fn a_slow_lookup_is_waited_for_no_longer_than_the_deadline() {
        let (release, released) = mpsc::channel::<()>();
        let lookup = Lookup::on_thread(move || {
            let _ = released.recv_timeout(Duration::from_secs(60));
            Ok(Vec::new())
        });
        let lookup = lookup.unwrap();
        assert!(lookup.take().is_none());
        let error = lookup.wait(Deadline::after(Duration::from_millis(20))).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(release);
        let error = lookup.wait(Deadline::after(Duration::from_secs(30))).unwrap_err();
        assert_eq!(error.to_string(), "the name has no address");
    }
}
