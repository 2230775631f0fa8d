//! The two element types of variables that can be trained: f32 and f64.

use candle_core::{CpuStorage, DType, Layout, Result, Storage, Tensor, WithDType, bail};
use distribute_optim::Float;
use distribute_tensor::kernel::Scale;
use distribute_tensor::{Element, Wire};

/// A value for one of the two dtypes.
#[derive(Clone, Debug)]
pub enum EitherFloat<A, B> {
    /// The value for f32.
    F32(A),
    /// The value for f64.
    F64(B),
}

/// A vector of `f32` or `f64` elements.
pub type Elements = EitherFloat<Vec<f32>, Vec<f64>>;

impl Elements {
    /// Returns an empty vector of elements of the given dtype, which must be f32 or f64.
    pub fn none(dtype: DType) -> Self {
        match dtype {
            DType::F32 => EitherFloat::F32(Vec::new()),
            _ => EitherFloat::F64(Vec::new()),
        }
    }

    /// Removes all elements, and frees their memory.
    pub fn release(&mut self) {
        match self {
            EitherFloat::F32(elements) => *elements = Vec::new(),
            EitherFloat::F64(elements) => *elements = Vec::new(),
        }
    }
}

/// Returns the dtype in which elements of `dtype` are summed: f32 for half precision, otherwise `dtype` itself.
pub fn accumulation_dtype(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        dtype => dtype,
    }
}

/// Calls `then` with the elements of a contiguous CPU tensor, and returns the result of `then`.
///
/// # Errors
/// Returns candle's error if the tensor is on another device, is not contiguous or has a different dtype.
pub fn with_elements<T: Number, R>(tensor: &Tensor, then: impl FnOnce(&[T]) -> R) -> Result<R> {
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => operand(storage, layout).map(then),
        _ => bail!("a tensor on the CPU is required"),
    }
}

/// Returns the elements of a contiguous operand of a CPU operation.
///
/// For a tensor without elements, such as the columns of an empty batch, the layout may begin beyond the end of the
/// storage.
///
/// # Errors
/// Returns candle's error if the operand is not contiguous or has a different dtype.
pub fn operand<'a, T: WithDType>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [T]> {
    let all = T::cpu_storage_as_slice(storage)?;
    match layout.contiguous_offsets() {
        Some((start, end)) if start == end => Ok(&[]),
        Some((start, end)) => Ok(&all[start..end]),
        None => bail!("a contiguous tensor is required"),
    }
}

/// A float type whose values can be reduced, updated and stored in tensors.
pub trait Number: Float + Scale + Element + WithDType + bytemuck::Pod {
    /// Returns the number nearest to `value`. This is [`Float::from_f64`] under a name that does not conflict with
    /// candle's.
    #[inline]
    fn of(value: f64) -> Self {
        <Self as Float>::from_f64(value)
    }
    /// Rounds each `f32` as sending it in the type `wire` does. Does not change `f64`, which is sent unchanged.
    fn round(wire: Wire, numbers: &mut [Self]);
    /// Returns the square of the number, computed in f64.
    fn square(self) -> f64;
    /// Returns the exponential of the number.
    fn exp(self) -> Self;
    /// Returns the elements if they have this type, otherwise `None`.
    fn slice_of(vector: &Elements) -> Option<&[Self]>;
    /// Returns the vector of elements if they have this type, otherwise `None`.
    fn vec_of_mut(vector: &mut Elements) -> Option<&mut Vec<Self>>;
    /// Converts a vector to elements.
    fn into_elements(vector: Vec<Self>) -> Elements;
}

macro_rules! number {
    ($t:ident, $variant:ident, $round:expr) => {
        impl Number for $t {
            fn round(wire: Wire, numbers: &mut [Self]) {
                $round(wire, numbers);
            }
            fn square(self) -> f64 {
                f64::from(self) * f64::from(self)
            }
            fn exp(self) -> Self {
                <$t>::exp(self)
            }
            fn slice_of(vector: &Elements) -> Option<&[Self]> {
                match vector {
                    EitherFloat::$variant(v) => Some(v),
                    _ => None,
                }
            }
            fn vec_of_mut(vector: &mut Elements) -> Option<&mut Vec<Self>> {
                match vector {
                    EitherFloat::$variant(v) => Some(v),
                    _ => None,
                }
            }
            fn into_elements(vector: Vec<Self>) -> Elements {
                EitherFloat::$variant(vector)
            }
        }
    };
}
number!(f32, F32, Wire::round);
number!(f64, F64, |_, _: &mut [f64]| {});
