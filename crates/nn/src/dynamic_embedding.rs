//! Embeddings of ids of 64 bits, whose rows come with them.

use super::embedding::Each;
use super::{ids, table};
use candle_core::{Device, Module, Result, Tensor, bail};
use candle_nn::{Init, VarBuilder};
use distribute_base::internal::to_device;
use distribute_core::internal::{RowSource, for_ids, row_of_id};
use distribute_params::DynamicOptions;

/// The rows of a table that grows with its ids: hashes of words, users that come and go. They are on the servers of a
/// `ParameterServerStrategy`, each on the one that its hash says.
///
/// Ids are u8, u32 or i64 of any shape `[…]`, which may be empty, and any number but `i64::MAX`; the result has shape `[…, hidden]`. A
/// step fetches the rows of its batch alone, and sends their gradients. The row of an id is made by its first gradient, or by a later one
/// ([`DynamicOptions::admit_after`]); before, it reads as its first values, which depend on seed, name and id alone, and which no other
/// process has to know of. Rows go where there would be too many ([`max_rows`](DynamicOptions::max_rows)), and where they were not
/// trained for so many steps ([`max_age`](DynamicOptions::max_age)).
///
/// The table is trained by `minimize`, and by rules that don't move rows without a gradient: `Sgd`,
/// `Adagrad`, `Ftrl`, `Adam::lazy()`, which `with_rule_for` gives to it alone.
/// [`Variables::variable`](distribute_core::Variables::variable) gives it as a variable, whose [`gather`](distribute_core::Variable::gather) and
/// [`dynamic_rows`](distribute_core::Variable::dynamic_rows) read it, and a [`Checkpoint`](distribute_core::Checkpoint) saves the ids beside the rows.
///
/// # Errors
/// `forward` gives one for the id `i64::MAX`, and where a server does.
///
/// ```
/// # use distribute::prelude::*;
/// # use distribute::{LocalCluster, ParameterServerStrategy};
/// use candle_core::{Device, Module, Tensor};
/// use distribute::{nn::dynamic_embedding, params::DynamicOptions};
///
/// let cluster = LocalCluster::new(1, 2)?;
/// let strategy = ParameterServerStrategy::builder().cluster_resolver(cluster.resolver()).build()?;
/// let options = DynamicOptions { max_age: Some(100_000), ..DynamicOptions::default() };
/// let model = strategy.replicate(move |vb| dynamic_embedding(16, options, vb.pp("users")))?;
/// let optimizer = Sgd::new(&model.variables, 0.1)?;
/// let ids = Tensor::new(&[-5i64, 1 << 40], &Device::Cpu)?;
/// strategy.run(&model, |ctx, users| optimizer.minimize(ctx, users.forward(&ids)?.sqr()?.mean_all()?, 2))?;
/// let users = model.variables.variable("users.weight")?;
/// assert_eq!(users.dynamic_rows()?.ids, [-5, 1 << 40]);
/// # Ok::<(), distribute::Error>(())
/// ```
#[doc(alias = "tfra.dynamic_embedding.Embedding")]
#[doc(alias = "Embedding")]
#[derive(Clone, Debug)]
pub struct DynamicEmbedding {
    /// Stands for all rows in the graph.
    row: Tensor,
    hidden_size: usize,
    /// Where the result is.
    device: Device,
    rows: RowSource,
}

/// A table of rows of `hidden_size`, the variable `weight`, each drawn from N(0, 1).
///
/// # Errors
/// Those of the `VarBuilder`, and where its strategy has no parameter servers.
pub fn dynamic_embedding(
    hidden_size: usize,
    options: DynamicOptions,
    vb: VarBuilder,
) -> Result<DynamicEmbedding> {
    dynamic_embedding_init(hidden_size, Init::Randn { mean: 0., stdev: 1. }, options, vb)
}

/// As [`dynamic_embedding`], with rows drawn in another way.
///
/// # Errors
/// Those of [`dynamic_embedding`].
pub fn dynamic_embedding_init(
    hidden_size: usize,
    init: Init,
    options: DynamicOptions,
    vb: VarBuilder,
) -> Result<DynamicEmbedding> {
    let (row, rows) = for_ids(options, || vb.get_with_hints((1, hidden_size), "weight", init));
    match (row?, rows) {
        (row, Some(rows)) => Ok(DynamicEmbedding { row, hidden_size, device: vb.device().clone(), rows }),
        (_, None) => bail!(
            "dynamic_embedding {}: its rows are on parameter servers, and the model's strategy has none; use a \
             ParameterServerStrategy, or embedding with a number of rows",
            vb.prefix()
        ),
    }
}

impl DynamicEmbedding {
    /// The elements of a row.
    pub fn hidden_size(&self) -> usize {
        self.hidden_size
    }
}

impl Module for DynamicEmbedding {
    fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        const LAYER: &str = "dynamic_embedding";
        let mut rows = Vec::with_capacity(ids.elem_count());
        ids::numbers(LAYER, ids, |position, id| {
            if id == i64::MAX {
                bail!(
                    "{LAYER}: id {id} at position {position} of ids {:?} has no row; use another",
                    ids.dims()
                )
            }
            rows.push(row_of_id(id));
            Ok(())
        })?;
        let shape = [ids.dims(), &[self.hidden_size]].concat();
        to_device(&table::look_up(&self.row, Some(&self.rows), rows, shape, Each)?, &self.device)
    }
}
