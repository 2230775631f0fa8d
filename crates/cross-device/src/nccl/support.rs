//! The sums that NCCL supports, by device, shape and dtype.

use crate::Reduction;
use candle_core::{DType, DeviceLocation, Tensor};
use distribute_base::{DeviceKind, DeviceName};
use distribute_tensor::Leaf;
use std::ffi::c_int;

/// Returns NCCL's number for an element type (`ncclDataType_t`). Returns `None` for types that NCCL cannot sum or that
/// candle does not support on GPUs.
pub(super) fn number(dtype: DType) -> Option<c_int> {
    match dtype {
        DType::U8 => Some(1),
        DType::U32 => Some(3),
        DType::I64 => Some(4),
        DType::F16 => Some(6),
        DType::F32 => Some(7),
        DType::F64 => Some(8),
        DType::BF16 => Some(9),
        _ => None,
    }
}

/// Returns the indices of the GPUs if NCCL can link the devices: they must be several distinct GPUs and nothing else.
pub(super) fn gpus(devices: &[DeviceName]) -> Option<Vec<usize>> {
    let gpu = |device: &DeviceName| {
        (device.kind == DeviceKind::Gpu && device.server.is_none()).then_some(device.index)
    };
    let gpus = devices.iter().map(gpu).collect::<Option<Vec<_>>>()?;
    let twice = gpus.iter().enumerate().any(|(at, gpu)| gpus[..at].contains(gpu));
    (gpus.len() > 1 && !twice).then_some(gpus)
}

/// The properties of a dense candle tensor that determine whether NCCL supports it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    /// The index of the tensor's CUDA GPU; `None` if it is on another device.
    gpu: Option<usize>,
    dtype: DType,
    dims: Vec<usize>,
}

impl Part {
    fn of(leaf: &Leaf) -> Option<Self> {
        let Leaf::Candle(tensor) = leaf else { return None };
        Some(Self { gpu: gpu_of(tensor), dtype: tensor.dtype(), dims: tensor.dims().to_vec() })
    }
}

/// Returns the index of the CUDA GPU that a tensor is on; `None` for other devices.
pub(super) fn gpu_of(tensor: &Tensor) -> Option<usize> {
    match tensor.device().location() {
        DeviceLocation::Cuda { gpu_id } => Some(gpu_id),
        _ => None,
    }
}

/// Returns `true` if NCCL supports this value: the parts are on several GPUs, each on its replica's GPU, which is also
/// the destination, and have the same shape and a dtype that NCCL can sum.
pub(super) fn is_supported(value: &Reduction<'_>) -> bool {
    let parts = value.parts.iter().map(Part::of).collect::<Option<Vec<_>>>();
    parts.is_some_and(|parts| supports(&parts, value.from, value.to))
}

fn supports(parts: &[Part], from: &[DeviceName], to: &[DeviceName]) -> bool {
    let Some(first) = parts.first() else { return false };
    gpus(from).is_some_and(|gpus| {
        let there = |(part, gpu): (&Part, usize)| *part == Part { gpu: Some(gpu), ..first.clone() };
        from == to
            && gpus.len() == parts.len()
            && number(first.dtype).is_some()
            && parts.iter().zip(gpus).all(there)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;
    use distribute_tensor::{HostTensor, IndexedSlices};

    const CPU: DeviceName = DeviceName::cpu(0);

    const fn gpu(index: usize) -> DeviceName {
        DeviceName::gpu(index)
    }

    #[test]
    fn several_gpus_are_linked_and_nothing_else() {
        assert_eq!(gpus(&[gpu(0), gpu(1)]), Some(vec![0, 1]));
        assert_eq!(gpus(&[gpu(3), gpu(0), gpu(1)]), Some(vec![3, 0, 1]));
        let of_server = DeviceName { server: Some(0), ..gpu(1) };
        for devices in [
            &[][..],
            &[gpu(0)],
            &[gpu(0), gpu(0)],
            &[gpu(0), CPU],
            &[CPU, DeviceName::cpu(1)],
            &[gpu(0), of_server],
        ] {
            assert_eq!(gpus(devices), None, "{devices:?}");
        }
    }

    #[test]
    fn xd_3_values_for_nccl_match_and_are_on_the_replicas_gpus() {
        let part = |gpu, dtype, dims: &[usize]| Part { gpu, dtype, dims: dims.to_vec() };
        let on = |gpu| part(Some(gpu), DType::F32, &[2, 3]);
        let (two, swapped) = (&[gpu(0), gpu(1)][..], &[gpu(1), gpu(0)][..]);
        assert!(supports(&[on(0), on(1)], two, two));
        assert!(supports(&[on(1), on(0)], swapped, swapped));
        assert!(supports(&[part(Some(0), DType::BF16, &[]), part(Some(1), DType::BF16, &[])], two, two));
        for (parts, from, to) in [
            // Other destinations.
            ([on(0), on(1)], two, swapped),
            ([on(0), on(1)], two, &two[..1]),
            ([on(0), on(1)], two, &[CPU][..]),
            // Parts on other devices.
            ([on(1), on(0)], two, two),
            ([on(0), on(0)], two, two),
            ([on(0), part(None, DType::F32, &[2, 3])], two, two),
            ([part(None, DType::F32, &[2, 3]), part(None, DType::F32, &[2, 3])], two, two),
            // Devices that are not GPUs, or one of them is not.
            ([on(0), on(1)], &[gpu(0), CPU][..], &[gpu(0), CPU][..]),
            ([on(0), on(0)], &[gpu(0), gpu(0)][..], &[gpu(0), gpu(0)][..]),
            // Too few.
            ([on(0), on(1)], &[gpu(0), gpu(1), gpu(2)][..], &[gpu(0), gpu(1), gpu(2)][..]),
            // Parts that differ: the reduction on one device reports the difference.
            ([on(0), part(Some(1), DType::F64, &[2, 3])], two, two),
            ([on(0), part(Some(1), DType::F32, &[3, 2])], two, two),
            // Types without operations of candle on GPUs.
            ([part(Some(0), DType::I32, &[2]), part(Some(1), DType::I32, &[2])], two, two),
        ] {
            assert!(!supports(&parts, from, to), "{parts:?} from {from:?} to {to:?}");
        }
        assert!(!supports(&[], two, two));
    }

    #[test]
    fn host_and_sparse_values_are_not_accepted() {
        let two = &[gpu(0), gpu(1)][..];
        let taken =
            |part: Leaf| is_supported(&Reduction { parts: vec![part.clone(), part], from: two, to: two });
        let host = HostTensor::vector(vec![1f32, 2.]);
        assert!(!taken(Leaf::Host(host.clone())));
        assert!(!taken(Leaf::Candle(Tensor::new(&[1f32, 2.], &Device::Cpu).unwrap())));
        let rows = HostTensor::vector(vec![0i64, 1]);
        assert!(!taken(Leaf::Slices(IndexedSlices::new(host, rows, Some(vec![4])).unwrap())));
    }
}
