//! Joining, slicing and selecting along axes, for all dtypes, including string and bool.

use crate::{DType, Element, Error, HostTensor, Result, kernel, with_buffer};

/// Returns `axis` if it is less than the rank, otherwise an error.
pub(crate) fn axis_of(operation: &'static str, axis: usize, dims: &[usize]) -> Result<usize> {
    if axis < dims.len() {
        return Ok(axis);
    }
    let shown = i64::try_from(axis).unwrap_or(i64::MAX);
    Err(Error::Axis { operation, axis: shown, rank: dims.len(), shape: dims.to_vec() })
}

/// Returns the product of the sizes before an axis, the size of the axis, and the product of the sizes after it.
pub(crate) fn sizes(dims: &[usize], axis: usize) -> (usize, usize, usize) {
    (dims[..axis].iter().product(), dims[axis], dims[axis + 1..].iter().product())
}

/// Returns the number of elements of a shape, or `None` on overflow.
///
/// Even if an axis is empty, the product of the other axes' sizes must not overflow. With `[usize::MAX, 2, 0]`, for
/// example, slicing along the last axis would multiply sizes that overflow. Such shapes are rejected for every order of
/// the axes.
pub(crate) fn count(shape: &[usize]) -> Option<usize> {
    let others = shape.iter().try_fold(1usize, |n, size| n.checked_mul((*size).max(1)))?;
    Some(if shape.contains(&0) { 0 } else { others })
}

/// Checks that the number of elements of a shape does not overflow.
fn check_count(operation: &'static str, shape: &[usize]) -> Result<()> {
    match count(shape) {
        Some(_) => Ok(()),
        None => Err(Error::TooLarge { operation, shape: shape.to_vec() }),
    }
}

/// Checks that `start..start + len` is within an axis of the given size.
pub(crate) fn check_range(operation: &'static str, start: usize, len: usize, size: usize) -> Result<()> {
    match start.checked_add(len) {
        Some(end) if end <= size => Ok(()),
        end => {
            let index = end.and_then(|e| i64::try_from(e).ok()).unwrap_or(i64::MAX);
            Err(Error::Index { operation, index: if len == 0 { index } else { index - 1 }, len: size })
        }
    }
}

/// Checks that all row indices are less than `len`.
pub(crate) fn check_rows(operation: &'static str, rows: &[usize], len: usize) -> Result<()> {
    match rows.iter().find(|r| **r >= len) {
        Some(row) => Err(Error::Index { operation, index: i64::try_from(*row).unwrap_or(i64::MAX), len }),
        None => Ok(()),
    }
}

/// Checks that two values have the same dtype and shape.
pub(crate) fn check_same(
    operation: &'static str,
    expected: (DType, &[usize]),
    found: (DType, &[usize]),
) -> Result<()> {
    if expected.1 != found.1 {
        return Err(Error::ShapeMismatch {
            operation,
            expected: expected.1.to_vec(),
            found: found.1.to_vec(),
        });
    }
    if expected.0 != found.0 {
        return Err(Error::DTypeMismatch { operation, expected: expected.0, found: found.0 });
    }
    Ok(())
}

/// Checks that a tensor can be joined to the first one along `axis`. The dtype, the rank and the sizes of all other
/// axes must be equal.
pub(crate) fn check_pieces(
    operation: &'static str,
    axis: usize,
    expected: (DType, &[usize]),
    found: (DType, &[usize]),
) -> Result<()> {
    let mut free = found.1.to_vec();
    if let (Some(size), Some(first)) = (free.get_mut(axis), expected.1.get(axis)) {
        *size = *first;
    }
    if free != expected.1 {
        return Err(Error::ShapeMismatch {
            operation,
            expected: expected.1.to_vec(),
            found: found.1.to_vec(),
        });
    }
    check_same(operation, expected, (found.0, expected.1))
}

impl HostTensor {
    /// Joins tensors along an axis, in order. Their sizes may differ only along that axis. Tensors may be empty.
    ///
    /// # Errors
    /// - [`Error::Empty`]: `tensors` is empty.
    /// - [`Error::Axis`]: `axis` is not less than the rank. A scalar has no axis.
    /// - [`Error::Differs`]: a tensor does not match the first one.
    /// - [`Error::TooLarge`]: the number of elements of the result overflows.
    pub fn concat(tensors: &[&HostTensor], axis: usize) -> Result<HostTensor> {
        const OPERATION: &str = "concat";
        let [first, rest @ ..] = tensors else { return Err(Error::Empty { operation: OPERATION }) };
        axis_of(OPERATION, axis, first.dims())?;
        for (i, tensor) in rest.iter().enumerate() {
            let (expected, found) = ((first.dtype(), first.dims()), (tensor.dtype(), tensor.dims()));
            check_pieces(OPERATION, axis, expected, found).map_err(|e| e.differs("replica", i + 1))?;
        }
        fn join<T: Element>(_: &[T], tensors: &[&HostTensor], chunks: &[usize]) -> Result<Vec<T>> {
            let pieces = tensors.iter().map(|t| t.typed::<T>(OPERATION)).collect::<Result<Vec<_>>>()?;
            Ok(kernel::concat(&pieces, chunks))
        }
        let mut shape = first.dims().to_vec();
        let size = tensors.iter().try_fold(0usize, |size, t| size.checked_add(t.dims()[axis]));
        shape[axis] = size.ok_or_else(|| Error::TooLarge { operation: OPERATION, shape: shape.clone() })?;
        check_count(OPERATION, &shape)?;
        let chunks: Vec<usize> = tensors.iter().map(|t| t.dims()[axis..].iter().product()).collect();
        with_buffer!(first.buffer(), v => HostTensor::new(join(v, tensors, &chunks)?, shape))
    }

    /// Stacks tensors with the same shape and dtype along a new axis 0.
    ///
    /// # Errors
    /// - [`Error::Empty`]: `tensors` is empty.
    /// - [`Error::Differs`]: a tensor does not match the first one.
    /// - [`Error::TooLarge`]: the number of elements of the result overflows.
    pub fn stack(tensors: &[&HostTensor]) -> Result<HostTensor> {
        const OPERATION: &str = "stack";
        let [first, rest @ ..] = tensors else { return Err(Error::Empty { operation: OPERATION }) };
        for (i, tensor) in rest.iter().enumerate() {
            let (expected, found) = ((first.dtype(), first.dims()), (tensor.dtype(), tensor.dims()));
            check_same(OPERATION, expected, found).map_err(|e| e.differs("element", i + 1))?;
        }
        fn join<T: Element>(_: &[T], tensors: &[&HostTensor]) -> Result<Vec<T>> {
            Ok(tensors.iter().map(|t| t.typed::<T>(OPERATION)).collect::<Result<Vec<_>>>()?.concat())
        }
        let shape: Vec<usize> = [tensors.len()].iter().chain(first.dims()).copied().collect();
        check_count(OPERATION, &shape)?;
        with_buffer!(first.buffer(), v => HostTensor::new(join(v, tensors)?, shape))
    }

    /// Returns `len` entries along an axis, beginning at index `start`.
    ///
    /// # Errors
    /// - [`Error::Axis`]: `axis` is not less than the rank.
    /// - [`Error::Index`]: the range exceeds the axis.
    pub fn narrow(&self, axis: usize, start: usize, len: usize) -> Result<HostTensor> {
        axis_of("narrow", axis, self.dims())?;
        let (_, size, inner) = sizes(self.dims(), axis);
        check_range("narrow", start, len, size)?;
        if len == size {
            return Ok(self.clone());
        }
        let mut shape = self.dims().to_vec();
        shape[axis] = len;
        with_buffer!(self.buffer(), v => {
            HostTensor::new(kernel::narrow(v, size * inner, start * inner, len * inner), shape)
        })
    }

    /// Returns the given rows (indices along axis 0), in the given order. A row may occur more than once.
    ///
    /// # Errors
    /// - [`Error::Axis`]: the tensor is a scalar.
    /// - [`Error::Index`]: a row does not exist.
    /// - [`Error::TooLarge`]: the number of elements of the result overflows.
    pub fn take_rows(&self, rows: &[usize]) -> Result<HostTensor> {
        axis_of("take_rows", 0, self.dims())?;
        let (_, size, inner) = sizes(self.dims(), 0);
        check_rows("take_rows", rows, size)?;
        fn take<T: Element>(v: &[T], rows: &[usize], inner: usize) -> Vec<T> {
            let mut out = Vec::with_capacity(rows.len() * inner);
            rows.iter().for_each(|r| out.extend_from_slice(&v[r * inner..(r + 1) * inner]));
            out
        }
        let mut shape = self.dims().to_vec();
        shape[0] = rows.len();
        check_count("take_rows", &shape)?;
        with_buffer!(self.buffer(), v => HostTensor::new(take(v, rows, inner), shape))
    }

    /// Returns the given rows of several tensors, in the order of the tensors. Shapes may differ only along axis 0.
    ///
    /// # Errors
    /// - [`Error::Empty`]: `parts` is empty.
    /// - [`Error::Axis`]: the first tensor is a scalar.
    /// - [`Error::Differs`]: a tensor does not match the first one.
    /// - [`Error::Index`]: a row does not exist.
    /// - [`Error::TooLarge`]: the number of elements of the result overflows.
    ///
    /// ```
    /// use distribute_tensor::HostTensor;
    ///
    /// let (some, others) = (HostTensor::new(vec![1, 2, 3, 4], [2, 2])?, HostTensor::new(vec![5, 6], [1, 2])?);
    /// let rows = HostTensor::take_rows_of(&[(&some, &[1]), (&others, &[0, 0])])?;
    /// assert_eq!((rows.dims(), rows.to_vec::<i32>()?), (&[3, 2][..], vec![3, 4, 5, 6, 5, 6]));
    /// assert!(HostTensor::take_rows_of(&[(&some, &[0]), (&others, &[1])]).is_err());
    /// # Ok::<(), distribute_tensor::Error>(())
    /// ```
    pub fn take_rows_of(parts: &[(&HostTensor, &[usize])]) -> Result<HostTensor> {
        const OPERATION: &str = "take_rows_of";
        let [(first, _), ..] = parts else { return Err(Error::Empty { operation: OPERATION }) };
        axis_of(OPERATION, 0, first.dims())?;
        for (i, (tensor, rows)) in parts.iter().enumerate() {
            let (expected, found) = ((first.dtype(), first.dims()), (tensor.dtype(), tensor.dims()));
            check_pieces(OPERATION, 0, expected, found).map_err(|e| e.differs("tensor", i))?;
            check_rows(OPERATION, rows, tensor.dims()[0])?;
        }
        fn take<T: Element>(_: &[T], parts: &[(&HostTensor, &[usize])], inner: usize) -> Result<Vec<T>> {
            let count: usize = parts.iter().map(|(_, rows)| rows.len()).sum();
            let mut out = Vec::with_capacity(count * inner);
            for (tensor, rows) in parts {
                let v = tensor.typed::<T>(OPERATION)?;
                rows.iter().for_each(|r| out.extend_from_slice(&v[r * inner..(r + 1) * inner]));
            }
            Ok(out)
        }
        let mut shape = first.dims().to_vec();
        let (_, _, inner) = sizes(&shape, 0);
        shape[0] = parts.iter().map(|(_, rows)| rows.len()).fold(0, usize::saturating_add);
        check_count(OPERATION, &shape)?;
        with_buffer!(first.buffer(), v => HostTensor::new(take(v, parts, inner)?, shape))
    }

    /// Returns the row at `index` along axis 0, without that axis.
    ///
    /// # Errors
    /// - [`Error::Axis`]: the tensor is a scalar.
    /// - [`Error::Index`]: the row does not exist.
    pub fn row(&self, index: usize) -> Result<HostTensor> {
        axis_of("row", 0, self.dims())?;
        let (_, size, inner) = sizes(self.dims(), 0);
        check_rows("row", &[index], size)?;
        with_buffer!(self.buffer(), v => {
            HostTensor::new(v[index * inner..(index + 1) * inner].to_vec(), &self.dims()[1..])
        })
    }

    /// Returns a tensor with the same elements, which remain shared, and the given shape.
    ///
    /// # Errors
    /// - [`Error::ElementCount`]: the shape has a different number of elements.
    pub fn reshape(&self, shape: impl Into<Vec<usize>>) -> Result<HostTensor> {
        let shape = shape.into();
        if count(&shape) != Some(self.len()) {
            return Err(Error::ElementCount { shape, elements: self.len() });
        }
        Ok(HostTensor { shape, ..self.clone() })
    }
}

/// Concatenates the elements of tensors with the same dtype.
pub(crate) fn joined(tensors: &[&HostTensor]) -> Result<HostTensor> {
    fn all<T: Element>(_: &[T], tensors: &[&HostTensor]) -> Result<HostTensor> {
        let parts = tensors.iter().map(|tensor| tensor.typed::<T>("join")).collect::<Result<Vec<_>>>()?;
        Ok(HostTensor::vector(parts.concat()))
    }
    let first = tensors.first().ok_or(Error::Empty { operation: "join" })?;
    with_buffer!(first.buffer(), v => all(v, tensors))
}
