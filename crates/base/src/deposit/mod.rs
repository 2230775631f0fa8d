//! The bucket that the layers of `nn` write gradients into.
//!
//! candle makes zeros for every gradient and adds to them. Inside of `minimize` a layer's
//! backward writes into the replica's [`Bucket`] instead, where the optimizer reduces it; everywhere else, and for
//! weights that are no variables of the optimizer (tied, scaled ones), it gives the gradient to candle, as any
//! operation. Of variables that the optimizer has frozen it is not computed.
//!
//! A layer calls [`gradient`] or [`row_gradient`] and passes on what it gets: it need not know which of the two it is.

mod bucket;
mod deposits;
mod flat;
mod gradient;
mod layout;
mod overlap;
mod part;
mod rows;

pub use bucket::{Bucket, Pool};
pub use flat::{Filling, Flat};
pub use gradient::{Dense, ReplicaGradient};
pub(crate) use layout::Ranges;
pub use layout::{Layout, Pack};
pub(crate) use part::Part;
pub use rows::{RowValues, Rows};

use crate::number::Number;
use candle_core::{Result, Tensor, bail};
use std::cell::RefCell;

thread_local! {
    /// The bucket of the backward that runs on this thread.
    static OPEN: RefCell<Option<Bucket>> = const { RefCell::new(None) };
}

/// Runs a backward whose gradients go into `bucket`, where layers can put them there. With none, candle gets all of
/// them.
pub fn collect<R>(bucket: &mut Option<Bucket>, backward: impl FnOnce() -> R) -> R {
    /// Changes the thread's bucket and this one round again, also after a panic.
    struct Back<'a>(&'a mut Option<Bucket>);
    impl Drop for Back<'_> {
        fn drop(&mut self) {
            OPEN.with_borrow_mut(|open| std::mem::swap(open, self.0));
        }
    }
    OPEN.with_borrow_mut(|open| std::mem::swap(open, bucket));
    let _back = Back(bucket);
    backward()
}

/// Whether a gradient of `variable` is used: it may depend on a variable, and is none that the optimizer has frozen.
/// For backward passes that give their gradients to candle.
pub fn is_used(variable: &Tensor) -> bool {
    let is_frozen =
        || OPEN.with_borrow(|open| open.as_ref().is_some_and(|bucket| bucket.is_frozen(variable)));
    variable.track_op() && !is_frozen()
}

/// The gradient of `variable`, as `write` makes it: of the elements of a contiguous tensor of the variable's shape, to
/// be set, or added to what is there if the flag says so.
///
/// Returns `None` if it was written into the bucket, or is not needed.
pub fn gradient<T: Number>(variable: &Tensor, write: impl FnOnce(&mut [T], bool)) -> Result<Option<Tensor>> {
    if !variable.track_op() {
        return Ok(None);
    }
    OPEN.with_borrow_mut(|open| {
        if let Some(bucket) = open
            && let Some(number) = bucket.number(variable)
            && let Some((place, add)) = bucket.place(number)
        {
            write(place, add);
            bucket.deposited(number);
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

/// The gradient of a table of which only some rows have one: their numbers, each once and ascending, and the values of
/// each. Not of a table without elements.
///
/// Returns `None` if it was written into the bucket, or is not needed; for candle it becomes dense.
pub fn row_gradient<T: Number>(table: &Tensor, rows: Vec<usize>, values: Vec<T>) -> Result<Option<Tensor>> {
    if !table.track_op() {
        return Ok(None);
    }
    let rows = Rows::new(rows, T::vector(values));
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
        // The rows of ids are numbered by them, and no tensor has so many.
        if rows.rows.last() >= table.dims().first() {
            bail!(
                "a table of ids has a gradient in an optimizer's minimize alone: give it to one that trains its model's variables, or \
                 detach its rows"
            );
        }
        Tensor::from_vec(rows.spread::<T>(table.elem_count()), table.shape(), table.device()).map(Some)
    })
}

/// Does the same as [`row_gradient`] for a table on a device: `values` has one row for each of these `rows`, which
/// may repeat.
pub fn device_row_gradient(table: &Tensor, rows: &[usize], values: &Tensor) -> Result<Option<Tensor>> {
    if !table.track_op() || rows.is_empty() {
        return Ok(None);
    }
    OPEN.with_borrow_mut(|open| {
        if open.as_ref().is_some_and(|bucket| bucket.is_frozen(table)) {
            return Ok(None);
        }
        let rows = Rows::merged(rows, &values.detach())?;
        if let Some(bucket) = open
            && let Some(number) = bucket.number(table)
        {
            bucket.add_device_rows(number, rows);
            return Ok(None);
        }
        rows.spread_on_device(table.shape())
    })
}
