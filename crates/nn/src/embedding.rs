//! Embeddings: rows of a table, with a gradient of only those rows.

use super::ids;
use super::table::{self, Combine};
use candle_core::{D, Device, Module, Result, Tensor};
use candle_nn::{Init, VarBuilder};
use distribute_base::internal::{Number, to_device};
use distribute_core::internal::{RowSource, for_rows};
use distribute_tensor::kernel::RowMerge;

/// The rows of a table that ids name: candle_nn's `Embedding`, with a sparse gradient inside of
/// `minimize`.
///
/// Ids are u8, u32 or i64 of any shape `[…]`, which may be empty; the result has shape `[…, hidden]`. Only rows that some
/// replica has looked up are reduced and updated, so the cost of a step depends on its ids, not on the size of the table.
/// With `Sgd` and the other rules that don't move rows without a gradient, the results are the
/// same as with the dense gradient. Outside of `minimize`, and for dtypes other than f32 and f64, candle gets the dense
/// gradient.
///
/// # Errors
/// `forward` gives one for an id that is no row of the table, which says where it stands.
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
    /// Where the result is: the table may be in the memory of the CPU.
    device: Device,
    /// Where rows come from, if not from the tensor.
    rows: Option<RowSource>,
}

/// A table of `in_size` rows of `out_size`, the variable `weight`, initialised as candle_nn's: drawn from N(0, 1).
///
/// # Errors
/// Those of the `VarBuilder`.
pub fn embedding(in_size: usize, out_size: usize, vb: VarBuilder) -> Result<Embedding> {
    embedding_init(in_size, out_size, Init::Randn { mean: 0., stdev: 1. }, vb)
}

/// As [`embedding`], with first values of another kind. Several layers that ask for the same path share one table, of which on parameter
/// servers each fetches its rows.
///
/// # Errors
/// Those of the `VarBuilder`.
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
    /// A layer of a table `[rows, hidden_size]`.
    pub fn new(embeddings: Tensor, hidden_size: usize) -> Self {
        let device = embeddings.device().clone();
        Self { embeddings, hidden_size, device, rows: None }
    }

    /// A layer of a table `[rows, hidden_size]`, as candle_transformers' `with_tracing::Embedding` makes it.
    ///
    /// # Errors
    /// candle's, for a tensor that is not of two dimensions.
    pub fn from_weights(weights: Tensor) -> Result<Self> {
        let (_, hidden_size) = weights.dims2()?;
        Ok(Self::new(weights, hidden_size))
    }

    /// The table, `[rows, hidden_size]`. One on parameter servers, of which this layer fetches rows alone, is fetched as a whole from
    /// then on; a run fails in which it cannot be.
    pub fn embeddings(&self) -> &Tensor {
        self.rows.as_ref().map_or(&self.embeddings, |rows| rows.whole(&self.embeddings))
    }

    /// The elements of a row.
    pub fn hidden_size(&self) -> usize {
        self.hidden_size
    }

    /// The rows of each example side by side: for ids `[…, n]` a tensor `[…, n · hidden]`. The numbers are those of
    /// `forward(ids)?.flatten_from(D::Minus2)`; candle's backward of that clears and adds up the gradient once more.
    ///
    /// # Errors
    /// As `forward`, and for a single id that is not in a vector.
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

    /// The rows that ids name, where the fast operation can read the table.
    fn rows(&self, ids: &Tensor) -> Result<Option<Vec<usize>>> {
        let Some(height) = table::height(&self.embeddings, self.hidden_size) else { return Ok(None) };
        let mut rows = Vec::with_capacity(ids.elem_count());
        ids::each("embedding", ids, height, None, |row| rows.extend(row))?;
        Ok(Some(rows))
    }

    fn stock(&self, ids: &Tensor) -> Result<Tensor> {
        if !self.embeddings.device().is_cpu() {
            // One that is no row would end all work on a GPU.
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

/// Each row by itself.
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
