//! Sums of several slices in a fixed order. These are the hot kernels of all-reduce.
//!
//! The order is a balanced binary tree over the list: neighbours with stride 1, then 2, then 4, and so on. Three slices
//! are added as `(a + b) + c`, five as `((a + b) + (c + d)) + e`. Equivalently, a list of more than one slice is split
//! at the largest power of two below its length, and the two sums are added. The code uses this second form, block by
//! block, so that partial sums stay in the first-level cache. Floats of 16 bits are accumulated as `f32`, and each sum
//! is rounded once.

// - INV-7: floats of 16 bits are summed as `f32`, and rounded once (`DType::of_sum`, `Summand`). Rows are summed in
//   the same order. Vectors that workers sum in `Order::Fast`, on request, are close to this order, with the same
//   bits on all workers. Tests: `tensor/src/kernel/reduce.rs`, `row_sum.rs`, `row_fold.rs`, `tensor/src/pack.rs`,
//   `tensor/tests/it/leaf.rs`, `computing/cross_device/`, `collective/tests/it/conformance/mod.rs`.

use super::{Scale, Sum, Summand};
use std::ops::Range;

/// The number of elements in a block: 4 KiB of `f32`.
const BLOCK: usize = 1024;

/// Writes the element-wise sum of `inputs` to `out`. If there are no inputs, writes zeros.
///
/// # Panics
/// Panics if the length of an input differs from that of `out`.
pub fn fold<T: Summand>(inputs: &[&[T]], out: &mut [T]) {
    fold_then(inputs, out, keep);
}

/// Acts like [`fold`], and applies `last` to each sum before it is rounded. A MEAN, for example, divides in `last`,
/// without another pass.
///
/// # Panics
/// Panics if the length of an input differs from that of `out`.
pub fn fold_then<T: Summand>(inputs: &[&[T]], out: &mut [T], last: impl Fn(T::Sum) -> T::Sum) {
    blocks(inputs, out, &|_, x: T| x.widen(), &|sum| T::narrow(last(sum)));
}

/// Returns an iterator over the elements that [`fold_then`] would compute for two slices. With an iterator, memory need
/// not be zeroed before it is written. The iterator ends with the shorter slice.
pub fn fold_two<'a, T: Summand>(
    a: &'a [T],
    b: &'a [T],
    last: impl Fn(T::Sum) -> T::Sum + 'a,
) -> impl Iterator<Item = T> + 'a {
    a.iter().zip(b).map(move |(a, b)| T::narrow(last(a.widen().plus(b.widen()))))
}

/// Writes the element-wise sum of `weights[r] * inputs[r]` to `out`, in the order of [`fold`].
///
/// # Panics
/// Panics if the length of an input differs from that of `out`, or if the number of weights differs from the number of
/// inputs.
pub fn fold_scaled<F: Scale>(inputs: &[&[F]], weights: &[F], out: &mut [F]) {
    assert_eq!(inputs.len(), weights.len(), "one weight for each input");
    blocks(inputs, out, &|r, x: F| x.times(weights[r]), &keep);
}

fn blocks<T: Copy, S: Sum>(
    inputs: &[&[T]],
    out: &mut [T],
    term: &impl Fn(usize, T) -> S,
    last: &impl Fn(S) -> T,
) {
    for input in inputs {
        assert_eq!(input.len(), out.len(), "all slices of a sum are of one length");
    }
    if inputs.len() <= 4 {
        return few(inputs, 0, 0..out.len(), out, term, last);
    }
    let size = BLOCK.min(out.len());
    let mut scratch = vec![S::ZERO; (1 + depth(inputs.len())) * size];
    let (left, scratch) = scratch.split_at_mut(size);
    let cut = inputs.len().next_power_of_two() / 2;
    for (i, block) in out.chunks_mut(BLOCK).enumerate() {
        let range = i * BLOCK..i * BLOCK + block.len();
        let left = &mut left[..block.len()];
        let (right, scratch) = scratch.split_at_mut(block.len());
        tree(&inputs[..cut], 0, range.clone(), left, scratch, term);
        tree(&inputs[cut..], cut, range, right, scratch, term);
        for ((out, left), right) in block.iter_mut().zip(left).zip(right) {
            *out = last(left.plus(*right));
        }
    }
}

/// Returns the sum unchanged.
#[inline(always)]
fn keep<T>(sum: T) -> T {
    sum
}

/// Returns the number of blocks of partial sums that [`tree`] needs at the same time for `n` inputs.
fn depth(n: usize) -> usize {
    // Each split leaves a right part of at most half the next power of two; parts of 4 need no scratch.
    (n.next_power_of_two().trailing_zeros() as usize).saturating_sub(2)
}

/// Sums one block of all inputs by splitting the list at a power of two.
fn tree<T: Copy, S: Sum>(
    inputs: &[&[T]],
    first: usize,
    range: Range<usize>,
    out: &mut [S],
    scratch: &mut [S],
    term: &impl Fn(usize, T) -> S,
) {
    let n = inputs.len();
    if n <= 4 {
        return few(inputs, first, range, out, term, &keep);
    }
    let cut = n.next_power_of_two() / 2;
    let (left, right) = inputs.split_at(cut);
    let (partial, scratch) = scratch.split_at_mut(out.len());
    tree(left, first, range.clone(), out, scratch, term);
    tree(right, first + cut, range, partial, scratch, term);
    for (out, partial) in out.iter_mut().zip(partial) {
        *out = out.plus(*partial);
    }
}

/// Sums up to four inputs in one pass.
fn few<T: Copy, S: Sum, O>(
    inputs: &[&[T]],
    first: usize,
    range: Range<usize>,
    out: &mut [O],
    term: &impl Fn(usize, T) -> S,
    last: &impl Fn(S) -> O,
) {
    let r = first;
    match inputs {
        [a] => {
            for (out, a) in out.iter_mut().zip(&a[range]) {
                *out = last(term(r, *a));
            }
        }
        [a, b] => {
            let (a, b) = (&a[range.clone()], &b[range]);
            for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
                *out = last(term(r, *a).plus(term(r + 1, *b)));
            }
        }
        [a, b, c] => {
            let (a, b, c) = (&a[range.clone()], &b[range.clone()], &c[range]);
            for (((out, a), b), c) in out.iter_mut().zip(a).zip(b).zip(c) {
                *out = last(term(r, *a).plus(term(r + 1, *b)).plus(term(r + 2, *c)));
            }
        }
        [a, b, c, d, ..] => {
            let (a, b) = (&a[range.clone()], &b[range.clone()]);
            let (c, d) = (&c[range.clone()], &d[range]);
            for ((((out, a), b), c), d) in out.iter_mut().zip(a).zip(b).zip(c).zip(d) {
                let left = term(r, *a).plus(term(r + 1, *b));
                *out = last(left.plus(term(r + 2, *c).plus(term(r + 3, *d))));
            }
        }
        [] => out.iter_mut().for_each(|out| *out = last(S::ZERO)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};
    use proptest::prelude::*;

    /// Sums in the documented order: neighbours with stride 1, 2, 4 …
    fn by_strides<T: Summand>(values: Vec<T>) -> T {
        let mut values: Vec<T::Sum> = values.into_iter().map(T::widen).collect();
        let mut stride = 1;
        while stride < values.len() {
            for i in (0..values.len() - stride).step_by(2 * stride) {
                values[i] = values[i].plus(values[i + stride]);
            }
            stride *= 2;
        }
        T::narrow(values.first().copied().unwrap_or(T::Sum::ZERO))
    }

    fn check<T: Summand + std::fmt::Debug>(inputs: &[Vec<T>], same: impl Fn(T, T) -> bool) {
        let len = inputs.first().map_or(0, Vec::len);
        let expected: Vec<T> = (0..len).map(|i| by_strides(inputs.iter().map(|v| v[i]).collect())).collect();
        if let [a, b] = inputs {
            assert!(fold_two(a, b, keep).zip(&expected).all(|(sum, expected)| same(sum, *expected)));
        }
        let mut out = vec![T::default(); len];
        fold(&inputs.iter().map(Vec::as_slice).collect::<Vec<_>>(), &mut out);
        for (got, want) in out.iter().zip(&expected) {
            assert!(same(*got, *want), "{got:?} instead of {want:?}");
        }
    }

    fn inputs(n: usize, len: usize, seed: u64) -> Vec<Vec<f32>> {
        let mut state = seed | 1;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((state >> 40) as f32 / 8388608.0 - 1.0) * if state & 64 == 0 { 1e-3 } else { 1e3 }
        };
        (0..n).map(|_| (0..len).map(|_| next()).collect()).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        // The fixed order of sums: bit-identical to the tree by strides, for every number of inputs and odd
        // lengths.
        // INV-7
        #[test]
        fn fold_is_the_tree_by_strides(n in 1usize..=19, len in prop_oneof![0usize..40, 1000usize..1050, Just(3073)], seed: u64) {
            let floats = inputs(n, len, seed);
            check(&floats, |a, b| a.to_bits() == b.to_bits());
            check(&floats.iter().map(|v| v.iter().map(|x| f16::from_f32(*x)).collect()).collect::<Vec<Vec<f16>>>(),
                |a, b| a.to_bits() == b.to_bits());
            check(&floats.iter().map(|v| v.iter().map(|x| bf16::from_f32(*x)).collect()).collect::<Vec<Vec<bf16>>>(),
                |a, b| a.to_bits() == b.to_bits());
            check(&floats.iter().map(|v| v.iter().map(|x| x.to_bits() as i8).collect()).collect::<Vec<Vec<i8>>>(),
                |a, b| a == b);
        }

        // INV-7
        #[test]
        fn fold_scaled_is_the_fold_of_scaled_inputs(n in 1usize..=9, len in 0usize..2100, seed: u64) {
            let values = inputs(n, len, seed);
            let weights: Vec<f32> = (0..n).map(|r| 0.1 + r as f32 / 3.0).collect();
            let scaled: Vec<Vec<f32>> =
                values.iter().zip(&weights).map(|(v, w)| v.iter().map(|x| x * w).collect()).collect();
            let (mut want, mut got) = (vec![0.0; len], vec![0.0; len]);
            fold(&scaled.iter().map(Vec::as_slice).collect::<Vec<_>>(), &mut want);
            fold_scaled(&values.iter().map(Vec::as_slice).collect::<Vec<_>>(), &weights, &mut got);
            prop_assert_eq!(&got, &want);
        }
    }

    #[test]
    fn the_last_step_is_applied_once_to_each_sum() {
        for n in 1..=9usize {
            let ones = vec![vec![1.0f32; 5]; n];
            let mut out = vec![0.0; 5];
            fold_then(&ones.iter().map(Vec::as_slice).collect::<Vec<_>>(), &mut out, |sum| sum + 100.0);
            assert_eq!(out, vec![100.0 + n as f32; 5]);
        }
    }

    // INV-7
    #[test]
    fn halves_are_added_up_as_f32_and_rounded_once() {
        for n in 3..=19usize {
            let big = vec![bf16::from_f32(256.); 3];
            let ones = vec![bf16::ONE; 3];
            let inputs: Vec<&[bf16]> =
                (0..n).map(|i| if i == 0 { big.as_slice() } else { ones.as_slice() }).collect();
            let mut sum = [bf16::ZERO; 3];
            fold(&inputs, &mut sum);
            assert_eq!(sum, [bf16::from_f32(255. + n as f32); 3], "{n} inputs");
            let large = vec![f16::from_f32(40_000.); 3];
            let mut mean = [f16::ZERO; 3];
            fold_then(&vec![large.as_slice(); n], &mut mean, |sum| sum / n as f32);
            assert_eq!(mean.to_vec(), large, "{n} inputs");
        }
        let large = [f16::from_f32(40_000.)];
        assert_eq!(fold_two(&large, &large, |sum| sum / 2.).collect::<Vec<_>>(), large);
    }

    #[test]
    fn no_input_gives_zeros() {
        let mut out = [3.0f32; 4];
        fold(&[], &mut out);
        assert_eq!(out, [0.0; 4]);
    }
}
