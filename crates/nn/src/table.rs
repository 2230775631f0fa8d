//! Lookups of rows of a table, with gradients for the looked up rows only.

use super::combine::Combine;
use super::device_table;
use candle_core::{CpuStorage, CustomOp1, DType, Layout, Result, Shape, Tensor, bail};
use distribute_base::internal::{Number, gradients, is_native, operand, with_elements};
use distribute_ps_client::internal::UniqueRows;
use distribute_tensor::kernel::RowMerge;
use distribute_tensor::without_elements;

/// Returns the number of rows of a table that [`look_up`] can read, or `None` for any other table.
pub(super) fn height(table: &Tensor, width: usize) -> Option<usize> {
    let (height, row_len) = table.dims2().ok()?;
    let fits = matches!(table.dtype(), DType::F32 | DType::F64)
        && table.is_contiguous()
        && (row_len == width && table.elem_count() > 0);
    fits.then_some(height)
}

/// Applies `combine` to the given rows. Returns the result as a tensor of the given shape.
///
/// Each row index must be less than the table's [`height`]. Rows are read from `fetched` if it is `Some`, otherwise
/// from `table`. `is_own` is `true` if `table` is the layer's own tensor; only then may the table be on a device.
pub(super) fn look_up<C: Combine>(
    table: &Tensor,
    is_own: bool,
    fetched: Option<UniqueRows>,
    rows: Vec<usize>,
    shape: Vec<usize>,
    combine: C,
) -> Result<Tensor> {
    if is_own && !is_native(table) {
        if rows.is_empty() {
            // Without rows, the result does not depend on the table.
            return without_elements(&shape, table.dtype(), table.device());
        }
        return device_table::look_up(table, rows, shape, combine);
    }
    table.apply_op1(TableLookup { rows, fetched, shape, combine })
}

/// The candle operation that looks up rows of a table and combines them, with its backward pass.
struct TableLookup<C> {
    rows: Vec<usize>,
    /// The rows that were fetched; `None` if rows are read from the table.
    fetched: Option<UniqueRows>,
    shape: Vec<usize>,
    combine: C,
}

impl<C: Combine> TableLookup<C> {
    fn outputs<T: Number>(&self, storage: &CpuStorage, layout: &Layout) -> Result<CpuStorage> {
        let (_, width) = layout.shape().dims2()?;
        let outputs = match &self.fetched {
            None => self.combine.outputs::<T>(&self.rows, operand(storage, layout)?, width),
            Some(fetched) => {
                let Some(table) = fetched.rows.as_slice::<T>() else {
                    bail!("{}: rows of {} do not fit a table of another dtype", C::NAME, fetched.rows.dtype())
                };
                self.combine.outputs(&fetched.places, table, width)
            }
        };
        Ok(T::to_cpu_storage_owned(outputs))
    }

    fn gradient<T: Number>(&self, table: &Tensor, upstream: &Tensor) -> Result<Option<Tensor>> {
        let (merge, width) = (RowMerge::new(&self.rows), table.dim(1)?);
        let mut sums = vec![T::of(0.); merge.rows().len() * width];
        with_elements(upstream, |upstream| self.combine.add_gradients(&merge, upstream, width, &mut sums))?;
        gradients::row_gradient(table, merge.into_rows(), sums)
    }
}

impl<C: Combine> CustomOp1 for TableLookup<C> {
    fn name(&self) -> &'static str {
        C::NAME
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let out = match storage {
            CpuStorage::F32(_) => self.outputs::<f32>(storage, layout)?,
            _ => self.outputs::<f64>(storage, layout)?,
        };
        Ok((out, self.shape.clone().into()))
    }

    fn bwd(&self, table: &Tensor, _: &Tensor, upstream: &Tensor) -> Result<Option<Tensor>> {
        let upstream = upstream.contiguous()?;
        match table.dtype() {
            DType::F32 => self.gradient::<f32>(table, &upstream),
            _ => self.gradient::<f64>(table, &upstream),
        }
    }
}
