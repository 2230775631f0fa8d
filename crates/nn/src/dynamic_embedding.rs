//! Embeddings of 64-bit ids, with rows created on first use.

use super::embedding::Each;
use super::{ids, table};
use candle_core::{Device, Module, Result, Tensor, bail};
use candle_nn::{Init, VarBuilder};
use distribute_base::internal::to_device;
use distribute_core::internal::{RowSource, for_ids, row_of_id};
use distribute_ps_tables::DynamicOptions;

/// An embedding table that grows with its ids, such as hashes of words, or users that come and go.
///
/// Rows are on the servers of a `ParameterServerStrategy`, partitioned by the hash of their id. Ids are u8,
/// u32 or i64 of any shape `[…]`, which may be empty, with any value except `i64::MAX`. The result has shape
/// `[…, hidden]`. A step fetches only the rows of its batch, and sends their gradients.
///
/// The first gradient of an id creates its row, or a later gradient if [`DynamicOptions::admit_after`] is set.
/// Before that, the row reads as its initial values, which depend on seed, name and id only. Rows are evicted
/// if there are more than [`max_rows`](DynamicOptions::max_rows), and if they were not trained for
/// [`max_age`](DynamicOptions::max_age) steps.
///
/// The table is trained by `minimize`, with rules that do not move rows without a gradient: `Sgd`, `Adagrad`,
/// `Ftrl`, `Adam::lazy()`. `with_rule_for` sets a rule for this table only.
/// [`Variables::variable`](distribute_core::Variables::variable) returns it as a variable, which
/// [`gather`](distribute_core::Variable::gather) and [`dynamic_rows`](distribute_core::Variable::dynamic_rows)
/// read. A [`Checkpoint`](distribute_core::Checkpoint) saves the ids together with the rows.
///
/// # Errors
/// `forward` returns an error if an id is `i64::MAX`, or if a request to a server fails.
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
    /// The tensor that stands for all rows in the graph.
    row: Tensor,
    hidden_size: usize,
    /// The device of the result.
    device: Device,
    rows: RowSource,
}

/// Creates a table of rows of `hidden_size`, the variable `weight`, with initial values from N(0, 1).
///
/// # Errors
/// - The `VarBuilder` returns an error.
/// - The strategy of the `VarBuilder` has no parameter servers.
pub fn dynamic_embedding(
    hidden_size: usize,
    options: DynamicOptions,
    vb: VarBuilder,
) -> Result<DynamicEmbedding> {
    dynamic_embedding_init(hidden_size, Init::Randn { mean: 0., stdev: 1. }, options, vb)
}

/// Creates a table like [`dynamic_embedding`], with other initial values.
///
/// # Errors
/// Returns the errors of [`dynamic_embedding`].
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
    /// Returns the number of elements of a row.
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
