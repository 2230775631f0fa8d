//! The types in which numbers are sent: unchanged, or in half precision.

use super::Buffers;
use super::buffer::numbers;
use bytemuck::Pod;
use bytes::Bytes;
use distribute_net::Number;
use distribute_tensor::Wire;
use distribute_tensor::kernel::{Scale, fold, fold_scaled};

/// The number of elements to convert at a time. They stay in the L1 cache until they are added.
const BLOCK: usize = 1024;

/// A number type that can be sent in half precision: `f32` or `f64`.
pub trait Real: Scale + Pod + PartialEq {
    /// The number 1.
    const ONE: Self;

    /// The number type in calls of a library that computes sums.
    const NUMBER: Number;

    /// Returns `numbers` as `f32`. Rounding the result to the nearest half-precision number gives the same value as
    /// rounding the original number. `block` is a buffer for conversions from other types.
    #[doc(hidden)]
    fn narrowed<'a>(numbers: &'a [Self], block: &'a mut [f32]) -> &'a [f32];

    /// Fills `numbers` with the `f32` values that `fill` writes. `block` is a buffer for conversions to other types.
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

/// Rounds to odd: rounds towards zero, and sets the last bit if that changed the number. Rounding to the nearest `f32`
/// instead might create a tie between two half-precision numbers.
#[inline(always)]
fn to_odd(number: f64) -> f32 {
    let near = number as f32;
    let bits = near.to_bits() - u32::from(f64::from(near).abs() > number.abs());
    f32::from_bits(bits | u32::from(f64::from(near) != number))
}

/// The encoding of vectors of `F` on the wire: unchanged, or in half precision.
pub(super) struct Coding<F>(Option<Conversion<F>>);

/// The conversion of numbers to half precision and back. Both slices of a call must have the same number of elements.
struct Conversion<F> {
    wire: Wire,
    encode: fn(Wire, &[F], &mut [u8]),
    decode: fn(Wire, &[u8], &mut [F]),
}

impl<F: Scale + Pod> Coding<F> {
    /// Returns the size in bytes of a number on the wire.
    pub(super) fn width(&self) -> usize {
        if self.0.is_some() { size_of::<u16>() } else { size_of::<F>() }
    }

    pub(super) fn encode(&self, vector: Bytes, buffers: &Buffers) -> Bytes {
        let Some(half) = &self.0 else { return vector };
        let numbers = numbers::<F>(&vector);
        let mut halves = buffers.take(numbers.len() * size_of::<u16>());
        (half.encode)(half.wire, &numbers, halves.bytes_mut());
        halves.freeze()
    }

    /// Returns the sum of the received vectors, each multiplied by its weight, encoded for the wire. The vectors are
    /// added in the order of `Order::Exact`. Halves are added block by block, so that full numbers of all vectors are
    /// never in memory at once.
    pub(super) fn fold(&self, received: &[Bytes], weights: &[F], buffers: &Buffers) -> Bytes {
        let mut sum = buffers.take(received.first().map_or(0, Bytes::len));
        let Some(half) = &self.0 else {
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
                (half.decode)(half.wire, &bytes[start..start + sum.len()], block);
            }
            fold_scaled(&blocks.chunks_exact(len).collect::<Vec<_>>(), weights, total);
            (half.encode)(half.wire, total, sum);
        }
        sum.freeze()
    }

    /// Writes the sum of this worker's vector and a received, encoded vector to `sum`.
    pub(super) fn add(&self, mine: &[u8], received: &[u8], sum: &mut [F]) {
        let mine = numbers::<F>(mine);
        let Some(half) = &self.0 else {
            return fold(&[&mine, &numbers::<F>(received)], sum);
        };
        let mut block = [F::ZERO; BLOCK];
        let received = received.chunks(BLOCK * size_of::<u16>());
        for ((sum, mine), received) in sum.chunks_mut(BLOCK).zip(mine.chunks(BLOCK)).zip(received) {
            let block = &mut block[..sum.len()];
            (half.decode)(half.wire, received, block);
            fold(&[mine, block], sum);
        }
    }

    pub(super) fn decode_bytes(&self, received: Bytes, buffers: &Buffers) -> Bytes {
        let Some(half) = &self.0 else { return received };
        let mut vector = buffers.take(received.len() / size_of::<u16>() * size_of::<F>());
        (half.decode)(half.wire, &received, bytemuck::cast_slice_mut(vector.bytes_mut()));
        vector.freeze()
    }
}

impl<F: Real> Coding<F> {
    pub(super) fn of(wire: Wire) -> Self {
        Self((wire != Wire::Full).then_some(Conversion { wire, encode: encode::<F>, decode: decode::<F> }))
    }
}

fn encode<F: Real>(wire: Wire, numbers: &[F], halves: &mut [u8]) {
    let mut block = [0f32; BLOCK];
    for (halves, numbers) in halves.chunks_mut(BLOCK * size_of::<u16>()).zip(numbers.chunks(BLOCK)) {
        wire.encode(F::narrowed(numbers, &mut block), halves);
    }
}

fn decode<F: Real>(wire: Wire, halves: &[u8], numbers: &mut [F]) {
    let mut block = [0f32; BLOCK];
    for (numbers, halves) in numbers.chunks_mut(BLOCK).zip(halves.chunks(BLOCK * size_of::<u16>())) {
        F::widen(numbers, &mut block, |numbers| wire.decode(halves, numbers));
    }
}

#[cfg(test)]
mod tests {
    use super::super::inbox::tests::Still;
    use super::*;
    use half::{bf16, f16};
    use proptest::prelude::*;
    use std::sync::Arc;

    fn sent<F: Real>(wire: Wire, all: &[F]) -> Vec<F> {
        let (coding, buffers) = (Coding::<F>::of(wire), Buffers::new(Arc::new(Still)));
        let mut vector = buffers.take(size_of_val(all));
        vector.bytes_mut().copy_from_slice(bytemuck::cast_slice(all));
        let sent = coding.encode(vector.freeze(), &buffers);
        assert_eq!(sent.len(), coding.width() * all.len());
        // Rounded numbers stay unchanged.
        assert_eq!(coding.fold(std::slice::from_ref(&sent), &[F::ONE], &buffers), sent);
        numbers(&coding.decode_bytes(sent, &buffers)).into_owned()
    }

    /// Checks that `got` is the half nearest to `x`. `below` and `above` are the halves next to it.
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
    fn ties_are_rounded_to_even_and_others_to_the_nearest() {
        let (tie, above) = (1. + 2f64.powi(-11), 1. + 2f64.powi(-11) + 2f64.powi(-40));
        let odd = 1. + 3. * 2f64.powi(-11);
        let got = sent(Wire::F16, &[tie, above, odd, -tie, -above]);
        let ulp = 2f64.powi(-10);
        assert_eq!(got, [1., 1. + ulp, 1. + 2. * ulp, -1., -1. - ulp]);
    }

    #[test]
    fn numbers_that_are_too_large_or_not_finite_are_reported() {
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
