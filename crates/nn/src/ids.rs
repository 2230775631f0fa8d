//! Row numbers of a table, read from a tensor of ids.

use candle_core::{CpuStorage, Result, Storage, Tensor, bail};
use distribute_base::internal::known_on_host;

/// Calls `then` with the row of each id in order, and with `None` for `padding`, which need not be a row.
///
/// # Errors
/// - The ids have a dtype other than u8, u32 and i64.
/// - An id is not a row of a table of this `height`.
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

/// Calls `then` with the position and the value of each id, in order.
///
/// # Errors
/// - The ids have a dtype other than u8, u32 and i64.
/// - `then` returns an error.
pub(super) fn numbers(
    layer: &str,
    ids: &Tensor,
    mut then: impl FnMut(usize, i64) -> Result<()>,
) -> Result<()> {
    let ids = known_on_host(ids)?.contiguous()?;
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
            bail!("{layer}: ids have to be u8, u32 or i64, not {:?}; convert them with to_dtype", ids.dtype())
        }
    }
}

#[cfg(all(test, feature = "cuda"))]
#[allow(clippy::panic)]
mod tests {
    use super::*;
    use crate::{Embedding, loss};
    use candle_core::{Device, Module};
    use distribute_base::internal::held;
    use distribute_core::internal::Carrier;
    use distribute_testing::{child, skipped, watched};

    /// Runs a test in its own process, with a GPU of CUDA that no other test uses.
    fn with_gpu(test: &str, body: impl FnOnce(candle_core::CudaDevice) + Send + 'static) {
        if child::part().is_none() {
            let command = child::command(&format!("ids::tests::{test}"), "by itself");
            child::output(command, std::time::Duration::from_secs(60));
            return;
        }
        match distribute_base::DeviceName::gpu(0).to_candle() {
            Ok(Device::Cuda(device)) => watched(|| body(device)),
            Ok(other) => panic!("{:?} is no GPU of CUDA", other.location()),
            Err(error) => skipped(error),
        }
    }

    // INV-69
    #[test]
    fn ids_and_labels_that_were_brought_are_checked_while_the_gpu_computes() {
        with_gpu("ids_and_labels_that_were_brought_are_checked_while_the_gpu_computes", |gpu| {
            let device = Device::Cuda(gpu.clone());
            let carrier = Carrier::new(device.clone());
            // The rows of a per-replica batch in a larger tensor, too large for CUDA's own staging copy.
            let bring = |id: i64, label: i64| {
                let all = Tensor::from_iter((0..40_000).flat_map(|_| [id, label]), &Device::Cpu).unwrap();
                carrier.carry(&all.reshape((40_000, 2)).unwrap().narrow(0, 10, 39_980).unwrap()).unwrap()
            };
            let table = Tensor::arange(0f32, 12., &device).unwrap().reshape((4, 3)).unwrap();
            let words = Embedding::new(table, 3);
            let of = |brought: &Tensor| {
                let column = |number| brought.get_on_dim(1, number);
                loss::cross_entropy(&words.forward(&column(0)?)?, &column(1)?)
            };
            let expected = of(&bring(3, 2)).unwrap().to_scalar::<f32>().unwrap();
            let (again, no_row, no_class) = (bring(3, 2), bring(4, 0), bring(1, 3));
            let (go, said) = held(&gpu);
            let found = of(&again).unwrap();
            let refused = [no_row, no_class].map(|brought| of(&brought).unwrap_err().to_string());
            go.send(()).unwrap();
            assert!(refused[0].contains("id 4 at position 0 of ids [39980] is no row"), "{}", refused[0]);
            assert!(refused[1].contains("row 0 has the label 3"), "{}", refused[1]);
            assert_eq!(found.to_scalar::<f32>().unwrap(), expected);
            let patience = std::time::Duration::from_secs(20);
            assert!(said.recv_timeout(patience).unwrap(), "it has waited");
        });
    }
}
