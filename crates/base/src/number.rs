//! The two element types that can be trained.

use candle_core::{CpuStorage, DType, Layout, Result, Storage, Tensor, WithDType, bail};
use distribute_optim::Float;
use distribute_tensor::Element;
use distribute_tensor::kernel::Scale;

/// Something of one of the two dtypes.
#[derive(Clone, Debug)]
pub enum Any<A, B> {
    /// The one of f32.
    F32(A),
    /// The one of f64.
    F64(B),
}

/// Elements of one of the two dtypes.
pub type Elements = Any<Vec<f32>, Vec<f64>>;

impl Elements {
    /// No elements, of a variable's dtype.
    pub fn none(dtype: DType) -> Self {
        match dtype {
            DType::F32 => Any::F32(Vec::new()),
            _ => Any::F64(Vec::new()),
        }
    }
}

/// The dtype for sums over what is of `dtype`: half precision would not do.
pub fn computed_in(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        dtype => dtype,
    }
}

/// Calls `then` with the elements of a contiguous CPU tensor.
///
/// # Errors
/// candle's, for another tensor.
pub fn with_elements<T: Number, R>(tensor: &Tensor, then: impl FnOnce(&[T]) -> R) -> Result<R> {
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => operand(storage, layout).map(then),
        _ => bail!("a tensor on the CPU is required"),
    }
}

/// The elements of a contiguous operand of an operation on the CPU.
///
/// Of a tensor without elements, such as columns of no rows, the layout may begin behind the end of the storage.
///
/// # Errors
/// candle's, for another operand.
pub fn operand<'a, T: WithDType>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [T]> {
    let all = T::cpu_storage_as_slice(storage)?;
    match layout.contiguous_offsets() {
        Some((start, end)) if start == end => Ok(&[]),
        Some((start, end)) => Ok(&all[start..end]),
        None => bail!("a contiguous tensor is required"),
    }
}

/// A float that can be reduced, updated and found in a tensor.
pub trait Number: Float + Scale + Element + WithDType + bytemuck::Pod {
    /// The nearest value: [`Float::from_f64`], a name that candle also uses.
    #[inline]
    fn of(value: f64) -> Self {
        <Self as Float>::from_f64(value)
    }
    /// The square, in f64.
    fn square(self) -> f64;
    /// The exponential function.
    fn exp(self) -> Self;
    /// The elements, if they are of this type.
    fn in_vector(vector: &Elements) -> Option<&[Self]>;
    /// The elements to be changed, if they are of this type.
    fn in_vector_mut(vector: &mut Elements) -> Option<&mut Vec<Self>>;
    /// Elements of this type.
    fn vector(vector: Vec<Self>) -> Elements;
}

macro_rules! number {
    ($t:ident, $variant:ident) => {
        impl Number for $t {
            fn square(self) -> f64 {
                f64::from(self) * f64::from(self)
            }
            fn exp(self) -> Self {
                <$t>::exp(self)
            }
            fn in_vector(vector: &Elements) -> Option<&[Self]> {
                match vector {
                    Any::$variant(v) => Some(v),
                    _ => None,
                }
            }
            fn in_vector_mut(vector: &mut Elements) -> Option<&mut Vec<Self>> {
                match vector {
                    Any::$variant(v) => Some(v),
                    _ => None,
                }
            }
            fn vector(vector: Vec<Self>) -> Elements {
                Any::$variant(vector)
            }
        }
    };
}
number!(f32, F32);
number!(f64, F64);
