//! The rows of slots that each worker writes to a checkpoint itself.
//!
//! Ranges of workers consist of blocks, and files of rows. The worker that has the first element of a row writes the
//! row, and receives the rest from the next worker.

use super::Sharded;
use super::gather::{Recipients, inspect_call, require_complete};
use crate::Inner;
use crate::progress::busy_error;
use crate::slots::Slots;
use bytes::Bytes;
use distribute_base::Result;
use distribute_checkpoint::{RowPosition, SourceError, Writer};
use distribute_collective::group::GroupCall;
use distribute_decisions::internal::{RowShare, SlotShare};
use distribute_tensor::{DType, HostTensor, codec};
use std::ops::Range;
use std::panic::Location;
use std::sync::{Arc, RwLock, TryLockError};

const OPERATION: &str = "Checkpoint::save";

/// The rows of one slot that this worker saves.
struct OwnSlot {
    slots: Arc<RwLock<Vec<Slots>>>,
    variable: usize,
    slot: usize,
    dtype: DType,
    /// The shape of a row.
    row: Vec<usize>,
    share: RowShare,
    /// The rest of the last row.
    tail: Bytes,
}

impl Sharded {
    /// Adds the rows of slots that this worker has to its part of a checkpoint. The chief gathers slots of which a row
    /// is on more than two workers, one after another. All workers must make this call.
    pub(super) fn save_own_rows(&self, optimizer: &Inner, prefix: &str, writer: &mut Writer) -> Result<()> {
        let at = Location::caller();
        require_complete(optimizer, OPERATION, at)?;
        let (me, workers) = (self.partition.worker(), optimizer.parameters.strategy.world().workers());
        let (mut own, mut of_chief) = (Vec::new(), Vec::new());
        let (mut heads, mut expected) = (Vec::new(), 0);
        let shared = optimizer.progress.share_slots();
        let slots = optimizer.progress.read(OPERATION)?;
        for (index, slot) in optimizer.groups.rule().slots().into_iter().enumerate() {
            for (number, (name, variable)) in optimizer.parameters.variables.iter().enumerate() {
                let (name, dims) =
                    (format!("{prefix}/{}/{name}", slot.name), slot.shape.dims(variable.dims()));
                let Some((total, row, share)) = self.rows_of_slot(number, &dims) else {
                    of_chief.push((name, number, index));
                    continue;
                };
                let (dtype, elements) = (slots[number].dtype(), slots[number].elements(index));
                let size = variable.dtype().size_in_bytes();
                heads.extend_from_slice(
                    elements.unwrap_or_default().get(..share.head * size).unwrap_or_default(),
                );
                expected += share.tail * size;
                let (slots, tail) = (shared.clone(), Bytes::new());
                let rows = OwnSlot { slots, variable: number, slot: index, dtype, row, share, tail };
                own.push((name, total, size, rows));
            }
        }
        drop(slots);
        let call = || inspect_call(optimizer, "the rest of rows", at);
        let (before, next) = ((me + workers.max(1) - 1) % workers.max(1), (me + 1) % workers.max(1));
        let shift = |mut calling: GroupCall<'_>| {
            calling.shift("the rest of its rows", (before, heads.into()), (next, expected))
        };
        let mut tails =
            optimizer.parameters.strategy.worker_call(OPERATION, call, shift)?.unwrap_or_default();
        for (name, total, size, mut rows) in own {
            rows.tail = tails.split_to(tails.len().min(rows.share.tail * size));
            if rows.share.rows.is_empty() {
                continue;
            }
            let position = RowPosition::Every { first: rows.share.rows.start, step: 1, rows: total };
            let dims = [&[rows.share.rows.len()], &*rows.row].concat();
            writer.insert_own_read(name, position, rows.dtype, dims, move |range| rows.read(range))?;
        }
        for (name, number, index) in of_chief {
            if let Some(value) = self.gather(OPERATION, optimizer, number, index, Recipients::Chief, at)? {
                writer.insert(name, value)?;
            }
        }
        Ok(())
    }

    /// Returns the number of rows of a slot with these dimensions, the shape of a row, and the rows that this worker
    /// saves. Returns `None` on all workers if the chief saves the slot.
    fn rows_of_slot(&self, number: usize, dims: &[usize]) -> Option<(usize, Vec<usize>, RowShare)> {
        let (total, row) = dims.split_first()?;
        let all = |rows: Range<usize>| RowShare { rows, head: 0, tail: 0 };
        let share = match self.partition.own_share(number) {
            _ if *total == 0 => return None,
            SlotShare::Range(_) => {
                self.partition.rows(number, self.partition.worker(), row.iter().product())?
            }
            SlotShare::All => all(0..*total),
            SlotShare::Elsewhere => all(0..0),
        };
        Some((*total, row.to_vec(), share))
    }
}

impl OwnSlot {
    /// Returns a range of these rows.
    fn read(&self, rows: Range<usize>) -> Result<HostTensor, SourceError> {
        let slots = match self.slots.try_read() {
            Ok(slots) => slots,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(busy_error(OPERATION).into()),
        };
        let size = self.dtype.bytes().unwrap_or_default();
        let width = self.row.iter().product::<usize>();
        let at = |row: usize| (self.share.head + row * width) * size;
        let own = slots.get(self.variable).and_then(|slots| slots.elements(self.slot)).unwrap_or_default();
        let (start, end) = (at(rows.start), at(rows.end));
        let here = own.get(start.min(own.len())..end.min(own.len())).unwrap_or_default();
        let rest = end.saturating_sub(own.len()).saturating_sub(start.saturating_sub(own.len()));
        let from = start.saturating_sub(own.len());
        let tail = self.tail.get(from..from + rest).ok_or("the slots of the optimizer have changed")?;
        let buffer = codec::read(self.dtype, &[here, tail].concat());
        let buffer = buffer.map_err(|at| format!("the byte {at} of a slot is not valid"))?;
        Ok(HostTensor::from_buffer(buffer, [&[rows.len()], &*self.row].concat())?)
    }
}
