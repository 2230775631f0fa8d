//! The two floating-point types with which rules compute.

use std::fmt::Debug;
use std::ops::{Add, AddAssign, Div, Mul, Sub};

use distribute_tensor::kernel::Sum;

use crate::UpdateError;

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}
pub(crate) use sealed::Sealed;

/// A floating-point number, `f32` or `f64`, with the operations that a [`Formula`](crate::Formula) may use.
///
/// To run on a GPU, a formula is also called with a type that records its operations; see
/// [`Rule::program`](crate::Rule::program). A formula that compares elements can only run on the CPU. Use
/// [`select_at_most`](Float::select_at_most) instead, which runs everywhere.
///
/// The trait is sealed, because [`Rule`](crate::Rule) has a separate method for each type.
pub trait Float:
    sealed::Sealed
    + Sum
    + Debug
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + AddAssign
{
    /// Returns the nearest value of this type. Use this for coefficients that are computed in `f64`.
    fn from_f64(value: f64) -> Self;
    /// Returns the same number in `f64`. A formula that calls this can only run on the CPU.
    #[doc(hidden)]
    fn widened(self) -> f64;
    /// Returns √self, correctly rounded.
    fn sqrt(self) -> Self;
    /// Returns `self` to the power of `exponent`. On a GPU, the exponent must be the same for all elements, and
    /// created with [`from_f64`](Float::from_f64).
    fn powf(self, exponent: Self) -> Self;
    /// Returns |self|.
    fn abs(self) -> Self;
    /// Returns |self| with the sign of `sign`.
    fn copysign(self, sign: Self) -> Self;
    /// Returns `then` if self ≤ `bound`, and `otherwise` if it is greater or one of the two is NaN.
    fn select_at_most(self, bound: Self, then: Self, otherwise: Self) -> Self;

    /// Calls `on_f32` or `on_f64`, depending on whether this type is `f32` or `f64`.
    #[doc(hidden)]
    fn by_type(
        slices: Slices<'_, '_, Self>,
        on_f32: impl FnOnce(Slices<'_, '_, f32>) -> Result<(), UpdateError>,
        on_f64: impl FnOnce(Slices<'_, '_, f64>) -> Result<(), UpdateError>,
    ) -> Result<(), UpdateError>;
}

/// The slices of an update: the variable, the gradient and the slots.
#[doc(hidden)]
pub type Slices<'a, 'b, F> = (&'a mut [F], &'a [F], &'a mut [&'b mut [F]]);

macro_rules! float {
    ($float:ident, |$on_f32:ident, $on_f64:ident| $chosen:ident) => {
        impl Float for $float {
            #[inline]
            fn from_f64(value: f64) -> Self {
                value as Self
            }
            #[inline]
            fn widened(self) -> f64 {
                self.into()
            }
            #[inline]
            fn sqrt(self) -> Self {
                self.sqrt()
            }
            #[inline]
            fn powf(self, exponent: Self) -> Self {
                self.powf(exponent)
            }
            #[inline]
            fn abs(self) -> Self {
                self.abs()
            }
            #[inline]
            fn copysign(self, sign: Self) -> Self {
                self.copysign(sign)
            }
            #[inline]
            fn select_at_most(self, bound: Self, then: Self, otherwise: Self) -> Self {
                if self <= bound { then } else { otherwise }
            }

            fn by_type(
                slices: Slices<'_, '_, Self>,
                $on_f32: impl FnOnce(Slices<'_, '_, f32>) -> Result<(), UpdateError>,
                $on_f64: impl FnOnce(Slices<'_, '_, f64>) -> Result<(), UpdateError>,
            ) -> Result<(), UpdateError> {
                $chosen(slices)
            }
        }
    };
}
float!(f32, |on_f32, _on_f64| on_f32);
float!(f64, |_on_f32, on_f64| on_f64);
