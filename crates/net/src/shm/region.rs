//! Memory that other workers of this machine can read, while it is being filled.

use super::arena::{Arena, Block, Segment};
use super::map::Part;
use bytes::Bytes;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Memory that other workers of this machine can read: what is sent from here is not copied.
///
/// Made by [`Transport::memory`](crate::Transport::memory), it is this value's alone: fill it, [`freeze`](Self::freeze) it,
/// and send it, or slices of it, as the body of any number of messages. When neither this process nor another one uses
/// any of it any more, its memory is used for the next region of its size. Its bytes are zeros, or those of an earlier region.
///
/// It begins at a multiple of 64 bytes; what is split off, where it is split.
pub struct Region {
    /// There until it is dropped.
    part: Option<Part>,
    segment: Arc<Segment>,
    arena: Arc<Arena>,
}

impl Region {
    pub(super) fn new(block: Block, length: usize, arena: Arc<Arena>) -> Self {
        Self { part: Some(block.extent.open(length)), segment: block.segment, arena }
    }

    /// Copies bytes to `at`, past the caches: where another worker has read an earlier region, ten times as fast as by other ways
    /// of writing. Those are as fast for regions that are larger than the caches.
    ///
    /// # Panics
    /// If they are not inside.
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

    /// Keeps what is before `at`, and gives what is behind it. Each part is filled and sent by itself; the memory is used again
    /// when nobody uses any part.
    ///
    /// # Panics
    /// If `at` is beyond the end, as [`slice::split_at`] does.
    pub fn split_off(&mut self, at: usize) -> Self {
        let part = self.part.as_mut().map(|part| part.split_off(at));
        Self { part, segment: self.segment.clone(), arena: self.arena.clone() }
    }

    /// Its bytes, which nobody changes from here on.
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
