//! Row numbers of a table, read from a tensor of ids.

use crate::transfer::known_on_host;
use candle_core::{CpuStorage, Result, Storage, Tensor, bail};

/// Calls `then` with the row that each id names, one after another: none for `padding`, which need not be a row.
///
/// # Errors
/// For ids of another dtype than u8, u32 and i64, and for one that is no row of the table's `height`.
pub(super) fn each(
    layer: &str,
    ids: &Tensor,
    height: usize,
    padding: Option<usize>,
    mut then: impl FnMut(Option<usize>),
) -> Result<()> {
    let dims = ids.dims();
    numbers(layer, ids, |position, found| {
        match usize::try_from(found).ok() {
            Some(id) if padding == Some(id) => then(None),
            Some(id) if id < height => then(Some(id)),
            _ => bail!(
                "{layer}: id {found} at position {position} of ids {dims:?} is no row: the table has {height}, counted from 0"
            ),
        }
        Ok(())
    })
}

/// Calls `then` with the position of each id and the id, one after another.
///
/// # Errors
/// For ids of another dtype than u8, u32 and i64, and those of `then`.
pub(super) fn numbers(
    layer: &str,
    ids: &Tensor,
    mut then: impl FnMut(usize, i64) -> Result<()>,
) -> Result<()> {
    let ids = known_on_host(ids)?.contiguous()?;
    let (storage, layout) = ids.storage_and_layout();
    // Columns of no rows may begin behind the end of the storage.
    let start = if ids.elem_count() == 0 { 0 } else { layout.start_offset() };
    let range = start..start + ids.elem_count();
    match &*storage {
        Storage::Cpu(CpuStorage::U8(ids)) => {
            ids[range].iter().enumerate().try_for_each(|(i, id)| then(i, i64::from(*id)))
        }
        Storage::Cpu(CpuStorage::U32(ids)) => {
            ids[range].iter().enumerate().try_for_each(|(i, id)| then(i, i64::from(*id)))
        }
        Storage::Cpu(CpuStorage::I64(ids)) => {
            ids[range].iter().enumerate().try_for_each(|(i, id)| then(i, *id))
        }
        _ => {
            bail!("{layer}: ids have to be u8, u32 or i64, not {:?}; convert them with to_dtype", ids.dtype())
        }
    }
}
