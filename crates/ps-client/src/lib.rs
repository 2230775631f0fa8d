//! The client of variables on parameter servers.
//!
//! Start at [`ParameterServers`], which has the connections to a strategy's servers and decides where variables are
//! stored. A variable on servers is a `RemoteVariable`. It contains a `Sharded`, which maps rows to tables on servers,
//! or a `Dynamic`, whose rows have ids. Reads and writes are requests, which are sent to several servers at once.
//!
//! candle computes with a `HostCache` of each variable. A step begins with `Session::begin_step`, which fetches the
//! changed values of all caches, in one message per server unless that is too large. Layers that look up rows fetch
//! only the rows for the ids in a call. The cache of such a table is never written, so it takes address space but no
//! memory. After any other access to the table, each step fetches the complete table.
//!
//! `Session::push` sends the reduced gradients of a step, followed by requests to read the new values. If values may be
//! stale, it waits for responses only once the permitted number of updates is in flight.
//!
//! | module | contents |
//! |---|---|
//! | `channels`, `messages` | sends requests to several servers at once; the messages that contain them |
//! | `closure`, `closure_sequence` | the changes of closures that may run again, and the numbers of these changes |
//! | `sharded` | a variable in shards: reads and writes |
//! | `dynamic` | a variable whose rows have ids |
//! | `own_ids` | the rows of such a variable that one of several workers saves |
//! | `variable` | a variable of either kind, and its cache |
//! | `place` | the location of a new variable |
//! | `lock_step` | the division of changes among workers in lock step |
//! | `connect`, `layout` | connecting to all servers, which must belong to one training run |
//! | `local_cluster` | a cluster whose tasks are all in this process |
//! | `shutdown` | stopping servers after training |
//! | `row_cache` | the cache of rows that this process has read |
//! | `row_format` | the form in which the values of tables are stored |
//! | `hot_rows`, `hot_step` | the hottest rows, of which each worker has a copy: those of one variable, and their reports in a step |
//! | `prefetched`, `prefetch` | rows that are requested before the step that looks them up: of one variable, and of all |
//! | `cache` | the values that candle computes with, and the requests that refresh them |
//! | `session` | decides when values are fetched: between steps, never while a step computes |
//! | `push` | sends gradients, and update rules that a server has lost, and fetches values after them |
//!
//! The server side is `distribute-ps-tables`; this crate never decides what a table contains. A `Channel` of
//! that crate connects the two sides.

mod cache;
mod channels;
mod closure;
mod closure_sequence;
mod connect;
mod dynamic;
mod hot_rows;
mod hot_step;
mod layout;
mod local_cluster;
mod lock_step;
mod messages;
mod own_ids;
mod place;
mod prefetch;
mod prefetched;
mod push;
mod row_cache;
mod row_format;
mod session;
mod sharded;
mod shutdown;
mod variable;

pub(crate) use cache::HostCache;
use channels::PendingReplies;
pub(crate) use channels::{Channels, unexpected};
pub use closure::RunningClosure;
pub use distribute_ps_tables::{HotRowUsage, HotRows, RowCacheOptions, RowCacheUsage};
pub(crate) use dynamic::Dynamic;
use hot_rows::HotTable;
pub use local_cluster::{LocalCluster, LocalClusterResolver};
use lock_step::LockStep;
pub use place::PlacementRequest;
pub(crate) use place::TablePlacement;
use row_cache::RowCache;
pub use row_format::RowFormat;
pub(crate) use session::Session;
use sharded::CreationState;
pub(crate) use sharded::Sharded;
use shutdown::Servers;
pub(crate) use variable::RemoteVariable;

use distribute_base::internal::lock;
use distribute_base::{Error, Result};
use distribute_cluster::World;
use distribute_ps_tables::{
    Channel, Partitioner, Placement, PlacementPolicy, PrefetchUsage, Request, Response, RowPartition,
    TablePolicy, Usage,
};
use distribute_tensor::{DType, Wire};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

/// The maximum time in which servers report the rows that were read from them, for a placement.
const PLACEMENT_TIMEOUT: Duration = Duration::from_secs(1);

/// The parameter servers of a strategy: the connections to them, the partitioner, and the placement of variables.
///
/// Authors of strategies get this value from another strategy: see `StrategyExtended::parameter_servers`.
pub struct ParameterServers {
    session: Session,
    partitioner: Option<Arc<dyn Partitioner>>,
    placed: Mutex<Placed>,
    /// The state of creating variables, which is locked while a variable is created.
    creation: Mutex<CreationState>,
    /// The maximum time to wait for variables that another process creates.
    patience: Duration,
    workers: usize,
    creation_policy: Mutex<CreationPolicy>,
    /// The index of the worker that this process is, if a coordinator calls it.
    worker: OnceLock<usize>,
    /// Whether the coordinator and all its workers share variables by name.
    is_shared: AtomicBool,
    /// The weights that the servers store; `None` if they store all variables.
    tables: Option<TablePolicy>,
    /// The settings of caches of rows; `None` if rows are not cached.
    row_cache: Option<RowCacheOptions>,
    /// The caches of rows of all variables.
    row_caches: Mutex<Vec<Weak<RowCache>>>,
    /// The usage of all caches of rows except the number of rows. It includes those of dropped variables.
    row_cache_usage: Arc<Mutex<RowCacheUsage>>,
    /// The rows of which each worker has a copy; `None` if there are none.
    hot_rows: Option<HotRows>,
    /// The hot rows of all variables.
    hot_tables: Mutex<Vec<Weak<HotTable>>>,
    /// The usage of all hot rows except the number of copies. It includes those of dropped variables.
    hot_row_usage: Arc<Mutex<HotRowUsage>>,
    /// The type in which `f32` rows are sent.
    wire: Wire,
    /// The tasks in other processes that end with the training run.
    tasks: OnceLock<Servers>,
}

/// The policy that decides which missing variables this process creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreationPolicy {
    /// Creates all missing variables.
    CreateMissing,
    /// Creates no variables, but waits for another process to create them.
    Wait,
    /// Creates no variables. Requesting a variable that does not exist is an error.
    RequireExisting,
    /// Creates no variables. Requesting any variable is an error, even if it exists.
    Refuse,
}

/// The variables that were placed so far.
struct Placed {
    placement: Placement,
    /// The names of all tables on the servers, that is, of variables and shards.
    tables: HashSet<String>,
}

impl ParameterServers {
    #[doc(hidden)]
    pub fn new(
        channels: Vec<Arc<dyn Channel>>,
        (timeout, patience): (Duration, Duration),
        (partitioner, policy): (Option<Arc<dyn Partitioner>>, PlacementPolicy),
        (workers, creation_policy): (usize, CreationPolicy),
        staleness: usize,
    ) -> Result<Self> {
        let channels = Channels::new(channels, timeout);
        let creation = (workers, creation_policy);
        Self::assemble(channels, patience, (partitioner, policy), creation, staleness)
    }

    fn assemble(
        channels: Channels,
        patience: Duration,
        (partitioner, policy): (Option<Arc<dyn Partitioner>>, PlacementPolicy),
        (workers, creation_policy): (usize, CreationPolicy),
        staleness: usize,
    ) -> Result<Self> {
        let placement = Placement::new(channels.count(), policy)?;
        let placed = Mutex::new(Placed { placement, tables: HashSet::new() });
        let session = Session::new(channels, staleness);
        let (creation, creation_policy) = (Mutex::default(), Mutex::new(creation_policy));
        let (worker, is_shared) = (OnceLock::new(), AtomicBool::new(false));
        Ok(Self {
            session,
            partitioner,
            placed,
            creation,
            patience,
            workers,
            creation_policy,
            worker,
            is_shared,
            tables: None,
            row_cache: None,
            row_caches: Mutex::default(),
            row_cache_usage: Arc::default(),
            hot_rows: None,
            hot_tables: Mutex::default(),
            hot_row_usage: Arc::default(),
            wire: Wire::Full,
            tasks: OnceLock::new(),
        })
    }

    /// Creates the client of servers that several workers use in lock step. The servers store only the weights that
    /// `tables` selects.
    #[doc(hidden)]
    pub fn of_tables(
        channels: Vec<Arc<dyn Channel>>,
        (timeout, patience): (Duration, Duration),
        tables: TablePolicy,
        world: World,
    ) -> Result<Self> {
        let channels = Channels::new(channels, timeout).in_lock_step(LockStep::new(world));
        let creation = (world.workers(), CreationPolicy::CreateMissing);
        let servers = Self::assemble(channels, patience, (None, PlacementPolicy::RoundRobin), creation, 0)?;
        Ok(Self { tables: Some(tables), ..servers })
    }

    /// Sets the options with which this process caches rows; `None` disables caching.
    #[doc(hidden)]
    pub fn with_row_cache(self, options: Option<RowCacheOptions>) -> Self {
        Self { row_cache: options, ..self }
    }

    /// Declares the type in which the connections send `f32` rows.
    #[doc(hidden)]
    pub fn with_wire(self, wire: Wire) -> Self {
        Self { wire, ..self }
    }

    /// Creates the cache for the rows of a variable; `None` if rows are not cached. `is_bf16` is whether servers store
    /// the values in bf16.
    #[doc(hidden)]
    pub fn row_cache(&self, tables: &Sharded, is_bf16: bool) -> Option<Arc<RowCache>> {
        let row_bytes = tables.row_bytes()?;
        let cache = RowCache::new(self.row_cache?, row_bytes, self.session.clock.clone())?;
        let is_halved = tables.dtype() == DType::F32 && (is_bf16 || self.wire != Wire::Full);
        let sent_bytes = if is_halved { row_bytes / 2 } else { row_bytes };
        let cache = Arc::new(cache.counted(sent_bytes, self.row_cache_usage.clone()));
        let mut caches = lock(&self.row_caches);
        caches.retain(|cache| cache.strong_count() > 0);
        caches.push(Arc::downgrade(&cache));
        Some(cache)
    }

    /// Returns the usage of this process's caches of rows. All numbers are 0 if rows are not cached. Dropped variables
    /// count, except in the number of rows.
    pub fn row_cache_usage(&self) -> RowCacheUsage {
        let caches: Vec<_> = lock(&self.row_caches).iter().filter_map(Weak::upgrade).collect();
        let mut usage = *lock(&self.row_cache_usage);
        usage.rows = caches.iter().map(|cache| cache.len()).sum();
        usage
    }

    /// Returns how many of the rows that runs of this process have looked up were
    /// [prefetched](https://docs.rs/distribute/latest/distribute/nn/fn.prefetch_rows.html). Only tables whose rows are
    /// prefetched count, including those of dropped variables.
    pub fn prefetch_usage(&self) -> PrefetchUsage {
        self.session.prefetch_usage()
    }

    /// Closes the connections to all servers.
    #[doc(hidden)]
    pub fn disconnect(&self) {
        self.channels().close();
    }

    /// Sets the tasks that [`end`](Self::end) stops, unless they have already been set.
    #[doc(hidden)]
    pub fn set_tasks(&self, tasks: Servers) {
        self.tasks.get_or_init(|| tasks);
    }

    /// Waits until servers have acknowledged all updates, and then stops the tasks that end with the training run.
    ///
    /// # Errors
    /// Returns the error of an update that was not applied; no task is then stopped. Otherwise, after asking all tasks
    /// to stop, returns the first error of a task that could be reached but did not stop.
    #[doc(hidden)]
    pub fn end(&self) -> Result<()> {
        self.session.flush()?;
        self.tasks.get().map_or(Ok(()), |tasks| tasks.end(self.timeout()))
    }

    /// Returns the weights that the servers store; `None` if they store all variables.
    #[doc(hidden)]
    pub fn tables(&self) -> Option<TablePolicy> {
        self.tables
    }

    /// Returns the location to request for a variable with `rows` rows. If the servers store only weights and `request`
    /// is [`Anywhere`](PlacementRequest::Anywhere), this is the partition over all servers, unless the variable is too
    /// small for that. Otherwise it is `request`. `bytes` is the size of the variable; `None` for a table of ids, whose
    /// size has no limit.
    #[doc(hidden)]
    pub fn location(&self, rows: usize, bytes: Option<usize>, request: PlacementRequest) -> PlacementRequest {
        let Some(tables) = self.tables else { return request };
        let is_whole = bytes.is_some_and(|bytes| bytes < tables.min_bytes || rows < self.count());
        match request {
            PlacementRequest::Anywhere if !is_whole => {
                PlacementRequest::PartitionedAs(RowPartition::new(tables.partition, rows, self.count()))
            }
            _ => request,
        }
    }

    /// Returns the location of each variable and each shard, and the rows that were read from it. The rows are unknown
    /// if the server does not answer within a second.
    pub fn placement(&self) -> Placement {
        self.placement_and_usage_within(self.timeout().min(PLACEMENT_TIMEOUT)).0
    }

    /// Returns the placement, and the usage of each server. Both lack what a server has not reported within `timeout`.
    #[doc(hidden)]
    pub fn placement_and_usage_within(&self, timeout: Duration) -> (Placement, Vec<Option<Usage>>) {
        let mut placement = lock(&self.placed).placement.clone();
        let both = Request::Batch(vec![Request::List, Request::Usage]);
        let (mut reads, mut usages) = (Vec::new(), Vec::new());
        for answer in self.channels().ask_each(&both, timeout) {
            let answers = match answer {
                Ok(Response::Batch(answers)) => answers,
                _ => Vec::new(),
            };
            let (mut of_tables, mut usage) = (HashMap::new(), None);
            for answer in answers {
                match answer {
                    Ok(Response::Tables(all)) => {
                        of_tables.extend(all.into_iter().map(|info| (info.name, info.reads)));
                    }
                    Ok(Response::Usage(found)) => usage = Some(found),
                    _ => {}
                }
            }
            reads.push(of_tables);
            usages.push(usage);
        }
        placement.set_reads(|server, table| reads.get(server)?.get(table).copied());
        (placement, usages)
    }

    /// Returns the number of servers.
    pub fn count(&self) -> usize {
        self.channels().count()
    }

    /// Returns the usage of each server: its tables, and the numbers of rows that all workers together have read and
    /// pushed since it started.
    ///
    /// # Errors
    /// - [`Error::Server`]: a server did not answer within the strategy's timeout.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// # use distribute::{LocalCluster, ParameterServerStrategy};
    /// use candle_core::{Device, Module, Tensor};
    /// let cluster = LocalCluster::new(1, 2)?;
    /// let strategy = ParameterServerStrategy::builder().cluster_resolver(cluster.resolver()).build()?;
    /// let model = strategy.replicate(|vb| distribute::nn::embedding(1000, 8, vb))?;
    /// let ids = Tensor::new(&[7u32, 990, 7], &Device::Cpu)?;
    /// strategy.run(&model, |_, words| Ok(words.forward(&ids)?))?;
    /// let usage = strategy.server_usage()?;
    /// assert_eq!(usage.iter().map(|server| server.rows).sum::<u64>(), 1000);
    /// assert_eq!(usage.iter().map(|server| server.rows_read).sum::<u64>(), 2); // an id is asked for once
    /// # Ok::<(), distribute::Error>(())
    /// ```
    pub fn usage(&self) -> Result<Vec<Usage>> {
        const OPERATION: &str = "usage";
        let answers = self.channels().ask_each(&Request::Usage, self.timeout()).into_iter().enumerate();
        let usage = |(server, answer): (usize, _)| match answer {
            Ok(Response::Usage(usage)) => Ok(usage),
            Ok(other) => Err(unexpected(OPERATION, server, &other)),
            Err(source) => Err(Error::Server { operation: OPERATION, source: Box::new(source) }),
        };
        answers.map(usage).collect()
    }

    /// Returns the number of workers in the cluster.
    #[doc(hidden)]
    pub fn workers(&self) -> usize {
        self.workers
    }

    #[doc(hidden)]
    pub fn timeout(&self) -> Duration {
        self.channels().timeout()
    }

    #[doc(hidden)]
    pub fn channels(&self) -> &Arc<Channels> {
        &self.session.channels
    }

    /// Returns the policy for missing variables.
    pub(crate) fn creation_policy(&self) -> CreationPolicy {
        *lock(&self.creation_policy)
    }

    /// Replaces the policy for missing variables until the returned guard is dropped.
    #[doc(hidden)]
    pub fn with_creation_policy(&self, creation_policy: CreationPolicy) -> CreationPolicyGuard<'_> {
        let before = std::mem::replace(&mut *lock(&self.creation_policy), creation_policy);
        CreationPolicyGuard { servers: self, before }
    }

    /// Records that a coordinator calls this process as worker `worker`. Also shares variables by name.
    #[doc(hidden)]
    pub fn set_worker(&self, worker: usize) {
        self.worker.get_or_init(|| worker);
        self.enable_sharing();
    }

    /// Shares variables, by name, with the workers of a coordinator.
    #[doc(hidden)]
    pub fn enable_sharing(&self) {
        self.is_shared.store(true, Ordering::Release);
    }

    /// Returns the index of the worker that this process is, if a coordinator calls it.
    #[doc(hidden)]
    pub fn worker(&self) -> Option<usize> {
        self.worker.get().copied()
    }

    #[doc(hidden)]
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Returns the maximum time to wait for variables that another process creates.
    pub(crate) fn patience(&self) -> Duration {
        self.patience
    }
}

/// A guard that restores the previous creation policy when it is dropped.
pub struct CreationPolicyGuard<'a> {
    servers: &'a ParameterServers,
    before: CreationPolicy,
}

impl Drop for CreationPolicyGuard<'_> {
    fn drop(&mut self) {
        *lock(&self.servers.creation_policy) = self.before;
    }
}

impl fmt::Debug for ParameterServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ParameterServers({} servers, {:?})", self.count(), self.partitioner)
    }
}

/// Items for other crates of this project. They are not part of the public interface and may change at any time.
#[doc(hidden)]
pub mod internal {
    pub use crate::cache::HostCache;
    pub use crate::channels::{Channels, ServerRequest, unexpected};
    pub use crate::connect::connect;
    pub use crate::dynamic::Dynamic;
    pub use crate::hot_rows::HotTable;
    pub use crate::local_cluster::channel as local_channel;
    pub use crate::lock_step::LockStep;
    pub use crate::own_ids::OwnIds;
    pub use crate::push::PushRequests;
    pub use crate::row_cache::RowCache;
    pub use crate::session::{RunningStep, Session};
    pub use crate::sharded::{Initial, RowRead, Shard, Sharded, UniqueRows};
    pub use crate::shutdown::Servers;
    pub use crate::variable::{RemoteVariable, id_of_row, no_value, row_of_id};
    pub use crate::{CreationPolicy, PlacementRequest};
    pub use distribute_optim::StochasticRounding;
}
