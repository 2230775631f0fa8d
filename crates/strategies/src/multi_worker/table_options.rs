//! The location of a model's tables, as the program sets it.

use distribute_base::{Error, Result};
use distribute_ps_client::{HotRows, RowCacheOptions, RowFormat};
use distribute_ps_tables::PartitionStrategy;

/// The location of a model's tables: the weights of layers that look up rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TableHosts {
    /// Each worker has a copy of each table, as of all other variables.
    #[default]
    Mirrored,
    /// Each worker stores a share of the rows of each table, with their slots.
    Workers,
    /// The parameter servers of the cluster store the tables. The workers still train in lock step: no server applies a
    /// step before all workers have computed their gradients. In the tasks of the job `ps`, call
    /// [`serve`](https://docs.rs/distribute/latest/distribute/fn.serve.html), and call
    /// [`end_servers`](distribute_core::Strategy::end_servers) on all workers at the end.
    Servers,
}

/// The choice of weights that are stored on the hosts of a model's tables: see [`TableHosts`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostedWeights {
    /// The tables: the weights of layers that look up rows. Each worker has a copy of all other weights.
    #[default]
    Tables,
    /// All weights, with their slots. After each step, each worker fetches the weights with which it computes. A worker
    /// needs memory for one copy of the weights, but not for slots.
    #[doc(alias = "SyncReplicasOptimizer")]
    #[doc(alias = "FullyShardedDataParallel")]
    All,
}

/// The location of a model's tables, and which of them are partitioned.
///
/// ```
/// use distribute::strategy::{TableHosts, TableOptions};
/// use distribute::parameter_server::PartitionStrategy;
/// let tables = TableOptions { partition: PartitionStrategy::Div, ..TableHosts::Workers.into() };
/// assert_eq!(tables.min_bytes, 1 << 20);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableOptions {
    /// The location of the tables.
    pub hosts: TableHosts,
    /// The minimum size of a partitioned table in bytes; 1 MiB by default. Each worker has a copy of smaller tables or,
    /// with [`HostedWeights::All`], one worker or server stores them. Tables of ids are always partitioned.
    pub min_bytes: usize,
    /// The partition of rows. By default, rows are assigned to shards in turn, so that the shards share the frequent
    /// rows of a table that is sorted by frequency. Tables of ids are partitioned by a hash of the id.
    pub partition: PartitionStrategy,
    /// The weights that are stored with the tables.
    pub weights: HostedWeights,
    /// The cache in which each worker keeps rows that it has read; none by default.
    pub row_cache: Option<RowCacheOptions>,
    /// The rows of which each worker has a copy, which is sent to it after each change; none by default. Results do not
    /// depend on them.
    ///
    /// ```
    /// use distribute::MultiWorkerMirroredStrategy;
    /// use distribute::parameter_server::HotRows;
    /// use distribute::strategy::{TableHosts, TableOptions};
    /// let hot_rows = Some(HotRows::measured(1000));
    /// let tables = TableOptions { hot_rows, ..TableHosts::Workers.into() };
    /// let builder = MultiWorkerMirroredStrategy::builder().tables(tables);
    /// # let _ = builder;
    /// ```
    pub hot_rows: Option<HotRows>,
    /// The form in which values are stored; by default the dtype of the table. It applies to `f32` tables: those of at
    /// least `min_bytes`, and those of ids. If tables are mirrored, [`RowFormat::Bf16`] has the same results, and saves
    /// no memory.
    pub format: RowFormat,
}

impl TableOptions {
    /// Returns an error if an option has no effect, because each worker has a copy of all weights.
    pub(super) fn check(&self, operation: &'static str) -> Result<()> {
        let is_used =
            self.weights == HostedWeights::All || self.row_cache.is_some() || self.hot_rows.is_some();
        if self.hosts == TableHosts::Mirrored && is_used {
            let reason = "weights, row_cache and hot_rows are for tables on workers or servers, but hosts is Mirrored; set \
                          hosts to Workers or Servers";
            return Err(Error::invalid(operation, reason));
        }
        Ok(())
    }

    /// Returns the format in which values of a table of `bytes` bytes are stored.
    pub(super) fn format_of(&self, bytes: usize) -> RowFormat {
        if bytes >= self.min_bytes { self.format } else { RowFormat::Full }
    }
}

impl From<TableHosts> for TableOptions {
    fn from(hosts: TableHosts) -> Self {
        Self {
            hosts,
            min_bytes: 1 << 20,
            partition: PartitionStrategy::Mod,
            weights: HostedWeights::Tables,
            row_cache: None,
            hot_rows: None,
            format: RowFormat::Full,
        }
    }
}

impl Default for TableOptions {
    fn default() -> Self {
        TableHosts::default().into()
    }
}
