//! The computation of the elements of a sum, on one or several threads.

use crate::kernel::{self, Sum, Summand};
use std::ops::{Div, Mul};

/// A way to compute element-wise sums, for example on several threads. See
/// [`Leaf::reduce_with`](crate::Leaf::reduce_with).
pub trait Folder {
    /// Returns the element-wise sum of `inputs`, which must have the same length. `last` is applied to each sum before
    /// it is rounded. However the work is partitioned, the result must be bit-identical to that of
    /// [`crate::kernel::fold_then`].
    fn fold<T: Summand>(&self, inputs: &[&[T]], last: impl Fn(T::Sum) -> T::Sum + Sync) -> Vec<T>;

    /// Creates `len` elements by calling `fill` with slices of them, each with its offset. The slices are
    /// initially zero, and every element is in exactly one slice.
    fn fill<T: Sum>(&self, len: usize, fill: impl Fn(usize, &mut [T]) + Sync) -> Vec<T>;
}

/// A folder that runs only on the calling thread.
#[derive(Clone, Copy, Debug)]
pub struct Alone;

impl Folder for Alone {
    fn fold<T: Summand>(&self, inputs: &[&[T]], last: impl Fn(T::Sum) -> T::Sum + Sync) -> Vec<T> {
        let mut out = vec![T::default(); inputs.first().map_or(0, |input| input.len())];
        kernel::fold_then(inputs, &mut out, last);
        out
    }

    fn fill<T: Sum>(&self, len: usize, fill: impl Fn(usize, &mut [T]) + Sync) -> Vec<T> {
        let mut out = vec![T::ZERO; len];
        fill(0, &mut out);
        out
    }
}

/// Returns the element-wise mean of `inputs`. `count` is the number of inputs.
pub(crate) fn mean<T: Summand>(folder: &impl Folder, inputs: &[&[T]], count: T::Sum) -> Vec<T>
where
    T::Sum: Mul<Output = T::Sum> + Div<Output = T::Sum> + From<u8> + Sync,
{
    if inputs.len().is_power_of_two() {
        // Bit-identical to the division, in a fraction of the time.
        let share = T::Sum::from(1) / count;
        folder.fold(inputs, move |sum| sum * share)
    } else {
        folder.fold(inputs, move |sum| sum / count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_has_the_bits_of_a_division_for_any_number_of_inputs() {
        let numbers = [1.0e-45f32, -3.0e-39, 0.1, -7.7, f32::MAX / 64., f32::INFINITY, f32::NAN, 1. / 3.];
        for n in 1..=9u8 {
            let inputs = vec![numbers.as_slice(); usize::from(n)];
            let count = f32::from(n);
            let divided = Alone.fold(&inputs, |sum| sum / count);
            let bits = |v: Vec<f32>| v.into_iter().map(f32::to_bits).collect::<Vec<_>>();
            assert_eq!(bits(mean(&Alone, &inputs, count)), bits(divided), "{n} inputs");
        }
    }
}
