//! Lookups in several tables. The rows of all tables are fetched with one message to each server, and can be requested
//! in the step before they are looked up.

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

/// A function that computes the result of a layer. Its arguments are the rows, and their values if these were fetched.
type Finish<'a> = Box<dyn FnOnce(Vec<usize>, Option<UniqueRows>) -> Result<Tensor> + 'a>;

impl Lookup<'_> {
    /// Fetches the rows, and returns the result of the layer.
    pub(super) fn compute(self) -> Result<Tensor> {
        let fetched = self.source.map_or(Ok(None), |source| source.fetch(self.name, &self.rows));
        (self.finish)(self.rows, fetched.map_err(to_candle_error)?)
    }
}

/// Looks up the ids of several layers. The results are the same as with `forward`.
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

/// Announces the ids that the next step will look up, so that their rows are fetched while this step ends.
///
/// Workers that store tables together, or on servers in lock step, request the rows as soon as the gradients of this
/// step are in the tables. The rows arrive while each worker updates its copies of the other weights, takes a batch and
/// waits for the others. Rows therefore have the values that the lookup would fetch, and results are bit-identical.
/// Rows that were not announced are fetched by the next step as usual. A run that changes no table discards the
/// announcements before it.
///
/// Call this before the optimizer's step, outside or inside `run`, with the ids of any number of layers and replicas.
/// [`DistributedIterator::look_ahead`](distribute_core::DistributedIterator::look_ahead) makes the call for each batch.
/// With other strategies, and for tables of which each worker has a copy, this call only checks the ids.
///
/// ```
/// # use distribute::prelude::*;
/// use distribute::strategy::{Links, TableHosts};
/// use distribute::{data::Dataset, nn};
/// use candle_core::{Device, Module, Tensor};
///
/// let builder = MultiWorkerMirroredStrategy::builder().tables(TableHosts::Workers);
/// let usage = builder.on_threads(Links::Tcp, 2, |strategy| {
///     let model = strategy.replicate(|vb| nn::embedding(100_000, 8, vb))?;
///     let optimizer = Sgd::new(&model.variables, 0.1)?;
///     let ids = Dataset::range(60).map(|id: i64| id * id).batch(10);
///     let batches = strategy.distribute_dataset(ids)?;
///     let words = &model.models().values()[0];
///     let tensor = |ids: &HostTensor| ids.to_candle(&Device::Cpu);
///     let early = |ids: &HostTensor| distribute::Ok(nn::prefetch_rows(&[(words, &tensor(ids)?)])?);
///     for ids in batches.iter().look_ahead(early) {
///         strategy.run((&model, ids?), |ctx, (words, ids)| {
///             let rows = words.forward(&tensor(&ids)?)?;
///             optimizer.minimize(ctx, rows.sqr()?.mean_all()?, ids.dims()[0])
///         })?;
///     }
///     Ok(strategy.extended().parameter_servers().map(|tables| tables.prefetch_usage()))
/// })?;
/// let usage = usage[0].unwrap();
/// assert_eq!((usage.prefetched, usage.late), (25, 5)); // half of six batches, the first of which is not prefetched
/// # Ok::<(), distribute::Error>(())
/// ```
///
/// # Errors
/// Returns the first error of a layer for its ids.
pub fn prefetch_rows(lookups: &[(&dyn RowLayer, &Tensor)]) -> Result<()> {
    for (layer, ids) in lookups {
        let lookup = layer.lookup(ids)?;
        lookup.source.into_iter().for_each(|source| source.prefetch(&lookup.rows));
    }
    Ok(())
}
