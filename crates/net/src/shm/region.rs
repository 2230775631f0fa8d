//! Memory that other workers of this machine can read, while it is being filled.

use super::arena::{Arena, Block};
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
/// It begins at a multiple of 64 bytes.
pub struct Region {
    /// There until it is dropped.
    block: Option<Block>,
    length: usize,
    arena: Arc<Arena>,
}

impl Region {
    pub(super) fn new(block: Block, length: usize, arena: Arc<Arena>) -> Self {
        Self { block: Some(block), length, arena }
    }

    /// Its bytes, which nobody changes from here on.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.block.as_ref().and_then(|block| block.part.get(..self.length)).unwrap_or_default()
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.block.as_mut().and_then(|block| block.part.get_mut(..self.length)).unwrap_or_default()
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
        if let Some(block) = self.block.take() {
            self.arena.put_back(block);
        }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({} bytes)", self.length)
    }
}
