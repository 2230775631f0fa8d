//! Numbers as they are sent: as they are, or as halves.

use super::buffer::numbers;
use super::{Buffers, Wire};
use bytemuck::Pod;
use bytes::Bytes;
use distribute_net::Number;
use distribute_tensor::kernel::{Scale, fold, fold_scaled};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// The number of numbers that are converted at a time: they stay in the first-level cache until they are added up.
const BLOCK: usize = 1024;

/// Numbers that can be sent as halves: `f32` and `f64`.
pub trait Real: Scale + Pod + PartialEq {
    /// 1.
    const ONE: Self;

    /// The type of a number in a library that sums.
    const NUMBER: Number;

    /// The same numbers as `f32`, each of which is the same half when it is rounded to the nearest one. `block` is for
    /// those that are not `f32` already.
    #[doc(hidden)]
    fn narrowed<'a>(numbers: &'a [Self], block: &'a mut [f32]) -> &'a [f32];

    /// Fills in numbers by a function that fills in `f32`. `block` is as above.
    #[doc(hidden)]
    fn widen(numbers: &mut [Self], block: &mut [f32], fill: impl FnOnce(&mut [f32]));
}

impl Real for f32 {
    const ONE: Self = 1.;
    const NUMBER: Number = Number::F32;

    fn narrowed<'a>(numbers: &'a [Self], _block: &'a mut [f32]) -> &'a [f32] {
        numbers
    }

    fn widen(numbers: &mut [Self], _block: &mut [f32], fill: impl FnOnce(&mut [f32])) {
        fill(numbers);
    }
}

impl Real for f64 {
    const ONE: Self = 1.;
    const NUMBER: Number = Number::F64;

    fn narrowed<'a>(numbers: &'a [Self], block: &'a mut [f32]) -> &'a [f32] {
        let block = &mut block[..numbers.len()];
        block.iter_mut().zip(numbers).for_each(|(narrow, number)| *narrow = to_odd(*number));
        block
    }

    fn widen(numbers: &mut [Self], block: &mut [f32], fill: impl FnOnce(&mut [f32])) {
        let block = &mut block[..numbers.len()];
        fill(block);
        numbers.iter_mut().zip(block).for_each(|(number, narrow)| *number = f64::from(*narrow));
    }
}

/// Rounded to odd: towards zero, and with the last bit set where that changed the number. Rounded to the nearest `f32`,
/// it might become a tie between two halves that it was not.
#[inline(always)]
fn to_odd(number: f64) -> f32 {
    let near = number as f32;
    let bits = near.to_bits() - u32::from(f64::from(near).abs() > number.abs());
    f32::from_bits(bits | u32::from(f64::from(near) != number))
}

/// The half-precision type that numbers are sent as. Slices of one call have one length.
trait Half: Pod {
    /// Rounds to the nearest, ties to even.
    fn round(numbers: &[f32], halves: &mut [Self]);

    /// The same numbers.
    fn expand(halves: &[Self], numbers: &mut [f32]);
}

impl Half for f16 {
    fn round(numbers: &[f32], halves: &mut [Self]) {
        halves.convert_from_f32_slice(numbers);
    }

    fn expand(halves: &[Self], numbers: &mut [f32]) {
        halves.convert_to_f32_slice(numbers);
    }
}

/// Without branches, so that the compiler vectorises it: the loops of the crate `half` take 1.5 and 2 times as long.
impl Half for bf16 {
    fn round(numbers: &[f32], halves: &mut [Self]) {
        for (half, number) in halves.iter_mut().zip(numbers) {
            let bits = number.to_bits();
            let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
            // NaN stays NaN, whichever of its bits are set.
            let rounded = if number.is_nan() { bits | 0x40_0000 } else { nearest };
            *half = bf16::from_bits((rounded >> 16) as u16);
        }
    }

    fn expand(halves: &[Self], numbers: &mut [f32]) {
        for (number, half) in numbers.iter_mut().zip(halves) {
            *number = f32::from_bits(u32::from(half.to_bits()) << 16);
        }
    }
}

/// The encoding of vectors of `F`.
pub(super) struct Coding<F: 'static>(Option<&'static Conversion<F>>);

/// Numbers as halves, and back. Both slices are as long in numbers.
struct Conversion<F> {
    encode: fn(&[F], &mut [u8]),
    decode: fn(&[u8], &mut [F]),
}

impl<F: Scale + Pod> Coding<F> {
    /// Returns the number of bytes of a number.
    pub(super) fn width(&self) -> usize {
        if self.0.is_some() { size_of::<u16>() } else { size_of::<F>() }
    }

    /// A vector as it is sent.
    pub(super) fn encode(&self, vector: Bytes, buffers: &Buffers) -> Bytes {
        let Some(half) = self.0 else { return vector };
        let numbers = numbers::<F>(&vector);
        let mut halves = buffers.take(numbers.len() * size_of::<u16>());
        (half.encode)(&numbers, halves.bytes_mut());
        halves.freeze()
    }

    /// The sum of what has been received, each times its weight, in the one order of sums, as it is sent. Halves are
    /// added up block by block, so that no memory is taken for all of them as numbers.
    pub(super) fn fold(&self, received: &[Bytes], weights: &[F], buffers: &Buffers) -> Bytes {
        let mut sum = buffers.take(received.first().map_or(0, Bytes::len));
        let Some(half) = self.0 else {
            let all: Vec<_> = received.iter().map(|bytes| numbers::<F>(bytes)).collect();
            let all: Vec<&[F]> = all.iter().map(|numbers| &**numbers).collect();
            fold_scaled(&all, weights, bytemuck::cast_slice_mut(sum.bytes_mut()));
            return sum.freeze();
        };
        let (mut blocks, mut total) = (vec![F::ZERO; received.len() * BLOCK], [F::ZERO; BLOCK]);
        for (at, sum) in sum.bytes_mut().chunks_mut(BLOCK * size_of::<u16>()).enumerate() {
            let (start, len) = (at * BLOCK * size_of::<u16>(), sum.len() / size_of::<u16>());
            let (blocks, total) = (&mut blocks[..received.len() * len], &mut total[..len]);
            for (block, bytes) in blocks.chunks_exact_mut(len).zip(received) {
                (half.decode)(&bytes[start..start + sum.len()], block);
            }
            fold_scaled(&blocks.chunks_exact(len).collect::<Vec<_>>(), weights, total);
            (half.encode)(total, sum);
        }
        sum.freeze()
    }

    /// The sum of a vector and of what has been received.
    pub(super) fn add(&self, mine: &[u8], received: &[u8], sum: &mut [F]) {
        let mine = numbers::<F>(mine);
        let Some(half) = self.0 else {
            return fold(&[&mine, &numbers::<F>(received)], sum);
        };
        let mut block = [F::ZERO; BLOCK];
        let received = received.chunks(BLOCK * size_of::<u16>());
        for ((sum, mine), received) in sum.chunks_mut(BLOCK).zip(mine.chunks(BLOCK)).zip(received) {
            let block = &mut block[..sum.len()];
            (half.decode)(received, block);
            fold(&[mine, block], sum);
        }
    }

    /// Returns the received bytes as a vector.
    pub(super) fn decode_bytes(&self, received: Bytes, buffers: &Buffers) -> Bytes {
        let Some(half) = self.0 else { return received };
        let mut vector = buffers.take(received.len() / size_of::<u16>() * size_of::<F>());
        (half.decode)(&received, bytemuck::cast_slice_mut(vector.bytes_mut()));
        vector.freeze()
    }
}

impl<F: Real> Coding<F> {
    pub(super) fn of(wire: Wire) -> Self {
        Self(match wire {
            Wire::Full => None,
            Wire::F16 => Some(&Conversion { encode: encode::<F, f16>, decode: decode::<F, f16> }),
            Wire::Bf16 => Some(&Conversion { encode: encode::<F, bf16>, decode: decode::<F, bf16> }),
        })
    }
}

fn encode<F: Real, H: Half>(numbers: &[F], halves: &mut [u8]) {
    // Buffers lie where numbers of any type may.
    let halves = bytemuck::cast_slice_mut::<u8, H>(halves);
    let mut block = [0f32; BLOCK];
    for (halves, numbers) in halves.chunks_mut(BLOCK).zip(numbers.chunks(BLOCK)) {
        H::round(F::narrowed(numbers, &mut block), halves);
    }
}

fn decode<F: Real, H: Half>(halves: &[u8], numbers: &mut [F]) {
    let halves = super::buffer::numbers::<H>(halves);
    let mut block = [0f32; BLOCK];
    for (numbers, halves) in numbers.chunks_mut(BLOCK).zip(halves.chunks(BLOCK)) {
        F::widen(numbers, &mut block, |numbers| H::expand(halves, numbers));
    }
}

#[cfg(test)]
mod tests {
    use super::super::inbox::tests::Still;
    use super::*;
    use proptest::prelude::*;
    use std::sync::Arc;

    fn sent<F: Real>(wire: Wire, all: &[F]) -> Vec<F> {
        let (coding, buffers) = (Coding::<F>::of(wire), Buffers::new(Arc::new(Still)));
        let mut vector = buffers.take(size_of_val(all));
        vector.bytes_mut().copy_from_slice(bytemuck::cast_slice(all));
        let sent = coding.encode(vector.freeze(), &buffers);
        assert_eq!(sent.len(), coding.width() * all.len());
        // What has been rounded stays as it is.
        assert_eq!(coding.fold(std::slice::from_ref(&sent), &[F::ONE], &buffers), sent);
        numbers(&coding.decode_bytes(sent, &buffers)).into_owned()
    }

    /// The nearest half by trying: `bits` is one of the two around the number.
    fn is_nearest(x: f64, got: f64, [below, above]: [f64; 2]) {
        let distance = (x - got).abs();
        for other in [below, above].into_iter().filter(|other| other.is_finite()) {
            assert!(distance <= (x - other).abs(), "{x:e}: {got:e}, where {other:e} is nearer");
        }
    }

    proptest! {
        #[test]
        fn numbers_are_rounded_to_the_nearest_half(
            mantissa in -2f64..2., exponent in -16i32..15, cut in 0u32..50, bits in any::<u32>(),
        ) {
            let any = f32::from_bits(bits);
            prop_assert_eq!(sent(Wire::Bf16, &[any])[0].to_bits(), bf16::from_f32(any).to_f32().to_bits());
            let x = mantissa * 2f64.powi(exponent);
            // Numbers with short mantissas, among them ties, and such that are next to a tie.
            let x = f64::from_bits(x.to_bits() >> cut << cut);
            for x in [x, f64::from_bits(x.to_bits() + 1), f64::from_bits(x.to_bits().max(1) - 1)] {
                let half = f16::from_f64(x).to_bits();
                let beside = [half.wrapping_sub(1), half + 1].map(|bits| f16::from_bits(bits).to_f64());
                is_nearest(x, sent(Wire::F16, &[x])[0], beside);
                let brain = bf16::from_f64(x).to_bits();
                let beside = [brain.wrapping_sub(1), brain + 1].map(|bits| bf16::from_bits(bits).to_f64());
                is_nearest(x, sent(Wire::Bf16, &[x])[0], beside);
                let narrow = x as f32;
                prop_assert_eq!(sent(Wire::F16, &[narrow])[0], f16::from_f32(narrow).to_f32());
                prop_assert_eq!(sent(Wire::Bf16, &[narrow])[0], bf16::from_f32(narrow).to_f32());
            }
        }
    }

    #[test]
    fn ties_go_to_even_and_what_is_next_to_one_to_the_nearer() {
        let (tie, above) = (1. + 2f64.powi(-11), 1. + 2f64.powi(-11) + 2f64.powi(-40));
        let odd = 1. + 3. * 2f64.powi(-11);
        let got = sent(Wire::F16, &[tie, above, odd, -tie, -above]);
        let ulp = 2f64.powi(-10);
        assert_eq!(got, [1., 1. + ulp, 1. + 2. * ulp, -1., -1. - ulp]);
    }

    #[test]
    fn what_is_no_finite_number_or_too_large_is_told() {
        let long: Vec<f32> = (0..1001).map(|at| at as f32).collect();
        assert_eq!(sent(Wire::Full, &long), long);
        assert_eq!(sent(Wire::F16, &long), long);
        assert!(sent::<f32>(Wire::F16, &[]).is_empty());
        let limits = [f64::INFINITY, f64::NEG_INFINITY, 1e300, -1e300, 65_519.9, 65_520., 0., -0.];
        let got = sent(Wire::F16, &limits);
        let inf = f64::INFINITY;
        assert_eq!(got, [inf, -inf, inf, -inf, 65_504., inf, 0., 0.]);
        for wire in [Wire::F16, Wire::Bf16] {
            let nans = [f32::NAN, -f32::NAN, f32::from_bits(0x7f80_0001), f32::from_bits(u32::MAX)];
            assert!(sent(wire, &nans).iter().all(|got| got.is_nan()));
            assert!(sent(wire, &[f64::NAN])[0].is_nan());
        }
    }
}
