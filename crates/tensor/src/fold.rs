//! Who makes the elements of a sum: a caller may have several threads for it.

use crate::kernel::{self, Sum};

/// Makes the elements of a sum over leaves, see [`Leaf::reduce_with`](crate::Leaf::reduce_with).
pub trait Folder {
    /// `last` of each element-wise sum of `inputs`, which are of one length: the bits of
    /// [`crate::kernel::fold_then`], however the work is cut.
    fn fold<T: Sum>(&self, inputs: &[&[T]], last: impl Fn(T) -> T + Sync) -> Vec<T>;

    /// `len` elements. They are zeros at first, and `fill` is called with parts of them and where these begin: with each
    /// element once, however the work is cut.
    fn fill<T: Sum>(&self, len: usize, fill: impl Fn(usize, &mut [T]) + Sync) -> Vec<T>;
}

/// The calling thread.
#[derive(Clone, Copy, Debug)]
pub struct Alone;

impl Folder for Alone {
    fn fold<T: Sum>(&self, inputs: &[&[T]], last: impl Fn(T) -> T + Sync) -> Vec<T> {
        let mut out = vec![T::ZERO; inputs.first().map_or(0, |input| input.len())];
        kernel::fold_then(inputs, &mut out, last);
        out
    }

    fn fill<T: Sum>(&self, len: usize, fill: impl Fn(usize, &mut [T]) + Sync) -> Vec<T> {
        let mut out = vec![T::ZERO; len];
        fill(0, &mut out);
        out
    }
}
