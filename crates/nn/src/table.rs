//! Lookups of table rows, with a gradient for only these rows.

use super::device_table;
use candle_core::{CpuStorage, CustomOp1, DType, Layout, Result, Shape, Tensor, bail};
use distribute_base::internal::{Number, deposit, is_native, operand, with_elements};
use distribute_core::internal::{RowSource, raise};
use distribute_ps_client::internal::EachOnce;
use distribute_tensor::kernel::RowMerge;
use distribute_tensor::without_elements;

/// A layer's combination of the rows that it looks up.
pub(super) trait Combine: Send + Sync + 'static {
    /// The name in candle's messages.
    const NAME: &'static str;

    /// Computes the output's elements from the `rows` of a `table` with rows of `width` elements.
    fn outputs<T: Number>(&self, rows: &[usize], table: &[T], width: usize) -> Vec<T>;

    /// Adds the gradients of the rows of `merge` to `sums`, one row after another, from that of the output.
    fn add_gradients<T: Number>(&self, merge: &RowMerge, upstream: &[T], width: usize, sums: &mut [T]);

    /// Computes the output from rows on a device, `[rows, width]`, as a matrix or in the output's shape.
    fn of_rows(&self, rows: Tensor) -> Result<Tensor>;

    /// Computes the gradient of each of these rows, `[rows, width]`, from that of the output as a matrix.
    fn gradients_of_rows(&self, upstream: Tensor) -> Result<Tensor>;
}

/// Returns the number of rows of a table that [`look_up`] can read; `None` for other tables.
pub(super) fn height(table: &Tensor, width: usize) -> Option<usize> {
    let (height, row_len) = table.dims2().ok()?;
    let fits = matches!(table.dtype(), DType::F32 | DType::F64)
        && table.is_contiguous()
        && (row_len == width && table.elem_count() > 0);
    fits.then_some(height)
}

/// Returns the result of `combine` on these rows, as a tensor of this shape.
///
/// Each row has to be below the table's [`height`]. Rows are read from `source`, if it has them, or from the
/// table. Without a `source`, the table may be on a device.
pub(super) fn look_up<C: Combine>(
    table: &Tensor,
    source: Option<&RowSource>,
    rows: Vec<usize>,
    shape: Vec<usize>,
    combine: C,
) -> Result<Tensor> {
    if source.is_none() && !is_native(table) {
        if rows.is_empty() {
            // Without rows, the result does not depend on the table.
            return without_elements(&shape, table.dtype(), table.device());
        }
        return device_table::look_up(table, rows, shape, combine);
    }
    let fetched = source.map_or(Ok(None), |source| source.fetch(C::NAME, &rows)).map_err(raise)?;
    table.apply_op1(LookUp { rows, fetched, shape, combine })
}

/// The operation on the table.
struct LookUp<C> {
    rows: Vec<usize>,
    /// The fetched rows, if they are not read from the table.
    fetched: Option<EachOnce>,
    shape: Vec<usize>,
    combine: C,
}

impl<C: Combine> LookUp<C> {
    fn outputs<T: Number>(&self, storage: &CpuStorage, layout: &Layout) -> Result<CpuStorage> {
        let (_, width) = layout.shape().dims2()?;
        let outputs = match &self.fetched {
            None => self.combine.outputs::<T>(&self.rows, operand(storage, layout)?, width),
            Some(fetched) => {
                let Some(table) = fetched.rows.as_slice::<T>() else {
                    bail!("{}: rows of {} came for a table of another dtype", C::NAME, fetched.rows.dtype())
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
        deposit::row_gradient(table, merge.into_rows(), sums)
    }
}

impl<C: Combine> CustomOp1 for LookUp<C> {
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
