//! Embeddings of 64-bit ids. Training creates the row of an id.

use super::combine::Combine;
use super::embedding::Each;
use super::together::{Lookup, RowLayer};
use super::{autocast, ids, table};
use candle_core::{Device, Module, Result, Tensor, bail};
use candle_nn::{Init, VarBuilder};
use distribute_base::internal::to_device;
use distribute_core::internal::{RowSource, request_ids, row_of_id};
use distribute_ps_tables::DynamicOptions;

/// An embedding table that grows with the ids that occur, such as hashes of words or ids of users.
///
/// Rows are stored on the servers of a `ParameterServerStrategy`, or on the workers or servers of a
/// `MultiWorkerMirroredStrategy` with `tables`, partitioned by a hash of the ids. Ids are u8, u32 or i64, with any
/// value except `i64::MAX`. The tensor of ids may have any shape `[…]` and may be empty; the result has shape
/// `[…, hidden]`. A step fetches only the rows of its batch, and sends their gradients.
///
/// The first gradient of an id creates its row or, if [`DynamicOptions::admit_after`] is set, a later gradient. Until
/// then, reading the row returns its initial values, which depend only on the seed, the name and the id. Rows are
/// evicted if there are more than [`max_rows`](DynamicOptions::max_rows), or if they have not been trained for
/// [`max_age`](DynamicOptions::max_age) steps.
///
/// The table is trained by `minimize`, with rules that do not change rows without a gradient, such as `Sgd`, `Adagrad`,
/// `Ftrl` or `Adam::lazy()`. `with_rule_for` sets a rule for this table only.
/// [`Variables::variable`](distribute_core::Variables::variable) returns the table as a variable, which can be read
/// with [`gather`](distribute_core::Variable::gather) and [`dynamic_rows`](distribute_core::Variable::dynamic_rows).
/// A [`Checkpoint`](distribute_core::Checkpoint) saves the ids together with the rows.
///
/// # Errors
/// `forward` returns an error in these cases:
/// - An id is `i64::MAX`, or the dtype of the ids is not u8, u32 or i64.
/// - A request to a server fails.
///
/// ```
/// # use distribute::prelude::*;
/// # use distribute::{LocalCluster, ParameterServerStrategy};
/// use candle_core::{Device, Module, Tensor};
/// use distribute::{nn::dynamic_embedding, parameter_server::DynamicOptions};
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
    /// The tensor that represents all rows in the graph of operations.
    row: Tensor,
    hidden_size: usize,
    /// The device on which results are created.
    device: Device,
    rows: RowSource,
}

/// Creates a table with the variable `weight`. Rows have `hidden_size` elements, with initial values from N(0, 1).
///
/// # Errors
/// Returns the error of the `VarBuilder`, and an error if the strategy of the `VarBuilder` has no tables on workers or
/// parameter servers.
pub fn dynamic_embedding(
    hidden_size: usize,
    options: DynamicOptions,
    vb: VarBuilder,
) -> Result<DynamicEmbedding> {
    dynamic_embedding_init(hidden_size, Init::Randn { mean: 0., stdev: 1. }, options, vb)
}

/// Creates a table like [`dynamic_embedding`], with the initial values given by `init`.
///
/// # Errors
/// Returns the errors of [`dynamic_embedding`].
pub fn dynamic_embedding_init(
    hidden_size: usize,
    init: Init,
    options: DynamicOptions,
    vb: VarBuilder,
) -> Result<DynamicEmbedding> {
    let (row, rows) = request_ids(options, || vb.get_with_hints((1, hidden_size), "weight", init));
    match (row?, rows) {
        (row, Some(rows)) => Ok(DynamicEmbedding { row, hidden_size, device: vb.device().clone(), rows }),
        (_, None) => bail!(
            "dynamic_embedding {}: its rows are on workers or parameter servers, and the model's strategy has no tables \
             there; use a MultiWorkerMirroredStrategy with tables(…), a ParameterServerStrategy, or embedding with a \
             number of rows",
            vb.prefix()
        ),
    }
}

impl DynamicEmbedding {
    /// Returns the number of elements in a row.
    pub fn hidden_size(&self) -> usize {
        self.hidden_size
    }
}

impl Module for DynamicEmbedding {
    fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        self.lookup(ids)?.compute()
    }
}

impl RowLayer for DynamicEmbedding {
    fn lookup<'a>(&'a self, ids: &Tensor) -> Result<Lookup<'a>> {
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
        let finish = move |rows, fetched| {
            let found = table::look_up(&self.row, false, fetched, rows, shape, Each)?;
            autocast::activations(to_device(&found, &self.device)?)
        };
        Ok(Lookup { name: Each::NAME, source: Some(&self.rows), rows, finish: Box::new(finish) })
    }
}
