//! [`Combine`]: the operation that a layer applies to the table rows that it looks up.

use candle_core::{Result, Tensor};
use distribute_base::internal::Number;
use distribute_tensor::kernel::RowMerge;

/// The operation with which a layer combines the rows that it looks up.
pub(super) trait Combine: Send + Sync + 'static {
    /// The name of the operation in candle's messages.
    const NAME: &'static str;

    /// Computes the elements of the output from the given `rows` of a `table` with rows of `width` elements.
    fn outputs<T: Number>(&self, rows: &[usize], table: &[T], width: usize) -> Vec<T>;

    /// Adds the gradients of the rows that were looked up to `sums`, which has `width` elements for each distinct row
    /// of `merge`. Gradients of the same row are added in the order in which the row was looked up. `upstream` is the
    /// gradient of the output.
    fn add_gradients<T: Number>(&self, merge: &RowMerge, upstream: &[T], width: usize, sums: &mut [T]);

    /// Computes the output from rows on a device, of shape `[rows, width]`. Returns it as a matrix or in its final
    /// shape.
    fn combine_rows(&self, rows: Tensor) -> Result<Tensor>;

    /// Computes the gradient of each row, `[rows, width]`, from the gradient of the output as a matrix.
    fn row_gradients(&self, upstream: Tensor) -> Result<Tensor>;
}
