//! Embeddings: lookups of table rows, with gradients for only these rows.

use super::combine::Combine;
use super::together::{Lookup, RowLayer};
use super::{autocast, ids, table};
use candle_core::{D, Device, Module, Result, Tensor};
use candle_nn::{Init, VarBuilder};
use distribute_base::internal::{Number, to_device};
use distribute_core::internal::{RowSource, request_rows};
use distribute_tensor::kernel::RowMerge;

/// A table whose rows are looked up by id: candle_nn's `Embedding`, with a sparse gradient in `minimize`.
///
/// Ids are u8, u32 or i64. The tensor of ids may have any shape `[…]` and may be empty; the result has shape `[…,
/// hidden]`. Only rows that at least one replica has looked up are reduced and updated, so the cost of a step depends
/// on its ids and not on the size of the table. With rules that do not change rows without a gradient, such as `Sgd`,
/// results are the same as with a dense gradient. Outside `minimize`, and for dtypes other than f32 and f64, the
/// gradient is dense.
///
/// # Errors
/// `forward` returns an error in these cases:
/// - An id is not the index of a row. For a contiguous table of f32 or f64, the error contains the id's position.
/// - The dtype of the ids is not u8, u32 or i64.
/// - A request to a parameter server fails.
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
    /// The device on which results are created. The table may be in host memory.
    device: Device,
    /// The source of the rows; `None` if they are read from the tensor `embeddings`.
    rows: Option<RowSource>,
}

/// Creates a table with the variable `weight`, which has `in_size` rows of `out_size` elements. Initial values are
/// from N(0, 1), as in candle_nn.
///
/// # Errors
/// Returns the errors of the `VarBuilder`.
pub fn embedding(in_size: usize, out_size: usize, vb: VarBuilder) -> Result<Embedding> {
    embedding_init(in_size, out_size, Init::Randn { mean: 0., stdev: 1. }, vb)
}

/// Creates a table like [`embedding`], with the initial values given by `init`.
///
/// Layers with the same path share one table. If it is on parameter servers, each layer fetches only its own rows.
///
/// # Errors
/// Returns the errors of the `VarBuilder`.
pub fn embedding_init(in_size: usize, out_size: usize, init: Init, vb: VarBuilder) -> Result<Embedding> {
    let (table, rows) = request_rows(|| vb.get_with_hints((in_size, out_size), "weight", init));
    Ok(Embedding { rows, device: vb.device().clone(), ..Embedding::new(table?, out_size) })
}

impl From<candle_nn::Embedding> for Embedding {
    fn from(layer: candle_nn::Embedding) -> Self {
        Self::new(layer.embeddings().clone(), layer.hidden_size())
    }
}

impl Embedding {
    /// Creates a layer from a table of shape `[rows, hidden_size]`.
    pub fn new(embeddings: Tensor, hidden_size: usize) -> Self {
        let device = embeddings.device().clone();
        Self { embeddings, hidden_size, device, rows: None }
    }

    /// Creates a layer from a table of shape `[rows, hidden_size]`. candle_transformers' `with_tracing::Embedding` has
    /// a function of the same name.
    ///
    /// # Errors
    /// Returns an error if the tensor does not have two dimensions.
    pub fn from_weights(weights: Tensor) -> Result<Self> {
        let (_, hidden_size) = weights.dims2()?;
        Ok(Self::new(weights, hidden_size))
    }

    /// Returns the table, of shape `[rows, hidden_size]`.
    ///
    /// If the table is on parameter servers and this layer has only fetched rows so far, this call fetches the complete
    /// table, and so do all later runs. If that fails, the current run returns the error. Outside `run`, the error is
    /// logged.
    pub fn embeddings(&self) -> &Tensor {
        self.rows.as_ref().map_or(&self.embeddings, |rows| rows.complete(&self.embeddings))
    }

    /// Returns the number of elements in a row.
    pub fn hidden_size(&self) -> usize {
        self.hidden_size
    }

    /// Returns the rows of each example, concatenated. For ids of shape `[…, n]`, the result has shape `[…, n ·
    /// hidden]`.
    ///
    /// The result equals `forward(ids)?.flatten_from(D::Minus2)`, but the backward pass is faster: candle need not
    /// clear and accumulate the gradient an additional time.
    ///
    /// # Errors
    /// Returns the errors of `forward`, and an error if `ids` is a scalar.
    pub fn side_by_side(&self, ids: &Tensor) -> Result<Tensor> {
        let n = ids.dim(D::Minus1)?;
        let shape = [&ids.dims()[..ids.rank() - 1], &[n * self.hidden_size]].concat();
        self.lookup_as(ids, shape)?.compute()
    }

    /// Returns the lookup of `ids`, whose result has the given shape.
    fn lookup_as<'a>(&'a self, ids: &Tensor, shape: Vec<usize>) -> Result<Lookup<'a>> {
        let (name, source) = (Each::NAME, self.rows.as_ref());
        let Some(rows) = self.rows(ids)? else {
            let ids = ids.clone();
            let finish = move |_, _| autocast::activations(self.stock(&ids)?.reshape(shape)?);
            return Ok(Lookup { name, source: None, rows: Vec::new(), finish: Box::new(finish) });
        };
        let finish = move |rows, fetched| {
            let found = table::look_up(&self.embeddings, source.is_none(), fetched, rows, shape, Each)?;
            autocast::activations(to_device(&found, &self.device)?)
        };
        Ok(Lookup { name, source, rows, finish: Box::new(finish) })
    }

    /// Returns the table rows that the ids select, or `None` if the fast operation cannot read the table.
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
        self.lookup(ids)?.compute()
    }
}

impl RowLayer for Embedding {
    fn lookup<'a>(&'a self, ids: &Tensor) -> Result<Lookup<'a>> {
        self.lookup_as(ids, [ids.dims(), &[self.hidden_size]].concat())
    }
}

/// A combination that returns every row unchanged.
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

    fn combine_rows(&self, rows: Tensor) -> Result<Tensor> {
        Ok(rows)
    }

    fn row_gradients(&self, upstream: Tensor) -> Result<Tensor> {
        Ok(upstream)
    }
}

#[cfg(all(test, feature = "cuda"))]
#[allow(clippy::panic)]
mod tests {
    use super::*;
    use crate::loss;
    use distribute_base::internal::{DeviceCopier, hold_gpu};
    use distribute_testing::{child, skipped, watched};

    /// Runs `body` with a CUDA GPU, in a separate process. Skips the test if there is no GPU.
    fn with_gpu(test: &str, body: impl FnOnce(candle_core::CudaDevice) + Send + 'static) {
        if child::part().is_none() {
            let command = child::command(&format!("embedding::tests::{test}"), "by itself");
            child::output(command, std::time::Duration::from_secs(60));
            return;
        }
        match distribute_base::DeviceName::gpu(0).to_candle() {
            Ok(Device::Cuda(device)) => watched(|| body(device)),
            Ok(other) => panic!("{:?} is no GPU of CUDA", other.location()),
            Err(error) => skipped(error),
        }
    }

    // INV-69
    #[test]
    fn transferred_ids_and_labels_are_checked_while_the_gpu_computes() {
        with_gpu("transferred_ids_and_labels_are_checked_while_the_gpu_computes", |gpu| {
            let device = Device::Cuda(gpu.clone());
            let carrier = DeviceCopier::new(device.clone());
            // The rows of a per-replica batch in a larger tensor, too large for CUDA's own staging copy.
            let bring = |id: i64, label: i64| {
                let all = Tensor::from_iter((0..40_000).flat_map(|_| [id, label]), &Device::Cpu).unwrap();
                carrier.copy(&all.reshape((40_000, 2)).unwrap().narrow(0, 10, 39_980).unwrap()).unwrap()
            };
            let table = Tensor::arange(0f32, 12., &device).unwrap().reshape((4, 3)).unwrap();
            let words = Embedding::new(table, 3);
            let of = |brought: &Tensor| {
                let column = |number| brought.get_on_dim(1, number);
                loss::cross_entropy(&words.forward(&column(0)?)?, &column(1)?)
            };
            let expected = of(&bring(3, 2)).unwrap().to_scalar::<f32>().unwrap();
            let (again, no_row, no_class) = (bring(3, 2), bring(4, 0), bring(1, 3));
            let (go, said) = hold_gpu(&gpu);
            let found = of(&again).unwrap();
            let refused = [no_row, no_class].map(|brought| of(&brought).unwrap_err().to_string());
            go.send(()).unwrap();
            assert!(refused[0].contains("id 4 at position 0 of ids [39980] is not a row"), "{}", refused[0]);
            assert!(refused[1].contains("row 0 has the label 3"), "{}", refused[1]);
            assert_eq!(found.to_scalar::<f32>().unwrap(), expected);
            let patience = std::time::Duration::from_secs(20);
            assert!(said.recv_timeout(patience).unwrap(), "it has waited");
        });
    }
}
