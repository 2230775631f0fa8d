//! The progress of a training: the state that each step changes, and access to it.

use crate::slots::Slots;
use distribute_base::{Error, Result};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError,
};

/// The number of finished steps, and the slots. A step calls code of users, which may ask for either, so no reader
/// waits for a step to end.
#[derive(Debug)]
pub(crate) struct Progress {
    /// A closure that makes steps, and has to be run again, takes them back.
    finished: Arc<AtomicU64>,
    /// Whether slots are those of a step that has been begun, and variables are not.
    incomplete: AtomicBool,
    /// The slots of each variable.
    slots: RwLock<Vec<Slots>>,
    /// A lock for writers of the slots: they may wait for readers, but not for each other.
    changing: Mutex<()>,
}

impl Progress {
    pub(crate) fn new(slots: Vec<Slots>) -> Self {
        let (finished, incomplete) = Default::default();
        Self { finished, incomplete, slots: RwLock::new(slots), changing: Mutex::new(()) }
    }

    pub(crate) fn finished(&self) -> u64 {
        self.finished.load(Ordering::Relaxed)
    }

    /// Whether slots are those of the step after the finished ones, and variables are not. They are of no use any more.
    pub(crate) fn is_incomplete(&self) -> bool {
        self.incomplete.load(Ordering::Relaxed)
    }

    /// To read the slots.
    pub(crate) fn read(&self, operation: &'static str) -> Result<RwLockReadGuard<'_, Vec<Slots>>> {
        match self.slots.try_read() {
            Ok(slots) => Ok(slots),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(busy(operation)),
        }
    }

    /// To make a step, or to restore one.
    pub(crate) fn change(&self, operation: &'static str) -> Result<Change<'_>> {
        let changing = match self.changing.try_lock() {
            Ok(changing) => changing,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(busy(operation)),
        };
        Ok(Change { progress: self, _changing: changing })
    }

    /// Returns the slots for copying, within a step that is allowed but has not written yet.
    pub(crate) fn copying(&self) -> RwLockReadGuard<'_, Vec<Slots>> {
        self.slots.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets the slots of all variables but some.
    pub(crate) fn keep(&mut self, stays: impl Fn(usize) -> bool) {
        let mut index = 0..;
        self.slots_mut().retain(|_| index.next().is_some_and(&stays));
    }

    /// To change which there are, before anybody else knows of them.
    pub(crate) fn slots_mut(&mut self) -> &mut Vec<Slots> {
        self.slots.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to change a [`Progress`].
pub(crate) struct Change<'a> {
    progress: &'a Progress,
    _changing: MutexGuard<'a, ()>,
}

impl<'a> Change<'a> {
    /// Returns the slots for writing. No other thread can read them while the guard is alive.
    pub(crate) fn slots(&self) -> RwLockWriteGuard<'a, Vec<Slots>> {
        // Readers only copy: this wait is short.
        self.progress.slots.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on slots are those of the next step, until it is made.
    pub(crate) fn begin_step(&self) {
        self.progress.incomplete.store(true, Ordering::Relaxed);
    }

    /// Whether that is so.
    pub(crate) fn is_incomplete(&self) -> bool {
        self.progress.is_incomplete()
    }

    /// The number of the step that is being made.
    pub(crate) fn number(&self) -> u64 {
        self.progress.finished() + 1
    }

    /// Counts a step.
    pub(crate) fn commit(&self) {
        self.set_finished(self.progress.finished() + 1);
    }

    /// Returns the counter of steps.
    pub(crate) fn counter(&self) -> &Arc<AtomicU64> {
        &self.progress.finished
    }

    /// Marks slots and variables as those after this number of steps.
    pub(crate) fn set_finished(&self, finished: u64) {
        self.progress.incomplete.store(false, Ordering::Relaxed);
        self.progress.finished.store(finished, Ordering::Relaxed);
    }
}

pub(crate) fn busy(operation: &'static str) -> Error {
    let reason = "a step of this optimizer is being made; do this before or after it, neither beside it nor in a \
                  closure or a schedule that it calls";
    Error::invalid(operation, reason)
}
