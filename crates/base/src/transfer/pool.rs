//! A pool of a few buffers for copies. It decides which buffer a copy gets, and does not depend on devices.

/// A buffer from which a copy reads until the copy is complete.
pub(super) trait Buffer {
    type Error;

    /// Returns the size of the buffer in bytes.
    fn size(&self) -> usize;

    /// Returns `true` if the last copy from the buffer is complete.
    fn is_free(&self) -> Result<bool, Self::Error>;

    /// Waits until the last copy from the buffer is complete.
    fn wait(&self) -> Result<(), Self::Error>;
}

/// The minimum and maximum size of a buffer in bytes. Larger tensors are copied in parts.
const SIZES: (usize, usize) = (4 << 10, 8 << 20);

/// A pool with a limited number of buffers, which may have different sizes. If there is no suitable buffer, a copy
/// waits for the oldest copy.
pub(super) struct BufferPool<B> {
    /// The buffers, in the order in which their copies were started.
    buffers: Vec<B>,
    limit: usize,
}

impl<B: Buffer> BufferPool<B> {
    /// Creates an empty pool for at most `limit` buffers; 0 is treated as 1.
    pub(super) fn new(limit: usize) -> Self {
        Self { buffers: Vec::new(), limit: limit.max(1) }
    }

    /// Takes a buffer for a copy of `bytes` bytes, or for a part of the copy. In order of preference, this is:
    ///
    /// - the smallest buffer that is large enough and whose copy is complete;
    /// - a new buffer, if there are fewer than the limit;
    /// - the buffer whose copy completes first. If it is too small and the pool is full, it is dropped, and the result
    ///   is a new buffer, or, if `make` fails, the buffer whose copy completes next.
    ///
    /// The caller must return the buffer with [`put_back`](Self::put_back) before it takes another one.
    ///
    /// # Errors
    /// - The error of a buffer when its state is checked or its copy is waited for.
    /// - The error of `make`, if the pool has no other buffer.
    pub(super) fn take(
        &mut self,
        bytes: usize,
        mut make: impl FnMut(usize) -> Result<B, B::Error>,
    ) -> Result<B, B::Error> {
        let wanted = rounded(bytes);
        let mut free: Option<(usize, usize)> = None;
        for (at, buffer) in self.buffers.iter().enumerate() {
            // Copies are done in their order.
            if !buffer.is_free()? {
                break;
            }
            let size = buffer.size();
            if size >= wanted && free.is_none_or(|(_, smallest)| size < smallest) {
                free = Some((at, size));
            }
        }
        if let Some((at, _)) = free {
            return Ok(self.buffers.remove(at));
        }
        let is_full = self.buffers.len() >= self.limit;
        if !is_full {
            match make(wanted) {
                Err(_) if !self.buffers.is_empty() => {}
                made => return made,
            }
        }
        let oldest = self.buffers.remove(0);
        oldest.wait()?;
        if !is_full || oldest.size() >= wanted {
            return Ok(oldest);
        }
        // Dropped first, so that there are never more buffers than the limit.
        drop(oldest);
        match make(wanted) {
            Err(_) if !self.buffers.is_empty() => {
                let oldest = self.buffers.remove(0);
                oldest.wait()?;
                Ok(oldest)
            }
            made => made,
        }
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> Vec<usize> {
        self.buffers.iter().map(Buffer::size).collect()
    }

    /// Returns a buffer to the pool. Its copy must have been started after the copies from all other buffers.
    pub(super) fn put_back(&mut self, buffer: B) {
        self.buffers.push(buffer);
    }
}

/// Returns the size of a buffer for a copy of `bytes` bytes. There are only a few sizes, so that batches can reuse each
/// other's buffers.
fn rounded(bytes: usize) -> usize {
    let (least, greatest) = SIZES;
    bytes.clamp(least, greatest).next_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;

    const MIB: usize = 1 << 20;

    /// A device with the number of the last finished copy, and the number and total size of existing buffers.
    #[derive(Default)]
    struct Device {
        over: Cell<usize>,
        buffers: Cell<usize>,
        bytes: Cell<usize>,
    }

    struct Fake {
        size: usize,
        copy: usize,
        device: Rc<Device>,
    }

    impl Fake {
        fn new(size: usize, device: &Rc<Device>) -> Result<Self, &'static str> {
            if device.bytes.get() + size > 20 * MIB {
                return Err("no memory");
            }
            device.buffers.set(device.buffers.get() + 1);
            device.bytes.set(device.bytes.get() + size);
            Ok(Self { size, copy: 0, device: device.clone() })
        }
    }

    impl Drop for Fake {
        fn drop(&mut self) {
            self.device.buffers.set(self.device.buffers.get() - 1);
            self.device.bytes.set(self.device.bytes.get() - self.size);
        }
    }

    impl Buffer for Fake {
        type Error = &'static str;

        fn size(&self) -> usize {
            self.size
        }

        fn is_free(&self) -> Result<bool, &'static str> {
            Ok(self.copy <= self.device.over.get())
        }

        fn wait(&self) -> Result<(), &'static str> {
            self.device.over.set(self.device.over.get().max(self.copy));
            Ok(())
        }
    }

    /// Copies `bytes` with a buffer of the pool, and returns the buffer's size.
    fn copy(
        pool: &mut BufferPool<Fake>,
        device: &Rc<Device>,
        number: usize,
        bytes: usize,
    ) -> Result<usize, &'static str> {
        let mut buffer = pool.take(bytes, |size| Fake::new(size, device))?;
        assert!(buffer.is_free()?, "copy {number} gets the buffer of copy {}", buffer.copy);
        buffer.copy = number;
        let size = buffer.size;
        pool.put_back(buffer);
        Ok(size)
    }

    #[test]
    fn sizes_are_few_and_bounded() {
        let sizes = [1, 4096, 4097, 3 * MIB, 8 * MIB, 8 * MIB + 1, usize::MAX].map(rounded);
        assert_eq!(sizes, [4096, 4096, 8192, 4 * MIB, 8 * MIB, 8 * MIB, 8 * MIB]);
    }

    // INV-70
    #[test]
    fn a_buffer_is_reused_when_its_copy_is_done_and_there_are_never_more_than_the_limit() {
        let device = Rc::new(Device::default());
        let mut pool = BufferPool::new(2);
        for number in 1..=200 {
            // Some copies are done without a wait.
            if number % 7 == 0 {
                device.over.set(device.over.get().max(number - 3));
            }
            let bytes = [100, 5000, 3 * MIB][number % 3];
            assert!(copy(&mut pool, &device, number, bytes).unwrap() >= bytes);
            assert!(device.buffers.get() <= 2 && pool.sizes().len() <= 2);
            // No wait was longer than the lack of buffers required.
            assert!(device.over.get() < number);
        }
        drop(pool);
        assert_eq!((device.buffers.get(), device.bytes.get()), (0, 0));
    }

    #[test]
    fn the_smallest_free_buffer_that_is_large_enough_is_taken() {
        let device = Rc::new(Device::default());
        let mut pool = BufferPool::new(3);
        for (number, bytes) in [(1, 8 * MIB), (2, 4096), (3, MIB)] {
            assert_eq!(copy(&mut pool, &device, number, bytes), Ok(bytes));
        }
        device.over.set(3);
        assert_eq!(copy(&mut pool, &device, 4, 5000), Ok(MIB));
        assert_eq!(copy(&mut pool, &device, 5, 5000), Ok(8 * MIB));
        // A small buffer is replaced, without a wait for the others.
        assert_eq!(copy(&mut pool, &device, 6, 5000), Ok(8192));
        assert_eq!((device.over.get(), device.buffers.get()), (3, 3));
        // No buffer is free, so it is the oldest.
        assert_eq!(copy(&mut pool, &device, 7, 5000), Ok(MIB));
        assert_eq!(device.over.get(), 4);
    }

    // INV-70
    #[test]
    fn without_memory_a_smaller_buffer_is_taken_and_without_any_buffer_it_is_an_error() {
        let device = Rc::new(Device::default());
        let mut pool = BufferPool::new(4);
        device.bytes.set(12 * MIB);
        assert_eq!(copy(&mut pool, &device, 1, 4 * MIB), Ok(4 * MIB));
        assert_eq!(copy(&mut pool, &device, 2, MIB), Ok(MIB));
        // 3 MiB are left.
        assert_eq!(copy(&mut pool, &device, 3, 8 * MIB), Ok(4 * MIB));
        assert_eq!((device.over.get(), device.buffers.get()), (1, 2));
        let mut full = BufferPool::new(1);
        assert_eq!(copy(&mut full, &device, 4, 4096), Ok(4096));
        assert_eq!(copy(&mut full, &device, 5, 8 * MIB), Err("no memory"));
    }
}
