//! Embeddings: rows of a table, with a gradient of only those rows.

use super::ids;
use crate::deposit;
use crate::number::{Number, with_elements};
use candle_core::{CpuStorage, CustomOp1, DType, Layout, Module, Result, Shape, Tensor, bail};
use candle_nn::VarBuilder;
use distribute_tensor::kernel::RowMerge;

/// The rows of a table that ids name: candle_nn's `Embedding`, with a sparse gradient inside of
/// [`minimize`](crate::Optimizer::minimize).
///
/// Ids are u8, u32 or i64 of any shape `[…]`, none is allowed, too; the result has shape `[…, hidden]`. Only rows that some
/// replica has looked up are then reduced and updated, so a step costs what its ids cost, however large the table is. For
/// [`Sgd`](crate::optimizer::Sgd) and the other rules that leave rows without a gradient where they are, the numbers are
/// those of the dense gradient. Elsewhere, and for dtypes other than f32 and f64, candle gets the dense gradient.
///
/// # Errors
/// `forward` gives one for an id that is no row of the table, which says where it stands.
///
/// ```
/// # use distribute::prelude::*;
/// use candle_core::{Device, Module, Tensor};
/// use candle_nn::VarBuilder;
/// use distribute::nn::embedding;
///
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let model = strategy.replicate(|vb: VarBuilder| embedding(100_000, 32, vb))?;
/// let optimizer = Sgd::new(&model.variables, 0.1)?;
/// let ids = Tensor::new(&[[7u32, 99_999], [7, 0]], &Device::Cpu)?;
/// strategy.run(&model, |ctx, model| {
///     let rows = model.forward(&ids)?;
///     assert_eq!(rows.dims(), [2, 2, 32]);
///     optimizer.minimize(ctx, rows.sqr()?.mean_all()?, 2)
/// })?;
/// # Ok::<(), distribute::Error>(())
/// ```
#[doc(alias = "tf.keras.layers.Embedding")]
#[derive(Clone, Debug)]
pub struct Embedding {
    embeddings: Tensor,
    hidden_size: usize,
}

/// A table of `in_size` rows of `out_size`, the variable `weight`, initialised as candle_nn's.
///
/// # Errors
/// Those of the `VarBuilder`.
pub fn embedding(in_size: usize, out_size: usize, vb: VarBuilder) -> Result<Embedding> {
    candle_nn::embedding(in_size, out_size, vb).map(Embedding::from)
}

impl From<candle_nn::Embedding> for Embedding {
    fn from(layer: candle_nn::Embedding) -> Self {
        Self::new(layer.embeddings().clone(), layer.hidden_size())
    }
}

impl Embedding {
    /// A layer of a table `[rows, hidden_size]`.
    pub fn new(embeddings: Tensor, hidden_size: usize) -> Self {
        Self { embeddings, hidden_size }
    }

    /// The table, `[rows, hidden_size]`.
    pub fn embeddings(&self) -> &Tensor {
        &self.embeddings
    }

    /// The elements of a row.
    pub fn hidden_size(&self) -> usize {
        self.hidden_size
    }
}

impl Module for Embedding {
    fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        let Some(height) = height(&self.embeddings, self.hidden_size) else {
            return candle_nn::Embedding::new(self.embeddings.clone(), self.hidden_size).forward(ids);
        };
        let mut rows = Vec::with_capacity(ids.elem_count());
        ids::each("embedding", ids, height, None, |row| rows.extend(row))?;
        let shape = [ids.dims(), &[self.hidden_size]].concat();
        self.embeddings.apply_op1(Lookup { rows, shape })
    }
}

/// The rows of a table whose elements the sparse operations can read; None for other tables.
pub(super) fn height(table: &Tensor, width: usize) -> Option<usize> {
    let (height, row_len) = table.dims2().ok()?;
    let fits = matches!(table.dtype(), DType::F32 | DType::F64)
        && table.device().is_cpu()
        && table.is_contiguous()
        && (row_len == width && table.elem_count() > 0);
    fits.then_some(height)
}

/// The elements of a table that [`height`] has looked at.
pub(super) fn table<'a, T: Number>(storage: &'a [T], layout: &Layout) -> Result<(&'a [T], usize)> {
    match (layout.contiguous_offsets(), layout.shape().dims2()) {
        (Some((start, end)), Ok((_, width))) => Ok((&storage[start..end], width)),
        _ => bail!("a contiguous table is required"),
    }
}

/// The operation on the table.
struct Lookup {
    /// Those that are looked up, each below the table's height.
    rows: Vec<usize>,
    shape: Vec<usize>,
}

impl Lookup {
    fn outputs<T: Number>(&self, storage: &[T], layout: &Layout) -> Result<Vec<T>> {
        let (table, width) = table(storage, layout)?;
        let mut out = Vec::with_capacity(self.rows.len() * width);
        self.rows.iter().for_each(|row| out.extend_from_slice(&table[row * width..][..width]));
        Ok(out)
    }

    fn gradient<T: Number>(&self, table: &Tensor, upstream: &Tensor) -> Result<Option<Tensor>> {
        let (merge, width) = (RowMerge::new(&self.rows), table.dim(1)?);
        let mut sums = vec![T::of(0.); merge.rows().len() * width];
        with_elements(upstream, |upstream| merge.sum(upstream, width, 0, &mut sums))?;
        deposit::row_gradient(table, merge.into_rows(), sums)
    }
}

impl CustomOp1 for Lookup {
    fn name(&self) -> &'static str {
        "embedding"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let out = match storage {
            CpuStorage::F32(storage) => CpuStorage::F32(self.outputs(storage, layout)?),
            CpuStorage::F64(storage) => CpuStorage::F64(self.outputs(storage, layout)?),
            _ => bail!("embedding: a table of f32 or f64 is required"),
        };
        Ok((out, self.shape.clone().into()))
    }

    fn bwd(&self, table: &Tensor, _rows: &Tensor, upstream: &Tensor) -> Result<Option<Tensor>> {
        let upstream = upstream.contiguous()?;
        match table.dtype() {
            DType::F32 => self.gradient::<f32>(table, &upstream),
            _ => self.gradient::<f64>(table, &upstream),
        }
    }
}
