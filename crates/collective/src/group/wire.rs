//! Numbers as they are sent: as they are, or as halves.

use super::buffer::numbers;
use super::{Buffers, Wire};
use bytemuck::Pod;
use bytes::Bytes;
use distribute_tensor::kernel::{Scale, fold, fold_scaled};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// So many numbers are converted at a time.
const BLOCK: usize = 256;

/// Numbers that can be sent as halves: `f32` and `f64`.
pub trait Real: Scale + Pod + PartialEq {
    /// 1.
    const ONE: Self;

    /// An `f32` that is the same half as this number, when it is rounded to the nearest one.
    fn narrow(self) -> f32;

    /// The same number.
    fn widen(narrow: f32) -> Self;
}

impl Real for f32 {
    const ONE: Self = 1.;

    #[inline(always)]
    fn narrow(self) -> f32 {
        self
    }

    #[inline(always)]
    fn widen(narrow: f32) -> Self {
        narrow
    }
}

impl Real for f64 {
    const ONE: Self = 1.;

    /// Rounded to odd: towards zero, and with the last bit set where that changed the number. Rounded to the nearest `f32`, it
    /// might become a tie between two halves that it was not.
    #[inline(always)]
    fn narrow(self) -> f32 {
        let near = self as f32;
        let bits = near.to_bits() - u32::from(f64::from(near).abs() > self.abs());
        f32::from_bits(bits | u32::from(f64::from(near) != self))
    }

    #[inline(always)]
    fn widen(narrow: f32) -> Self {
        f64::from(narrow)
    }
}

/// How vectors of `F` are sent.
pub(super) struct Coding<F: 'static>(Option<&'static Half<F>>);

/// Numbers as halves, and back. Both slices are as long in numbers.
struct Half<F> {
    encode: fn(&[F], &mut [u8]),
    decode: fn(&[u8], &mut [F]),
}

impl<F: Scale + Pod> Coding<F> {
    /// As they are.
    pub(super) const FULL: Self = Self(None);

    /// How many bytes a number has.
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

    /// The sum of what has been received, each times its weight, in the one order of sums. Halves become numbers block by
    /// block, so that no memory is taken for all of them.
    pub(super) fn fold(&self, received: &[Bytes], weights: &[F], sum: &mut [F]) {
        let Some(half) = self.0 else {
            let all: Vec<_> = received.iter().map(|bytes| numbers::<F>(bytes)).collect();
            let all: Vec<&[F]> = all.iter().map(|numbers| &**numbers).collect();
            return fold_scaled(&all, weights, sum);
        };
        let mut blocks = vec![F::ZERO; received.len() * BLOCK.min(sum.len())];
        for (at, sum) in sum.chunks_mut(BLOCK).enumerate() {
            let start = at * BLOCK * size_of::<u16>();
            let place = start..start + sum.len() * size_of::<u16>();
            let blocks = &mut blocks[..received.len() * sum.len()];
            for (block, bytes) in blocks.chunks_exact_mut(sum.len()).zip(received) {
                (half.decode)(&bytes[place.clone()], block);
            }
            fold_scaled(&blocks.chunks_exact(sum.len()).collect::<Vec<_>>(), weights, sum);
        }
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

    /// What has been received as a vector.
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
            Wire::F16 => Some(&Half { encode: encode::<F, f16>, decode: decode::<F, f16> }),
            Wire::Bf16 => Some(&Half { encode: encode::<F, bf16>, decode: decode::<F, bf16> }),
        })
    }
}

fn encode<F: Real, H: Pod>(numbers: &[F], halves: &mut [u8])
where
    [H]: HalfFloatSliceExt,
{
    let mut block = [0f32; BLOCK];
    for (halves, numbers) in halves.chunks_mut(BLOCK * size_of::<H>()).zip(numbers.chunks(BLOCK)) {
        let block = &mut block[..numbers.len()];
        block.iter_mut().zip(numbers).for_each(|(narrow, number)| *narrow = number.narrow());
        // Buffers lie where numbers of any type may.
        bytemuck::cast_slice_mut::<u8, H>(halves).convert_from_f32_slice(block);
    }
}

fn decode<F: Real, H: Pod>(halves: &[u8], numbers: &mut [F])
where
    [H]: HalfFloatSliceExt,
{
    let halves = super::buffer::numbers::<H>(halves);
    let mut block = [0f32; BLOCK];
    for (numbers, halves) in numbers.chunks_mut(BLOCK).zip(halves.chunks(BLOCK)) {
        let block = &mut block[..halves.len()];
        halves.convert_to_f32_slice(block);
        numbers.iter_mut().zip(block).for_each(|(number, narrow)| *number = F::widen(*narrow));
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
        let mut once = vec![F::ZERO; all.len()];
        coding.fold(std::slice::from_ref(&sent), &[F::ONE], &mut once);
        let bytes = coding.decode_bytes(sent, &buffers);
        assert_eq!(bytemuck::cast_slice::<F, u8>(&once), &bytes[..]);
        once
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
        fn numbers_are_rounded_to_the_nearest_half(mantissa in -2f64..2., exponent in -16i32..15, cut in 0u32..50) {
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
            assert!(sent(wire, &[f64::NAN])[0].is_nan() && sent(wire, &[f32::NAN])[0].is_nan());
        }
    }
}
