//! Memory for numbers that is filled, sent without a copy, and reused.

use crate::sync::{Mutex, lock};
use bytemuck::Pod;
use bytes::Bytes;
use distribute_net::{Region, Transport};
use std::borrow::Cow;
use std::sync::Arc;

/// The maximum number of unused buffers that are kept for later. If there are more, one of them is freed.
const MAX_IDLE: usize = 8;

/// The minimum size in bytes of buffers in shared memory. Shorter bodies are copied when they are sent.
const SHORTEST_SHARED: usize = 2 << 10;

/// A pool of buffers. A buffer returns to the pool when its last reader drops it.
#[derive(Clone, Debug)]
pub struct Buffers {
    /// The transport whose shared memory is used; `None` if buffers are always memory of this process.
    transport: Option<Arc<dyn Transport>>,
    idle: Arc<IdleMemory>,
}

/// The unused memory of this process, which later buffers reuse.
///
/// A buffer refers to this value and not to the transport. Otherwise a buffer that waits to be sent would keep its
/// transport alive, and a worker that exits would wait forever.
#[derive(Debug, Default)]
struct IdleMemory(Mutex<Vec<Vec<u64>>>);

/// Memory for numbers, which one thread fills and then [freezes](Self::freeze) for all readers.
#[derive(Debug)]
pub struct Buffer(Memory);

#[derive(Debug)]
enum Memory {
    /// Memory that the workers on this machine can read.
    Shared(Region),
    PrivateMemory(PrivateMemory),
}

/// Memory of this process.
#[derive(Debug)]
struct PrivateMemory {
    words: Vec<u64>,
    len: usize,
    pool: Arc<IdleMemory>,
}

impl Buffers {
    /// Creates a pool of memory for messages that `transport` sends.
    pub fn new(transport: Arc<dyn Transport>) -> Self {
        Self { transport: Some(transport), idle: Arc::default() }
    }

    /// Returns a pool of memory that no other process can read. The memory is freed when this pool and its buffers have
    /// been dropped.
    pub fn temporary() -> Self {
        Self { transport: None, idle: Arc::default() }
    }

    /// Returns memory for `len` bytes, whose contents are arbitrary: zeros or earlier data. It is aligned for numbers
    /// of any type. Workers on this machine read it without a copy if the transport can share memory.
    pub fn take(&self, len: usize) -> Buffer {
        let transport = self.transport.as_ref().filter(|_| len >= SHORTEST_SHARED);
        if let Some(region) = transport.and_then(|transport| transport.memory(len)) {
            return Buffer(Memory::Shared(region));
        }
        let words = self.idle.take(len.div_ceil(size_of::<u64>()));
        Buffer(Memory::PrivateMemory(PrivateMemory { words, len, pool: self.idle.clone() }))
    }

    /// Returns the concatenation of the parts. They are copied, unless only one of them is not empty.
    pub fn concat(&self, parts: impl IntoIterator<Item = Bytes>) -> Bytes {
        let mut parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        if parts.len() < 2 {
            return parts.pop().unwrap_or_default();
        }
        let mut whole = self.take(parts.iter().map(Bytes::len).sum());
        let mut rest = whole.bytes_mut();
        for part in parts {
            let (here, after) = rest.split_at_mut(part.len());
            here.copy_from_slice(&part);
            rest = after;
        }
        whole.freeze()
    }
}

impl IdleMemory {
    fn take(&self, count: usize) -> Vec<u64> {
        let mut idle = lock(&self.0);
        let kept = idle.iter().position(|words| words.len() == count).map(|at| idle.swap_remove(at));
        drop(idle);
        kept.unwrap_or_else(|| vec![0; count])
    }

    fn release(&self, words: Vec<u64>) {
        let mut idle = lock(&self.0);
        // The oldest buffer is dropped, because its size may not be requested any more.
        let oldest = (idle.len() >= MAX_IDLE).then(|| idle.remove(0));
        idle.push(words);
        drop(idle);
        drop(oldest);
    }
}

impl Buffer {
    /// Returns the contents of the buffer.
    pub fn bytes(&self) -> &[u8] {
        match &self.0 {
            Memory::Shared(region) => region,
            Memory::PrivateMemory(own) => own.as_ref(),
        }
    }

    /// Returns the contents of the buffer for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Memory::Shared(region) => region,
            Memory::PrivateMemory(own) => &mut bytemuck::cast_slice_mut(&mut own.words)[..own.len],
        }
    }

    /// Makes the buffer immutable, for readers on all threads. Its memory is reused after they have dropped all clones.
    pub fn freeze(self) -> Bytes {
        match self.0 {
            Memory::Shared(region) => region.freeze(),
            Memory::PrivateMemory(own) => Bytes::from_owner(own),
        }
    }
}

impl AsRef<[u8]> for PrivateMemory {
    fn as_ref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.len]
    }
}

impl Drop for PrivateMemory {
    fn drop(&mut self) {
        self.pool.release(std::mem::take(&mut self.words));
    }
}

/// Returns the numbers in `bytes`. They are copied if `bytes` is not aligned for `T` or ends with an incomplete number,
/// which is ignored.
pub fn numbers<T: Pod>(bytes: &[u8]) -> Cow<'_, [T]> {
    match bytemuck::try_cast_slice(bytes) {
        Ok(numbers) => Cow::Borrowed(numbers),
        Err(_) => Cow::Owned(bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::inbox::tests::Still;
    use super::*;

    #[test]
    fn memory_serves_again_when_its_last_reader_is_gone() {
        let buffers = Buffers::new(Arc::new(Still));
        let mut first = buffers.take(12);
        first.bytes_mut().copy_from_slice(b"twelve bytes");
        let place = first.bytes().as_ptr();
        let frozen = first.freeze();
        let part = frozen.slice(7..);
        drop(frozen);
        assert_ne!(buffers.take(12).bytes().as_ptr(), place);
        assert_eq!(part, "bytes");
        drop(part);
        let sizes: Vec<_> = (0..2).map(|_| buffers.take(12)).collect();
        assert!(sizes.iter().any(|buffer| buffer.bytes().as_ptr() == place));
        assert_eq!(buffers.take(0).bytes(), b"");
    }

    #[test]
    fn pending_messages_do_not_keep_their_transport_alive() {
        let transport = Arc::new(Still);
        let frozen = Buffers::new(transport.clone()).take(12).freeze();
        assert_eq!(Arc::strong_count(&transport), 1);
        drop(frozen);
    }

    #[test]
    fn idle_memory_has_a_bound() {
        let buffers = Buffers::new(Arc::new(Still));
        let taken: Vec<_> = (0..3 * MAX_IDLE).map(|len| buffers.take(len)).collect();
        drop(taken);
        assert_eq!(lock(&buffers.idle.0).len(), MAX_IDLE);
    }

    #[test]
    fn parts_are_joined_and_a_single_one_is_not_copied() {
        let buffers = Buffers::new(Arc::new(Still));
        let parts = |all: &[&'static str]| {
            all.iter().map(|part| Bytes::from_static(part.as_bytes())).collect::<Vec<_>>()
        };
        assert_eq!(buffers.concat(parts(&["some", "", " more ", "parts"])), "some more parts");
        let one = parts(&["", "one", ""]);
        assert_eq!(buffers.concat(one.clone()).as_ptr(), one[1].as_ptr());
        assert_eq!(buffers.concat(parts(&[""])), "");
    }

    #[test]
    fn numbers_are_read_wherever_they_lie() {
        let all: Vec<u8> = (0..17).collect();
        let expected: Vec<u32> =
            all[1..].chunks_exact(4).map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect();
        assert_eq!(*numbers::<u32>(&all[1..]), expected);
        let aligned = [1f64, -2.];
        assert!(matches!(numbers::<f64>(bytemuck::cast_slice(&aligned)), Cow::Borrowed([1., -2.])));
    }
}
