//! Turns for creating tables, so that no table is created twice at the same time.

use parking_lot::{Mutex, MutexGuard};
use std::hash::{DefaultHasher, Hash, Hasher};

/// The number of locks. A table uses one of them, by its name.
const LOCKS: usize = 64;

/// The locks that are held while tables are created. All workers of a job request each table, and a large one takes
/// long: if each request created it, it would be in memory once for each worker until one of them is kept.
#[derive(Debug)]
pub(super) struct Creations(Vec<Mutex<()>>);

impl Default for Creations {
    fn default() -> Self {
        Self((0..LOCKS).map(|_| Mutex::default()).collect())
    }
}

impl Creations {
    /// Acquires the turn to create a table. Waits while another thread creates a table of this name, or one that shares
    /// its lock. A creation only computes, so the wait ends; the caller of a request has a deadline.
    pub fn turn(&self, table: &str) -> MutexGuard<'_, ()> {
        let mut hasher = DefaultHasher::new();
        table.hash(&mut hasher);
        self.0[(hasher.finish() % LOCKS as u64) as usize].lock()
    }
}
