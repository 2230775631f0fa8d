//! The connection to one other worker.

mod short;

pub(crate) use short::ShortReceipt;

use crate::shm::arena::Arena;
use crate::shm::imports::Imports;
use crate::shm::loans::Loans;
use crate::shm::pair::Pair;
use crate::shm::reference::{BadReference, Reference};
use crate::stream::Stream;
use crate::wire::{Decoder, Frame, Queue};
use crate::{Message, PartialMessage, poll};
use bytes::Bytes;
use parking_lot::Mutex;
use rustix::event::PollFd;
use std::fmt;
use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The number of bytes that a link writes or reads in one turn. After that it is the turn of the other direction and of
/// other links.
const TURN_BYTES: usize = 512 << 10;

/// The maximum number of bytes that `send` writes directly; the polling thread writes the rest. It is about the size of
/// a socket's buffers, so that `send` does not keep writing while the receiver reads.
const MAX_DIRECT_SEND: usize = 4 << 20;

/// An event of a link, to be delivered to the [`Receiver`](crate::Receiver).
#[derive(Debug)]
pub(crate) enum Event {
    Message(usize, Message),
    Lost(usize, String),
}

/// The connection to one other worker. Any thread may send. Only the polling thread reads, so it delivers messages in
/// order without a lock.
#[derive(Debug)]
pub(crate) struct Link {
    peer: usize,
    socket: Arc<TcpStream>,
    /// The memory that both workers share. If there is any, all bytes are sent through it.
    pair: Option<Arc<Pair>>,
    /// The bodies in this worker's memory that the other worker may still read.
    loans: Option<Loans>,
    leaves_machine: bool,
    state: Mutex<State>,
    /// Whether anything is queued for writing.
    backlog: AtomicBool,
    /// Whether the link has failed, so that it needs a turn even if nothing was received.
    failing: AtomicBool,
    loss_reported: AtomicBool,
    /// Whether anything was received since the last call of [`Link::take_received`].
    has_received: AtomicBool,
    /// Whether the other worker has sent bytes that are not valid frames.
    undecodable: AtomicBool,
}

#[derive(Debug)]
struct State {
    stream: Stream,
    decoder: Decoder,
    queue: Queue,
    /// A reader of the bodies in the other worker's memory.
    imports: Option<Imports>,
    /// Whether bytes have moved in either direction since the last call of [`Link::has_moved`].
    moved: bool,
    /// The reason why the link has failed. It is reported after everything received has been read.
    broken: Option<String>,
    closing: bool,
    /// Whether the end of the stream was sent.
    finished: bool,
}

impl Link {
    pub fn new(peer: usize, stream: Stream, decoder: Decoder) -> Self {
        let (socket, pair) = (stream.socket().clone(), stream.pair().cloned());
        let is_loopback = || socket.peer_addr().is_ok_and(|peer| peer.ip().to_canonical().is_loopback());
        let leaves_machine = pair.is_none() && !is_loopback();
        let state = State {
            stream,
            decoder,
            queue: Queue::default(),
            imports: pair.clone().map(Imports::new),
            moved: false,
            broken: None,
            closing: false,
            finished: false,
        };
        let no = AtomicBool::default;
        Self {
            peer,
            socket,
            loans: pair.clone().map(Loans::new),
            leaves_machine,
            pair,
            state: Mutex::new(state),
            backlog: no(),
            failing: no(),
            loss_reported: no(),
            has_received: AtomicBool::new(true),
            undecodable: no(),
        }
    }

    pub fn peer(&self) -> usize {
        self.peer
    }

    /// Returns this link with another rank for the other worker.
    pub fn renumbered(mut self, peer: usize) -> Self {
        self.peer = peer;
        self
    }

    /// Returns whether the worker's disconnect was reported to the receiver. The link is unused from then on.
    pub fn loss_is_reported(&self) -> bool {
        self.loss_reported.load(Ordering::Acquire)
    }

    /// Returns whether the other worker has sent bytes that are not valid frames. Its disconnect is reported later.
    pub fn is_undecodable(&self) -> bool {
        self.undecodable.load(Ordering::Acquire)
    }

    /// Returns the events of the socket for which to wait.
    pub fn interest(&self) -> PollFd<'_> {
        // With shared memory, the socket only carries wake-up bytes, which it takes at any time.
        let backlog = self.pair.is_none() && self.backlog.load(Ordering::Acquire);
        poll::interest(&*self.socket, backlog)
    }

    /// Returns whether messages may leave this machine: they are neither sent through shared memory nor to a loopback
    /// address.
    pub fn leaves_machine(&self) -> bool {
        self.leaves_machine
    }

    /// Returns the shared memory through which everything is sent, if there is any.
    pub fn pair(&self) -> Option<&Arc<Pair>> {
        self.pair.as_ref()
    }

    /// Returns whether the link needs a turn even if its socket is not ready.
    pub fn has_work(&self) -> bool {
        !self.loss_is_reported()
            && (self.failing.load(Ordering::Acquire)
                || self.pair.as_ref().is_some_and(|pair| pair.has_work(self.backlog.load(Ordering::Acquire))))
    }

    /// Sends a message. If the body is in memory that the worker can read, only a reference is sent. Returns `true` if
    /// the polling thread must be woken: see [`send`](Self::send).
    pub fn send_message(&self, message: Message, arena: Option<&Arc<Arena>>) -> bool {
        self.send(match self.lend(&message.body, arena) {
            Some(reference) => Frame::Reference(Message { body: reference.encode(), ..message }),
            None => Frame::Data(message),
        })
    }

    fn lend(&self, body: &Bytes, arena: Option<&Arc<Arena>>) -> Option<Reference> {
        self.loans.as_ref().zip(arena).and_then(|(loans, arena)| loans.lend(arena, body))
    }

    /// Reclaims the memory of this worker that the other worker has read.
    pub fn reclaim(&self) {
        self.loans.iter().for_each(Loans::reclaim);
    }

    /// Sends a frame, and queues the bytes that the socket does not accept. If the link has failed or is closing, the
    /// frame is discarded.
    ///
    /// Returns `true` if the polling thread must be woken: the queue was empty and now contains bytes, or the link has
    /// failed in this call, because of a write error or a frame's head that is too long.
    pub fn send(&self, frame: Frame) -> bool {
        let mut state = self.state.lock();
        if self.loss_is_reported() || state.closing || state.broken.is_some() {
            return false;
        }
        if let Frame::Data(message) | Frame::Reference(message) = &frame
            && u32::try_from(message.head.len()).is_err()
        {
            let reason = format!("a head of {} bytes cannot be sent to it", message.head.len());
            state.broken = Some(reason);
            self.failing.store(true, Ordering::Release);
            return true;
        }
        state.closing = matches!(frame, Frame::Goodbye | Frame::Leave);
        let waits = !state.queue.is_empty();
        state.queue.push(frame);
        // Earlier frames are already waiting for the socket.
        if !waits {
            state.write(MAX_DIRECT_SEND);
            self.note(&state);
        }
        // With shared memory, the socket has no event after a failed write.
        !waits && (self.backlog.load(Ordering::Relaxed) || state.broken.is_some())
    }

    /// Sends a heartbeat, unless other data is being sent, and frees unused memory. Returns `true` if the polling
    /// thread must be woken: see [`send`](Self::send).
    pub fn send_heartbeat(&self) -> bool {
        let mut state = self.state.lock();
        state.decoder.trim();
        state.imports.iter_mut().for_each(Imports::trim);
        drop(state);
        self.reclaim();
        !self.backlog.load(Ordering::Acquire) && self.send(Frame::Heartbeat)
    }

    /// Returns whether anything was received since the last query or is ready to be read, or whether the polling thread
    /// has other work for this link.
    pub fn take_received(&self) -> bool {
        let mut sockets = [poll::interest(&*self.socket, false)];
        let waits = poll::wait(&mut sockets, Duration::ZERO).is_ok() && poll::is_ready(&sockets[0]);
        if waits && let Some(pair) = &self.pair {
            pair.mark_socket_event();
        }
        self.has_received.swap(false, Ordering::Relaxed) || waits || self.has_work()
    }

    /// Returns whether bytes have moved in either direction since the last call.
    pub fn has_moved(&self) -> bool {
        std::mem::take(&mut self.state.lock().moved)
    }

    /// Returns whether anything is queued for writing.
    pub fn has_backlog(&self) -> bool {
        self.backlog.load(Ordering::Acquire)
    }

    /// Returns the message that was received in part, if there is one.
    pub fn partial_message(&self) -> Option<PartialMessage> {
        self.state.lock().decoder.partial_message()
    }

    /// Marks the link as failed, unless it has already failed. The polling thread reports the reason.
    pub fn fail(&self, reason: String) {
        self.state.lock().broken.get_or_insert(reason);
        self.failing.store(true, Ordering::Release);
    }

    /// Writes and reads without blocking, at most one turn in each direction. Appends the received messages to
    /// `events`. If the link has ended, the last event is the loss of the worker. Returns `true` if there may be more
    /// to read or write. This includes a partial message, because the rest usually follows immediately.
    ///
    /// Only the thread that polls may call this.
    pub fn poll(&self, events: &mut Vec<Event>) -> bool {
        if self.loss_is_reported() || (self.pair.is_some() && !self.has_work()) {
            return false;
        }
        let mut state = self.state.lock();
        let mut more = state.write(TURN_BYTES);
        self.note(&state);
        let (mut read, before) = (0, events.len());
        // Whether bytes of the ring follow the last message, which was a short one.
        let mut is_followed = false;
        let ended = loop {
            let is_over = read >= TURN_BYTES || (events.len() > before && !is_followed);
            if is_over && !state.stream.has_unread() {
                more = true;
                break None;
            }
            match self.take_short(&mut state) {
                Ok(None) => {}
                Ok(Some(message)) => {
                    events.push(Event::Message(self.peer, message));
                    is_followed = self.pair.as_ref().is_some_and(|pair| pair.readable() != Ok(0));
                    continue;
                }
                Err(reason) => break Some(reason),
            }
            is_followed = false;
            let State { stream, decoder, .. } = &mut *state;
            match stream.read(decoder.buffer()) {
                Ok(0) if state.closing => break Some("this worker has closed the link".to_owned()),
                Ok(0) => break Some("it closed its connection".to_owned()),
                Ok(length) => {
                    read += length;
                    state.moved = true;
                    self.note_received();
                    if let Some(reason) = self.take(&mut state, length, events) {
                        break Some(reason);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // A short message that has arrived now precedes a failure.
                    let precedes = self.pair.as_ref().is_some_and(|pair| pair.has_short());
                    more |= precedes;
                    break if precedes { None } else { state.broken.take() };
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Some(state.broken.take().unwrap_or_else(|| describe_error(&error))),
            }
        };
        more |= read > 0 && events.len() == before;
        if let Some(reason) = ended {
            state.queue.clear();
            self.loss_reported.store(true, Ordering::Release);
            self.backlog.store(false, Ordering::Release);
            state.finish();
            self.loans.iter().for_each(Loans::close);
            events.push(Event::Lost(self.peer, reason));
            return false;
        }
        // TLS may have queued an answer.
        self.note(&state);
        more
    }

    /// Decodes the received bytes, of which `read` are new, and appends the messages to `events`. Returns the reason if
    /// no more frames will follow, and otherwise `None`.
    fn take(&self, state: &mut State, read: usize, events: &mut Vec<Event>) -> Option<String> {
        state.decoder.advance(read);
        loop {
            match state.decoder.next_frame() {
                Ok(None) => return None,
                Ok(Some(Frame::Data(message))) => events.push(Event::Message(self.peer, message)),
                Ok(Some(Frame::Reference(Message { head, body }))) => match state.resolve(&body) {
                    Ok(body) => events.push(Event::Message(self.peer, Message { head, body })),
                    Err(error) => return Some(self.refuse(state, &error)),
                },
                Ok(Some(Frame::Heartbeat)) => {}
                Ok(Some(Frame::Goodbye)) => return Some(crate::ENDED.to_owned()),
                Ok(Some(Frame::Leave)) => return Some(crate::LEFT.to_owned()),
                Err(error) => return Some(self.refuse(state, &error)),
            }
        }
    }

    /// Closes the connection because received bytes cannot be decoded. Returns the reason for the disconnect.
    fn refuse(&self, state: &mut State, error: &dyn fmt::Display) -> String {
        state.stream.end();
        self.undecodable.store(true, Ordering::Release);
        format!("its data cannot be decoded: {error}")
    }

    /// Closes the connection and discards unsent data.
    pub fn end(&self) {
        self.state.lock().stream.end();
    }

    fn note_received(&self) {
        if !self.has_received.load(Ordering::Relaxed) {
            self.has_received.store(true, Ordering::Relaxed);
        }
    }

    fn note(&self, state: &State) {
        let backlog = !state.queue.is_empty() || state.stream.has_unsent();
        if backlog != self.backlog.load(Ordering::Relaxed) {
            self.backlog.store(backlog, Ordering::Release);
        }
        if state.broken.is_some() {
            self.failing.store(true, Ordering::Release);
        }
    }
}

impl State {
    /// Returns the body to which a received reference refers.
    fn resolve(&mut self, reference: &[u8]) -> Result<Bytes, BadReference> {
        let limit = self.decoder.limits().body;
        self.imports.as_mut().ok_or(BadReference::NotShared)?.resolve(reference, limit)
    }

    /// Writes about `most` bytes; the last write may exceed this number. Returns `true` if something was written and
    /// more is queued. An error is stored in `broken`.
    fn write(&mut self, most: usize) -> bool {
        let mut written = 0;
        let result = loop {
            if self.queue.is_empty() {
                break self.stream.flush();
            }
            if written >= most {
                return true;
            }
            match self.queue.write(|slices| self.stream.write(slices)) {
                Ok(length) => {
                    written += length;
                    self.moved = true;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        match result {
            Ok(()) if self.closing => self.finish(),
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // The failure is reported after everything received before was read.
            Err(error) => {
                self.queue.clear();
                self.broken.get_or_insert(describe_error(&error));
            }
        }
        written > 0 && !self.queue.is_empty()
    }

    fn finish(&mut self) {
        if !std::mem::replace(&mut self.finished, true) {
            self.stream.finish();
        }
    }
}

/// Describes a connection's error in a few words.
pub(crate) fn describe_error(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => "connection reset".to_owned(),
        io::ErrorKind::TimedOut => "connection timed out".to_owned(),
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        _ => error.to_string(),
    }
}
