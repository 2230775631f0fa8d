//! Waits until a socket can be read or written, and wakes a thread that waits in this way.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The maximum wait. It is limited so that the conversion to the system's type never fails.
const LONGEST: Duration = Duration::from_secs(3600);

/// Returns the events of a socket for which to wait: that it can be read and, if `write` is `true`, that it can be
/// written.
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

/// Returns whether a socket that was waited for is ready.
pub(crate) fn is_ready(socket: &PollFd<'_>) -> bool {
    !socket.revents().is_empty()
}

/// A socket that wakes a thread that waits for several sockets.
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
        // If the socket is full, the thread was already woken.
        let _ = (&self.there).write(&[1]);
    }

    /// Returns the event for which to wait.
    pub fn interest(&self) -> PollFd<'_> {
        interest(&self.here, false)
    }

    /// Discards past wake-ups.
    pub fn drain(&self) {
        let mut bytes = [0; 64];
        while matches!((&self.here).read(&mut bytes), Ok(64)) {}
    }
}
