//! The states of copies of one value: of a weight that is cached from a server, on devices, or both.

use crate::error::Result;
use crate::lock::lock;
use std::sync::{Mutex, MutexGuard};

/// The state of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State<V> {
    /// The copy has the value of this version.
    Fresh(V),
    /// The copy has another value, or none.
    Stale,
    /// The copy was written in place of the value, which is stale itself.
    Dirty,
}

/// The states of the copies of one value, or of its parts, each with the version `V` that it has. It is locked while a
/// copy is read or written, so that no copy has the label of another value.
#[derive(Debug)]
pub struct Coherent<V>(Mutex<Vec<State<V>>>);

impl<V: Copy + PartialEq> Coherent<V> {
    /// Creates the states of copies that are stale.
    pub fn new(copies: usize) -> Self {
        Self(Mutex::new(vec![State::Stale; copies]))
    }

    /// Returns the version of each copy that is fresh.
    pub fn versions(&self) -> Vec<Option<V>> {
        let version =
            |state: &State<V>| if let State::Fresh(version) = state { Some(*version) } else { None };
        lock(&self.0).iter().map(version).collect()
    }

    /// Writes a `version` of the value to a copy.
    ///
    /// # Errors
    /// The error of `write`. The copy is stale then.
    pub fn store(&self, copy: usize, version: V, write: impl FnOnce() -> Result<()>) -> Result<()> {
        self.lock().store(copy, version, write)
    }

    /// Writes the value to a copy, unless the copy is dirty or has the value's `version`. The version is read under the
    /// lock.
    ///
    /// # Errors
    /// The error of `write`. The copy is stale then.
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

    /// Calls `write`, which writes the same to all `copies` in place of the value. The copies are dirty from now on,
    /// even if `write` fails.
    ///
    /// # Errors
    /// The error of `write`.
    pub fn write(
        &self,
        copies: impl Iterator<Item = usize>,
        write: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let mut states = self.lock();
        copies.for_each(|copy| states.set(copy, State::Dirty));
        write()
    }

    /// Makes the value fresh before it is read or written itself. If copies are dirty, `back` writes one of them to the
    /// value, and all dirty copies become fresh, with the `version` that the value had before.
    ///
    /// # Errors
    /// The error of `back`. The copies are still dirty then.
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

/// The states while they are locked.
struct States<'a, V>(MutexGuard<'a, Vec<State<V>>>);

impl<V> States<'_, V> {
    fn set(&mut self, copy: usize, state: State<V>) {
        if let Some(found) = self.0.get_mut(copy) {
            *found = state;
        }
    }

    fn store(&mut self, copy: usize, version: V, write: impl FnOnce() -> Result<()>) -> Result<()> {
        // If memory fails, it is written again.
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
    fn copies_that_are_dirty_are_not_written_before_the_value_has_what_one_of_them_has() {
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
