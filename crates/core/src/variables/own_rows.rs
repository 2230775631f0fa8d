//! The rows of a variable that this worker stores or whose changes it sends, as its part of a checkpoint.

use super::dynamic::{ids_name, uses_name};
use super::variable::Variable;
use crate::checkpoint::Writer;
use distribute_base::Result;
use distribute_checkpoint::{RowPosition, SourceError};
use distribute_ps_client::internal::{OwnIds, Sharded};
use distribute_tensor::{DType, HostTensor};
use std::ops::Range;
use std::sync::Arc;

const OPERATION: &str = "Checkpoint::save";

/// A slot of a variable in a checkpoint.
pub struct OwnSlot {
    /// The name of the slot.
    pub name: &'static str,
    /// The name in the checkpoint.
    pub saved: String,
    /// The type of the elements.
    pub dtype: DType,
    /// The shape of a row.
    pub row: Vec<usize>,
}

impl Variable {
    /// Returns `true` if each worker has rows of its own, which it can write to a checkpoint itself. The result is the
    /// same on all workers.
    #[doc(hidden)]
    pub fn has_own_rows(&self) -> bool {
        self.saved_by_range().is_some() || self.is_dynamic() && Variable::strategy(self).shares_tables()
    }

    /// Adds the values of this worker's rows to its part of a checkpoint. The variable must
    /// [have own rows](Self::has_own_rows).
    pub(super) fn save_own_rows(&self, prefix: &str, writer: &mut Writer) -> Result<()> {
        self.strategy().await_updates()?;
        let value = (None, prefix.to_owned(), self.dtype());
        if let Some(tables) = self.saved_by_range() {
            let row = tables.dims().get(1..).unwrap_or_default();
            return add_shards(writer, tables, value, row);
        }
        let ids = self.require_ids(OPERATION)?;
        let (own, ids_here, used) = OwnIds::read(ids, OPERATION)?;
        let (own, count) = (Arc::new(own), ids_here.len());
        writer.insert_own(ids_name(prefix), RowPosition::Next, HostTensor::vector(ids_here))?;
        writer.insert_own(uses_name(prefix), RowPosition::Next, HostTensor::vector(used))?;
        let row = ids.tables().dims().get(1..).unwrap_or_default();
        add_ids(writer, (&own, count), value, row)
    }

    /// Adds the slots of this worker's rows to its part of a checkpoint. If the rows have ids, also adds the ids, under
    /// the name that belongs to values named `values_name`.
    ///
    /// # Errors
    /// - [`Error::Server`](distribute_base::Error::Server): a server did not answer.
    #[doc(hidden)]
    pub fn save_own_slots(&self, writer: &mut Writer, values_name: &str, slots: Vec<OwnSlot>) -> Result<()> {
        self.strategy().await_updates()?;
        if let Some(tables) = self.saved_by_range() {
            return slots.into_iter().try_for_each(|OwnSlot { name, saved, dtype, row }| {
                add_shards(writer, tables, (Some(name), saved, dtype), &row)
            });
        }
        let (own, ids, _) = OwnIds::read(self.require_ids(OPERATION)?, OPERATION)?;
        let (own, count) = (Arc::new(own), ids.len());
        writer.insert_own(ids_name(values_name), RowPosition::Next, HostTensor::vector(ids))?;
        slots.into_iter().try_for_each(|OwnSlot { name, saved, dtype, row }| {
            add_ids(writer, (&own, count), (Some(name), saved, dtype), &row)
        })
    }
}

/// Adds the values or a slot of this worker's shards.
fn add_shards(
    writer: &mut Writer,
    tables: &Sharded,
    (slot, saved, dtype): (Option<&'static str>, String, DType),
    row: &[usize],
) -> Result<()> {
    for shard in tables.own_shards() {
        let count = tables.shards()[shard].rows();
        let (first, step) = tables.rows_of(shard);
        let position = RowPosition::Every { first, step, rows: tables.rows() };
        let of = tables.clone();
        let read =
            move |rows: Range<usize>| Ok::<_, SourceError>(of.read_shard(OPERATION, shard, rows, slot)?);
        writer.insert_own_read(saved.clone(), position, dtype, dims(count, row), read)?;
    }
    Ok(())
}

/// Adds the values or a slot of this worker's `count` rows of ids.
fn add_ids(
    writer: &mut Writer,
    (own, count): (&Arc<OwnIds>, usize),
    (slot, saved, dtype): (Option<&'static str>, String, DType),
    row: &[usize],
) -> Result<()> {
    let own = own.clone();
    let read = move |rows: Range<usize>| Ok::<_, SourceError>(own.rows(OPERATION, rows, slot)?);
    Ok(writer.insert_own_read(saved, RowPosition::Next, dtype, dims(count, row), read)?)
}

fn dims(rows: usize, row: &[usize]) -> Vec<usize> {
    std::iter::once(&rows).chain(row).copied().collect()
}
