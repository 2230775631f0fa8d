//! Bodies that this worker reads in another worker's memory without copying them.

use super::map::Foreign;
use super::memfd::{self, Location};
use super::pair::Pair;
use super::reference::{BadReference, Reference};
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::Arc;

/// The maximum number of mapped memory files of one worker.
const MAX: usize = 4096;

/// The mapped memory files of one other worker, from which this worker reads bodies.
#[derive(Debug)]
pub(crate) struct Imports {
    pair: Arc<Pair>,
    memories: HashMap<u64, Memory>,
}

#[derive(Debug)]
struct Memory {
    mapped: Arc<Foreign>,
    location: Location,
    /// Whether the memory was used since the last [`trim`](Imports::trim).
    used: bool,
}

/// A body in another worker's memory. Dropping it tells the other worker that the memory can be reused.
#[derive(Debug)]
struct Lease {
    mapped: Arc<Foreign>,
    offset: usize,
    length: usize,
    pair: Arc<Pair>,
    slot: usize,
    loan: u64,
}

impl Imports {
    pub fn new(pair: Arc<Pair>) -> Self {
        Self { pair, memories: HashMap::new() }
    }

    /// Returns the body to which a reference refers. The body remains valid even if the link fails.
    ///
    /// # Errors
    /// Returns a [`BadReference`] if the reference is malformed, if the body has more than `limit` bytes or is not
    /// inside its memory, or if the memory cannot be opened, has changed, or exceeds the number of memories.
    pub fn resolve(&mut self, reference: &[u8], limit: u64) -> Result<Bytes, BadReference> {
        let reference = Reference::decode(reference)?;
        let Reference { segment, descriptor, inode, size, offset, length, slot, loan } = reference;
        if length > limit {
            return Err(BadReference::TooLong { length, limit });
        }
        let location = Location { pid: self.pair.peer_pid(), descriptor, inode, size };
        let mapped = self.memory(segment, location)?;
        let outside = || BadReference::Outside { segment, offset, length, size };
        let (Ok(offset), Ok(length)) = (usize::try_from(offset), usize::try_from(length)) else {
            return Err(outside());
        };
        if mapped.get(offset, length).is_none() {
            return Err(outside());
        }
        let pair = self.pair.clone();
        Ok(Bytes::from_owner(Lease { mapped, offset, length, pair, slot: slot as usize, loan }))
    }

    fn memory(&mut self, segment: u64, location: Location) -> Result<Arc<Foreign>, BadReference> {
        if let Some(memory) = self.memories.get_mut(&segment) {
            memory.used = true;
            return if memory.location == location {
                Ok(memory.mapped.clone())
            } else {
                Err(BadReference::Changed(segment))
            };
        }
        if self.memories.len() >= MAX {
            self.memories.retain(|_, memory| memfd::is_there(memory.location));
        }
        if self.memories.len() >= MAX {
            return Err(BadReference::TooMany(MAX));
        }
        let mapped = usize::try_from(location.size)
            .map_err(std::io::Error::other)
            .and_then(|size| Foreign::of(&memfd::open(location, false)?, size))
            .map_err(|source| BadReference::NotOpened { segment, source })?;
        let mapped = Arc::new(mapped);
        self.memories.insert(segment, Memory { mapped: mapped.clone(), location, used: true });
        Ok(mapped)
    }

    /// Returns the number of mapped memory files.
    #[cfg(test)]
    pub fn memories(&self) -> usize {
        self.memories.len()
    }

    /// Unmaps memory that its owner has freed and that was not used since the last call. Call this with each heartbeat.
    pub fn trim(&mut self) {
        self.memories
            .retain(|_, memory| std::mem::take(&mut memory.used) || memfd::is_there(memory.location));
    }
}

impl AsRef<[u8]> for Lease {
    fn as_ref(&self) -> &[u8] {
        self.mapped.get(self.offset, self.length).unwrap_or_default()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.mapped.forget(self.offset, self.length);
        self.pair.return_loan(self.slot, self.loan);
    }
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use super::super::arena::Arena;
    use super::super::layout::SLOTS;
    use super::super::loans::Loans;
    use super::super::pair::tests::pair;
    use super::super::played::tests::{link, loss, say, turn};
    use super::*;
    use crate::Message;
    use crate::link::{Event, Link};
    use crate::stream::Stream;
    use crate::wire::{Decoder, Frame, Limits, Queue};
    use distribute_testing::{SplitMix, fuzz_inputs};
    use std::net::{TcpListener, TcpStream};

    /// Returns a reference to all bytes of a new region of the other side, these bytes, and the loans.
    fn lent(theirs: &Arc<Pair>, arena: &Arc<Arena>, length: usize) -> (Reference, Bytes, Loans) {
        let mut region = arena.allocate(length).unwrap();
        region.fill(7);
        let (body, loans) = (region.freeze(), Loans::new(theirs.clone()));
        (loans.lend(arena, &body).unwrap(), body, loans)
    }

    #[test]
    fn unused_memory_returns_to_the_system_on_both_sides() {
        let (mine, theirs) = pair();
        let arena = Arc::new(Arena::default());
        let (reference, body, loans) = lent(&theirs, &arena, 1 << 20);
        let mut imports = Imports::new(mine);
        let received = imports.resolve(&reference.encode(), u64::MAX).unwrap();
        let small = arena.allocate(20_000).unwrap();
        drop(body);
        for _ in 0..3 {
            (0..20).for_each(|_| arena.trim());
            imports.trim();
            // One region is on loan, and a part of the other is in use.
            assert_eq!((arena.segments(), imports.memories()), (2, 1));
        }
        drop(received);
        loans.reclaim();
        (0..20).for_each(|_| arena.trim());
        assert_eq!((arena.segments(), imports.memories()), (1, 1));
        imports.trim();
        assert_eq!(imports.memories(), 0);
        // Memory that is used between two checks stays mapped.
        drop(small);
        for _ in 0..3 {
            (0..9).for_each(|_| arena.trim());
            drop(arena.allocate(20_000).unwrap());
            assert_eq!(arena.segments(), 1);
        }
        (0..20).for_each(|_| arena.trim());
        assert_eq!(arena.segments(), 0);
    }

    /// Returns the resident memory of the mapping with this address, in KiB.
    #[cfg(target_os = "linux")]
    fn resident_kib(address: usize) -> usize {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let is_in = |line: &&str| {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let number = |text| usize::from_str_radix(text, 16).ok();
            range.is_some_and(|(from, to)| {
                number(from).zip(number(to)).is_some_and(|(from, to)| (from..to).contains(&address))
            })
        };
        let rest = maps.lines().skip_while(|line| !is_in(line)).find_map(|line| line.strip_prefix("Rss:"));
        rest.unwrap().trim().trim_end_matches("kB").trim().parse().unwrap()
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn large_memory_is_found_again_after_it_has_left_the_resident_memory() {
        let (mine, theirs) = pair();
        let arena = Arc::new(Arena::default());
        let (reference, body, _loans) = lent(&theirs, &arena, (64 << 20) + 5);
        let mut imports = Imports::new(mine);
        for _ in 0..2 {
            let received = imports.resolve(&reference.encode(), u64::MAX).unwrap();
            let other = imports.resolve(&reference.encode(), u64::MAX).unwrap();
            assert!(received == body);
            let address = received.as_ptr() as usize;
            assert!(resident_kib(address) > 60 << 10);
            drop(received);
            assert!(resident_kib(address) < 1 << 10);
            assert!(other == body);
        }
    }

    // INV-32
    #[test]
    fn mutated_references_are_a_part_of_memory_or_an_error() {
        let (mine, theirs) = pair();
        let arena = Arc::new(Arena::default());
        let (reference, _body, _loans) = lent(&theirs, &arena, 100_000);
        let (mut imports, mut random) = (Imports::new(mine), SplitMix(4));
        let (mut found, inputs) = (0, fuzz_inputs());
        for _ in 0..inputs {
            // Memory that is not mapped yet is included.
            let segment = reference.segment + random.below(3) as u64;
            let mut bytes = Reference { segment, ..reference }.encode().to_vec();
            random.mutate(&mut bytes);
            if let Ok(body) = imports.resolve(&bytes, 100_000) {
                assert!(body.len() <= 100_000 && body.iter().all(|byte| [0, 7].contains(byte)));
                found += 1;
            }
        }
        assert!(found > 0 && found < inputs / 2, "{found} of {inputs}");
        assert!(imports.memories() <= MAX);
    }

    // INV-32
    #[test]
    fn references_that_lead_nowhere_end_the_link_with_an_error() {
        let arena = Arc::new(Arena::default());
        let other = Arc::new(Arena::default());
        let elsewhere = other.allocate(4 << 20).unwrap();
        let (number, _) = other.find(&elsewhere).unwrap();
        let text = |change: &dyn Fn(Reference) -> Reference| {
            let (link, theirs, _socket) = link();
            let (reference, _body, _loans) = lent(&theirs, &arena, 1 << 20);
            // Valid references are read first.
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
            (&|r| Reference { slot: SLOTS as u32, ..r }, "it uses slot 256"),
            // Another size, for memory that is mapped and memory that is not.
            (&|r| Reference { size: 2 << 20, offset: 1 << 20, ..r }, "at another location than before"),
            (&|r| next(Reference { size: 2 << 20, offset: 1 << 20, ..r }), "other memory than was announced"),
            (&|r| Reference { inode: 1, ..r }, "at another location than before"),
            (&|r| next(Reference { inode: 1, ..r }), "other memory than was announced"),
            (
                &|r| Reference { descriptor: number.location.descriptor, ..r },
                "at another location than before",
            ),
            (
                &|r| next(Reference { descriptor: number.location.descriptor, ..r }),
                "other memory than was announced",
            ),
            (&|r| next(Reference { descriptor: 1, ..r }), "not the memory of a worker"),
            (&|r| next(Reference { descriptor: u32::MAX, ..r }), "cannot be opened: No such file"),
        ] {
            let reason = text(change);
            assert!(reason.starts_with("its data cannot be decoded: "), "{reason}");
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
        assert!(error.contains("the maximum is 1048575"), "{error}");
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
    fn a_wrong_double_or_missing_return_affects_only_its_sender() {
        let (mine, theirs) = pair();
        let arena = Arc::new(Arena::default());
        let loans = Loans::new(mine);
        let fresh = |value| {
            let mut region = arena.allocate(1 << 20).unwrap();
            region.fill(value);
            region.freeze()
        };
        // Each body has a segment of its own.
        let which = |body: &Bytes| arena.find(body).unwrap().0.number;
        let first = fresh(1);
        let location = which(&first);
        let reference = loans.lend(&arena, &first).unwrap();
        drop(first);
        let slot = reference.slot as usize;
        // Returned with a wrong number.
        for (slot, loan) in [(slot, u64::MAX), (slot + 1, reference.loan), (SLOTS, 1), (usize::MAX, 1)] {
            theirs.return_loan(slot, loan);
            loans.reclaim();
            assert_ne!(which(&fresh(2)), location, "while it may be read");
        }
        // Returned twice.
        theirs.return_loan(slot, reference.loan);
        loans.reclaim();
        let held = [fresh(3), fresh(4)];
        assert!(held.iter().any(|held| which(held) == location), "it is used again");
        for body in held {
            loans.lend(&arena, &body).unwrap();
        }
        theirs.return_loan(slot, reference.loan);
        loans.reclaim();
        let other = [fresh(5), fresh(6)];
        assert!(other.iter().all(|other| which(other) != location), "while the next may be read");
        // Never returned. Loans are limited, and the end frees them, but the memory is not written again.
        let [body, _] = other;
        assert_eq!(std::iter::from_fn(|| loans.lend(&arena, &body)).count(), SLOTS - 2);
        let kept = which(&body);
        loans.close();
        assert!(loans.lend(&arena, &body).is_none());
        drop(body);
        let after = [fresh(7), fresh(8), fresh(9), fresh(10)];
        assert!(after.iter().all(|after| ![location, kept].contains(&which(after))));
        assert_eq!(arena.segments(), after.len() + 1, "the memory that was lent has gone");
    }
}
