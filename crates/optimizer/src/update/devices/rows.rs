//! Rows of variables, slots and gradients on a replica's device.

use candle_core::Tensor;
use distribute_base::{Error, Result};

/// Some rows of a variable or of a slot; all of it without an index.
pub(super) fn part_of(whole: &Tensor, index: Option<&Tensor>) -> Result<Tensor> {
    Ok(match index {
        Some(index) => as_rows(whole)?.index_select(index, 0)?,
        None => whole.clone(),
    })
}

/// A view as a matrix of rows, in the same memory.
pub(super) fn as_rows(whole: &Tensor) -> Result<Tensor> {
    let Some(height) = whole.dims().first() else {
        return Err(Error::invalid("optimizer step", "a scalar has no rows"));
    };
    let width: usize = whole.dims()[1..].iter().product();
    Ok(whole.reshape((*height, width))?)
}

/// Sets some rows of a tensor, where it is.
pub(super) fn put_rows(whole: &Tensor, index: &Tensor, rows: &Tensor) -> Result<()> {
    if rows.elem_count() == 0 {
        return Ok(());
    }
    Ok(as_rows(&whole.detach())?.scatter_set(index, rows, 0)?)
}
