//! Sums and means of host tensors.

use super::{axis_of, check_same, sizes};
use crate::dtype::{Buffer, with_summable};
use crate::fold::{Alone, Folder, mean};
use crate::kernel::{self, Sum, Summand};
use crate::{DType, Element, Error, HostTensor, ReduceOp, Result};
use half::{bf16, f16};
use num_complex::Complex;

const REDUCE: &str = "reduce";

impl HostTensor {
    /// Returns the element-wise sum or mean of tensors with the same shape and dtype. Elements are added in the order
    /// of [`kernel::fold`].
    ///
    /// A SUM of integers wraps. A MEAN is computed from a sum that does not wrap; for integers, the mean is a float,
    /// see [`DType::mean`](crate::DType::mean). Floats of 16 bits are accumulated and divided as `f32`, and rounded
    /// once.
    ///
    /// # Errors
    /// - [`Error::Empty`]: `tensors` is empty.
    /// - [`Error::Differs`]: a tensor has a different dtype or shape than the first one.
    /// - [`Error::UnsupportedDType`]: the dtype is bool or string, even for a single tensor.
    // Crates that call this would otherwise compile the sums of all dtypes again.
    #[inline(never)]
    pub fn reduce(op: ReduceOp, tensors: &[&HostTensor]) -> Result<HostTensor> {
        Self::reduce_with(op, tensors, &Alone)
    }

    /// Acts like [`HostTensor::reduce`], but `folder` computes the elements. The result is bit-identical.
    ///
    /// # Errors
    /// Returns the errors of [`HostTensor::reduce`].
    pub fn reduce_with(op: ReduceOp, tensors: &[&HostTensor], folder: &impl Folder) -> Result<HostTensor> {
        let [first, rest @ ..] = tensors else { return Err(Error::Empty { operation: REDUCE }) };
        for (i, tensor) in rest.iter().enumerate() {
            let (expected, found) = ((first.dtype(), first.dims()), (tensor.dtype(), tensor.dims()));
            check_same(REDUCE, expected, found).map_err(|e| e.differs("replica", i + 1))?;
        }
        let (n, dtype) = (tensors.len(), summable(first.dtype())?);
        if let (ReduceOp::Mean, Some(mean)) = (op, dtype.mean().filter(|mean| *mean != dtype)) {
            let wide = tensors.iter().map(|t| t.cast(dtype.of_sum(op))).collect::<Result<Vec<_>>>()?;
            let sum = Self::reduce_with(ReduceOp::Sum, &wide.iter().collect::<Vec<_>>(), folder)?;
            return sum.divide(n as f64)?.cast(mean);
        }
        if rest.is_empty() {
            return Ok((*first).clone());
        }
        fn made<T: Element>(
            _: &[T],
            tensors: &[&HostTensor],
            fold: impl FnOnce(&[&[T]]) -> Vec<T>,
        ) -> Result<HostTensor> {
            let inputs = tensors.iter().map(|t| t.typed::<T>(REDUCE)).collect::<Result<Vec<_>>>()?;
            HostTensor::new(fold(&inputs), tensors[0].dims())
        }
        let sum = match (op, first.buffer()) {
            (ReduceOp::Sum, Buffer::F16(v)) => {
                return made(v, tensors, |inputs| folder.fold(inputs, |sum| sum));
            }
            (ReduceOp::Sum, Buffer::Bf16(v)) => {
                return made(v, tensors, |inputs| folder.fold(inputs, |sum| sum));
            }
            // This divides as `divide` does, without a second pass over the elements.
            (ReduceOp::Mean, Buffer::F16(v)) => {
                return made(v, tensors, |inputs| mean(folder, inputs, n as f32));
            }
            (ReduceOp::Mean, Buffer::Bf16(v)) => {
                return made(v, tensors, |inputs| mean(folder, inputs, n as f32));
            }
            (ReduceOp::Mean, Buffer::F32(v)) => {
                return made(v, tensors, |inputs| mean(folder, inputs, n as f32));
            }
            (ReduceOp::Mean, Buffer::F64(v)) => {
                return made(v, tensors, |inputs| mean(folder, inputs, n as f64));
            }
            (_, buffer) => with_summable!(buffer, v => {
                made(v, tensors, |inputs| folder.fold(inputs, |sum| sum))
            }, else Err(Error::UnsupportedDType { operation: REDUCE, dtype: first.dtype() }))?,
        };
        match op {
            ReduceOp::Sum => Ok(sum),
            ReduceOp::Mean => sum.divide(n as f64),
        }
    }

    /// Returns the sum over the given axes, which are removed.
    ///
    /// Integers wrap. Floats of 16 bits are summed in `f32` and rounded once. Axes are summed from the last to the
    /// first, each in the order of [`kernel::sum_axis`]. The sum over an empty axis is zero.
    ///
    /// # Errors
    /// - [`Error::Axis`]: an axis is not less than the rank.
    /// - [`Error::DuplicateAxis`]: an axis occurs twice.
    /// - [`Error::UnsupportedDType`]: the dtype is bool or string, and `axes` is not empty.
    pub fn sum_axes(&self, axes: &[usize]) -> Result<HostTensor> {
        const OPERATION: &str = "sum_axes";
        let axes = check_axes(OPERATION, axes, self.dims())?;
        if axes.is_empty() {
            return Ok(self.clone());
        }
        fn of<T: Element + Summand>(v: &[T], dims: &[usize], axes: &[usize]) -> Result<HostTensor> {
            let (sum, shape) = sum_over(v, dims, axes);
            HostTensor::new(sum, shape)
        }
        match self.buffer() {
            Buffer::F16(v) => of(v, self.dims(), &axes),
            Buffer::Bf16(v) => of(v, self.dims(), &axes),
            buffer => with_summable!(buffer, v => of(v, self.dims(), &axes),
                else Err(Error::UnsupportedDType { operation: OPERATION, dtype: self.dtype() })),
        }
    }

    /// Divides every element by `by`. Integers become floats; see [`DType::mean`](crate::DType::mean). Division by 0
    /// results in NaN or infinity.
    ///
    /// # Errors
    /// - [`Error::UnsupportedDType`]: the dtype is bool or string.
    pub fn divide(&self, by: f64) -> Result<HostTensor> {
        fn map<T, U>(v: &[T], f: impl Fn(&T) -> U) -> Vec<U> {
            v.iter().map(f).collect()
        }
        let narrow = by as f32;
        let buffer = match self.buffer() {
            Buffer::F16(v) => Buffer::F16(map(v, |x| f16::from_f32(x.to_f32() / narrow))),
            Buffer::Bf16(v) => Buffer::Bf16(map(v, |x| bf16::from_f32(x.to_f32() / narrow))),
            Buffer::F32(v) => Buffer::F32(map(v, |x| x / narrow)),
            Buffer::F64(v) => Buffer::F64(map(v, |x| x / by)),
            Buffer::I8(v) => Buffer::F32(map(v, |x| f32::from(*x) / narrow)),
            Buffer::U8(v) => Buffer::F32(map(v, |x| f32::from(*x) / narrow)),
            Buffer::I16(v) => Buffer::F32(map(v, |x| f32::from(*x) / narrow)),
            Buffer::U16(v) => Buffer::F32(map(v, |x| f32::from(*x) / narrow)),
            Buffer::I32(v) => Buffer::F64(map(v, |x| f64::from(*x) / by)),
            Buffer::U32(v) => Buffer::F64(map(v, |x| f64::from(*x) / by)),
            Buffer::I64(v) => Buffer::F64(map(v, |x| *x as f64 / by)),
            Buffer::U64(v) => Buffer::F64(map(v, |x| *x as f64 / by)),
            Buffer::C64(v) => Buffer::C64(map(v, |x| Complex::new(x.re / narrow, x.im / narrow))),
            Buffer::C128(v) => Buffer::C128(map(v, |x| Complex::new(x.re / by, x.im / by))),
            Buffer::Bool(_) | Buffer::String(_) => {
                return Err(Error::UnsupportedDType { operation: "divide", dtype: self.dtype() });
            }
        };
        HostTensor::from_buffer(buffer, self.dims())
    }
}

/// Returns the dtype if its values can be summed, otherwise an error.
pub(crate) fn summable(dtype: DType) -> Result<DType> {
    match dtype.mean() {
        Some(_) => Ok(dtype),
        None => Err(Error::UnsupportedDType { operation: REDUCE, dtype }),
    }
}

/// Returns the axes in ascending order. Returns an error if an axis is not less than the rank, or occurs twice.
pub(crate) fn check_axes(operation: &'static str, axes: &[usize], dims: &[usize]) -> Result<Vec<usize>> {
    let mut sorted = axes.to_vec();
    sorted.sort_unstable();
    for (i, axis) in sorted.iter().enumerate() {
        axis_of(operation, *axis, dims)?;
        if i > 0 && sorted[i - 1] == *axis {
            return Err(Error::DuplicateAxis { operation, axis: *axis });
        }
    }
    Ok(sorted)
}

/// Sums over the given axes, from the last to the first. The axes must be in ascending order. Returns the sum and its
/// shape.
pub(crate) fn sum_over<T: Summand>(elements: &[T], dims: &[usize], axes: &[usize]) -> (Vec<T>, Vec<usize>) {
    let mut shape = dims.to_vec();
    let mut current: Option<Vec<T::Sum>> = None;
    for axis in axes.iter().rev() {
        let (outer, len, inner) = sizes(&shape, *axis);
        let mut out = vec![T::Sum::ZERO; outer * inner];
        match &current {
            Some(sums) => kernel::sum_axis(sums, outer, len, inner, &mut out),
            None => kernel::sum_axis(elements, outer, len, inner, &mut out),
        }
        shape.remove(*axis);
        current = Some(out);
    }
    let narrow = |sums: Vec<T::Sum>| sums.into_iter().map(T::narrow).collect();
    (current.map_or_else(|| elements.to_vec(), narrow), shape)
}
