//! Tests of this worker's reactions to violations of the protocol of shared memory. The tests act as the other side.

#[cfg(target_os = "linux")]
#[cfg(test)]
pub(crate) mod tests {
    use super::super::arena::Arena;
    use super::super::layout::TOTAL;
    use super::super::memfd;
    use super::super::pair::tests::pair;
    use super::super::pair::{Offered, Pair};
    use super::super::ring::CAPACITY;
    use crate::Message;
    use crate::handshake::Words;
    use crate::link::{Event, Link};
    use crate::stream::Stream;
    use crate::wire::{Decoder, Frame, Limits, Queue};
    use bytes::Bytes;
    use distribute_testing::{SplitMix, fuzz_inputs};
    use proptest::prelude::*;
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    use std::io::IoSlice;
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    /// Creates a link of worker 0 to worker 1, and returns it with worker 1's ends of the memory and the socket.
    pub(crate) fn link() -> (Link, Arc<Pair>, TcpStream) {
        let (mine, theirs) = pair();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let stream = Stream::plain(socket).unwrap().with_shared_memory(Some(mine));
        (Link::new(1, stream, Decoder::new(Limits::default())), theirs, listener.accept().unwrap().0)
    }

    pub(in crate::shm) fn turn(link: &Link) -> Vec<Event> {
        let mut events = Vec::new();
        while link.poll(&mut events) {}
        events
    }

    /// Returns the reason of the disconnect, which must be the only event.
    pub(in crate::shm) fn loss(link: &Link) -> String {
        let events = turn(link);
        let [Event::Lost(1, reason)] = &events[..] else { panic!("{events:?}") };
        assert!(link.loss_is_reported());
        reason.clone()
    }

    /// Sends a frame from the other side.
    pub(crate) fn say(theirs: &Pair, frame: Frame) {
        let mut queue = Queue::default();
        queue.push(frame);
        while !queue.is_empty() {
            queue.write(|slices| theirs.write(slices)).unwrap();
        }
    }

    // INV-32
    #[test]
    fn positions_that_cannot_be_end_the_link_with_an_error() {
        for position in [CAPACITY as u64 + 1, u64::MAX, 1 << 63] {
            let (link, theirs, _socket) = link();
            theirs.own_side().written.0.store(position, Ordering::Release);
            let reason = loss(&link);
            assert!(
                reason.contains(&format!("holds a position {position} next to this worker's 0")),
                "{reason}"
            );
            // The other side has read more than there is.
            let (link, theirs, _socket) = self::link();
            theirs.own_side().read.0.store(position, Ordering::Release);
            assert!(link.send(Frame::Heartbeat), "the thread that polls has to report the failure");
            let reason = loss(&link);
            assert!(reason.contains("its shared memory holds a position"), "{reason}");
            // Nothing is sent to a disconnected worker.
            assert!(!link.send(Frame::Heartbeat) && !link.send_heartbeat());
        }
        // The position went back to before what was read.
        let (link, theirs, _socket) = link();
        say(&theirs, Frame::Data(Message::new("", "a body")));
        assert_eq!(turn(&link).len(), 1);
        theirs.own_side().written.0.store(1, Ordering::Release);
        loss(&link);
    }

    #[test]
    fn words_of_the_other_side_that_are_no_positions_do_no_harm() {
        let (link, theirs, _socket) = link();
        for side in [theirs.own_side(), theirs.peer_side()] {
            for word in [&side.asleep.0, &side.wants_room.0, &side.wake_sent.0, &side.opens.0, &side.pid.0] {
                word.store(u32::MAX, Ordering::Release);
            }
            side.returned.0.iter().for_each(|slot| slot.store(u64::MAX, Ordering::Release));
        }
        say(&theirs, Frame::Data(Message::new("head", "a body")));
        link.send(Frame::Data(Message::new("another", "body")));
        assert!(matches!(&turn(&link)[..], [Event::Message(1, message)] if message.body == "a body"));
    }

    /// Returns the number of bytes received by the socket.
    fn wake_bytes(socket: &TcpStream) -> usize {
        socket.set_nonblocking(true).unwrap();
        let mut bytes = [0; 10];
        let read = std::io::Read::read(&mut &*socket, &mut bytes);
        read.or_else(|error| if error.kind() == std::io::ErrorKind::WouldBlock { Ok(0) } else { Err(error) })
            .unwrap()
    }

    #[test]
    fn one_byte_wakes_the_other_side_for_messages_and_for_room() {
        let (link, theirs, socket) = link();
        link.send(Frame::Heartbeat);
        assert_eq!(wake_bytes(&socket), 0, "it is awake");
        theirs.begin_sleep();
        link.send(Frame::Heartbeat);
        link.send(Frame::Heartbeat);
        assert_eq!(wake_bytes(&socket), 1);
        theirs.record_wake();
        let body = Bytes::from(vec![0; CAPACITY]);
        let mut queue = Queue::default();
        queue.push(Frame::Data(Message::new("", body)));
        while queue.write(|slices| theirs.write(slices)).unwrap() > 0 {}
        assert!(turn(&link).is_empty());
        assert_eq!(wake_bytes(&socket), 1);
        theirs.record_wake();
        queue.write(|slices| theirs.write(slices)).unwrap();
        assert!(matches!(&turn(&link)[..], [Event::Message(1, message)] if message.body.len() == CAPACITY));
    }

    #[test]
    fn a_closed_socket_ends_the_worker_after_its_written_messages() {
        let (link, theirs, socket) = link();
        assert!(turn(&link).is_empty());
        say(&theirs, Frame::Data(Message::new("last", vec![1; CAPACITY / 2])));
        drop(socket);
        let events = turn(&link);
        assert!(
            matches!(&events[..], [Event::Message(1, _)]),
            "nobody has waited for the socket: {events:?}"
        );
        say(&theirs, Frame::Data(Message::new("last", vec![1; CAPACITY / 2])));
        let ready =
            crate::ready::wait(std::slice::from_ref(&link), vec![], std::time::Duration::from_secs(20));
        assert_eq!(ready.unwrap().links, [true]);
        let events = turn(&link);
        let [Event::Message(1, _), Event::Lost(1, reason)] = &events[..] else { panic!("{events:?}") };
        assert_eq!(reason, "it closed its connection");
    }

    #[test]
    fn an_offer_with_wrong_memory_is_refused() {
        let offered = Offered::new().unwrap();
        let good = offered.offer();
        let error = |offer| Pair::accept(offer).unwrap_err().to_string();
        for (offer, text) in [
            (crate::handshake::Offer { token: [0; 32], ..good }, "the memory of other workers"),
            (crate::handshake::Offer { inode: good.inode + 1, ..good }, "other memory than was announced"),
            // Standard input, or output.
            (crate::handshake::Offer { descriptor: 1, ..good }, "not the memory of a worker"),
            (crate::handshake::Offer { descriptor: u32::MAX, ..good }, "No such file"),
            (crate::handshake::Offer { pid: u32::MAX, ..good }, "No such file"),
        ] {
            let error = error(offer);
            assert!(error.contains(text), "{error}");
        }
        // The size of this file could change, so that its pages vanish.
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = std::fs::File::from(memfd_create("distribute", flags).unwrap());
        ftruncate(&file, TOTAL as u64).unwrap();
        fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SEAL).unwrap();
        let location = memfd::location(&file).unwrap();
        let offer =
            crate::handshake::Offer { descriptor: location.descriptor, inode: location.inode, ..good };
        assert!(error(offer).contains("its size could change"));
        // This file has a different size.
        let small = memfd::create(4096).unwrap();
        let location = memfd::location(&small).unwrap();
        let offer =
            crate::handshake::Offer { descriptor: location.descriptor, inode: location.inode, ..good };
        assert!(error(offer).contains("other memory than was announced"));
        // The correct memory has not been accepted yet.
        assert!(offered.accepted().is_none());
    }

    // INV-32
    #[test]
    fn mutated_offers_are_the_right_memory_or_an_error() {
        let offered = Offered::new().unwrap();
        let words = Words::Proof(None, Some(offered.offer())).encode();
        let (mut taken, mut random, inputs) = (0, SplitMix(5), fuzz_inputs());
        for _ in 0..inputs {
            let mut words = words[2..].to_vec();
            random.mutate(&mut words);
            let Ok(Words::Proof(_, Some(offer))) = Words::decode(&words) else { continue };
            match Pair::accept(offer) {
                // The threads of a process have other ids and the same open files.
                Ok(_) => assert_eq!(offer.token, offered.offer().token),
                Err(_) => assert_ne!(offer, offered.offer()),
            }
            taken += 1;
        }
        assert!(taken > inputs / 10, "{taken} of {inputs} are offers");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

        #[test]
        fn writes_to_a_region_stay_inside_their_range(
            at in 0..300_usize,
            length in prop_oneof![0..300_usize, 4000..9000_usize],
            from in 0..70_usize,
        ) {
            let arena = Arc::new(Arena::default());
            let mut region = arena.allocate(10_000).unwrap();
            region.fill(255);
            let bytes: Vec<_> = (0..from + length).map(|at| (at % 251) as u8).collect();
            region.write(at, &bytes[from..]);
            prop_assert_eq!(&region[at..at + length], &bytes[from..]);
            prop_assert!(region[..at].iter().chain(&region[at + length..]).all(|byte| *byte == 255));
        }

        #[test]
        fn bytes_come_in_order_however_they_are_written_and_read(
            steps in proptest::collection::vec((any::<bool>(), 0..CAPACITY + CAPACITY / 2, 0..3_usize), 1..60),
        ) {
            let (mine, theirs) = pair();
            // The period is prime, so that a move by a block is noticed.
            let period: Vec<u8> = (0..251).collect();
            let stream = period.repeat(2 * CAPACITY / 251);
            let stream = |from: usize, length: usize| &stream[from % 251..][..length];
            let (mut written, mut read) = (0, 0);
            for (writes, length, cut) in steps {
                if writes {
                    let (first, second) = stream(written, length).split_at(length * cut / 3);
                    let took = mine.write(&[IoSlice::new(first), IoSlice::new(second)]).unwrap();
                    prop_assert_eq!(took, length.min(CAPACITY - (written - read)));
                    written += took;
                } else {
                    let mut into = vec![0; length];
                    let got = theirs.read(&mut into).unwrap();
                    prop_assert_eq!(got, length.min(written - read));
                    prop_assert!(&into[..got] == stream(read, got));
                    read += got;
                }
                prop_assert_eq!(theirs.has_work(false), true); // The socket has not been looked at.
            }
        }
    }
}
