//! Lookups in a table in device memory, with candle's operations.

use super::combine::Combine;
use candle_core::{Result, Tensor};
use distribute_base::internal::{PrecomputedOp, from_vec, gradients};

/// Applies `combine` to the given rows. Returns the result as a tensor of the given shape on the table's device.
///
/// There must be at least one row. Each row index must be less than the table's height.
pub(super) fn look_up<C: Combine>(
    table: &Tensor,
    rows: Vec<usize>,
    shape: Vec<usize>,
    combine: C,
) -> Result<Tensor> {
    let index: Vec<i64> = rows.iter().map(|row| *row as i64).collect();
    let index = from_vec(index, rows.len(), table.device())?;
    let result = combine.combine_rows(table.detach().index_select(&index, 0)?)?.reshape(shape)?;
    let backward = move |[table]: [&Tensor; 1], _: &Tensor, upstream: &Tensor| {
        let width = table.dim(1)?;
        let upstream = upstream.detach().contiguous()?;
        let upstream = upstream.reshape((upstream.elem_count() / width, width))?;
        Ok([gradients::device_row_gradient(table, &rows, &combine.row_gradients(upstream)?)?])
    };
    table.apply_op1(PrecomputedOp::new(C::NAME, result, backward))
}
