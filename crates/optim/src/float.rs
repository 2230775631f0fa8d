//! The two types that rules compute in.

use std::fmt::Debug;
use std::ops::{Add, AddAssign, Div, Mul, Sub};

use distribute_tensor::kernel::Sum;

use crate::{Rule, Step, UpdateError};

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}
pub(crate) use sealed::Sealed;

/// `f32` or `f64`: what a [`Formula`](crate::Formula) may do with an element.
///
/// A formula is also applied to a number that only writes down what is done with it, to be done with tensors on a GPU: see
/// [`Rule::program`]. One that compares elements stays on the CPU; [`select_at_most`](Float::select_at_most) goes everywhere.
///
/// Sealed, since [`Rule`] has one method for each of them.
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
    /// The nearest value: how coefficients, computed in `f64`, reach the elements.
    fn from_f64(value: f64) -> Self;
    /// √self, rounded correctly.
    fn sqrt(self) -> Self;
    /// self to the power of `exponent`. On a GPU it is one number for all elements: [`from_f64`](Float::from_f64).
    fn powf(self, exponent: Self) -> Self;
    /// |self|.
    fn abs(self) -> Self;
    /// |self| with the sign of `sign`.
    fn copysign(self, sign: Self) -> Self;
    /// `then` where self ≤ `bound`, else `otherwise`, also for NaN.
    fn select_at_most(self, bound: Self, then: Self, otherwise: Self) -> Self;

    #[doc(hidden)]
    fn update<R: Rule + ?Sized>(
        rule: &R,
        at: Step,
        var: &mut [Self],
        grad: &[Self],
        slots: &mut [&mut [Self]],
    ) -> Result<(), UpdateError>;

    #[doc(hidden)]
    fn update_rows<R: Rule + ?Sized>(
        rule: &R,
        at: Step,
        var: &mut [Self],
        row_len: usize,
        rows: &[usize],
        grads: &[Self],
        slots: &mut [&mut [Self]],
    ) -> Result<(), UpdateError>;
}

macro_rules! float {
    ($float:ident, $update:ident, $update_rows:ident) => {
        impl Float for $float {
            #[inline]
            fn from_f64(value: f64) -> Self {
                value as Self
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

            fn update<R: Rule + ?Sized>(
                rule: &R,
                at: Step,
                var: &mut [Self],
                grad: &[Self],
                slots: &mut [&mut [Self]],
            ) -> Result<(), UpdateError> {
                rule.$update(at, var, grad, slots)
            }

            fn update_rows<R: Rule + ?Sized>(
                rule: &R,
                at: Step,
                var: &mut [Self],
                row_len: usize,
                rows: &[usize],
                grads: &[Self],
                slots: &mut [&mut [Self]],
            ) -> Result<(), UpdateError> {
                rule.$update_rows(at, var, row_len, rows, grads, slots)
            }
        }
    };
}
float!(f32, update_f32, update_rows_f32);
float!(f64, update_f64, update_rows_f64);
