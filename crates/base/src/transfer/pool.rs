//! A pool of a few buffers for copies. It decides which buffer a copy gets, and knows nothing of devices.

/// A buffer that a copy reads until the copy is done.
pub(super) trait Buffer {
    type Error;

    /// Returns the size in bytes.
    fn size(&self) -> usize;

    /// Returns whether the last copy from the buffer is done.
    fn is_free(&self) -> Result<bool, Self::Error>;

    /// Waits until the last copy from the buffer is done.
    fn wait(&self) -> Result<(), Self::Error>;
}

/// The sizes of the smallest and the largest buffer. Larger tensors are copied in parts.
const SIZES: (usize, usize) = (4 << 10, 8 << 20);

/// A pool of buffers of several sizes, with a limit of their number. A copy that finds no buffer waits for the oldest
/// copy.
pub(super) struct Pool<B> {
    /// The buffers, in the order of their copies.
    buffers: Vec<B>,
    limit: usize,
}

impl<B: Buffer> Pool<B> {
    /// Creates an empty pool of at most `limit` buffers, and at least one.
    pub(super) fn new(limit: usize) -> Self {
        Self { buffers: Vec::new(), limit: limit.max(1) }
    }

    /// Takes a buffer for a copy of `bytes`, or of a part of them. In this order:
    ///
    /// - the smallest large enough buffer whose copy is done;
    /// - a new buffer, while there are fewer than the limit;
    /// - the buffer whose copy is done first, replaced if it is too small, or as it is if `make` fails.
    ///
    /// The caller returns the buffer with [`give`](Self::give) before it takes another.
    ///
    /// # Errors
    /// - The error of a buffer that is asked for its state.
    /// - The error of `make`, if there is no buffer.
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

    /// Returns a buffer whose copy has been started, after those of all other buffers.
    pub(super) fn give(&mut self, buffer: B) {
        self.buffers.push(buffer);
    }
}

/// Returns the size of a buffer for `bytes`. There are few sizes, so that a batch finds the buffer of another.
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

    /// Returns the numbers of finished copies and of buffers, and their bytes.
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
        pool: &mut Pool<Fake>,
        device: &Rc<Device>,
        number: usize,
        bytes: usize,
    ) -> Result<usize, &'static str> {
        let mut buffer = pool.take(bytes, |size| Fake::new(size, device))?;
        assert!(buffer.is_free()?, "copy {number} gets the buffer of copy {}", buffer.copy);
        buffer.copy = number;
        let size = buffer.size;
        pool.give(buffer);
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
        let mut pool = Pool::new(2);
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
        let mut pool = Pool::new(3);
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
        let mut pool = Pool::new(4);
        device.bytes.set(12 * MIB);
        assert_eq!(copy(&mut pool, &device, 1, 4 * MIB), Ok(4 * MIB));
        assert_eq!(copy(&mut pool, &device, 2, MIB), Ok(MIB));
        // 3 MiB are left.
        assert_eq!(copy(&mut pool, &device, 3, 8 * MIB), Ok(4 * MIB));
        assert_eq!((device.over.get(), device.buffers.get()), (1, 2));
        let mut full = Pool::new(1);
        assert_eq!(copy(&mut full, &device, 4, 4096), Ok(4096));
        assert_eq!(copy(&mut full, &device, 5, 8 * MIB), Err("no memory"));
    }
}
