//! Bodies that are read in another worker's memory.

use super::map::Foreign;
use super::memfd::{self, Place};
use super::pair::Pair;
use super::reference::{BadReference, Reference};
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::Arc;

/// How many memories of one worker are mapped at most.
const MOST: usize = 4096;

/// The memory of one other worker, as far as it has referred to it.
#[derive(Debug)]
pub(crate) struct Imports {
    pair: Arc<Pair>,
    memories: HashMap<u64, Memory>,
}

#[derive(Debug)]
struct Memory {
    mapped: Arc<Foreign>,
    place: Place,
    /// Whether it has been used since this was last asked.
    used: bool,
}

/// A body in another worker's memory, which is given back when it is dropped.
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

    /// The body that is referred to, of at most `limit` bytes. It stays valid whatever becomes of the link.
    pub fn resolve(&mut self, reference: &[u8], limit: u64) -> Result<Bytes, BadReference> {
        let reference = Reference::decode(reference)?;
        let Reference { segment, descriptor, inode, size, offset, length, slot, loan } = reference;
        if length > limit {
            return Err(BadReference::TooLong { length, limit });
        }
        let place = Place { pid: self.pair.their_pid(), descriptor, inode, size };
        let mapped = self.memory(segment, place)?;
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

    fn memory(&mut self, segment: u64, place: Place) -> Result<Arc<Foreign>, BadReference> {
        if let Some(memory) = self.memories.get_mut(&segment) {
            memory.used = true;
            return if memory.place == place {
                Ok(memory.mapped.clone())
            } else {
                Err(BadReference::Changed(segment))
            };
        }
        if self.memories.len() >= MOST {
            self.memories.retain(|_, memory| memfd::is_there(memory.place));
        }
        if self.memories.len() >= MOST {
            return Err(BadReference::TooMany(MOST));
        }
        let mapped = usize::try_from(place.size)
            .map_err(std::io::Error::other)
            .and_then(|size| Foreign::of(&memfd::open(place, false)?, size))
            .map_err(|source| BadReference::NotOpened { segment, source })?;
        let mapped = Arc::new(mapped);
        self.memories.insert(segment, Memory { mapped: mapped.clone(), place, used: true });
        Ok(mapped)
    }

    /// How many memories are mapped.
    #[cfg(test)]
    pub fn memories(&self) -> usize {
        self.memories.len()
    }

    /// Forgets memory that its owner has given up. To be called with each heartbeat.
    pub fn relax(&mut self) {
        self.memories.retain(|_, memory| std::mem::take(&mut memory.used) || memfd::is_there(memory.place));
    }
}

impl AsRef<[u8]> for Lease {
    fn as_ref(&self) -> &[u8] {
        self.mapped.get(self.offset, self.length).unwrap_or_default()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.pair.give_back(self.slot, self.loan);
    }
}
