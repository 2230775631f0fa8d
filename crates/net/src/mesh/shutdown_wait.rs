//! The end of a mesh, which waits until the others have received everything that it has sent.

use super::shared::Shared;
use crate::link::Link;
use distribute_cluster::Deadline;
use distribute_log::warn_or_stderr;
use std::time::Duration;

/// A closed mesh's wait until the other workers have received everything. It lasts as long as bytes are transferred in
/// either direction, up to a limit.
///
/// Heartbeats count too: a worker that sends them is still running, and may read the data later. A silent worker is
/// disconnected. The wait does not cover bytes in system buffers and in shared memory.
pub(crate) struct ShutdownWait {
    /// The deadline for the next transfer of bytes.
    idle: Deadline,
    /// The deadline of the whole wait.
    max: Deadline,
    longest: Duration,
}

impl ShutdownWait {
    pub fn new(shared: &Shared) -> Self {
        let longest = shared.max_shutdown_wait();
        Self {
            idle: Deadline::after(shared.settings.shutdown_idle_timeout),
            max: Deadline::after(longest),
            longest,
        }
    }

    /// Returns whether the wait is over: all links are closed, no bytes were transferred for the idle timeout, or the
    /// limit has passed. Logs a warning if unsent data is left. Call this often.
    pub fn is_over(&mut self, shared: &Shared) -> bool {
        let mut open = shared.links.iter().filter(|link| !link.loss_is_reported()).peekable();
        if open.peek().is_none() {
            return true;
        }
        self.idle.look();
        self.max.look();
        // All links are queried, because the query resets a link.
        if open.fold(false, |moved, link| link.has_moved() | moved) {
            self.idle = Deadline::after(shared.settings.shutdown_idle_timeout);
        }
        let is_over = self.idle.has_passed() || self.max.has_passed();
        if is_over {
            self.warn(shared);
        }
        is_over
    }

    /// Logs a warning that names the workers for which unsent data is left, if there are any.
    fn warn(&self, shared: &Shared) {
        let workers: Vec<usize> =
            shared.links.iter().filter(|link| link.has_backlog()).map(Link::peer).collect();
        if workers.is_empty() {
            return;
        }
        let (idle, longest) = (shared.settings.shutdown_idle_timeout, self.longest);
        let why = if self.idle.has_passed() {
            format!("no data was transferred for {idle:?}")
        } else {
            format!("the transfer took longer than {longest:?}, the time that other workers wait")
        };
        warn_or_stderr(|| {
            tracing::warn!(
                "this worker exits before workers {workers:?} have received all of its data: {why}; the \
                 rest is lost"
            )
        });
    }
}

#[cfg(test)]
mod tests {
    use crate::mesh::RendezvousResult;
    use crate::stream::Stream;
    use crate::wire::{Decoder, Frame, Limits, Queue};
    use crate::{Mesh, Message, Receiver, Settings, Transport};
    use distribute_cluster::{Stopwatch, World};
    use distribute_testing::watched;
    use rustix::net::sockopt;
    use std::io::{ErrorKind, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;
    use std::thread::{self, JoinHandle};
    use std::time::Duration;

    const LONG: Duration = Duration::from_secs(600);
    const IDLE_TIMEOUT: Duration = Duration::from_millis(500);
    /// A pause between two signs of life. It is much shorter than the idle timeout, so that the link does not become
    /// idle even if a busy test machine prolongs the pause.
    const SHORT: Duration = Duration::from_millis(50);
    const LENGTH: usize = 8 << 20;
    /// The approximate size of the system's buffer on each side.
    const BUFFER: usize = 64 << 10;

    struct Nobody;

    impl Receiver for Nobody {
        fn deliver(&self, _from: usize, _message: Message) {}
        fn mark_lost(&self, _from: usize, _reason: String) {}
    }

    /// Starts a worker on a thread. The worker sends a message of `LENGTH` bytes and exits. Returns the thread and a
    /// socket, with which the test acts as the other side.
    fn ending(settings: Settings, stay: Option<Duration>) -> (JoinHandle<()>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mine = listener.accept().unwrap().0;
        sockopt::set_socket_send_buffer_size(&mine, BUFFER).unwrap();
        sockopt::set_socket_recv_buffer_size(&theirs, BUFFER).unwrap();
        let stream = Stream::plain(mine).unwrap();
        let link = crate::link::Link::new(1, stream, Decoder::new(Limits::default()));
        let met = RendezvousResult::new(World::new(2, 0, 1).unwrap(), vec![link], settings);
        let mesh = Mesh::new(met, Arc::new(Nobody)).unwrap();
        mesh.send(1, Message::new("last", vec![7; LENGTH]));
        if let Some(stay) = stay {
            mesh.extend_shutdown_wait(stay);
        }
        (thread::spawn(move || drop(mesh)), theirs)
    }

    fn settings(max_shutdown_wait: Duration) -> Settings {
        Settings {
            shutdown_idle_timeout: IDLE_TIMEOUT,
            max_shutdown_wait,
            silence: LONG,
            ..Settings::default()
        }
    }

    /// Reads until the other side closes. Calls `between` with the number of received bytes before each read.
    fn all(
        theirs: &mut TcpStream,
        mut between: impl FnMut(&mut TcpStream, usize),
    ) -> std::io::Result<Vec<u8>> {
        let (mut come, mut piece) = (Vec::new(), vec![0; BUFFER]);
        loop {
            between(theirs, come.len());
            match theirs.read(&mut piece)? {
                0 => return Ok(come),
                length => come.extend_from_slice(&piece[..length]),
            }
        }
    }

    /// Waits, using a socket that receives nothing.
    fn pause(idle: &TcpStream, time: Duration) {
        idle.set_read_timeout(Some(time)).unwrap();
        let kind = (&*idle).read(&mut [0]).unwrap_err().kind();
        assert!(matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut), "{kind}");
    }

    /// Creates a socket on which nothing arrives, and the listener to which it is connected.
    fn idle() -> (TcpStream, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        (TcpStream::connect(listener.local_addr().unwrap()).unwrap(), listener)
    }

    #[test]
    fn an_exiting_worker_waits_until_a_slow_reader_has_its_messages() {
        watched(|| {
            let (ending, mut theirs) = ending(settings(LONG), None);
            let (watch, idle) = (Stopwatch::start(), idle());
            let come = all(&mut theirs, |_, _| {
                if watch.elapsed() < 2 * IDLE_TIMEOUT {
                    pause(&idle.0, SHORT);
                }
            });
            let come = come.unwrap();
            assert!(watch.elapsed() > 2 * IDLE_TIMEOUT, "{:?} is no test", watch.elapsed());
            assert!(come.len() > LENGTH && !ending.is_finished(), "{} bytes have come", come.len());
            // The worker's last frame is its goodbye, and the answer ends it.
            drop(theirs);
            ending.join().unwrap();
        });
    }

    #[test]
    fn who_ends_stays_for_one_that_is_alive_and_has_all_in_its_buffers() {
        watched(|| {
            let (ending, mut theirs) = ending(settings(LONG), None);
            let idle = idle();
            let mut beats = 0;
            let come = all(&mut theirs, |theirs, come| {
                // Nothing is read while this side sends heartbeats.
                while come > LENGTH / 2 && beats < 30 {
                    beats += 1;
                    let mut queue = Queue::default();
                    queue.push(Frame::Heartbeat);
                    queue.write(|slices| theirs.write_vectored(slices)).unwrap();
                    pause(&idle.0, SHORT);
                }
            });
            assert!(come.unwrap().len() > LENGTH);
            drop(theirs);
            ending.join().unwrap();
        });
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn an_exiting_worker_waits_until_its_shared_memory_is_read() {
        watched(|| {
            let (link, theirs, socket) = crate::shm::played::tests::link();
            let met = RendezvousResult::new(World::new(2, 0, 1).unwrap(), vec![link], settings(LONG));
            let mesh = Mesh::new(met, Arc::new(Nobody)).unwrap();
            mesh.send(1, Message::new("last", vec![7; LENGTH]));
            let ending = thread::spawn(move || drop(mesh));
            let (watch, idle) = (Stopwatch::start(), idle());
            let (mut come, mut piece) = (0, vec![0; LENGTH / 32]);
            while come <= LENGTH {
                assert!(!ending.is_finished(), "it has ended, and {come} bytes have come");
                let length = theirs.read(&mut piece).unwrap();
                come += length;
                if length == 0 || watch.elapsed() < 2 * IDLE_TIMEOUT {
                    pause(&idle.0, SHORT);
                }
            }
            assert!(watch.elapsed() > 2 * IDLE_TIMEOUT, "{:?} is no test", watch.elapsed());
            drop(socket);
            ending.join().unwrap();
        });
    }

    #[test]
    fn who_ends_does_not_stay_for_one_that_takes_nothing() {
        watched(|| {
            let (ending, theirs) = ending(settings(LONG), None);
            ending.join().unwrap();
            drop(theirs);
        });
    }

    #[test]
    fn who_ends_stays_no_longer_than_others_wait() {
        watched(|| {
            let idle = idle();
            for (stay, longest) in [(None, IDLE_TIMEOUT), (Some(3 * IDLE_TIMEOUT), 3 * IDLE_TIMEOUT)] {
                let (ending, mut theirs) = ending(settings(IDLE_TIMEOUT), stay);
                let watch = Stopwatch::start();
                // This never ends without a limit.
                let come = all(&mut theirs, |_, come| {
                    if !ending.is_finished() && come > 2 * BUFFER {
                        pause(&idle.0, SHORT);
                    }
                });
                assert!(come.is_err() || come.is_ok_and(|come| come.len() < LENGTH));
                ending.join().unwrap();
                assert!(watch.elapsed() >= longest);
            }
        });
    }
}
