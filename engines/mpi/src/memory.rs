//! Memory that is aligned for numbers.

use bytes::Bytes;

/// Memory that is aligned for numbers of any type.
#[derive(Default)]
pub(crate) struct Memory {
    words: Vec<u64>,
    len: usize,
}

impl Memory {
    /// Allocates `len` bytes, which are all 0.
    pub fn new(len: usize) -> Self {
        Self { words: vec![0; len.div_ceil(size_of::<u64>())], len }
    }

    /// Creates memory that contains a copy of the given bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let mut memory = Self::new(bytes.len());
        bytemuck::cast_slice_mut(&mut memory.words)[..bytes.len()].copy_from_slice(bytes);
        memory
    }

    /// Returns a pointer to the first byte.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.words.as_mut_ptr().cast()
    }
}

impl AsRef<[u8]> for Memory {
    fn as_ref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.len]
    }
}

impl From<Memory> for Bytes {
    fn from(memory: Memory) -> Self {
        Bytes::from_owner(memory)
    }
}
