//! The exponential function of softmax and sigmoid.

use distribute_base::internal::Number;

/// A number type with a fast exponential function for softmax and sigmoid.
pub(super) trait Exp: Number {
    /// Returns eˣ for a number x that is at most 0 or is NaN.
    fn exp_of_negative(self) -> Self;
}

impl Exp for f64 {
    fn exp_of_negative(self) -> Self {
        self.exp()
    }
}

impl Exp for f32 {
    /// Returns eˣ with a relative error below 2⁻²² if x is at least -87. Returns 0 if x is less than -87: the exact
    /// result is then less than 1.7 · 10⁻³⁸, which is close to the smallest normal number.
    ///
    /// The system's function computes one number at a time. This function has no branches, so the compiler vectorizes a
    /// simple loop of it, which is several times as fast.
    #[inline(always)]
    fn exp_of_negative(self) -> Self {
        /// A number that is used for rounding: if it is added to a small number, the lowest bits of the sum contain the
        /// nearest integer.
        const ROUND: f32 = 12_582_912.;
        // ln 2 in two parts. The first part has few bits, so its products with the integers are exact.
        const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
        // eˣ = 2ⁿ eʳ with |r| ≤ ln 2 / 2, for which eight terms of the series have an error of 5e-9.
        let rounded = self * std::f32::consts::LOG2_E + ROUND;
        let n = rounded - ROUND;
        let r = (self - n * LN_2[0]) - n * LN_2[1];
        let mut series = 1. / 5040.;
        for coefficient in [1. / 720., 1. / 120., 1. / 24., 1. / 6., 0.5, 1., 1.] {
            series = series * r + coefficient;
        }
        let power = f32::from_bits((rounded.to_bits() << 23).wrapping_add(1f32.to_bits()));
        if self < -87. { 0. } else { series * power }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_below_its_bound_from_0_to_minus_87() {
        let mut worst = 0f64;
        // Every 101st number from the smallest below 0 to -87.
        for bits in (0..87f32.to_bits()).step_by(101) {
            let x = -f32::from_bits(bits);
            let exact = f64::from(x).exp();
            worst = worst.max((f64::from(x.exp_of_negative()) / exact - 1.).abs());
        }
        assert!(worst < 2f64.powi(-22), "{worst}");
    }

    #[test]
    fn at_the_ends() {
        assert_eq!((0f32.exp_of_negative(), (-0f32).exp_of_negative()), (1., 1.));
        assert!((-87f32).exp_of_negative() >= f32::MIN_POSITIVE);
        for x in [-87.01, -1e3, f32::MIN, f32::NEG_INFINITY] {
            assert_eq!(x.exp_of_negative(), 0., "{x}");
        }
        assert!(f32::NAN.exp_of_negative().is_nan() && (-f32::NAN).exp_of_negative().is_nan());
    }
}
