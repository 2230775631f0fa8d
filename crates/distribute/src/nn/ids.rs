//! Row numbers of a table, read from a tensor of ids.

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
    let ids = ids.contiguous()?;
    let ids = if ids.device().is_cpu() { ids } else { ids.to_device(&candle_core::Device::Cpu)? };
    let (storage, layout) = ids.storage_and_layout();
    let range = layout.start_offset()..layout.start_offset() + ids.elem_count();
    let mut row = |(position, id): (usize, Option<usize>), found: i64| {
        match id {
            Some(id) if padding == Some(id) => then(None),
            Some(id) if id < height => then(Some(id)),
            _ => bail!(
                "{layer}: id {found} at position {position} of ids {:?} is no row: the table has {height}, counted from 0",
                ids.dims()
            ),
        }
        Ok(())
    };
    match &*storage {
        Storage::Cpu(CpuStorage::U8(ids)) => ids[range]
            .iter()
            .enumerate()
            .try_for_each(|(i, id)| row((i, Some(usize::from(*id))), i64::from(*id))),
        Storage::Cpu(CpuStorage::U32(ids)) => {
            ids[range].iter().enumerate().try_for_each(|(i, id)| row((i, Some(*id as usize)), i64::from(*id)))
        }
        Storage::Cpu(CpuStorage::I64(ids)) => {
            ids[range].iter().enumerate().try_for_each(|(i, id)| row((i, usize::try_from(*id).ok()), *id))
        }
        _ => {
            bail!("{layer}: ids have to be u8, u32 or i64, not {:?}; convert them with to_dtype", ids.dtype())
        }
    }
}
