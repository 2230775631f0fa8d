//! Memory that is filled with numbers, sent from where it lies, and serves again.

use crate::sync::{Mutex, lock};
use bytemuck::Pod;
use bytes::Bytes;
use distribute_net::{Region, Transport};
use std::borrow::Cow;
use std::sync::Arc;

/// The number of idle buffers that are kept for the next step; further ones are returned to the allocator.
const MOST_IDLE: usize = 8;

/// A pool of buffers. A buffer returns to it when its last reader is done.
#[derive(Clone, Debug)]
pub struct Buffers {
    transport: Arc<dyn Transport>,
    idle: Arc<Idle>,
}

/// Memory of this process that waits to be used again.
///
/// A buffer holds this and not the transport: one that still waits to be sent would keep alive what it waits in, and
/// the end of a worker, which waits until the others have everything, would not come.
#[derive(Debug, Default)]
struct Idle(Mutex<Vec<Vec<u64>>>);

/// Memory for numbers, to be filled by one thread and then [frozen](Self::freeze) for all.
#[derive(Debug)]
pub struct Buffer(Memory);

#[derive(Debug)]
enum Memory {
    /// Memory that the workers of this machine can read.
    Shared(Region),
    Own(Own),
}

/// Memory of this process.
#[derive(Debug)]
struct Own {
    words: Vec<u64>,
    len: usize,
    home: Arc<Idle>,
}

impl Buffers {
    /// Buffers for what is sent over this transport.
    pub fn new(transport: Arc<dyn Transport>) -> Self {
        Self { transport, idle: Arc::default() }
    }

    /// Memory for `len` bytes, whose contents are arbitrary: zeros, or what it has held before. Numbers of any type can
    /// be in it. Workers of this machine read it where it lies, if the transport can do that.
    pub fn take(&self, len: usize) -> Buffer {
        if let Some(region) = self.transport.memory(len) {
            return Buffer(Memory::Shared(region));
        }
        let words = self.idle.take(len.div_ceil(size_of::<u64>()));
        Buffer(Memory::Own(Own { words, len, home: self.idle.clone() }))
    }

    /// These parts, one after another. They are copied, but where there is only one that is not empty.
    pub fn joined(&self, parts: impl IntoIterator<Item = Bytes>) -> Bytes {
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

impl Idle {
    fn take(&self, count: usize) -> Vec<u64> {
        let mut idle = lock(&self.0);
        let kept = idle.iter().position(|words| words.len() == count).map(|at| idle.swap_remove(at));
        drop(idle);
        kept.unwrap_or_else(|| vec![0; count])
    }

    fn give_back(&self, words: Vec<u64>) {
        let mut idle = lock(&self.0);
        // Those of sizes that nobody asks for any more make way.
        let oldest = (idle.len() >= MOST_IDLE).then(|| idle.remove(0));
        idle.push(words);
        drop(idle);
        drop(oldest);
    }
}

impl Buffer {
    /// All bytes.
    pub fn bytes(&self) -> &[u8] {
        match &self.0 {
            Memory::Shared(region) => region,
            Memory::Own(own) => own.as_ref(),
        }
    }

    /// All bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Memory::Shared(region) => region,
            Memory::Own(own) => &mut bytemuck::cast_slice_mut(&mut own.words)[..own.len],
        }
    }

    /// The same memory for readers of all threads. It serves again when all of them have dropped their clones.
    pub fn freeze(self) -> Bytes {
        match self.0 {
            Memory::Shared(region) => region.freeze(),
            Memory::Own(own) => Bytes::from_owner(own),
        }
    }
}

impl AsRef<[u8]> for Own {
    fn as_ref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.len]
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        self.home.give_back(std::mem::take(&mut self.words));
    }
}

/// The numbers in these bytes; copied only if they lie where numbers may not.
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
    fn what_waits_to_be_sent_does_not_keep_its_transport_alive() {
        let transport = Arc::new(Still);
        let frozen = Buffers::new(transport.clone()).take(12).freeze();
        assert_eq!(Arc::strong_count(&transport), 1);
        drop(frozen);
    }

    #[test]
    fn idle_memory_has_a_bound() {
        let buffers = Buffers::new(Arc::new(Still));
        let taken: Vec<_> = (0..3 * MOST_IDLE).map(|len| buffers.take(len)).collect();
        drop(taken);
        assert_eq!(lock(&buffers.idle.0).len(), MOST_IDLE);
    }

    #[test]
    fn parts_are_joined_and_a_single_one_is_not_copied() {
        let buffers = Buffers::new(Arc::new(Still));
        let parts = |all: &[&'static str]| {
            all.iter().map(|part| Bytes::from_static(part.as_bytes())).collect::<Vec<_>>()
        };
        assert_eq!(buffers.joined(parts(&["some", "", " more ", "parts"])), "some more parts");
        let one = parts(&["", "one", ""]);
        assert_eq!(buffers.joined(one.clone()).as_ptr(), one[1].as_ptr());
        assert_eq!(buffers.joined(parts(&[""])), "");
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
