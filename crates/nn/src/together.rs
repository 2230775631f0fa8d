//! Lookups of several tables, whose rows are fetched with one message to each server.

use candle_core::{Module, Result, Tensor};
use distribute_core::internal::{RowSource, to_candle_error};
use distribute_ps_client::internal::UniqueRows;

/// A layer that looks up rows of a table by ids: `Embedding`, `EmbeddingBag` or `DynamicEmbedding`.
pub trait RowLayer: Module {
    /// Returns the lookup of the given ids, whose rows have not been fetched yet.
    ///
    /// # Errors
    /// Returns the errors of `forward` for the ids.
    #[doc(hidden)]
    fn lookup<'a>(&'a self, ids: &Tensor) -> Result<Lookup<'a>>;
}

/// A lookup whose rows have not been fetched yet.
#[doc(hidden)]
pub struct Lookup<'a> {
    pub(super) name: &'static str,
    /// The source of the rows; `None` if they are read from the layer's own tensor.
    pub(super) source: Option<&'a RowSource>,
    pub(super) rows: Vec<usize>,
    pub(super) finish: Finish<'a>,
}

/// A function that computes the result of a layer from the rows, and from their values if these were fetched.
type Finish<'a> = Box<dyn FnOnce(Vec<usize>, Option<UniqueRows>) -> Result<Tensor> + 'a>;

impl Lookup<'_> {
    /// Fetches the rows, and returns the result of the layer.
    pub(super) fn compute(self) -> Result<Tensor> {
        let fetched = self.source.map_or(Ok(None), |source| source.fetch(self.name, &self.rows));
        (self.finish)(self.rows, fetched.map_err(to_candle_error)?)
    }
}

/// Returns the results of several layers for their ids, the same as those of `forward`.
///
/// If tables are on parameter servers, the rows of all of them are fetched with one message to each server, instead of
/// one for each table and server. This saves time if a model has several tables, because each message waits for its
/// response. Gradients of all tables are always sent together.
///
/// ```
/// # use distribute::prelude::*;
/// # use distribute::{LocalCluster, ParameterServerStrategy};
/// use candle_core::{Device, Tensor};
/// use distribute::nn::{embedding, look_up_together};
///
/// let cluster = LocalCluster::new(1, 2)?;
/// let strategy = ParameterServerStrategy::builder().cluster_resolver(cluster.resolver()).build()?;
/// let model = strategy.replicate(|vb| {
///     distribute::Ok((embedding(1000, 8, vb.pp("users"))?, embedding(500, 8, vb.pp("films"))?))
/// })?;
/// let optimizer = Sgd::new(&model.variables, 0.1)?;
/// let (user, film) = (Tensor::new(&[7u32, 999], &Device::Cpu)?, Tensor::new(&[0u32, 42], &Device::Cpu)?);
/// strategy.run(&model, |ctx, (users, films)| {
///     let rows = look_up_together(&[(users, &user), (films, &film)])?;
///     let scores = (&rows[0] * &rows[1])?.sum(1)?;
///     optimizer.minimize(ctx, scores.sqr()?.mean_all()?, 2)
/// })?;
/// # Ok::<(), distribute::Error>(())
/// ```
///
/// # Errors
/// Returns the first error of a layer, or that of a server.
#[doc(alias = "EmbeddingCollection")]
#[doc(alias = "EmbeddingBagCollection")]
pub fn look_up_together(lookups: &[(&dyn RowLayer, &Tensor)]) -> Result<Vec<Tensor>> {
    let lookups = lookups.iter().map(|(layer, ids)| layer.lookup(ids)).collect::<Result<Vec<_>>>()?;
    let with_source = lookups.iter().filter_map(|lookup| Some((lookup.source?, lookup.rows.as_slice())));
    let fetched = RowSource::fetch_together("look_up_together", &with_source.collect::<Vec<_>>());
    let mut fetched = fetched.map_err(to_candle_error)?.into_iter();
    let finish = |lookup: Lookup<'_>| {
        let fetched = lookup.source.and_then(|_| fetched.next().flatten());
        (lookup.finish)(lookup.rows, fetched)
    };
    lookups.into_iter().map(finish).collect()
}
