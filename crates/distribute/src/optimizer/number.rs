//! The two element types that optimizers train, and what is of one or the other.

use candle_core::CpuStorage;
use distribute_optim::Float;
use distribute_tensor::Element;
use distribute_tensor::kernel::Scale;

/// Something of one of the two dtypes.
#[derive(Clone, Debug)]
pub(super) enum Any<A, B> {
    F32(A),
    F64(B),
}

/// A float that can be reduced, updated and found in a tensor.
pub(super) trait Number: Float + Scale + Element {
    fn of(value: f64) -> Self;
    fn square(self) -> f64;
    fn in_storage(storage: &CpuStorage) -> Option<&[Self]>;
    fn in_vector(vector: &Any<Vec<f32>, Vec<f64>>) -> Option<&[Self]>;
    fn vector(vector: Vec<Self>) -> Any<Vec<f32>, Vec<f64>>;
}

macro_rules! number {
    ($t:ident, $variant:ident) => {
        impl Number for $t {
            fn of(value: f64) -> Self {
                value as $t
            }
            fn square(self) -> f64 {
                f64::from(self) * f64::from(self)
            }
            fn in_storage(storage: &CpuStorage) -> Option<&[Self]> {
                match storage {
                    CpuStorage::$variant(v) => Some(v),
                    _ => None,
                }
            }
            fn in_vector(vector: &Any<Vec<f32>, Vec<f64>>) -> Option<&[Self]> {
                match vector {
                    Any::$variant(v) => Some(v),
                    _ => None,
                }
            }
            fn vector(vector: Vec<Self>) -> Any<Vec<f32>, Vec<f64>> {
                Any::$variant(vector)
            }
        }
    };
}
number!(f32, F32);
number!(f64, F64);
