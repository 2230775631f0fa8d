//! Leaves that are candle tensors. All operations on them are in this file; the other modules only call it.
//!
//! On the CPU, the kernels read candle's storage in place, so sums have the same order and types as those of host
//! tensors. Only sums over the axes of a tensor that gradients flow through are left to candle. Tensors on other
//! devices are copied to the host and back in two cases: if several tensors are reduced or joined, because they may be
//! on different devices; and if candle has no operation for their dtype.

use crate::fold::{Folder, mean};
use crate::host::{axis_of, check_axes, check_pieces, check_range, check_rows, check_same, sum_over};
use crate::kernel;
use crate::{DType, Error, HostTensor, ReduceOp, Result};
use candle_core::{DType as CandleDType, Device, Layout, Storage, StorageRef, Tensor, WithDType};
use std::collections::BTreeMap;

/// Evaluates an expression in which `$t` is the Rust type of a candle dtype.
macro_rules! with_type {
    ($operation:expr, $dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            CandleDType::U8 => {
                type $t = u8;
                $body
            }
            CandleDType::U32 => {
                type $t = u32;
                $body
            }
            CandleDType::I16 => {
                type $t = i16;
                $body
            }
            CandleDType::I32 => {
                type $t = i32;
                $body
            }
            CandleDType::I64 => {
                type $t = i64;
                $body
            }
            CandleDType::BF16 => {
                type $t = half::bf16;
                $body
            }
            CandleDType::F16 => {
                type $t = half::f16;
                $body
            }
            CandleDType::F32 => {
                type $t = f32;
                $body
            }
            CandleDType::F64 => {
                type $t = f64;
                $body
            }
            other => Err(Error::ForeignDType { operation: $operation, dtype: other.as_str() }),
        }
    };
}

impl HostTensor {
    /// Copies a candle tensor to host memory.
    ///
    /// # Errors
    /// - [`Error::ForeignDType`]: the dtype is one of candle's 4-, 6- and 8-bit floats, which have no equivalent here.
    /// - [`Error::Candle`]: the elements cannot be copied.
    pub fn from_candle(tensor: &Tensor) -> Result<Self> {
        with_type!("from_candle", tensor.dtype(), T => HostTensor::new(elements::<T>(tensor)?, tensor.dims()))
    }

    /// Copies the elements of a locked storage in CPU memory. `layout` is that of the tensor, which must be contiguous.
    ///
    /// [`from_candle`](Self::from_candle) would lock the storage again, which deadlocks if a writer waits.
    ///
    /// # Errors
    /// - [`Error::ForeignDType`]: as for [`from_candle`](Self::from_candle).
    /// - [`Error::Candle`]: the storage is on a device, or the tensor is not contiguous.
    pub fn from_candle_storage(storage: &Storage, layout: &Layout) -> Result<Self> {
        const OPERATION: &str = "from_candle_storage";
        let (Storage::Cpu(elements), Some((start, end))) = (storage, layout.contiguous_offsets()) else {
            return Err(candle_core::Error::RequiresContiguous { op: OPERATION }.into());
        };
        with_type!(OPERATION, storage.dtype(), T => {
            let all = T::cpu_storage_as_slice(elements)?;
            // A view without rows may begin after the end of the storage.
            HostTensor::new(all.get(start..end).unwrap_or_default().to_vec(), layout.dims())
        })
    }

    /// Copies the tensor to a candle tensor on the given device. Elements of dtype bool become u8, with the values 0
    /// and 1.
    ///
    /// # Errors
    /// - [`Error::UnsupportedDType`]: candle does not support the dtype. This applies to int8, uint16, uint64, string
    ///   and complex numbers.
    /// - [`Error::Candle`]: the device cannot allocate the tensor.
    pub fn to_candle(&self, device: &Device) -> Result<Tensor> {
        self.clone().into_candle(device)
    }

    /// Acts like [`to_candle`](Self::to_candle), but does not copy the elements in host memory if no other tensor
    /// shares them.
    pub(crate) fn into_candle(self, device: &Device) -> Result<Tensor> {
        fn make<T: WithDType + crate::Element>(tensor: HostTensor, device: &Device) -> Result<Tensor> {
            let dims = tensor.dims().to_vec();
            Ok(Tensor::from_vec(tensor.into_vec::<T>()?, dims, device)?)
        }
        match self.dtype() {
            DType::F16 => make::<half::f16>(self, device),
            DType::Bf16 => make::<half::bf16>(self, device),
            DType::F32 => make::<f32>(self, device),
            DType::F64 => make::<f64>(self, device),
            DType::U8 => make::<u8>(self, device),
            DType::I16 => make::<i16>(self, device),
            DType::I32 => make::<i32>(self, device),
            DType::U32 => make::<u32>(self, device),
            DType::I64 => make::<i64>(self, device),
            DType::Bool => make::<u8>(self.cast(DType::U8)?, device),
            dtype @ (DType::I8 | DType::U16 | DType::U64 | DType::String | DType::C64 | DType::C128) => {
                Err(Error::UnsupportedDType { operation: "to_candle", dtype })
            }
        }
    }
}

/// Returns the dtype that corresponds to a candle tensor's dtype.
pub(crate) fn dtype(operation: &'static str, tensor: &Tensor) -> Result<DType> {
    use crate::Element;
    with_type!(operation, tensor.dtype(), T => Ok(<T as Element>::DTYPE))
}

pub(crate) fn describe(tensor: &Tensor) -> String {
    let name = dtype("describe", tensor).map_or(tensor.dtype().as_str(), DType::name);
    format!("{name}{:?}", tensor.dims())
}

pub(crate) fn reduce(op: ReduceOp, tensors: &[&Tensor], folder: &impl Folder) -> Result<Tensor> {
    let first = same("reduce", "replica", tensors, check_same)?;
    let (n, dtype) = (tensors.len(), dtype("reduce", first)?);
    if let (ReduceOp::Mean, Some(mean)) = (op, dtype.mean().filter(|mean| *mean != dtype)) {
        let wide = tensors.iter().map(|t| cast(t, dtype.of_sum(op))).collect::<Result<Vec<_>>>()?;
        let sum = reduce(ReduceOp::Sum, &wide.iter().collect::<Vec<_>>(), folder)?;
        return cast(&divide(&sum, n as f64)?, mean);
    }
    if n == 1 {
        return Ok(first.detach());
    }
    if !all_on_host(tensors) {
        return through_host(tensors, |tensors| reduce(op, tensors, folder));
    }
    fn on_host<T: WithDType>(tensors: &[&Tensor], fold: impl FnOnce(&[&[T]]) -> Vec<T>) -> Result<Tensor> {
        Ok(Tensor::from_vec(slices(tensors, fold)?, tensors[0].dims(), &Device::Cpu)?)
    }
    let sum = match (op, first.dtype()) {
        // This divides as `divide` does, without a second pass over the elements.
        (ReduceOp::Mean, CandleDType::F16) => {
            return on_host::<half::f16>(tensors, |inputs| mean(folder, inputs, n as f32));
        }
        (ReduceOp::Mean, CandleDType::BF16) => {
            return on_host::<half::bf16>(tensors, |inputs| mean(folder, inputs, n as f32));
        }
        (ReduceOp::Mean, CandleDType::F32) => {
            return on_host::<f32>(tensors, |inputs| mean(folder, inputs, n as f32));
        }
        (ReduceOp::Mean, CandleDType::F64) => {
            return on_host::<f64>(tensors, |inputs| mean(folder, inputs, n as f64));
        }
        (_, dtype) => with_type!("reduce", dtype, T => {
            on_host::<T>(tensors, |inputs| folder.fold(inputs, |sum| sum))
        })?,
    };
    match op {
        ReduceOp::Sum => Ok(sum),
        ReduceOp::Mean => divide(&sum, n as f64),
    }
}

pub(crate) fn concat(tensors: &[&Tensor], axis: usize) -> Result<Tensor> {
    let first = tensors.first().ok_or(Error::Empty { operation: "concat" })?;
    axis_of("concat", axis, first.dims())?;
    same("concat", "replica", tensors, |operation, a, b| check_pieces(operation, axis, a, b))?;
    join("concat", tensors, axis, |dims| dims[axis] = tensors.iter().map(|t| t.dims()[axis]).sum())
}

pub(crate) fn stack(tensors: &[&Tensor]) -> Result<Tensor> {
    same("stack", "element", tensors, check_same)?;
    let rows = tensors.iter().map(|t| t.unsqueeze(0)).collect::<candle_core::Result<Vec<_>>>()?;
    join("stack", &rows.iter().collect::<Vec<_>>(), 0, |dims| dims[0] = tensors.len())
}

/// Joins tensors along an axis. The caller must have checked that the tensors match. `shape` receives the shape of the
/// first tensor, and changes it to that of the result.
fn join(
    operation: &'static str,
    tensors: &[&Tensor],
    axis: usize,
    shape: impl FnOnce(&mut [usize]),
) -> Result<Tensor> {
    let Some(first) = tensors.first() else { return Err(Error::Empty { operation }) };
    if !all_on_host(tensors) {
        return through_host(tensors, |tensors| join(operation, tensors, axis, shape));
    }
    let mut dims = first.dims().to_vec();
    shape(&mut dims);
    let chunks: Vec<usize> = tensors.iter().map(|t| t.dims()[axis..].iter().product()).collect();
    with_type!(operation, first.dtype(), T => {
        let out = slices::<T, _>(tensors, |pieces| kernel::concat(pieces, &chunks))?;
        Ok(Tensor::from_vec(out, dims, &Device::Cpu)?)
    })
}

pub(crate) fn narrow(tensor: &Tensor, axis: usize, start: usize, len: usize) -> Result<Tensor> {
    axis_of("narrow", axis, tensor.dims())?;
    check_range("narrow", start, len, tensor.dims()[axis])?;
    Ok(tensor.narrow(axis, start, len)?)
}

/// Returns a tensor with the same dtype, device and row shape, but without rows. The result does not share the memory
/// of `tensor`, except for dtypes of which candle cannot create zeros.
pub(crate) fn without_rows(tensor: &Tensor) -> Result<Tensor> {
    let view = narrow(tensor, 0, 0, 0)?;
    // candle cannot create zeros of its 4- and 6-bit dtypes.
    Ok(without_elements(view.dims(), view.dtype(), view.device()).unwrap_or(view))
}

/// Creates a candle tensor without elements on the given device. At least one of `dims` must be 0. The allocated memory
/// has one element along each such axis, because CUDA cannot allocate 0 bytes.
///
/// # Errors
/// Returns candle's error if the device is out of memory or does not support the dtype.
pub fn without_elements(dims: &[usize], dtype: CandleDType, device: &Device) -> candle_core::Result<Tensor> {
    let some: Vec<usize> = dims.iter().map(|size| *size.max(&1)).collect();
    let some = Tensor::zeros(some, dtype, device)?;
    let none = dims.iter().enumerate().filter(|(_, size)| **size == 0);
    none.map(|(axis, _)| axis).try_fold(some, |some, axis| some.narrow(axis, 0, 0))
}

pub(crate) fn reshape(tensor: &Tensor, dims: &[usize]) -> Result<Tensor> {
    if dims.iter().product::<usize>() != tensor.elem_count() {
        return Err(Error::ElementCount { shape: dims.to_vec(), elements: tensor.elem_count() });
    }
    Ok(tensor.reshape(dims)?)
}

pub(crate) fn take_rows(tensor: &Tensor, rows: &[usize]) -> Result<Tensor> {
    axis_of("take_rows", 0, tensor.dims())?;
    check_rows("take_rows", rows, tensor.dims()[0])?;
    if is_unsupported(tensor.dtype(), tensor) {
        return through_host(&[tensor], |tensor| take_rows(tensor[0], rows));
    }
    let ids: Vec<i64> = rows.iter().map(|r| *r as i64).collect();
    Ok(tensor.index_select(&Tensor::from_vec(ids, rows.len(), tensor.device())?, 0)?)
}

pub(crate) fn row(tensor: &Tensor, index: usize) -> Result<Tensor> {
    axis_of("row", 0, tensor.dims())?;
    check_rows("row", &[index], tensor.dims()[0])?;
    Ok(tensor.get(index)?)
}

pub(crate) fn sum_axes(tensor: &Tensor, axes: &[usize]) -> Result<Tensor> {
    const OPERATION: &str = "sum_axes";
    let axes = check_axes(OPERATION, axes, tensor.dims())?;
    if axes.is_empty() {
        return Ok(tensor.clone());
    }
    if is_unsupported(tensor.dtype(), tensor) {
        return through_host(&[tensor], |tensor| sum_axes(tensor[0], &axes));
    }
    if !all_on_host(&[tensor]) || tensor.track_op() {
        let narrow = tensor.dtype();
        return match narrow {
            CandleDType::F16 | CandleDType::BF16 => {
                Ok(tensor.to_dtype(CandleDType::F32)?.sum(axes)?.to_dtype(narrow)?)
            }
            _ => Ok(tensor.sum(axes)?),
        };
    }
    with_type!(OPERATION, tensor.dtype(), T => {
        let (sum, shape) = slices::<T, _>(&[tensor], |v| sum_over(v[0], tensor.dims(), &axes))?;
        Ok(Tensor::from_vec(sum, shape, &Device::Cpu)?)
    })
}

/// Converts the elements to another dtype.
///
/// # Errors
/// - [`Error::UnsupportedDType`]: candle does not support the dtype.
/// - [`Error::Candle`]: the conversion fails.
pub(crate) fn cast(tensor: &Tensor, dtype: DType) -> Result<Tensor> {
    let dtype = match dtype {
        DType::U8 => CandleDType::U8,
        DType::U32 => CandleDType::U32,
        DType::I16 => CandleDType::I16,
        DType::I32 => CandleDType::I32,
        DType::I64 => CandleDType::I64,
        DType::Bf16 => CandleDType::BF16,
        DType::F16 => CandleDType::F16,
        DType::F32 => CandleDType::F32,
        DType::F64 => CandleDType::F64,
        _ => return Err(Error::UnsupportedDType { operation: "cast", dtype }),
    };
    if is_unsupported(tensor.dtype(), tensor) || is_unsupported(dtype, tensor) {
        return through_host(&[tensor], |tensor| Ok(tensor[0].to_dtype(dtype)?));
    }
    Ok(tensor.to_dtype(dtype)?)
}

pub(crate) fn divide(tensor: &Tensor, by: f64) -> Result<Tensor> {
    let dtype = dtype("divide", tensor)?;
    let wider = if dtype.mean() == Some(DType::F64) { CandleDType::F64 } else { tensor.dtype() };
    if is_unsupported(tensor.dtype(), tensor) || is_unsupported(wider, tensor) {
        return through_host(&[tensor], |tensor| divide(tensor[0], by));
    }
    let tensor = match dtype.mean() {
        Some(DType::F64) => tensor.to_dtype(CandleDType::F64)?,
        Some(DType::F32) => tensor.to_dtype(CandleDType::F32)?,
        _ => tensor.clone(),
    };
    // `tensor / by` would multiply by the reciprocal, which rounds twice.
    let wide = match tensor.dtype() {
        CandleDType::F16 | CandleDType::BF16 => tensor.to_dtype(CandleDType::F32)?,
        _ => tensor.clone(),
    };
    let by = Tensor::full(by, (), wide.device())?.to_dtype(wide.dtype())?;
    Ok(wide.broadcast_div(&by)?.to_dtype(tensor.dtype())?)
}

/// Returns the first tensor if all others match it. Otherwise, or if there are no tensors, returns an error. `check`
/// receives the dtypes and shapes of the first tensor and of another.
fn same<'a>(
    operation: &'static str,
    what: &'static str,
    tensors: &[&'a Tensor],
    check: impl Fn(&'static str, (DType, &[usize]), (DType, &[usize])) -> Result<()>,
) -> Result<&'a Tensor> {
    let [first, rest @ ..] = tensors else { return Err(Error::Empty { operation }) };
    let expected = (dtype(operation, first)?, first.dims());
    for (i, tensor) in rest.iter().enumerate() {
        let found = dtype(operation, tensor).map(|dtype| (dtype, tensor.dims()));
        found.and_then(|found| check(operation, expected, found)).map_err(|e| e.differs(what, i + 1))?;
    }
    Ok(first)
}

/// Calls `of` with copies of the tensors in host memory, and copies the result to the device of the first tensor.
fn through_host(tensors: &[&Tensor], of: impl FnOnce(&[&Tensor]) -> Result<Tensor>) -> Result<Tensor> {
    let Some(first) = tensors.first() else { return Err(Error::Empty { operation: "by host" }) };
    let there = tensors.iter().map(|tensor| tensor.to_device(&Device::Cpu));
    let there = there.collect::<candle_core::Result<Vec<_>>>()?;
    Ok(of(&there.iter().collect::<Vec<_>>())?.to_device(first.device())?)
}

/// Returns `true` if candle lacks operations for a dtype on the tensor's device.
fn is_unsupported(dtype: CandleDType, tensor: &Tensor) -> bool {
    match dtype {
        CandleDType::I16 | CandleDType::I32 => !tensor.device().is_cpu(),
        CandleDType::F64 => tensor.device().is_metal(),
        _ => false,
    }
}

fn all_on_host(tensors: &[&Tensor]) -> bool {
    tensors.iter().all(|t| t.device().is_cpu())
}

/// Copies the elements of a tensor on any device, in row-major order.
fn elements<T: WithDType>(tensor: &Tensor) -> Result<Vec<T>> {
    if all_on_host(&[tensor]) {
        return slices::<T, _>(&[tensor], |v| v[0].to_vec());
    }
    Ok(tensor.to_device(&Device::Cpu)?.flatten_all()?.to_vec1()?)
}

/// Concatenates the elements of tensors with the same dtype.
pub(crate) fn joined(tensors: &[&Tensor]) -> Result<HostTensor> {
    let Some(first) = tensors.first() else { return Err(Error::Empty { operation: "join" }) };
    if !all_on_host(tensors) {
        let host =
            tensors.iter().map(|tensor| HostTensor::from_candle(tensor)).collect::<Result<Vec<_>>>()?;
        return crate::host::joined(&host.iter().collect::<Vec<_>>());
    }
    with_type!("join", first.dtype(), T => Ok(HostTensor::vector(slices::<T, _>(tensors, |all| all.concat())?)))
}

/// Returns contiguous tensors with the same elements. Contiguous tensors are not copied.
fn contiguous(tensors: &[&Tensor]) -> Result<Vec<Tensor>> {
    Ok(tensors.iter().map(|t| t.contiguous()).collect::<candle_core::Result<_>>()?)
}

/// Locks the storages of tensors for reading. Returns the address of each tensor's storage, and the storages by their
/// addresses.
///
/// Each storage is locked only once, in the order of addresses. If tensors share a storage, locking it again could
/// deadlock with a writer that is waiting for the first lock to be released.
fn lock_storages(tensors: &[Tensor]) -> (Vec<usize>, BTreeMap<usize, StorageRef<'_>>) {
    let address = |t: &Tensor| std::ptr::from_ref::<Storage>(&t.storage_and_layout().0).addr();
    let addresses: Vec<usize> = tensors.iter().map(address).collect();
    let owners: BTreeMap<usize, &Tensor> = addresses.iter().copied().zip(tensors).collect();
    let guards = owners.into_iter().map(|(address, t)| (address, t.storage_and_layout().0)).collect();
    (addresses, guards)
}

/// Calls `f` with the elements of tensors on the CPU, in row-major order. Contiguous tensors are not copied.
// This function is compiled for many closures: what does not depend on the dtype is in the two above.
fn slices<T: WithDType, R>(tensors: &[&Tensor], f: impl FnOnce(&[&[T]]) -> R) -> Result<R> {
    let tensors = contiguous(tensors)?;
    let (addresses, guards) = lock_storages(&tensors);
    let mut views = Vec::with_capacity(tensors.len());
    for (tensor, address) in tensors.iter().zip(&addresses) {
        // A view without rows may begin after the end of the storage.
        let start = if tensor.elem_count() == 0 { 0 } else { tensor.layout().start_offset() };
        let view = match guards.get(address).map(|guard| &**guard) {
            Some(Storage::Cpu(storage)) => {
                T::cpu_storage_as_slice(storage)?.get(start..start + tensor.elem_count())
            }
            _ => None,
        };
        views.push(view.ok_or(Error::ElementCount { shape: tensor.dims().to_vec(), elements: 0 })?);
    }
    Ok(f(&views))
}
