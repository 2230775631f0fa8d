//! The state that each training step changes, and the exclusive right to change it.

use crate::slots::Slots;
use distribute_base::internal::lock;
use distribute_base::{Error, Result};
use distribute_collective::recovery::shards::Version;
use distribute_decisions::internal::Partition;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError,
};

/// The number of finished steps, and the slots. The program's code may read both when a step calls it, so reads never
/// wait for the end of a step.
#[derive(Debug)]
pub(crate) struct Progress {
    /// The number of finished steps. If a coordinator repeats a closure, the steps of the failed attempt are
    /// subtracted.
    finished: Arc<AtomicU64>,
    /// Whether a step or a restore has begun to write the state, and has not written all of it.
    incomplete: AtomicBool,
    /// The slots of each variable.
    slots: Arc<RwLock<Vec<Slots>>>,
    /// A lock that is held while the slots are changed. The thread that holds it may wait for readers, but never for
    /// another writer.
    writer: Mutex<()>,
    /// The copies of another worker's slots, and the versions of all slots, if the state is sharded and replicated.
    copies: Mutex<ShardCopies>,
}

/// The copies that a worker has of another worker's slots, and the versions of its shard and of the copies.
#[derive(Debug, Default)]
pub(crate) struct ShardCopies {
    /// The copied slots of each variable. Empty if the state is not replicated.
    pub(crate) slots: Vec<Slots>,
    /// The version of the weights.
    pub(crate) version: Version,
    /// Whether this worker's own shard has the version of the weights.
    pub(crate) has_own: bool,
    /// Whether the copies have the version of the weights.
    pub(crate) has_copy: bool,
    /// Shards that other workers have sent, in the version of the weights, until this worker replaces its own.
    pub(crate) received: BTreeMap<usize, Vec<Slots>>,
    /// The slots of the next version; `None` if no step was interrupted that another worker may have made.
    pub(crate) next: Option<NextSlots>,
}

/// The slots after a step that this worker has not made, but another one may have.
#[derive(Debug)]
pub(crate) struct NextSlots {
    pub(crate) version: Version,
    pub(crate) own: Vec<Slots>,
    pub(crate) copy: Vec<Slots>,
}

impl ShardCopies {
    /// Records that the shard and the copies have this version.
    pub(crate) fn complete(&mut self, version: Version) {
        (self.version, self.has_own, self.has_copy, self.next) = (version, true, true, None);
        self.received.clear();
    }

    /// Continues from this version of the weights, which another worker has sent. `own` are the slots of this worker.
    /// `is_usable` is false if a step has failed while it changed slots. Shards that do not have this version, or
    /// perhaps not, are removed from the inventory.
    // INV-109
    pub(crate) fn adopt(&mut self, version: Version, own: &mut Vec<Slots>, is_usable: bool) {
        let next = self.next.take().filter(|next| next.version == version && is_usable);
        if self.version == version && is_usable {
            return;
        }
        self.received.clear();
        match next {
            Some(next) => {
                (*own, self.slots) = (next.own, next.copy);
                self.complete(version);
            }
            None => (self.version, self.has_own, self.has_copy) = (version, false, false),
        }
    }
}

impl Progress {
    pub(crate) fn new(slots: Vec<Slots>) -> Self {
        let (finished, incomplete, copies) = Default::default();
        Self { finished, incomplete, slots: Arc::new(RwLock::new(slots)), writer: Mutex::new(()), copies }
    }

    /// Replaces all slots before the first step. `copies` are those of another worker's slots.
    pub(crate) fn reset(&mut self, slots: Vec<Slots>, copies: Vec<Slots>) {
        *self.slots_mut() = slots;
        let mut shards = self.copies();
        shards.slots = copies;
        shards.complete(Version::default());
    }

    /// Returns the copies of another worker's slots.
    pub(crate) fn copies(&self) -> MutexGuard<'_, ShardCopies> {
        lock(&self.copies)
    }

    pub(crate) fn finished(&self) -> u64 {
        self.finished.load(Ordering::Relaxed)
    }

    /// Returns `true` if a step or a restore has written only a part of the state, which is then unusable.
    pub(crate) fn is_incomplete(&self) -> bool {
        self.incomplete.load(Ordering::Relaxed)
    }

    /// Returns the slots for reading, or an error if a step is writing them.
    pub(crate) fn read(&self, operation: &'static str) -> Result<RwLockReadGuard<'_, Vec<Slots>>> {
        match self.slots.try_read() {
            Ok(slots) => Ok(slots),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(busy_error(operation)),
        }
    }

    /// Returns the right to make or restore a step, or an error if another thread holds it.
    pub(crate) fn change(&self, operation: &'static str) -> Result<Change<'_>> {
        let writer = match self.writer.try_lock() {
            Ok(writer) => writer,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(busy_error(operation)),
        };
        Ok(Change { progress: self, _writer: writer })
    }

    /// Returns the slots for reading, inside a step that has not written them yet.
    pub(crate) fn read_in_step(&self) -> RwLockReadGuard<'_, Vec<Slots>> {
        self.slots.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the slots for a checkpoint, which copies them while the program continues.
    pub(crate) fn share_slots(&self) -> Arc<RwLock<Vec<Slots>>> {
        self.slots.clone()
    }

    /// Keeps only the slots of the variables for which `predicate` returns `true`.
    pub(crate) fn retain(&mut self, predicate: impl Fn(usize) -> bool) {
        let retain = |slots: &mut Vec<Slots>| {
            let mut index = 0..;
            slots.retain(|_| index.next().is_some_and(&predicate));
        };
        retain(&mut self.slots_mut());
        retain(&mut self.copies().slots);
    }

    /// Returns the slots, to add or remove some before other threads have access.
    fn slots_mut(&mut self) -> RwLockWriteGuard<'_, Vec<Slots>> {
        self.slots.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The exclusive right to change a [`Progress`].
pub(crate) struct Change<'a> {
    progress: &'a Progress,
    _writer: MutexGuard<'a, ()>,
}

impl<'a> Change<'a> {
    /// Returns the slots for writing. No other thread can read them while the guard is alive.
    pub(crate) fn slots(&self) -> RwLockWriteGuard<'a, Vec<Slots>> {
        // Readers only copy, so this wait is short: at most until a save in the background has copied all slots.
        self.progress.slots.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the copies of another worker's slots.
    pub(crate) fn copies(&self) -> MutexGuard<'a, ShardCopies> {
        self.progress.copies()
    }

    /// Marks the state as incomplete, until the step is committed or the number of finished steps is restored. Call
    /// this before the first write of a step or a restore that may fail after it.
    pub(crate) fn begin(&self) {
        self.progress.incomplete.store(true, Ordering::Relaxed);
    }

    /// Returns `true` if a step or a restore has written only a part of the state.
    pub(crate) fn is_incomplete(&self) -> bool {
        self.progress.is_incomplete()
    }

    /// Returns the sequence number of the current step, from 1.
    pub(crate) fn number(&self) -> u64 {
        self.progress.finished() + 1
    }

    /// Counts the current step as finished, and marks slots and variables as complete.
    pub(crate) fn commit(&self) {
        self.set_finished(self.progress.finished() + 1);
    }

    pub(crate) fn counter(&self) -> &Arc<AtomicU64> {
        &self.progress.finished
    }

    /// Sets the number of finished steps, and marks slots and variables as complete.
    pub(crate) fn set_finished(&self, finished: u64) {
        self.progress.incomplete.store(false, Ordering::Relaxed);
        self.progress.finished.store(finished, Ordering::Relaxed);
    }
}

/// The state of an optimizer that a failed step or restore may leave incomplete.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Incomplete {
    /// The state is sharded over the workers, and some have updated their shard.
    Sharded,
    /// The state is sharded over the workers with copies, and some have not received all new shards or weights.
    Copies,
    /// The workers store tables together, and some of the tables may have been written.
    Tables,
}

impl Incomplete {
    /// Returns the kind of an incomplete state that workers shard by `partition`.
    pub(crate) fn with_partition(partition: &Partition) -> Self {
        if partition.copied_worker().is_some() { Self::Copies } else { Self::Sharded }
    }

    /// Returns the error of the step in which the state becomes incomplete.
    pub(crate) fn interrupted(self, operation: &'static str, step: u64, source: Error) -> Error {
        let reason = match self {
            Self::Sharded => format!(
                "{source}; step {step} of this optimizer, whose state is sharded, has ended here between the update of \
                 the state and the exchange of the new weights: no weight has changed; {ADVICE}"
            ),
            Self::Copies => format!(
                "{source}; step {step} of this optimizer, whose state is sharded with copies, has ended here while slots \
                 and weights were being written, some of which may already be those of the next step; {ADVICE}"
            ),
            Self::Tables => format!(
                "{source}; step {step} of this optimizer has ended while tables were being updated, some of which may \
                 already be those of the next step; {ADVICE}"
            ),
        };
        Error::IncompleteState { operation, step, reason, source: Some(Box::new(source)) }
    }

    /// Returns the error for later steps after the state has become incomplete on some workers.
    pub(crate) fn since(self, operation: &'static str, step: u64, workers: &[usize]) -> Error {
        let names: Vec<_> = workers.iter().map(|worker| format!("worker {worker}")).collect();
        let names = names.join(", ");
        let reason = match self {
            Self::Sharded => format!(
                "step {step} of this optimizer, whose state is sharded, has ended on {names} between the update of the \
                 state and the exchange of the new weights; {ADVICE}"
            ),
            Self::Copies => format!(
                "before step {step} of this optimizer, whose state is sharded with copies, {names} lacked shards of this \
                 state, or a step or a restore had ended there while it was being written; {ADVICE}"
            ),
            Self::Tables => format!(
                "step {step} of this optimizer, or a restore before it, has ended on {names} while tables were being \
                 written, some of which may be those of another step; {ADVICE}"
            ),
        };
        Error::IncompleteState { operation, step, reason, source: None }
    }
}

const ADVICE: &str = "restore the last checkpoint on all workers";

pub(crate) fn busy_error(operation: &'static str) -> Error {
    let reason = "a step of this optimizer is in progress; do this before or after it, neither while it runs nor in a \
                  closure or a schedule that it calls";
    Error::invalid(operation, reason)
}
