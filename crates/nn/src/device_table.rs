//! Lookups in a table in device memory, by candle's operations.

use super::table::Combine;
use candle_core::{Result, Tensor};
use distribute_base::internal::{Known, deposit, from_vec};

/// Returns the result of `combine` on these rows, a tensor of this shape on the table's device.
///
/// There has to be at least one row, and each has to be below the table's height.
pub(super) fn look_up<C: Combine>(
    table: &Tensor,
    rows: Vec<usize>,
    shape: Vec<usize>,
    combine: C,
) -> Result<Tensor> {
    let index: Vec<i64> = rows.iter().map(|row| *row as i64).collect();
    let index = from_vec(index, rows.len(), table.device())?;
    let result = combine.of_rows(table.detach().index_select(&index, 0)?)?.reshape(shape)?;
    let backward = move |[table]: [&Tensor; 1], _: &Tensor, upstream: &Tensor| {
        let width = table.dim(1)?;
        let upstream = upstream.detach().contiguous()?;
        let upstream = upstream.reshape((upstream.elem_count() / width, width))?;
        Ok([deposit::device_row_gradient(table, &rows, &combine.gradients_of_rows(upstream)?)?])
    };
    table.apply_op1(Known::new(C::NAME, result, backward))
}
