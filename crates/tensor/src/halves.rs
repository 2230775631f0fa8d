//! The types in which numbers are sent, and the conversions between `f32` and half precision.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use std::fmt;
use std::str::FromStr;

/// The type of the numbers that are sent to other tasks. Sums are computed in the type of the numbers themselves.
///
/// A number is rounded to the nearest number of this type, ties to even. A number that is too large becomes infinite.
/// The relative error of one rounding is at most the unit roundoff `u`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Wire {
    /// The type of the numbers themselves. Nothing is rounded.
    #[default]
    Full,
    /// `f16`: `u` is 2⁻¹¹. Numbers below 2⁻¹⁴ have an absolute error of at most 2⁻²⁵, and numbers from 65,520 on become
    /// infinite.
    F16,
    /// `bf16`, which has the range of `f32`: `u` is 2⁻⁸.
    Bf16,
}

/// The number of elements that are converted at a time.
const BLOCK: usize = 1024;

impl Wire {
    /// All types in which numbers can be sent.
    pub const ALL: [Wire; 3] = [Wire::Full, Wire::F16, Wire::Bf16];

    /// Returns the number of bytes in which `bytes` bytes of `f32` are sent.
    pub fn len(self, bytes: usize) -> usize {
        if self == Wire::Full { bytes } else { bytes / 2 }
    }

    /// Returns the smallest positive number that becomes infinite when it is sent.
    pub fn limit(self) -> f32 {
        match self {
            Wire::Full => f32::INFINITY,
            Wire::F16 => 65_520.,
            Wire::Bf16 => f32::from_bits(0x7f7f_8000),
        }
    }

    /// Encodes numbers as the bytes that are sent. `bytes` must have the [length](Self::len) of the encoded numbers.
    ///
    /// # Panics
    /// Panics if `bytes` does not have this length.
    pub fn encode(self, numbers: &[f32], bytes: &mut [u8]) {
        match self {
            Wire::Full => bytes.copy_from_slice(bytemuck::cast_slice(numbers)),
            Wire::F16 => encode::<f16>(numbers, bytes),
            Wire::Bf16 => encode::<bf16>(numbers, bytes),
        }
    }

    /// Decodes numbers from the bytes that were sent, which may have any alignment. `bytes` must have the
    /// [length](Self::len) of the encoded numbers.
    ///
    /// # Panics
    /// Panics if `bytes` does not have this length.
    pub fn decode(self, bytes: &[u8], numbers: &mut [f32]) {
        match self {
            Wire::Full => bytemuck::cast_slice_mut(numbers).copy_from_slice(bytes),
            Wire::F16 => decode::<f16>(bytes, numbers),
            Wire::Bf16 => decode::<bf16>(bytes, numbers),
        }
    }

    /// Replaces each number by the number that is received if it is sent. A number that has been rounded stays the
    /// same.
    pub fn round(self, numbers: &mut [f32]) {
        match self {
            Wire::Full => {}
            Wire::F16 => round::<f16>(numbers),
            Wire::Bf16 => round::<bf16>(numbers),
        }
    }
}

impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Wire::Full => "full",
            Wire::F16 => "f16",
            Wire::Bf16 => "bf16",
        })
    }
}

/// Parses the names that [`Display`](fmt::Display) prints.
impl FromStr for Wire {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|wire| wire.to_string() == name);
        found.ok_or_else(|| format!("{name:?} is no type of numbers that are sent; use full, f16 or bf16"))
    }
}

/// A half-precision type in which numbers are sent. The two slices of a call must have the same length.
trait Half: bytemuck::Pod {
    /// Rounds numbers to the nearest half, ties to even.
    fn narrow(numbers: &[f32], halves: &mut [Self]);

    /// Converts halves to the same numbers as `f32`.
    fn widen(halves: &[Self], numbers: &mut [f32]);
}

impl Half for f16 {
    fn narrow(numbers: &[f32], halves: &mut [Self]) {
        halves.convert_from_f32_slice(numbers);
    }

    fn widen(halves: &[Self], numbers: &mut [f32]) {
        halves.convert_to_f32_slice(numbers);
    }
}

/// Converts without branches, so that the compiler vectorizes the loops. The loops of the crate `half` take 1.5 to 2
/// times as long.
impl Half for bf16 {
    fn narrow(numbers: &[f32], halves: &mut [Self]) {
        for (half, number) in halves.iter_mut().zip(numbers) {
            let bits = number.to_bits();
            let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
            // NaN stays NaN, whichever of its bits are set.
            let rounded = if number.is_nan() { bits | 0x40_0000 } else { nearest };
            *half = bf16::from_bits((rounded >> 16) as u16);
        }
    }

    fn widen(halves: &[Self], numbers: &mut [f32]) {
        for (number, half) in numbers.iter_mut().zip(halves) {
            *number = f32::from_bits(u32::from(half.to_bits()) << 16);
        }
    }
}

fn encode<H: Half>(numbers: &[f32], bytes: &mut [u8]) {
    assert_eq!(2 * numbers.len(), bytes.len(), "two bytes for each number");
    let mut block = [H::zeroed(); BLOCK];
    for (numbers, bytes) in numbers.chunks(BLOCK).zip(bytes.chunks_mut(2 * BLOCK)) {
        let block = &mut block[..numbers.len()];
        H::narrow(numbers, block);
        bytes.copy_from_slice(bytemuck::cast_slice(block));
    }
}

fn decode<H: Half>(bytes: &[u8], numbers: &mut [f32]) {
    assert_eq!(2 * numbers.len(), bytes.len(), "two bytes for each number");
    let mut block = [H::zeroed(); BLOCK];
    for (numbers, bytes) in numbers.chunks_mut(BLOCK).zip(bytes.chunks(2 * BLOCK)) {
        let block = &mut block[..numbers.len()];
        bytemuck::cast_slice_mut(block).copy_from_slice(bytes);
        H::widen(block, numbers);
    }
}

fn round<H: Half>(numbers: &mut [f32]) {
    let mut block = [H::zeroed(); BLOCK];
    for numbers in numbers.chunks_mut(BLOCK) {
        let block = &mut block[..numbers.len()];
        H::narrow(numbers, block);
        H::widen(block, numbers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_are_rounded_once_whichever_way_they_take(bits in prop::collection::vec(any::<u32>(), 0..1200), skip in 0usize..4) {
            let numbers: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
            for wire in Wire::ALL {
                let mut sent = vec![0; skip + wire.len(4 * numbers.len())];
                wire.encode(&numbers, &mut sent[skip..]);
                let mut received = vec![0.; numbers.len()];
                wire.decode(&sent[skip..], &mut received);
                let mut rounded = numbers.clone();
                wire.round(&mut rounded);
                let bits = |numbers: &[f32]| numbers.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                prop_assert_eq!(bits(&received), bits(&rounded));
                wire.round(&mut rounded);
                prop_assert_eq!(bits(&received), bits(&rounded));
                for (number, rounded) in numbers.iter().zip(&rounded) {
                    let expected = match wire {
                        Wire::Full => *number,
                        Wire::F16 => f16::from_f32(*number).to_f32(),
                        Wire::Bf16 => bf16::from_f32(*number).to_f32(),
                    };
                    prop_assert!(rounded.to_bits() == expected.to_bits() || rounded.is_nan() && number.is_nan());
                }
            }
        }
    }

    #[test]
    fn numbers_from_the_limit_on_are_infinite() {
        for wire in [Wire::F16, Wire::Bf16] {
            let limit = wire.limit();
            let mut numbers = [limit, -limit, f32::from_bits(limit.to_bits() - 1), f32::MAX];
            wire.round(&mut numbers);
            assert_eq!(numbers.map(f32::is_finite), [false, false, true, false], "{wire}");
        }
    }

    #[test]
    fn names_round_trip() {
        for wire in Wire::ALL {
            assert_eq!(wire.to_string().parse(), Ok(wire));
        }
        assert!("f8".parse::<Wire>().unwrap_err().contains("full, f16 or bf16"));
    }
}
