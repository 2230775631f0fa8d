//! Elements that can be added and multiplied by weights.

use half::{bf16, f16};
use num_complex::{Complex32, Complex64};

/// A number type in which sums are computed: floats of at least 32 bits, integers (which wrap) and complex numbers.
pub trait Sum: Copy + Default + Send + Sync + 'static {
    /// The zero of this type, which is the sum of no elements.
    const ZERO: Self;
    /// Returns `self + other`; integers wrap.
    fn plus(self, other: Self) -> Self;
}

/// An element that can be summed: every [`Sum`] and 16-bit floats, but not bool and string.
///
/// 16-bit floats have no `plus`. They are accumulated as `f32`, and the sum is rounded once. Rounding after each
/// addition would lose small numbers (256 + 1 + 1 is 256 in `bf16`), and could overflow before the division of a mean.
pub trait Summand: Copy + Default + Send + Sync + 'static {
    /// The type in which these elements are summed.
    type Sum: Sum;
    /// Converts the element to the type of its sums.
    fn widen(self) -> Self::Sum;
    /// Rounds a sum to the nearest element; ties go to the even one.
    fn narrow(sum: Self::Sum) -> Self;
}

/// An element that can be multiplied by a weight of the same type.
pub trait Scale: Sum {
    /// Returns `self * weight`, rounded once. The product is never fused with an addition, so the result is the same on
    /// all machines.
    fn times(self, weight: Self) -> Self;
}

impl<T: Sum> Summand for T {
    type Sum = T;

    #[inline(always)]
    fn widen(self) -> T {
        self
    }

    #[inline(always)]
    fn narrow(sum: T) -> T {
        sum
    }
}

impl Summand for f16 {
    type Sum = f32;

    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }

    #[inline(always)]
    fn narrow(sum: f32) -> Self {
        f16::from_f32(sum)
    }
}

/// Converts without branches, so that loops can be vectorized.
impl Summand for bf16 {
    type Sum = f32;

    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn narrow(sum: f32) -> Self {
        let bits = sum.to_bits();
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
        let nan = bits >> 16 | 0x40;
        bf16::from_bits(if sum.is_nan() { nan } else { rounded } as u16)
    }
}

macro_rules! sums {
    (ints $($int:ty)*; floats $($float:ty = $zero:expr),*) => {
        $(impl Sum for $int {
            const ZERO: Self = 0;
            #[inline(always)]
            fn plus(self, other: Self) -> Self { self.wrapping_add(other) }
        })*
        $(impl Sum for $float {
            const ZERO: Self = $zero;
            #[inline(always)]
            fn plus(self, other: Self) -> Self { self + other }
        }
        impl Scale for $float {
            #[inline(always)]
            fn times(self, weight: Self) -> Self { self * weight }
        })*
    };
}
sums! {
    ints i8 u8 i16 u16 i32 u32 i64 u64;
    floats f32 = 0.0, f64 = 0.0,
        Complex32 = Complex32::new(0.0, 0.0), Complex64 = Complex64::new(0.0, 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]
        #[test]
        fn bf16_is_converted_as_its_crate_does(bits: u32, half: u16) {
            let (x, half) = (f32::from_bits(bits), bf16::from_bits(half));
            let (got, want) = (bf16::narrow(x), bf16::from_f32(x));
            prop_assert!(got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()), "{x}: {got} {want}");
            prop_assert!(half.widen() == half.to_f32() || half.is_nan());
        }
    }
}
