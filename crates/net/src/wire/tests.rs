//! Frames and messages from arbitrary bytes: no panics, and no allocation beyond what has arrived.
//!
//! `DISTRIBUTE_FUZZ_INPUTS=1000000 cargo test --release -p distribute-net mutated` tries more of them, and of the
//! messages in shared memory (`src/shm/`).

use crate::Message;
use crate::handshake::{
    Caller, HandshakeDecoder, Hello, Host, Offer, Purpose, Reason, Refusal, UnformedWorld, Words, caller,
    host,
};
use crate::wire::{Decoder, Frame, Limits, Queue, WireError};
use distribute_cluster::Job;
use distribute_testing::{SplitMix, fuzz_inputs};
use proptest::prelude::*;
use std::io::IoSlice;

/// The bytes that are allocated before anything has arrived, for several frames and for the first bytes of each part.
const CONSTANT: usize = (16 << 10) + 2 * (64 << 10);

/// Returns the bytes of frames, written in pieces of these sizes.
fn bytes(frames: &[Frame], mut piece: impl FnMut() -> usize) -> Vec<u8> {
    let (mut queue, mut bytes) = (Queue::default(), Vec::new());
    frames.iter().cloned().for_each(|frame| queue.push(frame));
    while !queue.is_empty() {
        let wrote = queue.write(|slices: &[IoSlice<'_>]| {
            let most = piece();
            let before = bytes.len();
            for slice in slices {
                let left = most - (bytes.len() - before);
                bytes.extend_from_slice(&slice[..slice.len().min(left)]);
            }
            Ok::<_, ()>(bytes.len() - before)
        });
        assert!(wrote.is_ok());
    }
    bytes
}

/// Feeds a decoder with pieces of these sizes, and checks its memory.
fn decode(
    limits: Limits,
    mut bytes: &[u8],
    mut piece: impl FnMut() -> usize,
) -> (Vec<Frame>, Option<WireError>) {
    let (mut decoder, mut frames) = (Decoder::new(limits), Vec::new());
    let mut received = 0;
    while !bytes.is_empty() {
        let buffer = decoder.buffer();
        assert!(!buffer.is_empty());
        let read = buffer.len().min(bytes.len()).min(piece());
        buffer[..read].copy_from_slice(&bytes[..read]);
        bytes = &bytes[read..];
        received += read;
        decoder.advance(read);
        loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => {
                    received = 0;
                    frames.push(frame);
                }
                Ok(None) => break,
                Err(error) => return (frames, Some(error)),
            }
        }
        assert!(decoder.allocated() <= 2 * (received + (16 << 10)) + CONSTANT, "for {received} bytes");
    }
    (frames, None)
}

fn frame() -> impl Strategy<Value = Frame> {
    let part = |longest| proptest::collection::vec(any::<u8>(), 0..longest);
    let data = (part(300), prop_oneof![3 => part(300), 1 => part(60_000)]);
    prop_oneof![
        6 => data.prop_map(|(head, body)| Frame::Data(Message::new(head, body))),
        1 => part(60).prop_map(|body| Frame::Reference(Message::new("head", body))),
        1 => Just(Frame::Heartbeat),
        1 => Just(Frame::Goodbye),
        1 => Just(Frame::Leave),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn frames_round_trip_for_each_way_to_write_and_read(
        frames in proptest::collection::vec(frame(), 0..8),
        seed in any::<u64>(),
        longest in prop_oneof![Just(1_usize), 2..40_usize, 1000..300_000_usize],
    ) {
        // A byte at a time is slow.
        let longest = if bytes(&frames, || usize::MAX).len() > 20_000 { longest.max(500) } else { longest };
        let mut random = SplitMix(seed);
        let stream = bytes(&frames, || 1 + random.below(longest));
        prop_assert_eq!(&stream, &bytes(&frames, || usize::MAX));
        let (found, error) = decode(Limits::default(), &stream, || 1 + random.below(longest));
        prop_assert_eq!(error, None);
        prop_assert_eq!(found, frames);
    }

    #[test]
    fn any_bytes_are_frames_or_an_error(
        bytes in proptest::collection::vec(any::<u8>(), 0..2000),
        kind in 0..6_u8,
        longest in 1..100_usize,
    ) {
        // Most bytes fail at the first.
        let bytes = [&[kind, 0, 0, 0][..], &bytes].concat();
        decode(Limits::default(), &bytes, || longest);
    }
}

// INV-28
#[test]
fn lengths_are_compared_with_the_limits_before_anything_is_allocated() {
    let limits = Limits { head: 100, body: 1000 };
    let header = |kind: u8, head: u32, body: u64| {
        [&[kind, 0, 0, 0][..], &head.to_le_bytes(), &body.to_le_bytes()].concat()
    };
    for (header, error) in [
        (header(1, 101, 0), WireError::Head { length: 101, limit: 100 }),
        (header(1, u32::MAX, u64::MAX), WireError::Head { length: u32::MAX, limit: 100 }),
        (header(1, 0, u64::MAX), WireError::Body { length: u64::MAX, limit: 1000 }),
        (header(1, 100, 1001), WireError::Body { length: 1001, limit: 1000 }),
        (header(2, 1, 0), WireError::NotEmpty(1)),
        (header(3, 0, 9), WireError::NotEmpty(9)),
        (header(0, 0, 0), WireError::Kind([0, 0, 0, 0])),
        (header(5, 1, 0), WireError::NotEmpty(1)),
        (header(6, 0, 0), WireError::Kind([6, 0, 0, 0])),
        (header(4, 0, 1001), WireError::Body { length: 1001, limit: 1000 }),
    ] {
        assert_eq!(decode(limits, &header, || 16), (vec![], Some(error)));
    }
    // A body of an allowed length that never arrives.
    let mut decoder = Decoder::new(Limits::default());
    let claim = header(1, 16 << 20, 64 << 30);
    decoder.buffer()[..16].copy_from_slice(&claim);
    decoder.advance(16);
    assert_eq!(decoder.next_frame(), Ok(None));
    assert!(decoder.allocated() <= CONSTANT, "{}", decoder.allocated());
    assert!(!decoder.is_between_frames());
}

#[test]
fn a_decoder_reports_how_much_of_a_message_has_arrived() {
    let frames = [Frame::Data(Message::new("head", vec![1; 1000])), Frame::Goodbye];
    let bytes = bytes(&frames, || usize::MAX);
    let header = bytes.len() - 1004 - self::bytes(&frames[1..], || usize::MAX).len();
    let mut decoder = Decoder::new(Limits::default());
    let mut feed = |bytes: &[u8]| {
        decoder.buffer()[..bytes.len()].copy_from_slice(bytes);
        decoder.advance(bytes.len());
        let frame = decoder.next_frame().unwrap();
        (frame.is_some(), decoder.partial_message().map(|arriving| (arriving.received, arriving.length)))
    };
    let (first, rest) = bytes.split_at(header - 1);
    assert_eq!(feed(first), (false, None));
    assert_eq!(feed(&rest[..1]), (false, Some((0, 1004))));
    assert_eq!(feed(&rest[1..301]), (false, Some((300, 1004))));
    // What says nothing to a receiver is no message.
    assert_eq!(feed(&rest[301..1005]), (true, None));
    assert_eq!(feed(&rest[1005..]), (true, None));
}

#[test]
fn a_large_body_is_read_to_where_it_stays() {
    let message = Message::new("head", vec![3; 10 << 20]);
    let stream = bytes(&[Frame::Data(message.clone())], || usize::MAX);
    let mut decoder = Decoder::new(Limits::default());
    let (mut at, mut reads) = (0, 0);
    loop {
        let buffer = decoder.buffer();
        let read = buffer.len().min(stream.len() - at);
        buffer[..read].copy_from_slice(&stream[at..at + read]);
        (at, reads) = (at + read, reads + 1);
        decoder.advance(read);
        if let Some(frame) = decoder.next_frame().unwrap() {
            assert_eq!(frame, Frame::Data(message));
            break;
        }
    }
    assert!(reads < 60, "{reads} reads");
    assert!(decoder.is_between_frames());
}

fn hello(random: &mut SplitMix) -> Hello {
    let address = format!("10.0.0.{}:1", random.below(256));
    let unformed = (random.below(2) == 0).then(|| UnformedWorld {
        generation: 1 + random.bits() % 3,
        table: random.bits(),
        latest: random.bits() % 3,
        unreached: (random.bits() % 3).checked_sub(1).map(|at| at as usize),
    });
    let purpose = match random.below(4) {
        0 => Purpose::Link,
        3 => Purpose::Spare { address, unformed },
        1 => Purpose::Join { address, unformed },
        _ => Purpose::Call { from: Job::Chief.task(0), to: Job::Ps.task(random.below(2)) },
    };
    let job = random.of(&["a", "", "ä"]).to_owned();
    let rank = random.below(4);
    let digest = [random.below(2) as u8; 32];
    let table = if matches!(purpose, Purpose::Link | Purpose::Spare { .. }) { random.bits() } else { 0 };
    Hello { job, generation: random.bits() % 3, table, rank, workers: 4, replicas: 1, digest, purpose }
}

/// Returns the hello of a worker of one job.
fn mine(rank: usize) -> Hello {
    let (job, purpose) = ("a".to_owned(), Purpose::Link);
    Hello { job, generation: 1, table: 0, rank, workers: 4, replicas: 1, digest: [1; 32], purpose }
}

/// Returns the hello of a task that answers calls, or of one that makes them.
fn calling(from: Job) -> Hello {
    let purpose = Purpose::Call { from: from.task(0), to: Job::Ps.task(0) };
    Hello { generation: 0, rank: 0, workers: 0, replicas: 0, digest: [0; 32], purpose, ..mine(0) }
}

fn offer(random: &mut SplitMix) -> Option<Offer> {
    let pid = random.bits() as u32;
    (random.below(2) == 0).then(|| Offer { pid, descriptor: 5, inode: random.bits(), token: [7; 32] })
}

fn words(random: &mut SplitMix) -> Words {
    let proof = (random.below(3) > 0).then_some([random.bits() as u8; 32]);
    match random.below(5) {
        0 => Words::Hello(hello(random), random.below(2) == 0, [9; 32]),
        1 => Words::Challenge(random.below(4), [8; 32], (random.below(2) == 0).then_some([6; 32]), proof),
        2 => Words::Proof(proof, offer(random)),
        3 => Words::Welcome,
        _ => Words::Refusal(Refusal::new(random.of(&[Reason::Taken, Reason::Other]), "no\x1b[2J")),
    }
}

#[test]
fn words_round_trip_through_their_bytes() {
    let mut random = SplitMix(3);
    for _ in 0..1000 {
        let words = words(&mut random);
        let bytes = words.encode();
        assert!(bytes.len() <= 1024 + 2);
        assert_eq!(Words::decode(&bytes[2..]), Ok(words));
    }
    // Control characters in a text of another process are escaped.
    assert_eq!(Refusal::new(Reason::Other, "no\x1b[2J\n").to_string(), r"no\u{1b}[2J\n");
    let long = Words::Refusal(Refusal::new(Reason::Job, "ä".repeat(10_000))).encode();
    assert!(long.len() <= 1024 + 2 && Words::decode(&long[2..]).is_ok());
}

#[test]
fn mutated_streams_of_frames_are_frames_or_an_error() {
    let mut random = SplitMix(1);
    let limits = Limits { head: 1 << 16, body: 1 << 24 };
    let mut bad = 0;
    for _ in 0..fuzz_inputs() {
        let frames: Vec<_> = (0..1 + random.below(4))
            .map(|_| match random.below(7) {
                0 => Frame::Heartbeat,
                1 => Frame::Goodbye,
                2 => Frame::Leave,
                3 => Frame::Reference(Message::new(vec![1; random.below(40)], vec![3; 56])),
                _ => {
                    let longest = random.of(&[10, 200, 40_000]);
                    let (head, body) = (random.below(40), random.below(longest));
                    Frame::Data(Message::new(vec![1; head], vec![2; body]))
                }
            })
            .collect();
        let mut stream = bytes(&frames, || usize::MAX);
        random.mutate(&mut stream);
        let longest = random.of(&[30, 500, 70_000]);
        bad += u64::from(decode(limits, &stream, || 1 + random.below(longest)).1.is_some());
    }
    // Both kinds of ends have been reached.
    assert!(bad > fuzz_inputs() / 10 && bad < fuzz_inputs(), "{bad} errors");
}

#[test]
fn mutated_words_are_words_or_a_refusal_on_both_sides() {
    let mut random = SplitMix(2);
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, b"the secret");
    let (mut refused, mut linked, mut called, mut offered) = (0, 0, 0, 0);
    for _ in 0..fuzz_inputs() {
        let mut stream = crate::handshake::decoder::preamble();
        let (keyed, calls, shares) = (random.below(2) == 0, random.below(2) == 0, random.below(2) == 0);
        if random.below(2) == 0 {
            // A caller that would be accepted.
            let hello = if calls { calling(Job::Chief) } else { Hello { rank: 1, ..mine(0) } };
            stream.extend(Words::Hello(hello, keyed, [9; 32]).encode());
            stream.extend(Words::Proof(keyed.then_some([5; 32]), offer(&mut random)).encode());
        }
        for _ in 0..random.below(3) {
            stream.extend(words(&mut random).encode());
        }
        if random.below(8) > 0 {
            random.mutate(&mut stream);
        }
        let key = || keyed.then(|| key.clone());
        let host = Host::new(if calls { calling(Job::Ps) } else { mine(0) }, key(), [1; 32]);
        let mut host = host.machine(shares.then_some([6; 32]));
        let mut caller = Caller::new(mine(2), 1, key(), [2; 32]);
        let mut decoder = HandshakeDecoder::default();
        let mut rest = &stream[..];
        while !rest.is_empty() {
            let buffer = decoder.buffer();
            assert!((1..=1024).contains(&buffer.len()));
            let read = buffer.len().min(rest.len()).min(1 + random.below(60));
            buffer[..read].copy_from_slice(&rest[..read]);
            rest = &rest[read..];
            let Ok(words) = decoder.advance(read) else {
                refused += 1;
                break;
            };
            let Some(words) = words else { continue };
            match caller.receive(words.clone()) {
                Ok(caller::Answer::Welcome) => assert!(!keyed, "nobody knew the secret"),
                Ok(caller::Answer::Send(_)) | Err(_) => {}
            }
            match host.receive(words) {
                Ok(host::Answer::Applies(hello, offer)) => {
                    assert!(!keyed, "nobody knew the secret");
                    assert_eq!(matches!(hello.purpose, Purpose::Call { .. }), calls, "{hello:?}");
                    assert!(shares || offer.is_none(), "nobody has asked for it");
                    *(if calls { &mut called } else { &mut linked }) += 1;
                    offered += u64::from(offer.is_some());
                }
                Ok(host::Answer::Send(_)) => {}
                Err(_) => refused += 1,
            }
        }
    }
    assert!(refused > fuzz_inputs() / 10, "{refused} refused");
    assert!(linked > 0 && called > 0 && offered > 0, "{linked} linked, {called} called, {offered} offers");
}

#[test]
fn a_large_body_reuses_the_memory_of_a_dropped_one() {
    let message = Message::new("head", vec![3; 1 << 20]);
    let stream = bytes(&[Frame::Data(message.clone())], || usize::MAX);
    let mut decoder = Decoder::new(Limits::default());
    let mut next = || {
        let mut rest = &stream[..];
        loop {
            let buffer = decoder.buffer();
            let read = buffer.len().min(rest.len());
            buffer[..read].copy_from_slice(&rest[..read]);
            rest = &rest[read..];
            decoder.advance(read);
            if let Some(Frame::Data(found)) = decoder.next_frame().unwrap() {
                assert_eq!(found, message);
                return found.body;
            }
        }
    };
    let first = next();
    let (place, second) = (first.as_ptr(), next());
    assert_ne!(second.as_ptr(), place, "while it is in use");
    assert_eq!(first, second);
    let place = second.as_ptr();
    drop((first, second));
    assert_eq!(next().as_ptr(), place);
    decoder.trim();
    assert!(decoder.allocated() < 1 << 20);
}
