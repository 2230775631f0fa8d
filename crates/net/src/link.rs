//! The connection to one other worker.

use crate::shm::arena::Arena;
use crate::shm::imports::Imports;
use crate::shm::loans::Loans;
use crate::shm::pair::Pair;
use crate::shm::reference::BadReference;
use crate::stream::Stream;
use crate::wire::{Decoder, Frame, Queue};
use crate::{Arriving, Message, poll};
use parking_lot::Mutex;
use rustix::event::PollFd;
use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How much is written or read before the other direction, and other links, have their turn.
const TURN: usize = 512 << 10;

/// How much `send` writes by itself: what a socket takes, and not what its receiver reads meanwhile.
const SENT: usize = 4 << 20;

/// What a link has for the receiver.
#[derive(Debug)]
pub(crate) enum Event {
    Message(usize, Message),
    Lost(usize, String),
}

/// The connection to one other worker. Any thread sends; only the one that drives reads, so what it has read can be delivered
/// in order without the lock.
#[derive(Debug)]
pub(crate) struct Link {
    peer: usize,
    socket: Arc<TcpStream>,
    /// The memory that is shared with the worker, through which everything is sent then.
    pair: Option<Arc<Pair>>,
    /// What the worker reads in this one's memory.
    loans: Option<Loans>,
    state: Mutex<State>,
    /// Whether something waits to be written.
    backlog: AtomicBool,
    /// Whether it is to be looked at although nothing has come.
    doomed: AtomicBool,
    over: AtomicBool,
}

#[derive(Debug)]
struct State {
    stream: Stream,
    decoder: Decoder,
    queue: Queue,
    /// What this worker reads in the other's memory.
    imports: Option<Imports>,
    /// Whether something has come since this was last asked.
    heard: bool,
    /// Whether bytes have moved in either direction since this was last asked.
    moved: bool,
    /// Why the link can't go on, once what has come is read.
    broken: Option<String>,
    closing: bool,
    /// Whether the other side has been told that nothing more comes.
    finished: bool,
}

impl Link {
    pub fn new(peer: usize, stream: Stream, decoder: Decoder) -> Self {
        let (socket, pair) = (stream.socket().clone(), stream.pair().cloned());
        let state = State {
            stream,
            decoder,
            queue: Queue::default(),
            imports: pair.clone().map(Imports::new),
            heard: true,
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
            pair,
            state: Mutex::new(state),
            backlog: no(),
            doomed: no(),
            over: no(),
        }
    }

    pub fn peer(&self) -> usize {
        self.peer
    }

    /// The same, where the worker has another number.
    pub fn renumbered(mut self, peer: usize) -> Self {
        self.peer = peer;
        self
    }

    /// Whether the loss of the worker has been told.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// What to wait for at its socket.
    pub fn interest(&self) -> PollFd<'_> {
        // A socket beside shared memory takes the bytes that wake at any time.
        let backlog = self.pair.is_none() && self.backlog.load(Ordering::Acquire);
        poll::interest(&*self.socket, backlog)
    }

    /// The memory through which everything is sent, if it is shared.
    pub fn pair(&self) -> Option<&Arc<Pair>> {
        self.pair.as_ref()
    }

    /// Whether it needs a turn, whatever its socket says.
    pub fn has_work(&self) -> bool {
        !self.is_over()
            && (self.doomed.load(Ordering::Acquire)
                || self.pair.as_ref().is_some_and(|pair| pair.has_work(self.backlog.load(Ordering::Acquire))))
    }

    /// Sends a message. Its body is lent to the worker if it is in memory that it can read.
    pub fn send_message(&self, message: Message, arena: Option<&Arc<Arena>>) -> bool {
        let lent = self.loans.as_ref().zip(arena).and_then(|(loans, arena)| loans.lend(arena, &message.body));
        self.send(match lent {
            Some(reference) => Frame::Reference(Message { body: reference.encode(), ..message }),
            None => Frame::Data(message),
        })
    }

    /// Takes back what the worker has read in this one's memory.
    pub fn settle(&self) {
        self.loans.iter().for_each(Loans::settle);
    }

    /// Sends a frame, or keeps what the socket does not take. Says whether there is something to be written later.
    pub fn send(&self, frame: Frame) -> bool {
        let mut state = self.state.lock();
        if self.is_over() || state.closing || state.broken.is_some() {
            return false;
        }
        if let Frame::Data(message) | Frame::Reference(message) = &frame
            && u32::try_from(message.head.len()).is_err()
        {
            let text = format!("a head of {} bytes cannot be sent to it", message.head.len());
            state.broken = Some(text);
            self.doomed.store(true, Ordering::Release);
            return true;
        }
        state.closing = matches!(frame, Frame::Goodbye | Frame::Leave);
        let waits = !state.queue.is_empty();
        state.queue.push(frame);
        // Others wait for the socket already.
        if !waits {
            state.write(SENT);
            self.note(&state);
        }
        !waits && self.backlog.load(Ordering::Relaxed)
    }

    /// A sign of life, where nothing else is being sent.
    pub fn beat(&self) {
        let mut state = self.state.lock();
        state.decoder.relax();
        state.imports.iter_mut().for_each(Imports::relax);
        drop(state);
        self.settle();
        if !self.backlog.load(Ordering::Acquire) {
            self.send(Frame::Heartbeat);
        }
    }

    /// Whether something has come since this was last asked, or waits to be read.
    pub fn was_heard(&self) -> bool {
        let mut sockets = [poll::interest(&*self.socket, false)];
        let waits = poll::wait(&mut sockets, Duration::ZERO).is_ok() && poll::is_ready(&sockets[0]);
        if waits && let Some(pair) = &self.pair {
            pair.mind_socket();
        }
        std::mem::take(&mut self.state.lock().heard) || waits || self.has_work()
    }

    /// Whether bytes have moved in either direction since this was last asked.
    pub fn has_moved(&self) -> bool {
        std::mem::take(&mut self.state.lock().moved)
    }

    /// Whether something waits to be written.
    pub fn has_backlog(&self) -> bool {
        self.backlog.load(Ordering::Acquire)
    }

    /// The message of which a part has come, if there is one.
    pub fn arriving(&self) -> Option<Arriving> {
        self.state.lock().decoder.arriving()
    }

    /// The worker is lost for this reason. It is told by the thread that drives.
    pub fn doom(&self, reason: String) {
        self.state.lock().broken.get_or_insert(reason);
        self.doomed.store(true, Ordering::Release);
    }

    /// Writes and reads what goes at once, at most a turn of each. Says whether there may be more: also in the middle of a message
    /// of which a part has gone, whose rest follows at once, mostly.
    ///
    /// To be called by the thread that drives, alone.
    pub fn turn(&self, events: &mut Vec<Event>) -> bool {
        if self.is_over() || (self.pair.is_some() && !self.has_work()) {
            return false;
        }
        let mut state = self.state.lock();
        let mut more = state.write(TURN);
        self.note(&state);
        let (mut read, before) = (0, events.len());
        let ended = loop {
            if (read >= TURN || events.len() > before) && !state.stream.has_unread() {
                more = true;
                break None;
            }
            let State { stream, decoder, .. } = &mut *state;
            match stream.read(decoder.buffer()) {
                Ok(0) if state.closing => break Some("this worker has closed the link".to_owned()),
                Ok(0) => break Some("it closed its connection".to_owned()),
                Ok(length) => {
                    read += length;
                    (state.heard, state.moved) = (true, true);
                    if let Some(reason) = self.take(&mut state, length, events) {
                        break Some(reason);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break state.broken.take(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Some(state.broken.take().unwrap_or_else(|| text(&error))),
            }
        };
        more |= read > 0 && events.len() == before;
        if let Some(reason) = ended {
            state.queue.clear();
            self.over.store(true, Ordering::Release);
            self.backlog.store(false, Ordering::Release);
            state.finish();
            self.loans.iter().for_each(Loans::close);
            events.push(Event::Lost(self.peer, reason));
            return false;
        }
        // TLS may have answered.
        self.note(&state);
        more
    }

    /// Takes the frames out of what was read; gives the reason if there will be no more.
    fn take(&self, state: &mut State, read: usize, events: &mut Vec<Event>) -> Option<String> {
        state.decoder.advance(read);
        loop {
            match state.decoder.next_frame() {
                Ok(None) => return None,
                Ok(Some(Frame::Data(message))) => events.push(Event::Message(self.peer, message)),
                Ok(Some(Frame::Reference(Message { head, body }))) => {
                    let limit = state.decoder.limits().body;
                    let imports = state.imports.as_mut().ok_or(BadReference::NotShared);
                    match imports.and_then(|imports| imports.resolve(&body, limit)) {
                        Ok(body) => events.push(Event::Message(self.peer, Message { head, body })),
                        Err(error) => {
                            state.stream.end();
                            return Some(format!("what it sent cannot be read: {error}"));
                        }
                    }
                }
                Ok(Some(Frame::Heartbeat)) => {}
                Ok(Some(Frame::Goodbye)) => return Some(crate::ENDED.to_owned()),
                Ok(Some(Frame::Leave)) => return Some(crate::LEFT.to_owned()),
                Err(error) => {
                    state.stream.end();
                    return Some(format!("what it sent cannot be read: {error}"));
                }
            }
        }
    }

    /// Ends the connection, whatever has not been sent.
    pub fn end(&self) {
        self.state.lock().stream.end();
    }

    fn note(&self, state: &State) {
        let backlog = !state.queue.is_empty() || state.stream.has_unsent();
        if backlog != self.backlog.load(Ordering::Relaxed) {
            self.backlog.store(backlog, Ordering::Release);
        }
        if state.broken.is_some() {
            self.doomed.store(true, Ordering::Release);
        }
    }
}

impl State {
    /// Writes at most `most` bytes, and a part of a frame. Says whether there is more, and the socket would have taken it or has
    /// taken a part.
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
            // It is lost when what it has sent before has been read.
            Err(error) => {
                self.queue.clear();
                self.broken.get_or_insert(text(&error));
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

/// What happened to a connection, in few words.
pub(crate) fn text(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => "connection reset".to_owned(),
        io::ErrorKind::TimedOut => "connection timed out".to_owned(),
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        _ => error.to_string(),
    }
}
