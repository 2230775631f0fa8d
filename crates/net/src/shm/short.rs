//! Short messages: each is in cache lines of its own, next to its number.
//!
//! The receiver waits for the next number, and finds the message next to it. A message in the ring takes longer,
//! because its receiver first reads the position up to which the ring was written.
//!
//! Short messages and those in the ring keep their order. A short message contains the position of the ring at which it
//! was sent. The receiver reads the bytes before that position first.

// - **INV-115** A short message is received after everything that its sender has sent before it, and before everything
//   that the sender has sent after it. Its memory is written again only after it was received. Tests:
//   `net/src/shm/short.rs`, `net/tests/it/exchange.rs`.

use super::layout::{SHORT_MESSAGES, SHORT_WORDS, ShortMessage};
use super::pair::Pair;
use super::ring::{self, WrongPosition};
use bytes::Bytes;
use std::sync::atomic::{AtomicU64, Ordering};

/// The size of a word, in bytes.
const WORD: usize = size_of::<u64>();

/// The maximum length in bytes of the head of a short message.
pub(crate) const MAX_HEAD: usize = 64;

/// The bit of [`ShortMessage::lengths`] that is set if the body is a reference. The lower bits are the length of the
/// head in 16 bits, and that of the body in 32.
const REFERENCE: u64 = 1 << 48;

/// The number of short messages in both directions.
///
/// The thread that polls receives messages, and any thread sends them. A message that is sent acknowledges those that
/// were received, so `received` is released by the former and acquired by the latter: all reads of a message are made
/// before the other side can write another one in its place.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    sent: AtomicU64,
    /// The number of sent messages that the other side has received, as far as this side knows.
    acknowledged: AtomicU64,
    received: AtomicU64,
}

/// An error in what the other side has written about short messages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidShort {
    #[error(transparent)]
    Position(#[from] WrongPosition),
    #[error(
        "a short message announces a head of {head} bytes and a body of {body}, for which it has no room"
    )]
    Length { head: usize, body: usize },
    #[error("it has received {received} short messages, but {sent} were sent to it")]
    Received { received: u64, sent: u64 },
}

/// The next short message of the other side, in order of sending.
pub(crate) struct Arrived<'a> {
    pair: &'a Pair,
    message: &'a ShortMessage,
    number: u64,
    head: usize,
    body: usize,
    is_reference: bool,
}

impl Pair {
    /// Returns whether there is room for another short message.
    ///
    /// # Errors
    /// Returns an [`InvalidShort`] if the other side has received more messages than were sent to it.
    pub fn has_room_for_short(&self) -> Result<bool, InvalidShort> {
        let is_free = || {
            let acknowledged = self.short.acknowledged.load(Ordering::Acquire);
            self.short.sent.load(Ordering::Relaxed).saturating_sub(acknowledged) < SHORT_MESSAGES as u64
        };
        if !is_free() {
            // The other side may have received messages and sent none.
            self.acknowledge(self.peer_side().short_received.0.load(Ordering::Acquire))?;
        }
        Ok(is_free())
    }

    /// Writes a short message. Returns `false` if it is too long. Call this only if there is
    /// [room](Self::has_room_for_short), and [`must_wake`](Self::must_wake) afterwards.
    pub fn write_short(&self, head: &[u8], body: &[u8], is_reference: bool) -> bool {
        if !fits(head.len(), body.len()) {
            return false;
        }
        let number = self.short.sent.load(Ordering::Relaxed) + 1;
        let message = &self.own_side().short[index_of(number)];
        let (head_words, body_words) = message.words.split_at(head.len().div_ceil(WORD));
        put(body_words, body);
        put(head_words, head);
        let kind = if is_reference { REFERENCE } else { 0 };
        message.lengths.store(kind | (body.len() as u64) << 16 | head.len() as u64, Ordering::Relaxed);
        message.received.store(self.short.received.load(Ordering::Acquire), Ordering::Relaxed);
        message.written.store(self.own_written(), Ordering::Relaxed);
        self.short.sent.store(number, Ordering::Relaxed);
        message.number.store(number, Ordering::Release);
        true
    }

    /// Returns whether a short message has arrived, even if bytes of the ring precede it.
    pub fn has_short(&self) -> bool {
        self.next_short().is_some()
    }

    fn next_short(&self) -> Option<(u64, &ShortMessage)> {
        let number = self.short.received.load(Ordering::Relaxed) + 1;
        let message = &self.peer_side().short[index_of(number)];
        (message.number.load(Ordering::Acquire) == number).then_some((number, message))
    }

    /// Returns the number of unread bytes of the ring that precede the next short message; `None` if none has arrived.
    ///
    /// # Errors
    /// Returns [`WrongPosition`] if the other side has written an impossible position.
    pub(super) fn bytes_before_short(&self) -> Result<Option<usize>, WrongPosition> {
        let Some((_, message)) = self.next_short() else { return Ok(None) };
        let (position, [read, written]) = (message.written.load(Ordering::Relaxed), self.peer_ring());
        // The other side has written the bytes before the message.
        ring::between(position, written)?;
        ring::between(read, position).map(Some)
    }

    /// Returns the next short message, if it has arrived and no bytes of the ring precede it.
    ///
    /// # Errors
    /// Returns an [`InvalidShort`] if what the other side has written is impossible.
    pub fn short(&self) -> Result<Option<Arrived<'_>>, InvalidShort> {
        if self.bytes_before_short()? != Some(0) {
            return Ok(None);
        }
        let Some((number, message)) = self.next_short() else { return Ok(None) };
        self.acknowledge(message.received.load(Ordering::Relaxed))?;
        // INV-32
        let lengths = message.lengths.load(Ordering::Relaxed);
        let (head, body) = ((lengths & 0xffff) as usize, (lengths >> 16 & 0xffff_ffff) as usize);
        if !fits(head, body) {
            return Err(InvalidShort::Length { head, body });
        }
        let is_reference = lengths & REFERENCE > 0;
        Ok(Some(Arrived { pair: self, message, number, head, body, is_reference }))
    }

    /// Records the number of messages that the other side has received.
    fn acknowledge(&self, received: u64) -> Result<(), InvalidShort> {
        let sent = self.short.sent.load(Ordering::Relaxed);
        if received > sent {
            return Err(InvalidShort::Received { received, sent });
        }
        // It may have received more in the meantime, and another thread may have recorded that.
        if received > self.short.acknowledged.load(Ordering::Relaxed) {
            self.short.acknowledged.fetch_max(received, Ordering::Release);
        }
        Ok(())
    }
}

impl Arrived<'_> {
    /// Returns whether the body is a reference.
    pub fn is_reference(&self) -> bool {
        self.is_reference
    }

    /// Returns whether the message has this head.
    pub fn has_head(&self, head: &[u8]) -> bool {
        let (words, rest) = head.as_chunks();
        let is_same = |(word, bytes): (&AtomicU64, &[u8; WORD])| load(word) == *bytes;
        self.head == head.len()
            && self.message.words.iter().zip(words).all(is_same)
            && self.message.words.get(words.len()).is_some_and(|word| load(word).starts_with(rest))
    }

    /// Returns a copy of the head.
    pub fn head(&self) -> Bytes {
        copy(&self.message.words, self.head)
    }

    /// Returns a copy of the body.
    pub fn body(&self) -> Bytes {
        copy(&self.message.words[self.head.div_ceil(WORD)..], self.body)
    }

    /// Ends the use of the message, after which the other side may write another one in its place.
    pub fn finish(self) {
        self.pair.short.received.store(self.number, Ordering::Release);
        // All reads of the message were made before.
        self.pair.own_side().short_received.0.store(self.number, Ordering::Release);
    }
}

fn index_of(number: u64) -> usize {
    (number % SHORT_MESSAGES as u64) as usize
}

fn fits(head: usize, body: usize) -> bool {
    head <= MAX_HEAD && head.div_ceil(WORD) + body.div_ceil(WORD) <= SHORT_WORDS
}

fn load(word: &AtomicU64) -> [u8; WORD] {
    word.load(Ordering::Relaxed).to_ne_bytes()
}

/// Writes bytes into words, of which there must be enough.
fn put(words: &[AtomicU64], bytes: &[u8]) {
    let (all, rest) = bytes.as_chunks();
    for (word, bytes) in words.iter().zip(all) {
        word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
    }
    if let Some(word) = words.get(all.len()).filter(|_| !rest.is_empty()) {
        let mut last = [0; WORD];
        last[..rest.len()].copy_from_slice(rest);
        word.store(u64::from_ne_bytes(last), Ordering::Relaxed);
    }
}

/// Returns a copy of the first `length` bytes of words, of which there must be enough.
fn copy(words: &[AtomicU64], length: usize) -> Bytes {
    // Collected, because clearing the memory first would take longer than the copy.
    let words = words.iter().take(length.div_ceil(WORD));
    let mut bytes = words.map(load).collect::<Vec<_>>().into_flattened();
    bytes.truncate(length);
    bytes.into()
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use super::super::layout::SHORT_WORDS;
    use super::super::pair::tests::pair;
    use super::super::played::tests::{link, loss, say, turn};
    use super::super::ring::CAPACITY;
    use super::*;
    use crate::Message;
    use crate::link::{Event, Link, ShortReceipt};
    use crate::wire::Frame;
    use distribute_testing::watched;
    use proptest::prelude::*;
    use std::sync::Arc;

    const HEAD: &[u8] = b"a head of a call";

    /// Sends a short message from the other side, if there is room.
    fn say_short(theirs: &Pair, head: &[u8], body: &[u8]) -> bool {
        theirs.has_room_for_short().unwrap() && theirs.write_short(head, body, false)
    }

    fn messages(events: &[Event]) -> Vec<Message> {
        let message = |event: &Event| match event {
            Event::Message(1, message) => message.clone(),
            other => panic!("{other:?}"),
        };
        events.iter().map(message).collect()
    }

    #[test]
    fn heads_and_bodies_of_all_lengths_arrive_up_to_the_maximum() {
        let (mine, theirs) = pair();
        let bytes: Vec<u8> = (0..SHORT_WORDS * WORD + 1).map(|at| (at % 251) as u8).collect();
        for head in (0..=MAX_HEAD).step_by(3) {
            let most = (SHORT_WORDS - head.div_ceil(WORD)) * WORD;
            for body in (0..40).chain([1000, most - 1, most]) {
                assert!(say_short(&theirs, &bytes[7..7 + head], &bytes[..body]), "{head} {body}");
                let arrived = mine.short().unwrap().unwrap();
                assert!(arrived.has_head(&bytes[7..7 + head]));
                assert!(head == 0 || !arrived.has_head(&bytes[7..6 + head]));
                assert!(!arrived.has_head(&bytes[7..8 + head]) && !arrived.has_head(&bytes[8..8 + head + 1]));
                assert_eq!((&arrived.head()[..], &arrived.body()[..]), (&bytes[7..7 + head], &bytes[..body]));
                arrived.finish();
            }
            assert!(!theirs.write_short(&bytes[..head], &bytes[..most + 1], false));
        }
        assert!(!theirs.write_short(&bytes[..MAX_HEAD + 1], b"", false));
    }

    // INV-115
    #[test]
    fn memory_is_written_again_only_after_its_message_was_received() {
        let (mine, theirs) = pair();
        assert!(say_short(&theirs, HEAD, b"1") && say_short(&theirs, HEAD, b"2"));
        assert!(!say_short(&theirs, HEAD, b"3"), "neither was received");
        let receive = || {
            let arrived = mine.short().unwrap().unwrap();
            let body = arrived.body();
            arrived.finish();
            body
        };
        assert_eq!(receive(), "1");
        assert!(say_short(&theirs, HEAD, b"3") && !say_short(&theirs, HEAD, b"4"));
        assert_eq!([receive(), receive()], ["2", "3"]);
        assert!(mine.short().unwrap().is_none());
        // A message in the other direction reports what was received, so that this side need not look.
        assert!(say_short(&mine, HEAD, b""));
        theirs.short().unwrap().unwrap().finish();
        assert_eq!(theirs.short.acknowledged.load(Ordering::Relaxed), 3);
    }

    // INV-115
    #[test]
    fn memory_is_exchanged_intact_between_threads_that_send_and_threads_that_receive() {
        watched(|| {
            let (mine, theirs) = pair();
            let bytes = |who: usize, round: u64| {
                (round * 2 + who as u64).to_le_bytes().repeat(1 + (round % 7) as usize)
            };
            let count = 1_000;
            std::thread::scope(|scope| {
                for (me, pair) in [mine, theirs].into_iter().enumerate() {
                    let sender = pair.clone();
                    scope.spawn(move || {
                        for round in 0..count {
                            while !say_short(&sender, HEAD, &bytes(me, round)) {
                                std::thread::yield_now();
                            }
                        }
                    });
                    scope.spawn(move || {
                        for round in 0..count {
                            let arrived = loop {
                                match pair.short().unwrap() {
                                    Some(arrived) => break arrived,
                                    None => std::thread::yield_now(),
                                }
                            };
                            assert_eq!(arrived.body(), bytes(1 - me, round));
                            arrived.finish();
                        }
                    });
                }
            });
        });
    }

    // INV-116
    #[test]
    fn a_short_message_that_is_followed_in_the_ring_is_received_in_one_turn_with_it() {
        let (link, theirs, _socket) = link();
        assert!(turn(&link).is_empty());
        assert!(say_short(&theirs, HEAD, b"a call"));
        say(&theirs, Frame::Data(Message::new("", "its withdrawal")));
        assert_eq!(link.take_short_with(HEAD), ShortReceipt::Other);
        let mut events = Vec::new();
        link.poll(&mut events);
        let bodies: Vec<_> = messages(&events).into_iter().map(|message| message.body).collect();
        assert_eq!(bodies, ["a call", "its withdrawal"]);
    }

    // INV-32
    #[test]
    fn impossible_values_of_short_messages_end_the_link_with_an_error() {
        type Change = fn(&ShortMessage);
        let cases: [(Change, &str); 4] = [
            (|message| message.written.store(1, Ordering::Relaxed), "holds a position"),
            (|message| message.written.store(u64::MAX, Ordering::Relaxed), "holds a position"),
            (|message| message.lengths.store(u64::MAX, Ordering::Relaxed), "for which it has no room"),
            (|message| message.received.store(1, Ordering::Relaxed), "has received 1 short messages, but 0"),
        ];
        for (change, text) in cases {
            let (link, theirs, _socket) = link();
            assert!(say_short(&theirs, HEAD, b"body"));
            change(&theirs.own_side().short[index_of(1)]);
            assert_eq!(link.take_short_with(HEAD), ShortReceipt::Other);
            let reason = loss(&link);
            assert!(reason.contains(text), "{reason}");
            assert!(!link.send_short(HEAD, &Bytes::new(), None));
        }
        // It claims to have received what was not sent, and sends nothing.
        let (link, theirs, _socket) = link();
        theirs.own_side().short_received.0.store(u64::MAX, Ordering::Relaxed);
        let send = || link.send_short(HEAD, &Bytes::new(), None);
        assert_eq!([send(), send(), send()], [true, true, false]);
        let reason = loss(&link);
        assert!(reason.contains("short messages, but 2 were sent"), "{reason}");
        // A reference that is none.
        let (link, theirs, _socket) = self::link();
        assert!(theirs.write_short(HEAD, b"body", true));
        assert_eq!(link.take_short_with(HEAD), ShortReceipt::Other);
        let reason = loss(&link);
        assert!(reason.contains("a reference to its memory is malformed"), "{reason}");
    }

    // INV-29, INV-115
    #[test]
    fn short_messages_precede_the_end_of_the_link() {
        for in_ring in [false, true] {
            let (link, theirs, socket) = link();
            assert!(turn(&link).is_empty());
            if in_ring {
                say(&theirs, Frame::Data(Message::new("", "in the ring")));
            }
            assert!(say_short(&theirs, HEAD, b"1"));
            say(&theirs, Frame::Data(Message::new("", "in the ring")));
            assert!(say_short(&theirs, HEAD, b"2"));
            drop(socket);
            link.pair().unwrap().mark_socket_event();
            let mut events = turn(&link);
            let Some(Event::Lost(1, _)) = events.pop() else { panic!("{events:?}") };
            let expected = ["in the ring", "1", "in the ring", "2"];
            let bodies: Vec<_> = messages(&events).into_iter().map(|message| message.body).collect();
            assert_eq!(bodies, expected[usize::from(!in_ring)..]);
        }
    }

    /// The steps of both sides: the other side sends a message, or this one receives.
    #[derive(Clone, Debug)]
    enum Step {
        Ring(usize),
        Short(usize),
        Turn,
        /// Receives a short message whose head is that of the given one.
        Take(u8),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..3 * CAPACITY / 4).prop_map(Step::Ring),
            (0..200_usize).prop_map(Step::Ring),
            (0..2000_usize).prop_map(Step::Short),
            Just(Step::Turn),
            (0..2_u8).prop_map(Step::Take),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        // INV-115
        #[test]
        fn messages_keep_their_order_however_they_are_sent(
            steps in proptest::collection::vec(step(), 1..60),
        ) {
            let (link, theirs, _socket) = link();
            let (other, _socket) = (other_side(theirs), ());
            let (mut sent, mut received) = (0_u8, 0_u8);
            let body = |length: usize, number: u8| Bytes::from(vec![number; length]);
            let mut check = |message: Message| {
                assert_eq!(message.head[..], [received % 2, received]);
                assert!(message.body.iter().all(|byte| *byte == received));
                received += 1;
            };
            for step in steps.into_iter().chain(vec![Step::Turn; 8]) {
                match step {
                    Step::Ring(length) => {
                        other.send(Frame::Data(Message::new(vec![sent % 2, sent], body(length, sent))));
                        sent += 1;
                    }
                    Step::Short(length) => {
                        let (head, body) = (vec![sent % 2, sent], body(length, sent));
                        if !other.send_short(&head, &body, None) {
                            other.send(Frame::Data(Message::new(head, body)));
                        }
                        sent += 1;
                    }
                    Step::Turn => messages(&turn(&link)).into_iter().for_each(&mut check),
                    Step::Take(which) => {
                        // Everything that was received was delivered, as for the thread that polls.
                        let head = [which, which];
                        if let ShortReceipt::Received(body) = link.take_short_with(&head) {
                            check(Message::new(head.to_vec(), body));
                        }
                    }
                }
                turn(&other);
            }
            prop_assert_eq!(sent, received);
        }
    }

    /// Creates the link of the other side of a pair.
    fn other_side(theirs: Arc<Pair>) -> Link {
        use crate::stream::Stream;
        use crate::wire::{Decoder, Limits};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _kept = Box::leak(Box::new(listener.accept().unwrap()));
        let stream = Stream::plain(socket).unwrap().with_shared_memory(Some(theirs));
        Link::new(0, stream, Decoder::new(Limits::default()))
    }
}
