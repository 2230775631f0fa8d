//! Sums of a tensor along one axis.

use super::{Sum, Summand};

/// The number of rows in a run. Within a run, rows are added one after another. The sums of runs are added in pairs.
const RUN: usize = 64;

/// Sums an array of shape `[outer, len, inner]` along the middle axis. The result has shape `[outer, inner]`.
///
/// The rows of each run of 64 are summed in order. Then neighbouring runs are added in pairs, as [`fold`](super::fold)
/// does with slices, so the error of a long sum grows only with the logarithm of its length. Integers wrap. The sum
/// over an empty axis is zero. Sums of 16-bit floats are `f32`.
///
/// # Panics
/// Panics if the length of `input` or `out` does not match these sizes.
pub fn sum_axis<T: Summand>(input: &[T], outer: usize, len: usize, inner: usize, out: &mut [T::Sum]) {
    assert_eq!(input.len(), outer * len * inner, "the input of a sum along an axis");
    assert_eq!(out.len(), outer * inner, "the output of a sum along an axis");
    if input.is_empty() {
        return out.fill(T::Sum::ZERO);
    }
    for (rows, out) in input.chunks_exact(len * inner).zip(out.chunks_exact_mut(inner)) {
        sum_rows(rows, inner, out);
    }
}

/// Writes the sum of rows of `inner` elements to `out`. There must be at least one row.
fn sum_rows<T: Summand>(rows: &[T], inner: usize, out: &mut [T::Sum]) {
    let count = rows.len() / inner;
    if count <= RUN {
        let (first, rest) = rows.split_at(inner);
        out.iter_mut().zip(first).for_each(|(out, x)| *out = x.widen());
        for row in rest.chunks_exact(inner) {
            add(out, row);
        }
        return;
    }
    let cut = RUN * (count.div_ceil(RUN).next_power_of_two() / 2);
    let (left, right) = rows.split_at(cut * inner);
    let mut partial = vec![T::Sum::ZERO; inner];
    sum_rows(left, inner, out);
    sum_rows(right, inner, &mut partial);
    add(out, &partial);
}

fn add<T: Summand>(out: &mut [T::Sum], row: &[T]) {
    for (out, x) in out.iter_mut().zip(row) {
        *out = out.plus(x.widen());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_the_middle_axis() {
        let input: Vec<i32> = (0..2 * 3 * 4).collect();
        let mut out = [0; 8];
        sum_axis(&input, 2, 3, 4, &mut out);
        assert_eq!(out, [12, 15, 18, 21, 48, 51, 54, 57]);
    }

    #[test]
    fn an_empty_axis_sums_to_zero() {
        let mut out = [7.0f32; 2];
        sum_axis::<f32>(&[], 1, 0, 2, &mut out);
        assert_eq!(out, [0.0; 2]);
        sum_axis::<f32>(&[], 0, 3, 2, &mut []);
    }

    #[test]
    fn a_long_sum_of_small_floats_stays_accurate() {
        let n = 1_000_001;
        let mut out = [0.0f32];
        sum_axis(&vec![0.1f32; n], 1, n, 1, &mut out);
        assert!((out[0] - 100_000.1).abs() < 0.1, "{}", out[0]);
    }

    #[test]
    fn every_element_is_counted_once_whatever_the_length() {
        for len in [1, 63, 64, 65, 127, 128, 129, 192, 193, 1000] {
            let input: Vec<u64> = (1..=len as u64).collect();
            let mut out = [0];
            sum_axis(&input, 1, len, 1, &mut out);
            assert_eq!(out[0], (len * (len + 1) / 2) as u64);
        }
    }
}
