//! The shards of an optimizer's state that workers send to each other after the group has re-formed.

// - INV-109: slots are replaced together with their version. Tests: `tests.rs` next to this file,
//   `clusters/recovery/sharded.rs`.

use crate::Inner;
use crate::slots::Slots;
use crate::update::{Saved, new_slots};
use bytes::Bytes;
use distribute_base::{Error, Result};
use distribute_collective::recovery::shards::{Inventory, Version};
use distribute_core::internal::ShardedState;
use distribute_decisions::internal::Partition;

const OPERATION: &str = "Training";

impl Inner {
    /// Returns the version of the slots that are left out of the state if it is sent to another worker, which receives
    /// them from the workers with the copies. Returns `None` for checkpoints, which contain all slots.
    pub(crate) fn sent_version(&self) -> Option<Version> {
        let is_sent = self.backend.replicated().is_some() && self.parameters.strategy.is_catching_up();
        is_sent.then(|| self.progress.copies().version)
    }

    /// Returns `true` if this worker has not received a shard that it must have for a step.
    pub(crate) fn lacks_shards(&self) -> bool {
        self.backend.replicated().is_some_and(|partition| {
            let copies = self.progress.copies();
            let is_complete = copies.has_own && copies.has_copy;
            !is_complete || partition.worker() != self.parameters.strategy.world().worker()
        })
    }

    /// Returns a closure that continues from this version of the weights, with the slots of this worker if they have
    /// it.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: this worker does not shard and replicate the state.
    pub(crate) fn adopt_shards(&self, version: Version) -> Result<Saved<'_>> {
        if self.backend.replicated().is_none() {
            let reason = "the other workers shard and replicate the state of the optimizer (shard_state_replicated), and \
                          this one does not: make the same settings on all workers";
            return Err(Error::invalid(OPERATION, reason));
        }
        Ok(Box::new(move |change| {
            let is_usable = !change.is_incomplete();
            change.copies().adopt(version, &mut change.slots(), is_usable);
            Ok(())
        }))
    }
}

impl ShardedState for Inner {
    fn inventory(&self) -> Result<Inventory> {
        let Some(partition) = self.backend.replicated() else { return Ok(Inventory::default()) };
        let slots = self.progress.read(OPERATION)?;
        let copies = self.progress.copies();
        let own = copies.has_own.then(|| (partition.worker(), size(&slots)));
        let copy = partition.copied_worker().filter(|_| copies.has_copy);
        let copy = copy.map(|copied| (copied, size(&copies.slots)));
        let received = copies.received.iter().map(|(shard, slots)| (*shard, size(slots)));
        let shards = own.into_iter().chain(copy).chain(received).collect();
        Ok(Inventory { version: copies.version, shards })
    }

    fn read_shard(&self, shard: usize) -> Result<Bytes> {
        let partition = self.backend.replicated();
        let copies = self.progress.copies();
        if copies.has_own && partition.is_some_and(|partition| partition.worker() == shard) {
            return Ok(concat(&self.progress.read(OPERATION)?));
        }
        if copies.has_copy && partition.and_then(Partition::copied_worker) == Some(shard) {
            return Ok(concat(&copies.slots));
        }
        copies.received.get(&shard).map(|slots| concat(slots)).ok_or_else(|| lacking(shard))
    }

    fn add_shard(&self, shard: usize, bytes: &[u8]) -> Result<()> {
        let Some(partition) = self.backend.replicated() else { return Err(lacking(shard)) };
        let layout = self.groups.rule().slots();
        let mut slots = new_slots(&self.parameters, &layout, |number| partition.share(number, shard))?;
        write(&mut slots, shard, bytes)?;
        self.progress.copies().received.insert(shard, slots);
        Ok(())
    }

    fn keep_own_shards(&self) -> Result<()> {
        let Some(partition) = self.backend.replicated() else { return Ok(()) };
        let change = self.progress.change(OPERATION)?;
        let (mut own, mut copies) = (change.slots(), change.copies());
        let mut all = std::mem::take(&mut copies.received);
        if copies.has_own {
            all.insert(partition.worker(), std::mem::take(&mut *own));
        }
        if let Some(copied) = partition.copied_worker().filter(|_| copies.has_copy) {
            all.insert(copied, std::mem::take(&mut copies.slots));
        }
        (copies.has_own, copies.has_copy) = (false, false);
        // The rank of this worker may have changed.
        partition.set_worker(self.parameters.strategy.world().worker());
        let mut take = |shard: usize| all.remove(&shard).ok_or_else(|| lacking(shard));
        *own = take(partition.worker())?;
        copies.has_own = true;
        if let Some(copied) = partition.copied_worker() {
            copies.slots = take(copied)?;
            copies.has_copy = true;
        }
        Ok(())
    }

    fn discard_shards(&self) {
        let mut copies = self.progress.copies();
        (copies.has_own, copies.has_copy, copies.next) = (false, false, None);
        copies.received.clear();
    }
}

/// Returns the error for a shard that this worker does not have.
fn lacking(shard: usize) -> Error {
    Error::invalid(
        OPERATION,
        format!("this worker does not have the shard of worker {shard} in the version of its weights"),
    )
}

/// Returns the size of slots in bytes.
fn size(slots: &[Slots]) -> u64 {
    slots.iter().flat_map(Slots::all_elements).map(|slot| slot.len() as u64).sum()
}

/// Returns the bytes of all slots, in the order of variables and slots.
fn concat(slots: &[Slots]) -> Bytes {
    slots.iter().flat_map(Slots::all_elements).collect::<Vec<_>>().concat().into()
}

/// Replaces slots by those in `bytes`.
///
/// # Errors
/// - [`Error::InvalidArgument`]: they have another size.
fn write(slots: &mut [Slots], shard: usize, mut bytes: &[u8]) -> Result<()> {
    let expected = size(slots);
    if bytes.len() as u64 != expected {
        let reason = format!(
            "the shard of worker {shard} has {} bytes, not {expected}: all workers have to run the same program",
            bytes.len()
        );
        return Err(Error::invalid(OPERATION, reason));
    }
    for slot in slots.iter_mut().flat_map(Slots::all_elements_mut) {
        slot.copy_from_slice(bytes.split_off(..slot.len()).unwrap_or_default());
    }
    Ok(())
}
