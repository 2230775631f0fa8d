//! The end of a mesh: it waits until the others have received everything that it has sent.

use super::shared::Shared;
use crate::link::Link;
use distribute_cluster::Deadline;
use distribute_log::heard;
use std::time::Duration;

/// The wait of a closed mesh for the others, which lasts while bytes move, within a limit.
///
/// A worker that is alive reads what was sent, or it is disconnected for its silence. Its heartbeats
/// therefore count the same as bytes that it reads: those in buffers of the system and in shared memory are
/// left for it to read.
pub(crate) struct Farewell {
    /// Passes if no bytes move.
    still: Deadline,
    /// Passes even if bytes still move.
    most: Deadline,
    longest: Duration,
}

impl Farewell {
    pub fn new(shared: &Shared) -> Self {
        let longest = shared.longest_farewell();
        Self { still: Deadline::after(shared.settings.farewell), most: Deadline::after(longest), longest }
    }

    /// Whether the wait is over: all links are closed, no bytes move, or the limit has passed. To be called
    /// often.
    pub fn is_over(&mut self, shared: &Shared) -> bool {
        let mut open = shared.links.iter().filter(|link| !link.is_over()).peekable();
        if open.peek().is_none() {
            return true;
        }
        self.still.look();
        self.most.look();
        // All links are queried, to reset each.
        if open.fold(false, |moved, link| link.has_moved() | moved) {
            self.still = Deadline::after(shared.settings.farewell);
        }
        let is_over = self.still.has_passed() || self.most.has_passed();
        if is_over {
            self.warn(shared);
        }
        is_over
    }

    /// Warns about data that was not received.
    fn warn(&self, shared: &Shared) {
        let workers: Vec<usize> =
            shared.links.iter().filter(|link| link.has_backlog()).map(Link::peer).collect();
        if workers.is_empty() {
            return;
        }
        let (still, longest) = (shared.settings.farewell, self.longest);
        let why = if self.still.has_passed() {
            format!("none of it has moved for {still:?}")
        } else {
            format!("it has taken more than {longest:?}, which is as long as others wait")
        };
        heard(|| {
            tracing::warn!(
                "this worker ends before workers {workers:?} have received what was sent to them: {why}; they lose it"
            )
        });
    }
}

#[cfg(test)]
mod tests {
    use crate::mesh::Met;
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
    const FAREWELL: Duration = Duration::from_millis(500);
    /// A time much shorter than a farewell, because test machines are busy.
    const SHORT: Duration = Duration::from_millis(50);
    const LENGTH: usize = 8 << 20;
    /// The approximate size of the system's buffer on each side.
    const BUFFER: usize = 64 << 10;

    struct Nobody;

    impl Receiver for Nobody {
        fn deliver(&self, _from: usize, _message: Message) {}
        fn lose(&self, _from: usize, _reason: String) {}
    }

    /// Starts a worker on a thread that sends a message of `LENGTH` and exits. Returns it with the other
    /// side, which the test plays.
    fn ending(settings: Settings, stay: Option<Duration>) -> (JoinHandle<()>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mine = listener.accept().unwrap().0;
        sockopt::set_socket_send_buffer_size(&mine, BUFFER).unwrap();
        sockopt::set_socket_recv_buffer_size(&theirs, BUFFER).unwrap();
        let stream = Stream::plain(mine).unwrap();
        let link = crate::link::Link::new(1, stream, Decoder::new(Limits::default()));
        let met = Met::new(World::new(2, 0, 1).unwrap(), vec![link], settings);
        let mesh = Mesh::new(met, Arc::new(Nobody)).unwrap();
        mesh.send(1, Message::new("last", vec![7; LENGTH]));
        if let Some(stay) = stay {
            mesh.stay(stay);
        }
        (thread::spawn(move || drop(mesh)), theirs)
    }

    fn settings(longest_farewell: Duration) -> Settings {
        Settings { farewell: FAREWELL, longest_farewell, silence: LONG, ..Settings::default() }
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
    fn pass(idle: &TcpStream, time: Duration) {
        idle.set_read_timeout(Some(time)).unwrap();
        let kind = (&*idle).read(&mut [0]).unwrap_err().kind();
        assert!(matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut), "{kind}");
    }

    /// Creates a socket that receives nothing.
    fn idle() -> (TcpStream, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        (TcpStream::connect(listener.local_addr().unwrap()).unwrap(), listener)
    }

    #[test]
    fn who_ends_stays_while_a_slow_reader_takes_what_it_has_sent() {
        watched(|| {
            let (ending, mut theirs) = ending(settings(LONG), None);
            let (watch, idle) = (Stopwatch::start(), idle());
            let come = all(&mut theirs, |_, _| {
                if watch.elapsed() < 2 * FAREWELL {
                    pass(&idle.0, SHORT);
                }
            });
            let come = come.unwrap();
            assert!(watch.elapsed() > 2 * FAREWELL, "{:?} is no test", watch.elapsed());
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
                    pass(&idle.0, SHORT);
                }
            });
            assert!(come.unwrap().len() > LENGTH);
            drop(theirs);
            ending.join().unwrap();
        });
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn who_ends_stays_while_what_it_has_sent_is_read_in_shared_memory() {
        watched(|| {
            let (link, theirs, socket) = crate::shm::played::tests::link();
            let met = Met::new(World::new(2, 0, 1).unwrap(), vec![link], settings(LONG));
            let mesh = Mesh::new(met, Arc::new(Nobody)).unwrap();
            mesh.send(1, Message::new("last", vec![7; LENGTH]));
            let ending = thread::spawn(move || drop(mesh));
            let (watch, idle) = (Stopwatch::start(), idle());
            let (mut come, mut piece) = (0, vec![0; LENGTH / 32]);
            while come <= LENGTH {
                assert!(!ending.is_finished(), "it has ended, and {come} bytes have come");
                let length = theirs.read(&mut piece).unwrap();
                come += length;
                if length == 0 || watch.elapsed() < 2 * FAREWELL {
                    pass(&idle.0, SHORT);
                }
            }
            assert!(watch.elapsed() > 2 * FAREWELL, "{:?} is no test", watch.elapsed());
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
            for (stay, longest) in [(None, FAREWELL), (Some(3 * FAREWELL), 3 * FAREWELL)] {
                let (ending, mut theirs) = ending(settings(FAREWELL), stay);
                let watch = Stopwatch::start();
                // This never ends without a limit.
                let come = all(&mut theirs, |_, come| {
                    if !ending.is_finished() && come > 2 * BUFFER {
                        pass(&idle.0, SHORT);
                    }
                });
                assert!(come.is_err() || come.is_ok_and(|come| come.len() < LENGTH));
                ending.join().unwrap();
                assert!(watch.elapsed() >= longest);
            }
        });
    }
}
