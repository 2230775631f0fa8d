//! The same operations on a table in the memory of a device, made of candle's.

use super::table::Combine;
use candle_core::{Result, Tensor};
use distribute_base::internal::{Known, deposit, from_vec};

/// What `combine` makes of these rows, each below the table's height: a tensor of this shape, where the table is. There is a row at least.
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
