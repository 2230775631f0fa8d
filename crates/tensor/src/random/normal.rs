//! Many normal numbers at once, with the bits of [`Distribution::draw`] and in a third of its time.
//!
//! The logarithm and the cosine of the Box-Muller transform are computed by polynomials, which the compiler vectorizes.
//! Their errors are less than a tenth of [`ERROR`], which is far below the distance between two `f32`. If an error of
//! this size could change a rounded number, its block is computed again by [`Distribution::draw`].

use super::{Distribution, Draws};
use std::f64::consts::{LN_2, TAU};

/// The number of elements that are computed together.
const BLOCK: usize = 16;

/// The bound on the relative error of a radius of the transform, multiplied by a cosine.
const ERROR: f64 = 1e-12;

/// Fills `out` with rounded normal numbers at consecutive positions, beginning at position `first`.
pub(super) fn fill(draws: Draws, first: u64, (mean, stdev): (f64, f64), out: &mut [f32]) {
    let exact = Distribution::Normal { mean, stdev };
    for (number, out) in out.chunks_mut(BLOCK).enumerate() {
        let first = first.wrapping_add((number * BLOCK) as u64);
        let (numbers, is_exact) = block(draws, first, mean, stdev);
        out.copy_from_slice(&numbers[..out.len()]);
        if !is_exact {
            for (position, out) in (0..).map(|i| first.wrapping_add(i)).zip(out) {
                *out = exact.draw(draws, position) as f32;
            }
        }
    }
}

/// Returns the numbers from position `first` on, and whether all of them are those of [`Distribution::draw`].
fn block(draws: Draws, first: u64, mean: f64, stdev: f64) -> ([f32; BLOCK], bool) {
    let (mut radii, mut turns) = ([0f64; BLOCK], [0f64; BLOCK]);
    for i in 0..BLOCK {
        let position = first.wrapping_add(i as u64).wrapping_mul(2);
        radii[i] = 1. - draws.uniform(position);
        turns[i] = draws.uniform(position.wrapping_add(1));
    }
    let (mut numbers, mut differences) = ([0f32; BLOCK], 0);
    for i in 0..BLOCK {
        let radius = (-2. * ln(radii[i])).sqrt();
        let number = mean + stdev * (radius * cos_of_turns(turns[i]));
        let error = (mean.abs() + stdev.abs() * radius) * ERROR;
        let [low, high] = [number - error, number + error].map(|bound| bound as f32);
        // Not a number if the parameters are not finite, with bits that need not be those of the exact number.
        differences |= low.to_bits() ^ high.to_bits() | u32::from(!error.is_finite());
        numbers[i] = low;
    }
    (numbers, differences == 0)
}

/// Returns the natural logarithm of a number from 2^-53 to 1, with a relative error of less than 1e-13.
#[inline(always)]
fn ln(x: f64) -> f64 {
    /// The bits of the mantissa.
    const MANTISSA: u64 = (1 << 52) - 1;
    /// The bits of the square root of 1/2, below which no mantissa is.
    const LEAST: u64 = 0x3fe6_a09e_667f_3bcd;
    /// The bits of 1.
    const ONE: u64 = 0x3ff0_0000_0000_0000;
    /// 2^52, whose last bit is 1, and its bits.
    const INTEGERS: (f64, u64) = (4_503_599_627_370_496., 0x4330_0000_0000_0000);
    // x = 2^exponent · mantissa. An integer becomes a float in the last bits of 2^52.
    let bits = x.to_bits().wrapping_add(ONE - LEAST);
    let exponent = f64::from_bits(bits >> 52 | INTEGERS.1) - (INTEGERS.0 + 1023.);
    let mantissa = f64::from_bits((bits & MANTISSA) + LEAST);
    // ln(m) = 2·artanh((m − 1) / (m + 1))
    let s = (mantissa - 1.) / (mantissa + 1.);
    let z = s * s;
    let terms = [1. / 13., 1. / 11., 1. / 9., 1. / 7., 1. / 5., 1. / 3.];
    let sum = terms.into_iter().fold(1. / 15., |sum, term| sum * z + term);
    exponent * LN_2 + 2. * (s + s * (z * sum))
}

/// Returns the cosine of an angle from 0 to 1 full turns, with an error of less than 1e-13.
#[inline(always)]
fn cos_of_turns(turns: f64) -> f64 {
    // The sine of an angle of at most a quarter of a turn; only the multiplication rounds.
    let x = ((turns - 0.5).abs() - 0.25) * TAU;
    let z = x * x;
    // The reciprocals of 3!, 5!, … 17!.
    let terms = [
        -1. / 1_307_674_368_000.,
        1. / 6_227_020_800.,
        -1. / 39_916_800.,
        1. / 362_880.,
        -1. / 5_040.,
        1. / 120.,
        -1. / 6.,
    ];
    let sum = terms.into_iter().fold(1. / 355_687_428_096_000., |sum, term| sum * z + term);
    x + x * (z * sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    // INV-8
    #[test]
    fn filled_numbers_have_the_bits_of_drawn_ones() {
        let parameters = [
            (0., 1.),
            (0., 0.03),
            (3., 2.),
            (-1e5, 1e-3),
            (0., -1.),
            (0., 1e-43),
            (1e300, 1e300),
            (0., f64::INFINITY),
            (f64::NAN, 1.),
            (f64::MAX, f64::MAX),
            (0., 0.),
            (-0., 0.),
        ];
        for (stream, (mean, stdev)) in parameters.into_iter().enumerate() {
            let draws = Draws::new(5, stream as u64);
            for (first, len) in [(0, 200_000), (7, 5), (1 << 40, 33), (3, 0)] {
                let mut filled = vec![7f32; len];
                fill(draws, first, (mean, stdev), &mut filled);
                for (filled, position) in filled.iter().zip(first..) {
                    let drawn = Distribution::Normal { mean, stdev }.draw(draws, position) as f32;
                    assert_eq!(filled.to_bits(), drawn.to_bits(), "{mean} {stdev} at {position}");
                }
            }
        }
    }

    #[test]
    fn errors_are_a_tenth_of_the_bound() {
        let draws = Draws::new(3, 1);
        let ends = [1., 1. - f64::EPSILON / 2., 0.5, 0.75, f64::EPSILON / 2., 2f64.sqrt() / 2.];
        for x in ends.into_iter().chain((0..100_000).map(|i| 1. - draws.uniform(i))) {
            assert!((ln(x) - x.ln()).abs() <= ERROR / 10. * x.ln().abs(), "ln({x})");
        }
        let ends = [0., 0.25, 0.5, 0.75, 1. - f64::EPSILON / 2.];
        for turns in ends.into_iter().chain((0..100_000).map(|i| draws.uniform(i))) {
            assert!((cos_of_turns(turns) - (TAU * turns).cos()).abs() <= ERROR / 10., "cos({turns})");
        }
    }
}
