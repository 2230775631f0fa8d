//! The addresses that a host's name stands for, looked up on a thread: the system may take a minute over it.

use crate::poll::{self, Waker};
use distribute_cluster::{Address, Deadline, Host};
use rustix::event::PollFd;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, mpsc};

type Found = io::Result<Vec<SocketAddr>>;

/// A lookup that may still go on. Its thread ends with the system's own patience, and is not waited for.
#[derive(Debug)]
pub(crate) struct Lookup {
    waker: Arc<Waker>,
    found: mpsc::Receiver<Found>,
}

impl Lookup {
    /// Begins to look a host up. An IP address is there at once.
    pub fn begin(address: &Address) -> io::Result<Self> {
        let port = address.port();
        match address.host() {
            Host::Ip(ip) => {
                let found = vec![SocketAddr::new(*ip, port)];
                let (here, lookup) = Self::pair()?;
                here.tell(Ok(found));
                Ok(lookup)
            }
            Host::Name(name) => {
                let name = name.clone();
                Self::on_thread(move || Ok((&*name, port).to_socket_addrs()?.collect()))
            }
        }
    }

    fn on_thread(look: impl FnOnce() -> Found + Send + 'static) -> io::Result<Self> {
        let (there, lookup) = Self::pair()?;
        let thread = std::thread::Builder::new().name("distribute-lookup".to_owned());
        thread.spawn(move || there.tell(look()))?;
        Ok(lookup)
    }

    fn pair() -> io::Result<(Teller, Self)> {
        let waker = Arc::new(Waker::new()?);
        let (tell, found) = mpsc::channel();
        Ok((Teller { waker: waker.clone(), tell }, Self { waker, found }))
    }

    /// To be waited for.
    pub fn interest(&self) -> PollFd<'_> {
        self.waker.interest()
    }

    /// What was found, if it is there; it is given once.
    pub fn take(&self) -> Option<Found> {
        match self.found.try_recv() {
            Ok(Ok(found)) if found.is_empty() => Some(Err(io::Error::other("the name has no address"))),
            Ok(found) => Some(found),
            Err(mpsc::TryRecvError::Empty) => None,
            Err(mpsc::TryRecvError::Disconnected) => Some(Err(io::Error::other("the lookup has failed"))),
        }
    }

    /// Waits for what is found.
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

struct Teller {
    waker: Arc<Waker>,
    tell: mpsc::Sender<Found>,
}

impl Teller {
    fn tell(self, found: Found) {
        // Nobody may want it any more.
        let _ = self.tell.send(found);
        self.waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

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
