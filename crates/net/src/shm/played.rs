//! What this worker does where the other side, which the tests play, does not do what it should.

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::super::arena::Arena;
    use super::super::imports::Imports;
    use super::super::layout::{SLOTS, TOTAL};
    use super::super::loans::Loans;
    use super::super::memfd;
    use super::super::pair::tests::pair;
    use super::super::pair::{Offered, Pair};
    use super::super::reference::Reference;
    use super::super::ring::CAPACITY;
    use crate::Message;
    use crate::link::{Event, Link};
    use crate::stream::Stream;
    use crate::wire::{Decoder, Frame, Limits, Queue};
    use bytes::Bytes;
    use proptest::prelude::*;
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    use std::io::IoSlice;
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    /// A link of worker 0 to worker 1, and both of what that has.
    fn link() -> (Link, Arc<Pair>, TcpStream) {
        let (mine, theirs) = pair();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let stream = Stream::plain(socket).unwrap().sharing(Some(mine));
        (Link::new(1, stream, Decoder::new(Limits::default())), theirs, listener.accept().unwrap().0)
    }

    fn turn(link: &Link) -> Vec<Event> {
        let mut events = Vec::new();
        while link.turn(&mut events) {}
        events
    }

    /// The reason of the loss, which is all that happens.
    fn loss(link: &Link) -> String {
        let events = turn(link);
        let [Event::Lost(1, reason)] = &events[..] else { panic!("{events:?}") };
        assert!(link.is_over());
        reason.clone()
    }

    /// What the other side says.
    fn say(theirs: &Pair, frame: Frame) {
        let mut queue = Queue::default();
        queue.push(frame);
        while !queue.is_empty() {
            queue.write(|slices| theirs.write(slices)).unwrap();
        }
    }

    // INV-31
    #[test]
    fn positions_that_cannot_be_end_the_link_with_an_error() {
        for position in [CAPACITY as u64 + 1, u64::MAX, 1 << 63] {
            let (link, theirs, _socket) = link();
            theirs.mine().written.0.store(position, Ordering::Release);
            let reason = loss(&link);
            assert!(
                reason.contains(&format!("holds a position {position} beside this worker's 0")),
                "{reason}"
            );
            // It has read more than there is.
            let (link, theirs, _socket) = self::link();
            theirs.mine().read.0.store(position, Ordering::Release);
            link.send(Frame::Heartbeat);
            let reason = loss(&link);
            assert!(reason.contains("its shared memory holds a position"), "{reason}");
            // Nothing is sent to who is lost.
            link.send(Frame::Heartbeat);
        }
        // It has gone back behind what was read.
        let (link, theirs, _socket) = link();
        say(&theirs, Frame::Data(Message::new("", "a body")));
        assert_eq!(turn(&link).len(), 1);
        theirs.mine().written.0.store(1, Ordering::Release);
        loss(&link);
    }

    #[test]
    fn words_of_the_other_side_that_are_no_positions_do_no_harm() {
        let (link, theirs, _socket) = link();
        for side in [theirs.mine(), theirs.theirs()] {
            for word in [&side.asleep.0, &side.wants_room.0, &side.rung.0, &side.opens.0, &side.pid.0] {
                word.store(u32::MAX, Ordering::Release);
            }
            side.returned.0.iter().for_each(|slot| slot.store(u64::MAX, Ordering::Release));
        }
        say(&theirs, Frame::Data(Message::new("head", "a body")));
        link.send(Frame::Data(Message::new("another", "body")));
        assert!(matches!(&turn(&link)[..], [Event::Message(1, message)] if message.body == "a body"));
    }

    /// The bytes that have come by the socket.
    fn rung(socket: &TcpStream) -> usize {
        socket.set_nonblocking(true).unwrap();
        let mut bytes = [0; 10];
        let read = std::io::Read::read(&mut &*socket, &mut bytes);
        read.or_else(|error| if error.kind() == std::io::ErrorKind::WouldBlock { Ok(0) } else { Err(error) })
            .unwrap()
    }

    #[test]
    fn the_other_side_is_woken_by_one_byte_for_what_is_sent_and_for_room() {
        let (link, theirs, socket) = link();
        link.send(Frame::Heartbeat);
        assert_eq!(rung(&socket), 0, "it is awake");
        theirs.begin_sleep();
        link.send(Frame::Heartbeat);
        link.send(Frame::Heartbeat);
        assert_eq!(rung(&socket), 1);
        theirs.has_woken();
        let body = Bytes::from(vec![0; CAPACITY]);
        let mut queue = Queue::default();
        queue.push(Frame::Data(Message::new("", body)));
        while queue.write(|slices| theirs.write(slices)).unwrap() > 0 {}
        assert!(turn(&link).is_empty());
        assert_eq!(rung(&socket), 1);
        theirs.has_woken();
        queue.write(|slices| theirs.write(slices)).unwrap();
        assert!(matches!(&turn(&link)[..], [Event::Message(1, message)] if message.body.len() == CAPACITY));
    }

    #[test]
    fn the_end_of_the_socket_is_the_workers_after_what_it_has_written() {
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
    fn an_offer_that_is_not_what_it_says_is_not_taken() {
        let offered = Offered::new().unwrap();
        let good = offered.offer();
        let error = |offer| Pair::accept(offer).unwrap_err().to_string();
        for (offer, text) in [
            (crate::handshake::Offer { token: [0; 32], ..good }, "the memory of other workers"),
            (crate::handshake::Offer { inode: good.inode + 1, ..good }, "other memory than was said"),
            // Standard input, or output.
            (crate::handshake::Offer { descriptor: 1, ..good }, "no memory of a worker"),
            (crate::handshake::Offer { descriptor: u32::MAX, ..good }, "No such file"),
            (crate::handshake::Offer { pid: u32::MAX, ..good }, "No such file"),
        ] {
            let error = error(offer);
            assert!(error.contains(text), "{error}");
        }
        // Of which the size could change, so that its pages vanish.
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = std::fs::File::from(memfd_create("distribute", flags).unwrap());
        ftruncate(&file, TOTAL as u64).unwrap();
        fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SEAL).unwrap();
        let place = memfd::place(&file).unwrap();
        let offer = crate::handshake::Offer { descriptor: place.descriptor, inode: place.inode, ..good };
        assert!(error(offer).contains("its size could change"));
        // Of another size.
        let small = memfd::create(4096).unwrap();
        let place = memfd::place(&small).unwrap();
        let offer = crate::handshake::Offer { descriptor: place.descriptor, inode: place.inode, ..good };
        assert!(error(offer).contains("other memory than was said"));
        // And the right one, once it has been accepted.
        assert!(offered.accepted().is_none());
    }

    /// A region of the other side, and a reference to all of it.
    fn lent(theirs: &Arc<Pair>, arena: &Arc<Arena>, length: usize) -> (Reference, Bytes, Loans) {
        let mut region = arena.allocate(length).unwrap();
        region.fill(7);
        let (body, loans) = (region.freeze(), Loans::new(theirs.clone()));
        (loans.lend(arena, &body).unwrap(), body, loans)
    }

    #[test]
    fn memory_that_nobody_uses_goes_back_to_the_system_on_both_sides() {
        let (mine, theirs) = pair();
        let arena = Arc::new(Arena::default());
        let (reference, body, loans) = lent(&theirs, &arena, 1 << 20);
        let mut imports = Imports::new(mine);
        let received = imports.resolve(&reference.encode(), u64::MAX).unwrap();
        let small = arena.allocate(20_000).unwrap();
        drop(body);
        for _ in 0..3 {
            (0..20).for_each(|_| arena.relax());
            imports.relax();
            // One is lent, and a part of the other in use.
            assert_eq!((arena.segments(), imports.memories()), (2, 1));
        }
        drop(received);
        loans.settle();
        (0..20).for_each(|_| arena.relax());
        assert_eq!((arena.segments(), imports.memories()), (1, 1));
        imports.relax();
        assert_eq!(imports.memories(), 0);
        // What is used between two looks stays.
        drop(small);
        for _ in 0..3 {
            (0..9).for_each(|_| arena.relax());
            drop(arena.allocate(20_000).unwrap());
            assert_eq!(arena.segments(), 1);
        }
        (0..20).for_each(|_| arena.relax());
        assert_eq!(arena.segments(), 0);
    }

    // INV-31
    #[test]
    fn references_that_lead_nowhere_end_the_link_with_an_error() {
        let arena = Arc::new(Arena::default());
        let other = Arc::new(Arena::default());
        let elsewhere = other.allocate(4 << 20).unwrap();
        let (number, _) = other.find(&elsewhere).unwrap();
        let text = |change: &dyn Fn(Reference) -> Reference| {
            let (link, theirs, _socket) = link();
            let (reference, _body, _loans) = lent(&theirs, &arena, 1 << 20);
            // Good ones are read before.
            say(&theirs, Frame::Reference(Message::new("head", reference.encode())));
            assert!(matches!(&turn(&link)[..], [Event::Message(1, found)] if found.body == vec![7; 1 << 20]));
            say(&theirs, Frame::Reference(Message::new("head", change(reference).encode())));
            loss(&link)
        };
        let next = |reference: Reference| Reference { segment: reference.segment + 100, ..reference };
        for (change, expected) in [
            (
                &(|r| Reference { offset: 1, ..r }) as &dyn Fn(Reference) -> Reference,
                "1048576 bytes from 1 on",
            ),
            (&|r| Reference { offset: u64::MAX, ..r }, "which has 1048576"),
            (&|r| Reference { length: u64::MAX, ..r }, "which has 1048576"),
            (&|r| Reference { length: 0, offset: (1 << 20) + 1, ..r }, "which has 1048576"),
            (&|r| Reference { slot: SLOTS as u32, ..r }, "it lends by slot 256"),
            // Another size, of known memory or of such as is not known yet.
            (&|r| Reference { size: 2 << 20, offset: 1 << 20, ..r }, "as another than before"),
            (&|r| next(Reference { size: 2 << 20, offset: 1 << 20, ..r }), "other memory than was said"),
            (&|r| Reference { inode: 1, ..r }, "as another than before"),
            (&|r| next(Reference { inode: 1, ..r }), "other memory than was said"),
            (&|r| Reference { descriptor: number.place.descriptor, ..r }, "as another than before"),
            (&|r| next(Reference { descriptor: number.place.descriptor, ..r }), "other memory than was said"),
            (&|r| next(Reference { descriptor: 1, ..r }), "no memory of a worker"),
            (&|r| next(Reference { descriptor: u32::MAX, ..r }), "cannot be opened: No such file"),
        ] {
            let reason = text(change);
            assert!(reason.starts_with("what it sent cannot be read: "), "{reason}");
            assert!(reason.contains(expected), "{expected}: {reason}");
        }
    }

    #[test]
    fn a_reference_is_bounded_by_the_limits_and_a_link_without_memory_takes_none() {
        let (mine, theirs) = pair();
        let arena = Arc::new(Arena::default());
        let (reference, _body, _loans) = lent(&theirs, &arena, 1 << 20);
        let mut imports = Imports::new(mine);
        let error = imports.resolve(&reference.encode(), (1 << 20) - 1).unwrap_err().to_string();
        assert!(error.contains("1048575 are the most"), "{error}");
        assert!(imports.resolve(&reference.encode(), 1 << 20).is_ok());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let stream = Stream::plain(listener.accept().unwrap().0).unwrap();
        let link = Link::new(1, stream, Decoder::new(Limits::default()));
        let mut queue = Queue::default();
        queue.push(Frame::Reference(Message::new("", reference.encode())));
        queue.write(|slices| std::io::Write::write_vectored(&mut socket, slices)).unwrap();
        drop(socket);
        let reason = loss(&link);
        assert!(reason.contains("shares none"), "{reason}");
    }

    #[test]
    fn what_is_given_back_never_twice_or_wrongly_costs_only_who_does_so() {
        let (mine, theirs) = pair();
        let arena = Arc::new(Arena::default());
        let loans = Loans::new(mine);
        let fresh = |value| {
            let mut region = arena.allocate(1 << 20).unwrap();
            region.fill(value);
            region.freeze()
        };
        // Each is a segment of its own.
        let which = |body: &Bytes| arena.find(body).unwrap().0.number;
        let first = fresh(1);
        let place = which(&first);
        let reference = loans.lend(&arena, &first).unwrap();
        drop(first);
        let slot = reference.slot as usize;
        // Wrongly.
        for (slot, loan) in [(slot, u64::MAX), (slot + 1, reference.loan), (SLOTS, 1), (usize::MAX, 1)] {
            theirs.give_back(slot, loan);
            loans.settle();
            assert_ne!(which(&fresh(2)), place, "while it may be read");
        }
        // Twice.
        theirs.give_back(slot, reference.loan);
        loans.settle();
        let held = [fresh(3), fresh(4)];
        assert!(held.iter().any(|held| which(held) == place), "it is used again");
        for body in held {
            loans.lend(&arena, &body).unwrap();
        }
        theirs.give_back(slot, reference.loan);
        loans.settle();
        let other = [fresh(5), fresh(6)];
        assert!(other.iter().all(|other| which(other) != place), "while the next may be read");
        // Never: what is lent has a bound, and the end frees it. But nothing else is written there.
        let [body, _] = other;
        assert_eq!(std::iter::from_fn(|| loans.lend(&arena, &body)).count(), SLOTS - 2);
        let kept = which(&body);
        loans.close();
        assert!(loans.lend(&arena, &body).is_none());
        drop(body);
        let after = [fresh(7), fresh(8), fresh(9), fresh(10)];
        assert!(after.iter().all(|after| ![place, kept].contains(&which(after))));
        assert_eq!(arena.segments(), after.len() + 1, "the memory that was lent has gone");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

        #[test]
        fn what_is_written_to_a_region_is_there_and_nothing_beside_it(
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
            // Of a prime period, so that nothing can move by a block without being noticed.
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
