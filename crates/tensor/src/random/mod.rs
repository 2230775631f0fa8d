//! Random numbers that depend only on their position, not on threads, replicas or shards.

// - INV-8: enforced here. Tests: `tensor/src/random/`, `core/src/variables/model/init.rs`,
//   `computing/layers/dropout.rs`, `ps-tables/src/table/tests.rs`, `ps-tables/src/dynamic/tests.rs`.

mod normal;

use crate::dtype::Buffer;
use crate::{DType, Element, Error, Result};
use half::{bf16, f16};
use std::ops::Range;

/// A sequence of random numbers. Each is a function of its position (SplitMix64), so any range can be generated without
/// the numbers before it.
///
/// ```
/// use distribute_tensor::random::Draws;
/// let draws = Draws::new(7, 1);
/// assert_eq!(draws.bits(3), Draws::new(7, 1).bits(3));
/// assert!((0.0..1.0).contains(&draws.at(5).uniform(0)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draws {
    key: u64,
}

impl Draws {
    /// Creates a sequence from a seed and a stream. The stream is usually the hash of a name; it need not be well
    /// distributed.
    pub fn new(seed: u64, stream: u64) -> Self {
        Self { key: mix(mix(seed) ^ stream) }
    }

    /// Derives a sequence for `index` from this one. Different indices have different sequences.
    pub fn at(self, index: u64) -> Self {
        Self { key: self.bits(index) }
    }

    /// Returns the 64 random bits at `position`.
    pub fn bits(&self, position: u64) -> u64 {
        mix(self.key.wrapping_add(position.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// Returns the number in [0, 1) at `position`.
    pub fn uniform(&self, position: u64) -> f64 {
        (self.bits(position) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns the standard normal number at `position`, by the Box-Muller transform.
    pub fn normal(&self, position: u64) -> f64 {
        let radius = (-2. * (1. - self.uniform(2 * position)).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform(2 * position + 1)).cos()
    }
}

/// Mixes 64 bits. Every bit of the result depends on all bits of the input, and different inputs have different
/// results.
pub fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The distribution from which a new variable's elements are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// All elements are the same number.
    Constant(f64),
    /// A uniform distribution from `lo` to `up`.
    Uniform {
        /// The lower bound, inclusive.
        lo: f64,
        /// The upper bound, exclusive.
        up: f64,
    },
    /// A normal distribution.
    Normal {
        /// The mean.
        mean: f64,
        /// The standard deviation.
        stdev: f64,
    },
}

impl Distribution {
    /// Returns a number with this distribution, from `position` of the sequence `draws`.
    pub fn draw(self, draws: Draws, position: u64) -> f64 {
        match self {
            Self::Constant(value) => value,
            Self::Uniform { lo, up } => lo + (up - lo) * draws.uniform(position),
            Self::Normal { mean, stdev } => mean + stdev * draws.normal(position),
        }
    }

    /// Checks that the distribution supports a dtype. Floats support all distributions. Complex numbers, integers and
    /// bool support only constants.
    ///
    /// # Errors
    /// - [`Error::UnsupportedDType`]: the dtype does not support the distribution.
    pub fn check(self, dtype: DType) -> Result<()> {
        let float = matches!(dtype, DType::F16 | DType::Bf16 | DType::F32 | DType::F64);
        if float || dtype != DType::String && matches!(self, Self::Constant(_)) {
            Ok(())
        } else {
            Err(Error::UnsupportedDType { operation: "a random initial value", dtype })
        }
    }

    /// Fills `out` with the numbers at consecutive positions, beginning at position `first`.
    pub fn fill<T: RandomElement>(self, draws: Draws, first: u64, out: &mut [T]) {
        match self {
            Self::Constant(value) => out.fill(T::of_f64(value)),
            Self::Normal { mean, stdev } => T::fill_normal(draws, first, (mean, stdev), out),
            Self::Uniform { .. } => self.fill_one_by_one(draws, first, out),
        }
    }

    fn fill_one_by_one<T: RandomElement>(self, draws: Draws, first: u64, out: &mut [T]) {
        for (position, out) in (first..).zip(out) {
            *out = T::of_f64(self.draw(draws, position));
        }
    }
}

impl Buffer {
    /// Fills the elements `at` with a distribution's numbers at consecutive positions, beginning at position `first`.
    /// Strings are not changed. See [`Distribution::check`].
    ///
    /// # Panics
    /// Panics if `at` exceeds the buffer.
    pub fn draw(&mut self, at: Range<usize>, distribution: Distribution, draws: Draws, first: u64) {
        macro_rules! by_type {
            ($($variant:ident)*) => {
                match self {
                    $(Buffer::$variant(elements) => distribution.fill(draws, first, &mut elements[at]),)*
                    Buffer::String(_) => {}
                }
            };
        }
        by_type!(F16 Bf16 F32 F64 I8 U8 I16 U16 I32 U32 I64 U64 Bool C64 C128)
    }
}

/// An element type that a [`Distribution`] can fill. Numbers are computed as `f64` and then converted.
pub trait RandomElement: Element + Copy {
    /// Converts a number. For floats and complex numbers, it is rounded to the nearest value. For integers, the
    /// fraction is dropped, and values out of range saturate. For bool, any number other than 0 becomes `true`.
    fn of_f64(value: f64) -> Self;

    /// Fills `out` with the numbers of a normal distribution: see [`Distribution::fill`].
    #[doc(hidden)]
    fn fill_normal(draws: Draws, first: u64, (mean, stdev): (f64, f64), out: &mut [Self]) {
        Distribution::Normal { mean, stdev }.fill_one_by_one(draws, first, out);
    }
}

macro_rules! drawn {
    ($($ty:ty: $of:expr;)*) => {
        $(impl RandomElement for $ty {
            fn of_f64(value: f64) -> Self { ($of)(value) }
        })*
    };
}
drawn! {
    f16: f16::from_f64; bf16: bf16::from_f64; f64: |x| x;
    i8: |x| x as i8; u8: |x| x as u8; i16: |x| x as i16; u16: |x| x as u16;
    i32: |x| x as i32; u32: |x| x as u32; i64: |x| x as i64; u64: |x| x as u64;
    bool: |x| x != 0.;
    num_complex::Complex32: |x| num_complex::Complex32::new(x as f32, 0.);
    num_complex::Complex64: |x| num_complex::Complex64::new(x, 0.);
}

impl RandomElement for f32 {
    fn of_f64(value: f64) -> Self {
        value as f32
    }

    fn fill_normal(draws: Draws, first: u64, parameters: (f64, f64), out: &mut [Self]) {
        normal::fill(draws, first, parameters, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // INV-8
    #[test]
    fn numbers_depend_on_seed_stream_and_position_only() {
        let draws = Draws::new(1, 2);
        assert_eq!(draws.bits(9), Draws::new(1, 2).bits(9));
        for other in [Draws::new(1, 3), Draws::new(2, 2), draws.at(0)] {
            assert_ne!(draws.bits(9), other.bits(9));
        }
        let mut all = [0f32; 10];
        Distribution::Normal { mean: 1., stdev: 2. }.fill(draws, 0, &mut all);
        let mut part = [0f32; 4];
        Distribution::Normal { mean: 1., stdev: 2. }.fill(draws, 3, &mut part);
        assert_eq!(all[3..7], part);
    }

    #[test]
    fn distributions_have_their_moments() {
        let moments = |distribution: Distribution| {
            let mut v = vec![0f64; 20_000];
            distribution.fill(Draws::new(3, 4), 0, &mut v);
            let mean = v.iter().sum::<f64>() / v.len() as f64;
            (mean, (v.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / v.len() as f64).sqrt())
        };
        let (mean, stdev) = moments(Distribution::Normal { mean: 3., stdev: 2. });
        assert!((mean - 3.).abs() < 0.05 && (stdev - 2.).abs() < 0.05, "{mean} {stdev}");
        let (mean, stdev) = moments(Distribution::Uniform { lo: -1., up: 1. });
        assert!(mean.abs() < 0.03 && (stdev - 1. / 3f64.sqrt()).abs() < 0.02, "{mean} {stdev}");
        assert_eq!(moments(Distribution::Constant(0.5)), (0.5, 0.));
    }

    #[test]
    fn impossible_samples_are_refused() {
        let uniform = Distribution::Uniform { lo: 0., up: 1. };
        assert!(uniform.check(DType::F16).is_ok() && uniform.check(DType::I64).is_err());
        assert!(Distribution::Constant(1.).check(DType::Bool).is_ok());
        assert!(Distribution::Constant(1.).check(DType::String).is_err());
    }
}
