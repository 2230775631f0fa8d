//! An allocator of memory that other processes on this machine can read.

use super::map::{Extent, Extents};
use super::memfd::{self, Location};
use super::region::Region;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// The granularity of block sizes, in bytes.
const PAGE: usize = 4 << 10;

/// The number of block sizes between two powers of two, as far as they are multiples of a page.
const STEPS: usize = 4;

/// The maximum size in bytes of a segment with several blocks. A block of more than half this size has its own segment.
const SEGMENT: usize = 1 << 20;

/// The maximum number of segments. Each needs a file descriptor, of which a process may often have only about 1000.
const SEGMENTS: usize = 256;

/// The maximum number of unused bytes to keep for later allocations.
const MAX_UNUSED: usize = 2 << 30;

/// The number of heartbeats after which unused blocks are freed, if they were not used between them.
const WINDOW: u32 = 10;

/// An allocator of memory that other processes on this machine can read.
///
/// It allocates blocks of a few [sizes](size_for) and reuses freed blocks. So each step of a training run gets the same
/// pages for the same sizes.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    free: Mutex<Free>,
    /// The segments by start address.
    segments: Mutex<BTreeMap<usize, Weak<Segment>>>,
    /// The current number of segments.
    count: AtomicUsize,
    made: AtomicUsize,
}

/// The blocks that are not in use.
#[derive(Debug, Default)]
struct Free {
    /// The unused blocks by size.
    classes: BTreeMap<usize, Class>,
    bytes: usize,
    beats: u32,
}

#[derive(Debug, Default)]
struct Class {
    blocks: Vec<Block>,
    /// The minimum number of unused blocks since the last check. This number of blocks can be freed.
    unused: usize,
}

/// A shared-memory segment, backed by one in-memory file (memfd).
#[derive(Debug)]
pub(crate) struct Segment {
    /// The id of the segment, which is never reused.
    pub number: u64,
    pub location: Location,
    extents: Extents,
    /// The file, which stays open so that others can open it.
    _file: File,
    /// Whether the blocks must not be reused. Another process may still read them, and will not report when it has
    /// finished.
    retired: AtomicBool,
    arena: Weak<Arena>,
}

/// A part of a segment that is allocated as a unit.
#[derive(Debug)]
pub(super) struct Block {
    pub segment: Arc<Segment>,
    pub extent: Extent,
}

impl Arena {
    /// Allocates a region of `length` bytes. Its contents are zeros or data of an earlier region.
    ///
    /// # Errors
    /// Returns an I/O error if there are too many segments, or if the system has no memory left.
    pub fn allocate(self: &Arc<Self>, length: usize) -> io::Result<Region> {
        let size = size_for(length).ok_or(io::ErrorKind::OutOfMemory)?;
        let block = match self.reuse(size) {
            Some(block) => block,
            None => self.extend(size)?,
        };
        Ok(Region::new(block, length, self.clone()))
    }

    fn reuse(&self, size: usize) -> Option<Block> {
        let mut free = self.free.lock();
        let class = free.classes.get_mut(&size)?;
        let block = class.blocks.pop()?;
        class.unused = class.unused.min(class.blocks.len());
        free.bytes -= size;
        Some(block)
    }

    /// Creates another segment with blocks of `size` bytes. Returns its first block and keeps the others for later
    /// allocations.
    ///
    /// # Errors
    /// Returns an I/O error if there are too many segments, or if the system has no memory left.
    fn extend(self: &Arc<Self>, size: usize) -> io::Result<Block> {
        if self.count.fetch_add(1, Ordering::AcqRel) >= SEGMENTS {
            self.count.fetch_sub(1, Ordering::AcqRel);
            return Err(io::Error::other("there are too many regions"));
        }
        let made = Extents::create((SEGMENT / size).max(1), size).and_then(|(file, extents, all)| {
            let location = memfd::location(&file)?;
            Ok((file, location, extents, all))
        });
        let (file, location, extents, all) = made.inspect_err(|_| {
            self.count.fetch_sub(1, Ordering::AcqRel);
        })?;
        let segment = Arc::new(Segment {
            number: self.made.fetch_add(1, Ordering::Relaxed) as u64,
            location,
            extents,
            _file: file,
            retired: AtomicBool::default(),
            arena: Arc::downgrade(self),
        });
        self.segments.lock().insert(segment.extents.start(), Arc::downgrade(&segment));
        let mut blocks: Vec<_> =
            all.into_iter().map(|extent| Block { segment: segment.clone(), extent }).collect();
        let block = blocks.pop().ok_or(io::ErrorKind::OutOfMemory)?;
        blocks.into_iter().for_each(|block| self.put_back(block));
        Ok(block)
    }

    /// Keeps a block for the next allocation of its size. Frees it instead if its segment is retired, or if too many
    /// bytes are unused.
    pub(super) fn put_back(&self, block: Block) {
        let (mut free, size) = (self.free.lock(), block.extent.size());
        if !block.segment.retired.load(Ordering::Acquire) && free.bytes.saturating_add(size) <= MAX_UNUSED {
            free.bytes += size;
            free.classes.entry(size).or_default().blocks.push(block);
        } else {
            // The lock is released first: dropping a segment does not need it, and other threads wait for it.
            drop(free);
            drop(block);
        }
    }

    /// Returns the segment that contains the given bytes, and their offset in the segment; `None` if the bytes are not
    /// in the arena.
    pub fn find(&self, bytes: &[u8]) -> Option<(Arc<Segment>, usize)> {
        let at = bytes.as_ptr().addr();
        let (start, segment) =
            self.segments.lock().range(..=at).next_back().map(|(s, g)| (*s, g.upgrade()))?;
        let (segment, offset) = (segment?, at - start);
        let inside = offset.checked_add(bytes.len()).is_some_and(|end| end as u64 <= segment.location.size);
        inside.then_some((segment, offset))
    }

    /// Returns the number of segments.
    #[cfg(test)]
    pub fn segments(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Counts a heartbeat, and frees blocks that were not used during the last heartbeats. Call this with each
    /// heartbeat.
    pub fn trim(&self) {
        let mut dropped = Vec::new();
        let mut free = self.free.lock();
        free.beats += 1;
        if free.beats >= WINDOW {
            free.beats = 0;
            for class in free.classes.values_mut() {
                dropped.extend(class.blocks.drain(..class.unused.min(class.blocks.len())));
                class.unused = class.blocks.len();
            }
            free.classes.retain(|_, class| !class.blocks.is_empty());
            free.bytes -= dropped.iter().map(|block: &Block| block.extent.size()).sum::<usize>();
        }
    }
}

impl Segment {
    /// Prevents the reuse of this segment's blocks, because another process may still read them. Frees those that are
    /// unused.
    pub fn retire(&self) {
        self.retired.store(true, Ordering::Release);
        if let Some(arena) = self.arena.upgrade() {
            // Blocks that are already kept are removed.
            let mut dropped = Vec::new();
            let mut free = arena.free.lock();
            if let Some(class) = free.classes.get_mut(&self.extents.size()) {
                let of_this = |block: &mut Block| std::ptr::eq(&*block.segment, self);
                dropped.extend(class.blocks.extract_if(.., of_this));
                class.unused = class.unused.min(class.blocks.len());
                free.bytes -= dropped.len() * self.extents.size();
            }
        }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // Its addresses may be reused as soon as it is unmapped.
        if let Some(arena) = self.arena.upgrade() {
            arena.segments.lock().remove(&self.extents.start());
            arena.count.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Returns the block size for a length. It is a multiple of a page, and exceeds the length by at most a page or a
/// quarter of the length, whichever is more. Returns `None` if there is no such size.
fn size_for(length: usize) -> Option<usize> {
    let step = length.checked_next_power_of_two()? / (2 * STEPS);
    length.max(1).checked_next_multiple_of(step.max(PAGE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_size_is_whole_pages_and_little_more_than_the_length(
            length in prop_oneof![0..100_000_usize, (0..60_u32, any::<usize>()).prop_map(|(shift, bits)| bits >> 4 >> shift)],
        ) {
            let size = size_for(length).unwrap();
            prop_assert!(size >= length && size > 0 && size.is_multiple_of(PAGE));
            prop_assert!(size - length <= PAGE.max(length / 4));
            prop_assert_eq!(size_for(size), Some(size));
        }
    }

    #[test]
    fn there_are_four_sizes_for_each_power_of_two() {
        let mebi = 1 << 20;
        let sizes: std::collections::BTreeSet<_> =
            (mebi + 1..=2 * mebi).step_by(PAGE).map(size_for).collect();
        let expected = [5, 6, 7, 8].map(|quarters| Some(quarters * mebi / 4));
        assert_eq!(sizes.into_iter().collect::<Vec<_>>(), expected);
        assert_eq!([0, 1, PAGE, PAGE + 1].map(size_for), [PAGE, PAGE, PAGE, 2 * PAGE].map(Some));
        assert_eq!(size_for(usize::MAX), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn memory_serves_again_for_lengths_of_its_size() {
        let arena = Arc::new(Arena::default());
        let first = arena.allocate(2_100_000).unwrap();
        let location = first.as_ptr();
        assert_eq!(arena.find(&first).unwrap().0.location.size, 5 << 19);
        drop(first);
        let smaller = arena.allocate(2 << 20).unwrap();
        assert_eq!((arena.segments(), arena.find(&smaller).unwrap().0.location.size), (2, 2 << 20));
        let mut again = arena.allocate(5 << 19).unwrap();
        assert_eq!((arena.segments(), again.as_ptr()), (2, location));
        again.fill(1);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_segment_has_as_many_small_parts_as_fit_beside_each_other() {
        let arena = Arc::new(Arena::default());
        let count = SEGMENT / (3 * PAGE);
        let mut parts: Vec<_> = (0..count).map(|_| arena.allocate(9_000).unwrap()).collect();
        assert_eq!(arena.segments(), 1);
        for (number, part) in parts.iter_mut().enumerate() {
            part.fill(number as u8);
        }
        assert!(parts.iter().enumerate().all(|(number, part)| part.iter().all(|byte| *byte == number as u8)));
        parts.push(arena.allocate(9_000).unwrap());
        assert_eq!(arena.segments(), 2);
    }
}
