//! A memory limit for the tables of a server, so that requests cannot exhaust the memory.

use distribute_files::memory;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The maximum size of the tables in bytes, and the number of reserved bytes.
#[derive(Debug)]
pub(super) struct Budget {
    limit: AtomicUsize,
    reserved: AtomicUsize,
}

impl Default for Budget {
    /// Returns a limit of three quarters of the memory that this process may use. If that is unknown, it is assumed to
    /// be 1 TiB.
    fn default() -> Self {
        static LIMIT: OnceLock<usize> = OnceLock::new();
        let limit = *LIMIT.get_or_init(|| memory().unwrap_or(1 << 40) / 4 * 3);
        Self { limit: AtomicUsize::new(limit), reserved: AtomicUsize::new(0) }
    }
}

impl Budget {
    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    pub fn set_limit(&self, bytes: usize) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    /// Reserves `bytes` bytes. Reservations are not released individually. When the limit is reached, `count` is
    /// called, which returns the number of bytes that tables actually occupy.
    ///
    /// # Errors
    /// Returns the number of bytes in use if another `bytes` bytes would exceed the limit.
    pub fn reserve(&self, bytes: usize, count: impl FnOnce() -> usize) -> Result<(), usize> {
        let limit = self.limit();
        let add = |taken: usize| taken.checked_add(bytes).filter(|taken| *taken <= limit);
        if self.reserved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok() {
            return Ok(());
        }
        let taken = count();
        let reserved = add(taken).ok_or(taken)?;
        self.reserved.store(reserved, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_are_limited_and_released_bytes_are_counted() {
        let budget = Budget::default();
        assert!(budget.limit() > 1 << 20);
        budget.set_limit(100);
        let never = || -> usize { panic!("there is room") };
        assert_eq!(budget.reserve(60, never), Ok(()));
        assert_eq!(budget.reserve(40, never), Ok(()));
        assert_eq!(budget.reserve(1, || 100), Err(100));
        assert_eq!(budget.reserve(usize::MAX, || 1), Err(1));
        // Tables were removed.
        assert_eq!(budget.reserve(70, || 30), Ok(()));
        assert_eq!(budget.reserve(1, || 30), Ok(()));
    }
}
