//! [`Region`]: memory for bodies of messages that other workers on this machine read without a copy.

use super::arena::{Arena, Block, Segment};
use super::map::Part;
use bytes::Bytes;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Memory that other workers on this machine can read, so that they need no copy of message bodies in it.
///
/// [`Transport::memory`](crate::Transport::memory) creates it. Fill it, [`freeze`](Self::freeze) it, and send it or
/// slices of it as the body of any number of messages. The memory is reused for later regions when no process uses any
/// part of it any more. The initial contents are zeros or data of an earlier region.
///
/// A region begins at a multiple of 64 bytes. A region that was split off begins at the split.
pub struct Region {
    /// The memory; `Some` until the region is dropped.
    part: Option<Part>,
    segment: Arc<Segment>,
    arena: Arc<Arena>,
}

impl Region {
    pub(super) fn new(block: Block, length: usize, arena: Arc<Arena>) -> Self {
        Self { part: Some(block.extent.open(length)), segment: block.segment, arena }
    }

    /// Copies bytes to offset `at`. On x86-64, a copy of at least 4 KiB bypasses the caches. This is ten times as fast
    /// as other ways of writing if another worker has read an earlier region in the same memory. For regions larger
    /// than the caches, all ways are equally fast.
    ///
    /// # Panics
    /// Panics if the bytes are outside the region.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(
            at.checked_add(bytes.len()).is_some_and(|end| end <= self.len()),
            "{} bytes at {at} are not inside of {self:?}",
            bytes.len()
        );
        if let Some(part) = &mut self.part {
            part.write(at, bytes);
        }
    }

    /// Splits the region at `at`. This region keeps the bytes before, and the returned region contains the bytes after.
    /// Each can be filled and sent separately.
    ///
    /// # Panics
    /// Panics if `at` is beyond the end, like [`slice::split_at`].
    pub fn split_off(&mut self, at: usize) -> Self {
        let part = self.part.as_mut().map(|part| part.split_off(at));
        Self { part, segment: self.segment.clone(), arena: self.arena.clone() }
    }

    /// Converts the region into immutable bytes without a copy.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.part.as_deref().unwrap_or_default()
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.part.as_deref_mut().unwrap_or_default()
    }
}

impl AsRef<[u8]> for Region {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Region> for Bytes {
    fn from(region: Region) -> Self {
        region.freeze()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Some(extent) = self.part.take().and_then(Part::close) {
            self.arena.put_back(Block { segment: self.segment.clone(), extent });
        }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({} bytes)", self.len())
    }
}
