//! The state of all other processes. One thread at a time uses it to send to them and to receive from them.

use crate::Settings;
use crate::library::Library;
use crate::peer::{Life, Peer};
use distribute_cluster::Deadline;
use distribute_net::wire::Frame;
use distribute_net::{ENDED, LEFT, Receiver};
use std::sync::Arc;
use std::time::Duration;

/// The maximum interval between two checks for heartbeats that are due and for silent processes.
const LOOK: Duration = Duration::from_millis(100);

/// MPI and the state of all other processes. Only the thread that has locked the state may call MPI.
pub(crate) struct State {
    /// The MPI library; `None` after [`take_library`](Self::take_library).
    library: Option<Library>,
    peers: Vec<Peer>,
    receiver: Arc<dyn Receiver>,
    /// Whether this process has sent its final message to the others.
    closed: bool,
    settings: Settings,
    look: Deadline,
    beat: Deadline,
}

impl State {
    pub fn new(library: Library, receiver: Arc<dyn Receiver>, settings: Settings) -> Self {
        let (me, workers) = (library.rank(), library.workers());
        let others = (0..workers).filter(|rank| *rank != me);
        Self {
            library: Some(library),
            peers: others.map(|rank| Peer::new(rank, settings.silence)).collect(),
            receiver,
            closed: false,
            settings,
            look: Deadline::after(LOOK),
            beat: Deadline::after(settings.heartbeat),
        }
    }

    /// Returns the MPI library, or `None` after [`take_library`](Self::take_library).
    pub fn library(&mut self) -> Option<&mut Library> {
        self.library.as_mut()
    }

    /// Removes and returns the MPI library; `None` if it was already removed. After that, nothing is sent or received
    /// any more.
    pub fn take_library(&mut self) -> Option<Library> {
        self.library.take()
    }

    /// Starts to send a frame to a process. Has no effect after [`close`](Self::close).
    pub fn send(&mut self, to: usize, frame: Frame) {
        if !self.closed {
            self.say(|peer| peer.rank() == to, || frame.clone());
        }
    }

    /// Sends a final message to all others, after which nothing more is sent to them. Later calls have no effect.
    pub fn close(&mut self) {
        if !self.closed {
            self.say(|_| true, || Frame::Goodbye);
            self.closed = true;
        }
    }

    /// Continues all running operations, delivers received messages, and sends heartbeats that are due. Returns `true`
    /// if the receiver was notified of a message, or of a process that has left or was disconnected. Has no effect
    /// after [`take_library`](Self::take_library).
    pub fn turn(&mut self) -> bool {
        let Some(library) = &mut self.library else { return false };
        let mut any = false;
        for peer in &mut self.peers {
            let end = match peer.turn(library) {
                Ok(None | Some(Frame::Heartbeat | Frame::Reference(_))) => continue,
                Ok(Some(Frame::Data(message))) => {
                    self.receiver.deliver(peer.rank(), message);
                    None
                }
                Ok(Some(Frame::Goodbye)) => Some((Life::Ended, ENDED.to_owned())),
                Ok(Some(Frame::Leave)) => Some((Life::Ended, LEFT.to_owned())),
                Err(reason) => Some((Life::Lost, reason)),
            };
            any = true;
            if let Some((life, reason)) = end {
                mark_lost(peer, life, reason, &*self.receiver);
            }
        }
        self.heartbeat() | any
    }

    /// Sends heartbeats that are due, and disconnects silent processes. Returns `true` if a process was silent.
    fn heartbeat(&mut self) -> bool {
        if !self.look.has_passed() {
            return false;
        }
        self.look = Deadline::after(LOOK.min(self.settings.heartbeat / 2));
        if self.beat.has_passed() && !self.closed {
            self.beat = Deadline::after(self.settings.heartbeat);
            // Queued messages count as heartbeats.
            self.say(Peer::has_sent, || Frame::Heartbeat);
        }
        let mut any = false;
        for peer in &mut self.peers {
            if peer.is_silent() {
                let seconds = self.settings.silence.as_secs_f64();
                mark_lost(
                    peer,
                    Life::Lost,
                    format!("it has sent nothing for {seconds:.1} s"),
                    &*self.receiver,
                );
                any = true;
            }
        }
        any
    }

    fn say(&mut self, to: impl Fn(&Peer) -> bool, frame: impl Fn() -> Frame) {
        let Some(library) = &mut self.library else { return };
        for peer in self.peers.iter_mut().filter(|peer| to(peer)) {
            if let Err(reason) = peer.send(library, frame()) {
                mark_lost(peer, Life::Lost, reason, &*self.receiver);
            }
        }
    }

    /// Returns whether an operation is running.
    pub fn is_busy(&self) -> bool {
        self.peers.iter().any(Peer::is_busy)
    }

    /// Returns whether a process is still connected, so that a message may be received.
    pub fn hears(&self) -> bool {
        self.peers.iter().any(|peer| peer.life() == Life::Alive)
    }

    /// Returns the first disconnected process, if there is one.
    pub fn lost(&self) -> Option<usize> {
        self.peers.iter().find(|peer| peer.life() == Life::Lost).map(Peer::rank)
    }

    /// Returns the processes that have not sent a final message: those that are connected, and those that were
    /// disconnected.
    pub fn missing(&self) -> Vec<usize> {
        self.peers.iter().filter(|peer| peer.life() != Life::Ended).map(Peer::rank).collect()
    }

    /// Returns whether nothing more will be received, and everything was sent to the processes that still receive.
    pub fn is_over(&self) -> bool {
        let over = |peer: &Peer| match peer.life() {
            Life::Alive => false,
            Life::Ended => peer.has_sent(),
            Life::Lost => true,
        };
        self.library.is_none() || self.peers.iter().all(over)
    }
}

fn mark_lost(peer: &mut Peer, life: Life, reason: String, receiver: &dyn Receiver) {
    if peer.life() == Life::Alive {
        tracing::debug!(worker = peer.rank(), reason, "a worker is lost");
        receiver.mark_lost(peer.rank(), reason);
    }
    peer.end(life);
}
