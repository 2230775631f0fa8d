//! The bucket into which the layers of `nn` write gradients.
//!
//! candle creates zeros for every gradient and adds to them. Inside `minimize`, a layer's backward pass instead writes
//! into the replica's [`Bucket`], and the optimizer reduces the gradient there. Elsewhere the layer returns the
//! gradient to candle, like any other operation. It also does so for weights that are not variables of the optimizer,
//! such as tied or scaled ones. Gradients of frozen variables are not computed.
//!
//! A layer calls [`gradient`] or [`row_gradient`], and returns the result to candle in all cases.
//!
//! Without other workers, a bucket has separate memory for each variable, which is allocated for the variable's first
//! dense gradient. A table whose gradients are by row has no such memory. With other workers, gradients are stored in
//! *packs*, flat vectors that are sent to those workers, if the variable had a dense gradient in the last step. This is
//! not done if the gradients of this process's replicas are summed first. A large variable has its own pack, and has it
//! in the first step already, so that its gradient is never stored twice.
//!
//! | module | contents |
//! |---|---|
//! | `bucket` | [`Bucket`], and the [`BucketPool`] that reuses its memory in the next step |
//! | `gradient`, `rows` | [`ReplicaGradient`]: dense or by row, wherever it is stored |
//! | `ready` | detects complete gradients |
//! | `layout`, `shard`, `packed` | the [`Layout`] of gradients in packs, a worker's shard of them, and the packs |
//! | `coding` | the form in which packs are sent |
//! | `overlap` | sends packs while backward is still writing others |

mod bucket;
mod coding;
mod gradient;
mod layout;
mod overlap;
mod packed;
mod ready;
mod rows;
mod shard;

pub use bucket::{Bucket, BucketPool};
pub use coding::PackCoding;
pub use gradient::{Dense, ReplicaGradient};
pub(crate) use layout::Ranges;
pub use layout::{Layout, Pack};
pub use packed::{PackWriter, PackedGradients};
pub use rows::{RowValues, Rows};
pub(crate) use shard::PackShard;

use crate::number::Number;
use candle_core::{Result, Tensor, bail};
use std::cell::RefCell;

thread_local! {
    /// The bucket for the backward pass that is running on this thread.
    static OPEN: RefCell<Option<Bucket>> = const { RefCell::new(None) };
}

/// Calls `backward`, in which layers write gradients into `bucket`. If there is no bucket, layers return all gradients
/// to candle.
pub fn collect<R>(bucket: &mut Option<Bucket>, backward: impl FnOnce() -> R) -> R {
    /// A guard that swaps the thread's bucket and this one back, even after a panic.
    struct SwapOnDrop<'a>(&'a mut Option<Bucket>);
    impl Drop for SwapOnDrop<'_> {
        fn drop(&mut self) {
            OPEN.with_borrow_mut(|open| std::mem::swap(open, self.0));
        }
    }
    OPEN.with_borrow_mut(|open| std::mem::swap(open, bucket));
    let _back = SwapOnDrop(bucket);
    backward()
}

/// Returns `true` if the gradient of `variable` is used: the tensor is a variable or depends on one, and the optimizer
/// whose backward pass is running has not frozen it. This is for backward passes that return their gradients to candle.
pub fn is_used(variable: &Tensor) -> bool {
    let is_frozen =
        || OPEN.with_borrow(|open| open.as_ref().is_some_and(|bucket| bucket.is_frozen(variable)));
    variable.track_op() && !is_frozen()
}

/// Computes the gradient of `variable` by calling `write`. The arguments of `write` are the elements of a contiguous
/// tensor with the variable's shape, and whether to add to them instead of setting them.
///
/// Returns `None` if the gradient was written into the bucket or is not needed. Otherwise returns the gradient, for
/// candle.
///
/// # Errors
/// Returns candle's error if the gradient for candle cannot be created.
pub fn gradient<T: Number>(variable: &Tensor, write: impl FnOnce(&mut [T], bool)) -> Result<Option<Tensor>> {
    if !variable.track_op() {
        return Ok(None);
    }
    OPEN.with_borrow_mut(|open| {
        if let Some(bucket) = open
            && let Some(number) = bucket.number(variable)
            && let Some((dense, add)) = bucket.dense_mut(number)
        {
            write(dense, add);
            bucket.mark_written(number);
            return Ok(None);
        }
        if open.as_ref().is_some_and(|bucket| bucket.is_frozen(variable)) {
            return Ok(None);
        }
        let mut gradient = vec![T::of(0.); variable.elem_count()];
        write(&mut gradient, false);
        Tensor::from_vec(gradient, variable.shape(), variable.device()).map(Some)
    })
}

/// Stores the gradient of a table, which is zero except in some rows. `rows` contains the indices of these rows in
/// ascending order, without duplicates, and `values` contains their elements. The table must not be empty.
///
/// Returns `None` if the gradient was written into the bucket or is not needed. Otherwise returns a dense gradient, for
/// candle.
///
/// # Errors
/// Returns candle's error if `table` is a table of ids that does not belong to the optimizer, or if the gradient for
/// candle cannot be created.
pub fn row_gradient<T: Number>(table: &Tensor, rows: Vec<usize>, values: Vec<T>) -> Result<Option<Tensor>> {
    if !table.track_op() {
        return Ok(None);
    }
    let rows = Rows::new(rows, T::into_elements(values));
    OPEN.with_borrow_mut(|open| {
        if let Some(bucket) = open
            && let Some(number) = bucket.number(table)
        {
            bucket.add_rows(number, rows);
            return Ok(None);
        }
        if open.as_ref().is_some_and(|bucket| bucket.is_frozen(table)) {
            return Ok(None);
        }
        // Rows of ids are numbered by the ids, and no tensor has that many rows.
        if rows.rows.last() >= table.dims().first() {
            bail!(
                "a table of ids has a gradient only inside an optimizer's minimize: pass its variables to an \
                 optimizer, or detach its rows"
            );
        }
        Tensor::from_vec(rows.to_dense::<T>(table.elem_count()), table.shape(), table.device()).map(Some)
    })
}

/// Acts like [`row_gradient`] for a table on a device. `values` has one row for each index in `rows`, which may be in
/// any order and contain duplicates.
///
/// # Errors
/// Returns candle's error if the device fails.
pub fn device_row_gradient(table: &Tensor, rows: &[usize], values: &Tensor) -> Result<Option<Tensor>> {
    if !table.track_op() || rows.is_empty() {
        return Ok(None);
    }
    OPEN.with_borrow_mut(|open| {
        if open.as_ref().is_some_and(|bucket| bucket.is_frozen(table)) {
            return Ok(None);
        }
        let rows = Rows::merge_on_device(rows, &values.detach())?;
        if let Some(bucket) = open
            && let Some(number) = bucket.number(table)
        {
            bucket.add_device_rows(number, rows);
            return Ok(None);
        }
        rows.to_dense_on_device(table.shape())
    })
}
