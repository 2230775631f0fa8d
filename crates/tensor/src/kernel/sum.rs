//! What can be added, and what can be weighted.

use half::{bf16, f16};
use num_complex::{Complex32, Complex64};

/// An element that can be summed: floats, integers (which wrap) and complex numbers, but neither bool nor string.
///
/// The 16-bit floats are rounded after each addition, as if each were stored.
pub trait Sum: Copy + Default + Send + Sync + 'static {
    /// The sum of nothing.
    const ZERO: Self;
    /// `self + other`; integers wrap around.
    fn plus(self, other: Self) -> Self;
}

/// An element that can be multiplied by a weight of its own type.
pub trait Scale: Sum {
    /// `self * weight`, rounded once (never fused with an addition, so all machines get the same bits).
    fn times(self, weight: Self) -> Self;
}

impl Sum for bf16 {
    const ZERO: Self = bf16::ZERO;

    /// The same bits as `self + other`, but without branches, so that loops vectorise.
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        let wide = |x: bf16| f32::from_bits(u32::from(x.to_bits()) << 16);
        let sum = wide(self) + wide(other);
        let bits = sum.to_bits();
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
        let nan = bits >> 16 | 0x40;
        bf16::from_bits(if sum.is_nan() { nan } else { rounded } as u16)
    }
}

impl Scale for bf16 {
    #[inline(always)]
    fn times(self, weight: Self) -> Self {
        self * weight
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
    floats f16 = f16::ZERO, f32 = 0.0, f64 = 0.0,
        Complex32 = Complex32::new(0.0, 0.0), Complex64 = Complex64::new(0.0, 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]
        #[test]
        fn bf16_adds_as_its_crate_does(a: u16, b: u16) {
            let (a, b) = (bf16::from_bits(a), bf16::from_bits(b));
            let (got, want) = (a.plus(b), a + b);
            prop_assert!(got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()), "{a} + {b}: {got} {want}");
        }
    }
}
