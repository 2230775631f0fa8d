//! Bags of embeddings: the sum or mean of the rows of each bag of ids, without copying these rows.

use super::combine::Combine;
use super::together::{Lookup, RowLayer};
use super::{autocast, ids, table};
use candle_core::{D, Device, Module, Result, Tensor, bail};
use candle_nn::{Init, VarBuilder};
use distribute_base::internal::{Number, from_vec, to_device};
use distribute_core::internal::{RowSource, request_rows};
use distribute_core::lookup::BagMode;
use distribute_tensor::kernel::RowMerge;

/// A layer that combines the table rows of each bag of ids into a sum, a mean or a scaled sum.
///
/// A bag can be, for example, the words of a text, the purchases of a user, or the neighbours in a graph. The result is
/// the same as that of an [`Embedding`](super::Embedding) whose rows are then combined, but the forward and backward
/// passes do not copy rows. In `minimize` the gradient is sparse.
///
/// Ids are u8, u32 or i64 of shape `[…, length]`, and the result has shape `[…, hidden]`. If bags have different
/// lengths, pad them to the same length with an id that is ignored. A batch of bags is then a tensor, which datasets
/// can batch and strategies can split. The result for a bag that consists only of padding is zeros.
///
/// # Errors
/// `forward` returns an error in these cases:
/// - An id is neither the index of a row nor padding. The error contains the id's position.
/// - `ids` is a scalar, or its dtype is not u8, u32 or i64.
/// - The table is empty or not contiguous, or its dtype is not f32 or f64.
/// - A request to a parameter server fails.
///
/// ```
/// # use distribute::prelude::*;
/// use candle_core::{Device, Module, Tensor};
/// use distribute::nn::{BagMode, embedding_bag};
///
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let model = strategy.replicate(|vb| {
///     embedding_bag(40_000, 64, BagMode::Mean, vb).map(|bag| bag.with_padding(40_000))
/// })?;
/// let optimizer = Adam::new(&model.variables, 1e-2)?;
/// let words = Tensor::new(&[[3u32, 1, 4], [1, 40_000, 40_000]], &Device::Cpu)?;
/// strategy.run(&model, |ctx, model| {
///     let texts = model.forward(&words)?;
///     assert_eq!(texts.dims(), [2, 64]);
///     optimizer.minimize(ctx, texts.sqr()?.mean_all()?, 2)
/// })?;
/// # Ok::<(), distribute::Error>(())
/// ```
#[doc(alias = "tf.nn.embedding_lookup_sparse")]
#[doc(alias = "tf.nn.safe_embedding_lookup_sparse")]
#[derive(Clone, Debug)]
pub struct EmbeddingBag {
    embeddings: Tensor,
    mode: BagMode,
    padding: Option<usize>,
    /// The device on which results are created. The table may be in host memory.
    device: Device,
    /// The source of the rows; `None` if they are read from the tensor `embeddings`.
    rows: Option<RowSource>,
}

/// Creates a table with the variable `weight`, which has `in_size` rows of `out_size` elements. It is initialized
/// like that of [`embedding`](super::embedding).
///
/// # Errors
/// Returns the errors of the `VarBuilder`.
pub fn embedding_bag(in_size: usize, out_size: usize, mode: BagMode, vb: VarBuilder) -> Result<EmbeddingBag> {
    embedding_bag_init(in_size, out_size, mode, Init::Randn { mean: 0., stdev: 1. }, vb)
}

/// Creates a table like [`embedding_bag`], with the initial values given by `init`.
///
/// The table may be shared with another layer, as with [`embedding_init`](super::embedding_init).
///
/// # Errors
/// Returns the errors of the `VarBuilder`.
pub fn embedding_bag_init(
    in_size: usize,
    out_size: usize,
    mode: BagMode,
    init: Init,
    vb: VarBuilder,
) -> Result<EmbeddingBag> {
    let (table, rows) = request_rows(|| vb.get_with_hints((in_size, out_size), "weight", init));
    Ok(EmbeddingBag { rows, device: vb.device().clone(), ..EmbeddingBag::new(table?, mode) })
}

impl EmbeddingBag {
    /// Creates a layer from a table of shape `[rows, hidden]`.
    pub fn new(embeddings: Tensor, mode: BagMode) -> Self {
        let device = embeddings.device().clone();
        Self { embeddings, mode, padding: None, device, rows: None }
    }

    /// Sets the id of padding. Padding is ignored. It need not be the index of a row; the number of rows is a good
    /// choice.
    pub fn with_padding(mut self, id: usize) -> Self {
        self.padding = Some(id);
        self
    }

    /// Returns the table, of shape `[rows, hidden]`.
    ///
    /// If the table is on parameter servers and this layer has only fetched rows so far, this call fetches the complete
    /// table, and so do all later runs. If that fails, the current run returns the error. Outside `run`, the error is
    /// logged.
    pub fn embeddings(&self) -> &Tensor {
        self.rows.as_ref().map_or(&self.embeddings, |rows| rows.complete(&self.embeddings))
    }
}

impl Module for EmbeddingBag {
    fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        self.lookup(ids)?.compute()
    }
}

impl RowLayer for EmbeddingBag {
    fn lookup<'a>(&'a self, ids: &Tensor) -> Result<Lookup<'a>> {
        let table = &self.embeddings;
        let Some(height) = table.dim(D::Minus1).ok().and_then(|width| table::height(table, width)) else {
            bail!(
                "bag of embeddings: the table has to be [rows, hidden] of f32 or f64, and contiguous, not {:?} of {:?}",
                self.embeddings.dims(),
                self.embeddings.dtype()
            )
        };
        let Some((&length, outer)) = ids.dims().split_last() else {
            bail!("bag of embeddings: ids have to be [..., length], but this is a scalar; reshape it to (1,)")
        };
        let shape = [outer, &[self.embeddings.dim(1)?]].concat();
        let mut rows = Vec::with_capacity(ids.elem_count());
        let mut ends = Vec::with_capacity(outer.iter().product());
        let mut seen = 0;
        ids::each("bag of embeddings", ids, height, self.padding, |row| {
            rows.extend(row);
            seen += 1;
            if seen == length {
                ends.push(rows.len());
                seen = 0;
            }
        })?;
        ends.resize(outer.iter().product(), rows.len()); // Bags of length 0.
        let bags = Bags { mode: self.mode, ends };
        let source = self.rows.as_ref();
        let finish = move |rows, fetched| {
            let found = table::look_up(table, source.is_none(), fetched, rows, shape, bags)?;
            autocast::activations(to_device(&found, &self.device)?)
        };
        Ok(Lookup { name: Bags::NAME, source, rows, finish: Box::new(finish) })
    }
}

/// A combination that adds the rows of each bag, and scales the sum according to the mode.
struct Bags {
    mode: BagMode,
    /// The end of each bag in the list of all rows. The list contains one bag after another, without padding.
    ends: Vec<usize>,
}

impl Bags {
    fn ranges(&self) -> impl Iterator<Item = std::ops::Range<usize>> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| start..*end)
    }

    /// Returns, for each row, the index of its bag, as an index tensor on a device.
    fn bag_of(&self, device: &Device) -> Result<Tensor> {
        let mut bag_of = vec![0i64; self.ends.last().copied().unwrap_or(0)];
        for (number, bag) in self.ranges().enumerate() {
            bag_of[bag].fill(number as i64);
        }
        let count = bag_of.len();
        from_vec(bag_of, count, device)
    }

    /// Multiplies the sum of each bag by the bag's scale.
    fn scaled(&self, bags: Tensor) -> Result<Tensor> {
        if self.mode == BagMode::Sum {
            return Ok(bags);
        }
        let scales: Vec<f64> = self.ranges().map(|bag| self.scale(bag.len()).unwrap_or(1.)).collect();
        let scales = Tensor::from_vec(scales, (self.ends.len(), 1), &Device::Cpu)?.to_dtype(bags.dtype())?;
        bags.broadcast_mul(&to_device(&scales, bags.device())?)
    }

    /// Returns the scale of a bag with the given number of rows, or `None` if the scale is 1.
    fn scale<T: Number>(&self, rows: usize) -> Option<T> {
        match self.mode {
            _ if rows < 2 => None,
            BagMode::Sum => None,
            BagMode::Mean => Some(T::of(1. / rows as f64)),
            BagMode::SqrtN => Some(T::of(1. / (rows as f64).sqrt())),
        }
    }
}

impl Combine for Bags {
    const NAME: &'static str = "bag of embeddings";

    fn outputs<T: Number>(&self, rows: &[usize], table: &[T], width: usize) -> Vec<T> {
        let mut out = vec![T::of(0.); self.ends.len() * width];
        for (bag, out) in self.ranges().zip(out.chunks_exact_mut(width)) {
            for row in &rows[bag.clone()] {
                let row = &table[row * width..][..width];
                out.iter_mut().zip(row).for_each(|(sum, x)| *sum = sum.plus(*x));
            }
            if let Some(scale) = self.scale(bag.len()) {
                out.iter_mut().for_each(|x| *x *= scale);
            }
        }
        out
    }

    fn combine_rows(&self, rows: Tensor) -> Result<Tensor> {
        let width = rows.dim(1)?;
        let zeros = Tensor::zeros((self.ends.len(), width), rows.dtype(), rows.device())?;
        self.scaled(zeros.index_add(&self.bag_of(rows.device())?, &rows, 0)?)
    }

    fn row_gradients(&self, upstream: Tensor) -> Result<Tensor> {
        let bag_of = self.bag_of(upstream.device())?;
        self.scaled(upstream)?.index_select(&bag_of, 0)
    }

    fn add_gradients<T: Number>(&self, merge: &RowMerge, upstream: &[T], width: usize, sums: &mut [T]) {
        let mut bag_of = vec![0; self.ends.last().copied().unwrap_or(0)];
        for (number, bag) in self.ranges().enumerate() {
            bag_of[bag].fill(number);
        }
        match self.mode {
            BagMode::Sum => merge.sum_shared(&bag_of, upstream, width, 0, sums),
            BagMode::Mean | BagMode::SqrtN => {
                let mut scaled = Vec::with_capacity(upstream.len());
                for (bag, row) in self.ranges().zip(upstream.chunks_exact(width)) {
                    let scale = self.scale(bag.len()).unwrap_or(T::of(1.));
                    scaled.extend(row.iter().map(|x| *x * scale));
                }
                merge.sum_shared(&bag_of, &scaled, width, 0, sums);
            }
        }
    }
}
