//! The same operations on a table in the memory of a device, made of candle's.

use super::table::Combine;
use crate::{deposit, known};
use candle_core::{CpuStorage, CudaStorage, CustomOp1, Layout, MetalStorage, Result, Shape, Tensor};

/// What `combine` makes of these rows, each below the table's height: a tensor of this shape, where the table is. There is a row at least.
pub(super) fn look_up<C: Combine>(
    table: &Tensor,
    rows: Vec<usize>,
    shape: Vec<usize>,
    combine: C,
) -> Result<Tensor> {
    let index: Vec<i64> = rows.iter().map(|row| *row as i64).collect();
    let index = Tensor::from_vec(index, rows.len(), table.device())?;
    let result = combine.of_rows(table.detach().index_select(&index, 0)?)?.reshape(shape)?;
    table.apply_op1(LookUp { rows, result, combine })
}

/// The operation on the table, with its result.
struct LookUp<C> {
    rows: Vec<usize>,
    result: Tensor,
    combine: C,
}

impl<C: Combine> CustomOp1 for LookUp<C> {
    fn name(&self) -> &'static str {
        C::NAME
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        known::cpu(&self.result)
    }

    fn cuda_fwd(&self, _: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        known::cuda(&self.result)
    }

    fn metal_fwd(&self, _: &MetalStorage, _: &Layout) -> Result<(MetalStorage, Shape)> {
        known::metal(&self.result)
    }

    fn bwd(&self, table: &Tensor, _: &Tensor, upstream: &Tensor) -> Result<Option<Tensor>> {
        let width = table.dim(1)?;
        let upstream = upstream.detach().contiguous()?;
        let upstream = upstream.reshape((upstream.elem_count() / width, width))?;
        deposit::device_row_gradient(table, &self.rows, &self.combine.gradients_of_rows(upstream)?)
    }
}
