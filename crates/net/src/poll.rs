//! Waiting until a socket can be read or written, and waking a thread that waits.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The longest wait that is passed to the system, in whose type longer waits might not fit.
const LONGEST: Duration = Duration::from_secs(3600);

/// Returns an entry for [`wait`]. It is ready when the socket can be read or, if `write` is `true`, read or written.
pub(crate) fn interest<F: AsFd>(socket: &F, write: bool) -> PollFd<'_> {
    let flags = if write { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
    PollFd::new(socket, flags)
}

/// Waits until one of the sockets is ready, for at most `patience`. A signal also ends the wait.
pub(crate) fn wait(sockets: &mut [PollFd<'_>], patience: Duration) -> io::Result<()> {
    let patience = patience.min(LONGEST);
    let timeout = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: i64::from(patience.subsec_nanos()) };
    match poll(sockets, Some(&timeout)) {
        Ok(_) => Ok(()),
        Err(rustix::io::Errno::INTR) => {
            sockets.iter_mut().for_each(PollFd::clear_revents);
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

pub(crate) fn is_ready(socket: &PollFd<'_>) -> bool {
    !socket.revents().is_empty()
}

/// A socket by which one thread wakes another that waits for several sockets.
#[derive(Debug)]
pub(crate) struct Waker {
    here: UnixStream,
    there: UnixStream,
}

impl Waker {
    pub fn new() -> io::Result<Self> {
        let (here, there) = UnixStream::pair()?;
        here.set_nonblocking(true)?;
        there.set_nonblocking(true)?;
        Ok(Self { here, there })
    }

    /// Wakes the waiting thread or, if none is waiting, the next one that waits.
    pub fn wake(&self) {
        // If the socket is full, the thread has been woken already.
        let _ = (&self.there).write(&[1]);
    }

    /// Returns the entry for [`wait`] that is ready after a wake-up.
    pub fn interest(&self) -> PollFd<'_> {
        interest(&self.here, false)
    }

    /// Discards past wake-ups, so that the next wait does not return for them.
    pub fn drain(&self) {
        let mut bytes = [0; 64];
        while matches!((&self.here).read(&mut bytes), Ok(64)) {}
    }
}
