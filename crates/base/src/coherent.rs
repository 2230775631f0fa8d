//! The states of a value's copies. A copy may be cached from a server, stored on a device, or both.

// - INV-68: every writer marks the other copies stale: storage of variables, optimizers, caches of servers. Copies
//   are refreshed when a run begins, after a merge and after a step. Tests: `base/src/device/copies.rs`,
//   `base/src/coherent.rs`, `distribute/tests/devices/main.rs`.

use crate::error::Result;
use crate::lock::lock;
use std::sync::{Mutex, MutexGuard};

/// The state of one copy of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State<V> {
    /// The copy holds the given version of the value.
    Fresh(V),
    /// The copy holds a different version of the value, or none.
    Stale,
    /// The copy was written instead of the value, so the value itself is stale.
    Dirty,
}

/// The states of the copies of a value. A fresh copy holds version `V` of the value. The states are locked while a copy
/// is read or written, so a state always describes the contents of its copy.
#[derive(Debug)]
pub struct Coherent<V>(Mutex<Vec<State<V>>>);

impl<V: Copy + PartialEq> Coherent<V> {
    /// Creates the states of `copies` copies. All are stale.
    pub fn new(copies: usize) -> Self {
        Self(Mutex::new(vec![State::Stale; copies]))
    }

    /// Returns the version that each copy holds; `None` for a copy that is not fresh.
    pub fn versions(&self) -> Vec<Option<V>> {
        let version =
            |state: &State<V>| if let State::Fresh(version) = state { Some(*version) } else { None };
        lock(&self.0).iter().map(version).collect()
    }

    /// Calls `write`, which must write version `version` of the value to a copy, and marks the copy as fresh.
    ///
    /// # Errors
    /// Returns the error of `write`; the copy is then stale.
    pub fn store(&self, copy: usize, version: V, write: impl FnOnce() -> Result<()>) -> Result<()> {
        self.lock().store(copy, version, write)
    }

    /// Calls `write`, which must write the value to a copy, and marks the copy as fresh. Does nothing if the copy is
    /// dirty or already holds the current version. `version` returns the current version, and is called under the lock.
    ///
    /// # Errors
    /// Returns the error of `write`; the copy is then stale.
    pub fn refresh(
        &self,
        copy: usize,
        version: impl FnOnce() -> V,
        write: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let mut states = self.lock();
        let version = version();
        match states.0.get(copy) {
            Some(State::Dirty) => Ok(()),
            Some(State::Fresh(has)) if *has == version => Ok(()),
            _ => states.store(copy, version, write),
        }
    }

    /// Calls `write`, which must write the same contents to all `copies` instead of to the value. The copies are dirty
    /// from then on, even if `write` fails.
    ///
    /// # Errors
    /// Returns the error of `write`.
    pub fn write(
        &self,
        copies: impl Iterator<Item = usize>,
        write: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let mut states = self.lock();
        copies.for_each(|copy| states.set(copy, State::Dirty));
        write()
    }

    /// Makes the value fresh. Call this before the value itself is read or written.
    ///
    /// If there are dirty copies, calls `back` with the index of one of them; `back` must write that copy to the value.
    /// All dirty copies then become fresh, and hold the current version of the value, which `version` returns.
    ///
    /// # Errors
    ///
    /// Returns the error of `back`; the copies then remain dirty.
    pub fn read(&self, version: impl FnOnce() -> V, back: impl FnOnce(usize) -> Result<()>) -> Result<()> {
        let mut states = self.lock();
        let Some(dirty) = states.0.iter().position(|state| *state == State::Dirty) else { return Ok(()) };
        let version = version();
        back(dirty)?;
        states
            .0
            .iter_mut()
            .filter(|state| **state == State::Dirty)
            .for_each(|state| *state = State::Fresh(version));
        Ok(())
    }

    fn lock(&self) -> States<'_, V> {
        States(lock(&self.0))
    }
}

/// A lock on the states of the copies.
struct States<'a, V>(MutexGuard<'a, Vec<State<V>>>);

impl<V> States<'_, V> {
    fn set(&mut self, copy: usize, state: State<V>) {
        if let Some(found) = self.0.get_mut(copy) {
            *found = state;
        }
    }

    fn store(&mut self, copy: usize, version: V, write: impl FnOnce() -> Result<()>) -> Result<()> {
        // If the write fails, the copy stays stale and is written again.
        self.set(copy, State::Stale);
        write()?;
        self.set(copy, State::Fresh(version));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    fn fails() -> Result<()> {
        Err(Error::invalid("a copy", "no memory"))
    }

    // INV-68
    #[test]
    fn a_copy_is_written_if_it_has_another_version_and_again_if_that_failed() {
        let copies = Coherent::new(2);
        let refresh = |copy, version| {
            let mut written = false;
            let write = || {
                written = true;
                Ok(())
            };
            copies.refresh(copy, || version, write).unwrap();
            written
        };
        assert!(refresh(0, 1) && !refresh(0, 1) && refresh(0, 2));
        assert_eq!(copies.versions(), [Some(2), None]);
        assert!(copies.refresh(0, || 3, fails).is_err());
        assert_eq!(copies.versions(), [None, None]);
        assert!(refresh(0, 2), "it may have a part of the other value");
        assert!(copies.store(0, 2, fails).is_err());
        assert_eq!(copies.versions(), [None, None]);
    }

    // INV-68
    #[test]
    fn dirty_copies_are_written_after_the_value_was_read_from_one() {
        let copies = Coherent::new(3);
        copies.refresh(1, || 1, || Ok(())).unwrap();
        assert!(copies.write([1, 2].into_iter(), fails).is_err());
        copies.refresh(1, || 2, || panic!("it is dirty")).unwrap();
        assert!(copies.read(|| 2, |_| fails()).is_err());
        let mut read = Vec::new();
        for version in [2, 3] {
            let back = |copy| {
                read.push(copy);
                Ok(())
            };
            copies.read(|| version, back).unwrap();
        }
        assert_eq!((read, copies.versions()), (vec![1], vec![None, Some(2), Some(2)]));
    }
}
