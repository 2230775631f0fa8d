//! Embeddings: lookups of table rows, with a gradient for only these rows.

use super::ids;
use super::table::{self, Combine};
use candle_core::{D, Device, Module, Result, Tensor};
use candle_nn::{Init, VarBuilder};
use distribute_base::internal::{Number, to_device};
use distribute_core::internal::{RowSource, for_rows};
use distribute_tensor::kernel::RowMerge;

/// A table whose rows are looked up by ids: candle_nn's `Embedding`, with a sparse gradient inside `minimize`.
///
/// Ids are u8, u32 or i64 of any shape `[…]`, which may be empty; the result has shape `[…, hidden]`. Only
/// rows that some replica has looked up are reduced and updated. So the cost of a step depends on its ids, not
/// on the size of the table. With `Sgd` and the other rules that do not move rows without a gradient, the
/// results are the same as with the dense gradient. Outside `minimize`, and for dtypes other than f32 and f64,
/// candle gets the dense gradient.
///
/// # Errors
/// `forward` returns an error if an id is not a row of the table. The error names the id's position.
///
/// ```
/// # use distribute::prelude::*;
/// use candle_core::{Device, Module, Tensor};
/// use distribute::nn::embedding;
///
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let model = strategy.replicate(|vb| embedding(100_000, 32, vb))?;
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
    /// The device of the result; the table may be in host memory.
    device: Device,
    /// The source of rows, if they do not come from the tensor.
    rows: Option<RowSource>,
}

/// Creates a table of `in_size` rows of `out_size`, the variable `weight`, initialized like candle_nn's from
/// N(0, 1).
///
/// # Errors
/// Returns the errors of the `VarBuilder`.
pub fn embedding(in_size: usize, out_size: usize, vb: VarBuilder) -> Result<Embedding> {
    embedding_init(in_size, out_size, Init::Randn { mean: 0., stdev: 1. }, vb)
}

/// Creates a table like [`embedding`], with other initial values.
///
/// Layers that ask for the same path share one table. On parameter servers, each of them fetches only its own
/// rows.
///
/// # Errors
/// Returns the errors of the `VarBuilder`.
pub fn embedding_init(in_size: usize, out_size: usize, init: Init, vb: VarBuilder) -> Result<Embedding> {
    let (table, rows) = for_rows(|| vb.get_with_hints((in_size, out_size), "weight", init));
    Ok(Embedding { rows, device: vb.device().clone(), ..Embedding::new(table?, out_size) })
}

impl From<candle_nn::Embedding> for Embedding {
    fn from(layer: candle_nn::Embedding) -> Self {
        Self::new(layer.embeddings().clone(), layer.hidden_size())
    }
}

impl Embedding {
    /// Creates a layer from a table `[rows, hidden_size]`.
    pub fn new(embeddings: Tensor, hidden_size: usize) -> Self {
        let device = embeddings.device().clone();
        Self { embeddings, hidden_size, device, rows: None }
    }

    /// Creates a layer from a table `[rows, hidden_size]`, under the name of candle_transformers'
    /// `with_tracing::Embedding`.
    ///
    /// # Errors
    /// Returns an error if the tensor does not have two dimensions.
    pub fn from_weights(weights: Tensor) -> Result<Self> {
        let (_, hidden_size) = weights.dims2()?;
        Ok(Self::new(weights, hidden_size))
    }

    /// Returns the table, `[rows, hidden_size]`.
    ///
    /// If the table is on parameter servers and this layer fetches only rows, the complete table is fetched in
    /// all later runs. A run in which that fails returns an error.
    pub fn embeddings(&self) -> &Tensor {
        self.rows.as_ref().map_or(&self.embeddings, |rows| rows.whole(&self.embeddings))
    }

    /// Returns the number of elements of a row.
    pub fn hidden_size(&self) -> usize {
        self.hidden_size
    }

    /// Returns the rows of each example, concatenated: for ids `[…, n]` a tensor `[…, n · hidden]`.
    ///
    /// The result equals `forward(ids)?.flatten_from(D::Minus2)`, but candle's backward of the latter clears
    /// and accumulates the gradient a second time.
    ///
    /// # Errors
    /// - `forward` returns an error for these ids.
    /// - `ids` is a scalar.
    pub fn side_by_side(&self, ids: &Tensor) -> Result<Tensor> {
        let n = ids.dim(D::Minus1)?;
        let shape = [&ids.dims()[..ids.rank() - 1], &[n * self.hidden_size]].concat();
        match self.rows(ids)? {
            Some(rows) => self.look_up(rows, shape),
            None => self.stock(ids)?.reshape(shape),
        }
    }

    fn look_up(&self, rows: Vec<usize>, shape: Vec<usize>) -> Result<Tensor> {
        to_device(&table::look_up(&self.embeddings, self.rows.as_ref(), rows, shape, Each)?, &self.device)
    }

    /// Returns the rows that ids select, if the fast operation can read the table.
    fn rows(&self, ids: &Tensor) -> Result<Option<Vec<usize>>> {
        let Some(height) = table::height(&self.embeddings, self.hidden_size) else { return Ok(None) };
        let mut rows = Vec::with_capacity(ids.elem_count());
        ids::each("embedding", ids, height, None, |row| rows.extend(row))?;
        Ok(Some(rows))
    }

    fn stock(&self, ids: &Tensor) -> Result<Tensor> {
        if !self.embeddings.device().is_cpu() {
            // An invalid index would make the GPU unusable.
            ids::each("embedding", ids, self.embeddings.dim(0)?, None, |_| ())?;
        }
        let ids = to_device(ids, self.embeddings.device())?;
        candle_nn::Embedding::new(self.embeddings.clone(), self.hidden_size).forward(&ids)
    }
}

impl Module for Embedding {
    fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        let shape = [ids.dims(), &[self.hidden_size]].concat();
        match self.rows(ids)? {
            Some(rows) => self.look_up(rows, shape),
            None => self.stock(ids),
        }
    }
}

/// The combination that returns each row unchanged.
pub(super) struct Each;

impl Combine for Each {
    const NAME: &'static str = "embedding";

    fn outputs<T: Number>(&self, rows: &[usize], table: &[T], width: usize) -> Vec<T> {
        let mut out = Vec::with_capacity(rows.len() * width);
        rows.iter().for_each(|row| out.extend_from_slice(&table[row * width..][..width]));
        out
    }

    fn add_gradients<T: Number>(&self, merge: &RowMerge, upstream: &[T], width: usize, sums: &mut [T]) {
        merge.sum(upstream, width, 0, sums);
    }

    fn of_rows(&self, rows: Tensor) -> Result<Tensor> {
        Ok(rows)
    }

    fn gradients_of_rows(&self, upstream: Tensor) -> Result<Tensor> {
        Ok(upstream)
    }
}
