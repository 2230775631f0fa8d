//! Tensors in host memory, of any of the 16 dtypes.

mod cast;
mod display;
mod index;
mod reduce;
mod shape;
mod write;

pub(crate) use display::shape as write_shape;
pub use index::{Index, Selection};
pub(crate) use reduce::summable;
#[cfg(feature = "candle")]
pub(crate) use reduce::{check_axes, sum_over};
pub(crate) use shape::{axis_of, check_pieces, check_same, count, joined, sizes};
#[cfg(feature = "candle")]
pub(crate) use shape::{check_range, check_rows};

use crate::dtype::Buffer;
use crate::{DType, Element, Error, Result};
use std::sync::Arc;

/// A tensor in host memory, with a dtype, a shape and its elements in row-major order.
///
/// Clones share the elements. When a clone is first changed, it copies them. Two tensors are equal if their dtypes,
/// shapes and all elements are equal. As in Rust, NaN is not equal to itself.
///
/// ```
/// use distribute_tensor::{DType, HostTensor};
///
/// let matrix = HostTensor::new(vec![1i32, 2, 3, 4], [2, 2])?;
/// assert_eq!(matrix.row(1)?, HostTensor::vector(vec![3i32, 4]));
/// assert_eq!(matrix.cast(DType::F32)?.sum_axes(&[0, 1])?.item::<f32>()?, 10.0);
/// assert_eq!(matrix.to_string(), "<Tensor: shape=(2, 2), dtype=int32, data=\n[[1, 2],\n [3, 4]]>");
/// # Ok::<(), distribute_tensor::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct HostTensor {
    shape: Vec<usize>,
    buffer: Arc<Buffer>,
}

impl HostTensor {
    /// Creates a tensor with the given shape and elements, which are in row-major order.
    ///
    /// # Errors
    /// - [`Error::ElementCount`]: the number of elements does not match the shape, or the product of the sizes of
    ///   its nonempty axes overflows.
    pub fn new<T: Element>(elements: Vec<T>, shape: impl Into<Vec<usize>>) -> Result<Self> {
        Self::from_buffer(T::into_buffer(elements), shape)
    }

    /// Creates a tensor with the elements of a buffer and the given shape.
    ///
    /// # Errors
    /// Returns the errors of [`new`](Self::new).
    pub fn from_buffer(buffer: Buffer, shape: impl Into<Vec<usize>>) -> Result<Self> {
        let shape = shape.into();
        if count(&shape) != Some(buffer.len()) {
            return Err(Error::ElementCount { shape, elements: buffer.len() });
        }
        Ok(Self { shape, buffer: Arc::new(buffer) })
    }

    /// Creates a tensor of rank 0 with one element.
    pub fn scalar<T: Element>(value: T) -> Self {
        Self { shape: Vec::new(), buffer: Arc::new(T::into_buffer(vec![value])) }
    }

    /// Creates a tensor of rank 1 with the given elements.
    pub fn vector<T: Element>(elements: Vec<T>) -> Self {
        Self { shape: vec![elements.len()], buffer: Arc::new(T::into_buffer(elements)) }
    }

    /// Creates a tensor filled with zeros, `false` or empty strings.
    ///
    /// # Errors
    /// - [`Error::TooLarge`]: there is not enough memory for the elements, or their number overflows.
    pub fn zeros(dtype: DType, shape: impl Into<Vec<usize>>) -> Result<Self> {
        let shape = shape.into();
        let bytes = dtype.bytes().unwrap_or(std::mem::size_of::<Vec<u8>>());
        let fits = |len: &usize| len.checked_mul(bytes).is_some_and(is_allocatable);
        match count(&shape).filter(fits) {
            Some(len) => Ok(Self { shape, buffer: Arc::new(Buffer::zeros(dtype, len)) }),
            None => Err(Error::TooLarge { operation: "zeros", shape }),
        }
    }

    /// Returns the dtype of the elements.
    pub fn dtype(&self) -> DType {
        self.buffer.dtype()
    }

    /// Returns the shape: the size of each axis.
    pub fn dims(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the elements, or `None` if they do not have type `T`.
    pub fn as_slice<T: Element>(&self) -> Option<&[T]> {
        T::slice(&self.buffer)
    }

    /// Returns the elements as a buffer, regardless of their type.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Returns the elements as a mutable buffer. Copies them first if a clone shares them.
    pub(crate) fn buffer_mut(&mut self) -> &mut Buffer {
        Arc::make_mut(&mut self.buffer)
    }

    /// Returns the size in bytes that the elements occupy in memory, including the contents of strings.
    pub fn memory(&self) -> usize {
        match &*self.buffer {
            Buffer::String(texts) => texts.iter().map(|text| text.len() + size_of::<Vec<u8>>()).sum(),
            _ => self.len().saturating_mul(self.dtype().bytes().unwrap_or_default()),
        }
    }

    /// Returns the elements as a mutable slice, or `None` if they do not have type `T`. Copies them first if a clone
    /// shares them.
    pub fn as_mut_slice<T: Element>(&mut self) -> Option<&mut [T]> {
        if self.dtype() != T::DTYPE {
            return None;
        }
        T::vec_mut(self.buffer_mut()).map(Vec::as_mut_slice)
    }

    /// Returns a copy of the elements.
    ///
    /// # Errors
    /// - [`Error::DTypeMismatch`]: the elements do not have type `T`.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.typed("to_vec").map(<[T]>::to_vec)
    }

    /// Converts the tensor to a vector of its elements. They are copied only if a clone shares them.
    ///
    /// # Errors
    /// - [`Error::DTypeMismatch`]: the elements do not have type `T`.
    pub fn into_vec<T: Element>(mut self) -> Result<Vec<T>> {
        self.typed::<T>("into_vec")?;
        Ok(T::vec_mut(self.buffer_mut()).map(std::mem::take).unwrap_or_default())
    }

    /// Returns the only element of a tensor of any rank.
    ///
    /// # Errors
    /// - [`Error::ElementCount`]: the tensor does not have exactly one element.
    /// - [`Error::DTypeMismatch`]: the element does not have type `T`.
    pub fn item<T: Element>(&self) -> Result<T> {
        match self.typed::<T>("item")? {
            [value] => Ok(value.clone()),
            other => Err(Error::ElementCount { shape: Vec::new(), elements: other.len() }),
        }
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Returns the number of axes.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Returns the dtype and the shape as text, such as `float32[2, 3]`.
    pub fn describe(&self) -> String {
        format!("{}{:?}", self.dtype(), self.shape)
    }

    /// Returns the elements if they have type `T`, or an error with both dtypes.
    pub(crate) fn typed<T: Element>(&self, operation: &'static str) -> Result<&[T]> {
        self.as_slice().ok_or(Error::DTypeMismatch { operation, expected: T::DTYPE, found: self.dtype() })
    }
}

/// Returns whether `bytes` bytes can be allocated. Call this before an allocation whose size is not checked otherwise,
/// because a failed allocation aborts the process.
fn is_allocatable(bytes: usize) -> bool {
    /// The size in bytes from which an allocation is tried first. Smaller allocations are assumed to succeed.
    const LARGE: usize = 1 << 30;
    bytes < LARGE || Vec::<u8>::new().try_reserve_exact(bytes).is_ok()
}
