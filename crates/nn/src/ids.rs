//! Row indices of a table, which are read from a tensor of ids.

use candle_core::{CpuStorage, Result, Storage, Tensor, bail};
use distribute_base::internal::host_value;

/// Calls `then` with the row of each id, in order. For the id `padding`, which need not be the index of a row, `then`
/// is called with `None`.
///
/// # Errors
/// Returns an error in these cases:
/// - The dtype of the ids is not u8, u32 or i64.
/// - An id is not the index of a row in a table with `height` rows.
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
                "{layer}: id {found} at position {position} of ids {dims:?} is not a row: the table has {height}, \
                 counted from 0"
            ),
        }
        Ok(())
    })
}

/// Calls `then` with the position and the value of each id, in order.
///
/// # Errors
/// Returns the first error of `then`, and an error if the dtype of the ids is not u8, u32 or i64.
pub(super) fn numbers(
    layer: &str,
    ids: &Tensor,
    mut then: impl FnMut(usize, i64) -> Result<()>,
) -> Result<()> {
    let ids = host_value(ids)?.contiguous()?;
    let (storage, layout) = ids.storage_and_layout();
    // The offset of columns without rows may be past the end of the storage.
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
            bail!("{layer}: ids must be u8, u32 or i64, not {:?}; convert them with to_dtype", ids.dtype())
        }
    }
}
