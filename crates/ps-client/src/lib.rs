//! The client side of variables on parameter servers.
//!
//! | file | content |
//! |---|---|
//! | `links` | requests to several servers at once |
//! | `closure` | closures that run again, and whose changes are applied once |
//! | `sharded` | one variable in shards: reads and writes |
//! | `dynamic` | a variable whose rows are ids |
//! | `variable` | either kind, as one process uses it |
//! | `cache` | the values that candle computes with, and the requests that refresh them |
//! | `session` | the times at which values are fetched: between steps, never under a running graph |
//! | `push` | gradients that are sent, and values that are fetched after them, also if a server has lost its tables |
//!
//! The server side is in `distribute_ps_tables`. A `Channel` of that crate connects both.

mod cache;
mod closure;
mod dynamic;
mod links;
mod push;
mod session;
mod sharded;
mod variable;

pub(crate) use cache::HostCache;
pub use closure::RunningClosure;
pub(crate) use dynamic::Dynamic;
use links::Underway;
pub(crate) use links::{Links, unexpected};
pub(crate) use session::Session;
use sharded::Making;
pub(crate) use sharded::Sharded;
pub(crate) use variable::RemoteVariable;

use distribute_base::internal::lock;
use distribute_base::{Error, Result};
use distribute_ps_tables::{
    Channel, Mark, Partitioner, Placement, PlacementPolicy, Request, Response, RowPartition, Usage,
    partition, shard_name,
};
use distribute_tensor::DType;
use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// The parameter servers of a strategy: the connections to them, the partitioner, and the placement of variables.
///
/// The author of a strategy gets it from another strategy: see `StrategyExtended::parameter_servers`.
pub struct ParameterServers {
    session: Session,
    partitioner: Option<Arc<dyn Partitioner>>,
    placed: Mutex<Placed>,
    /// A lock, held while a variable is created.
    making: Mutex<Making>,
    /// The time to wait for variables that another process creates.
    patience: Duration,
    workers: usize,
    makes: Mutex<Makes>,
    /// The number of the worker that uses these servers in calls of a coordinator, if there is one.
    worker: OnceLock<usize>,
    /// Whether the coordinator and all its workers share variables by name.
    is_shared: AtomicBool,
}

/// The variables that this process creates if they do not exist yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Makes {
    /// All variables.
    Missing,
    /// No variables. This process waits for another one to create them.
    None,
    /// No variables. It is an error to ask for one that does not exist.
    Present,
    /// No variables. It is an error to ask for one, even if it exists.
    Refused,
}

/// The variables that have been placed so far.
struct Placed {
    placement: Placement,
    /// The names of variables and shards on servers.
    tables: HashSet<String>,
}

/// The location that is requested for a new variable.
#[derive(Clone, Copy, Debug)]
pub enum Where {
    /// The next servers in turn, in the shards that the partitioner chooses.
    Anywhere,
    /// This server, in one piece.
    Beside(usize),
    /// The next servers in turn, in the shards of another variable.
    CutAs(RowPartition),
}

/// The location of a new variable.
#[derive(Debug)]
pub(crate) struct Place {
    /// The name on servers, which is unique there.
    pub(crate) name: String,
    pub(crate) cut: Option<RowPartition>,
    /// The server of each shard.
    pub(crate) servers: Vec<usize>,
}

impl Place {
    /// Returns the name of a shard on its server.
    pub(crate) fn shard(&self, shard: usize) -> String {
        match self.cut {
            Some(_) => shard_name(&self.name, shard),
            None => self.name.clone(),
        }
    }

    /// Returns the names of all shards.
    fn tables(&self) -> impl Iterator<Item = String> + '_ {
        (0..self.cut.map_or(1, |cut| cut.shards())).map(|shard| self.shard(shard))
    }
}

impl ParameterServers {
    #[doc(hidden)]
    pub fn new(
        channels: Vec<Arc<dyn Channel>>,
        (timeout, patience): (Duration, Duration),
        (partitioner, policy): (Option<Arc<dyn Partitioner>>, PlacementPolicy),
        (workers, makes): (usize, Makes),
        staleness: usize,
    ) -> Result<Self> {
        let placement = Placement::new(channels.len(), policy)?;
        let placed = Mutex::new(Placed { placement, tables: HashSet::new() });
        let session = Session::new(Links::new(channels, timeout), staleness);
        let (making, makes) = (Mutex::default(), Mutex::new(makes));
        let (worker, is_shared) = (OnceLock::new(), AtomicBool::new(false));
        Ok(Self { session, partitioner, placed, making, patience, workers, makes, worker, is_shared })
    }

    /// Returns the server of each variable or shard.
    pub fn placement(&self) -> Placement {
        lock(&self.placed).placement.clone()
    }

    /// Returns the number of servers.
    pub fn count(&self) -> usize {
        self.links().count()
    }

    /// Returns the contents of each server, and the number of rows that all workers together have read from it and
    /// pushed to it since it started.
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
        let answers = self.links().ask_each(&Request::Usage, self.timeout()).into_iter().enumerate();
        let usage = |(server, answer): (usize, _)| match answer {
            Ok(Response::Usage(usage)) => Ok(usage),
            Ok(other) => Err(unexpected(OPERATION, server, &other)),
            Err(source) => Err(Error::Server { operation: OPERATION, source: Box::new(source) }),
        };
        answers.map(usage).collect()
    }

    /// Returns the usage of each server, or `None` for those that do not answer within this timeout.
    #[doc(hidden)]
    pub fn usage_within(&self, timeout: Duration) -> Vec<Option<Usage>> {
        let usage = |answer| match answer {
            Ok(Response::Usage(usage)) => Some(usage),
            _ => None,
        };
        self.links().ask_each(&Request::Usage, timeout).into_iter().map(usage).collect()
    }

    /// Returns the number of workers of the cluster.
    #[doc(hidden)]
    pub fn workers(&self) -> usize {
        self.workers
    }

    #[doc(hidden)]
    pub fn timeout(&self) -> Duration {
        self.links().timeout()
    }

    #[doc(hidden)]
    pub fn links(&self) -> &Arc<Links> {
        &self.session.links
    }

    /// Returns the variables that this process creates.
    pub(crate) fn makes(&self) -> Makes {
        *lock(&self.makes)
    }

    /// Changes which variables this process creates, until the returned guard is dropped.
    #[doc(hidden)]
    pub fn made_as(&self, makes: Makes) -> MakesFor<'_> {
        let before = std::mem::replace(&mut *lock(&self.makes), makes);
        MakesFor { servers: self, before }
    }

    /// Marks these servers as used by a worker in calls of a coordinator.
    #[doc(hidden)]
    pub fn is_of_worker(&self, worker: usize) {
        self.worker.get_or_init(|| worker);
        self.share();
    }

    /// Shares variables by name with the workers of a coordinator.
    #[doc(hidden)]
    pub fn share(&self) {
        self.is_shared.store(true, Ordering::Release);
    }

    /// Returns the number of the worker that uses these servers in calls of a coordinator.
    #[doc(hidden)]
    pub fn worker(&self) -> Option<usize> {
        self.worker.get().copied()
    }

    #[doc(hidden)]
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Returns the time to wait for variables that another process creates.
    pub(crate) fn patience(&self) -> Duration {
        self.patience
    }

    // SHARD-1, PLACE-1
    /// Chooses a location for a new variable. `make` then creates it there. Variables are created one after another.
    /// If `make` fails, nothing has been placed.
    fn place<T>(
        &self,
        variable: (&str, &[usize], DType),
        to: Where,
        make: impl FnOnce(&Place, &mut Making) -> Result<T>,
    ) -> Result<T> {
        let mut making = lock(&self.making);
        if let Some(place) = self.known(variable, to) {
            return make(&place, &mut making);
        }
        let before = lock(&self.placed).placement.mark();
        let place = self.choose(variable, to)?;
        let place = self.elsewhere(place, variable, before.clone(), &mut making);
        let made = place.and_then(|place| Ok((make(&place, &mut making)?, place)));
        let mut placed = lock(&self.placed);
        match made {
            Ok((made, place)) => {
                placed.tables.extend(place.tables());
                Ok(made)
            }
            Err(error) => {
                placed.placement.undo(before);
                Err(error)
            }
        }
    }

    /// Returns the location of a shared variable that this process has already placed.
    fn known(&self, (name, dims, _): (&str, &[usize], DType), to: Where) -> Option<Place> {
        if !self.is_shared.load(Ordering::Acquire) {
            return None;
        }
        let placed = lock(&self.placed);
        let servers: Vec<_> = placed.placement.of(name)?.iter().map(|shard| shard.server).collect();
        let rows = dims.first().copied().unwrap_or_default();
        let cut = match to {
            Where::CutAs(cut) => Some(cut),
            _ => (servers.len() > 1).then(|| RowPartition::div(rows, servers.len())),
        };
        Some(Place { name: name.to_owned(), cut, servers })
    }

    /// Returns the location of a shared variable that another process has created, completely or in part.
    fn elsewhere(
        &self,
        place: Place,
        (_, dims, dtype): (&str, &[usize], DType),
        before: Mark,
        making: &mut Making,
    ) -> Result<Place> {
        if !self.is_shared.load(Ordering::Acquire) {
            return Ok(place);
        }
        making.is_shared = true;
        let found =
            making.find(&place, self.links(), (self.makes() == Makes::None).then_some(self.patience))?;
        let all = found.into_iter().zip(&place.servers);
        let servers: Vec<_> = all.map(|(found, chosen)| found.unwrap_or(*chosen)).collect();
        if servers != place.servers {
            let mut placed = lock(&self.placed);
            placed.placement.undo(before);
            placed.placement.note(&place.name, dims, dtype, (place.cut, &servers))?;
        }
        Ok(Place { servers, ..place })
    }

    fn choose(&self, (name, dims, dtype): (&str, &[usize], DType), to: Where) -> Result<Place> {
        let cut = match to {
            Where::Anywhere => partition(self.partitioner.as_deref(), dims, dtype)?,
            Where::Beside(_) => None,
            Where::CutAs(cut) => Some(cut),
        };
        let mut placed = lock(&self.placed);
        let Placed { placement, tables } = &mut *placed;
        // Several variables of a strategy may have the same name, and a name may be that of another variable's shard.
        let names = (0..).map(|count| if count == 0 { name.to_string() } else { format!("{name}_{count}") });
        let is_free = |place: &Place| {
            placement.of(&place.name).is_none() && place.tables().all(|table| !tables.contains(&table))
        };
        let place = names.map(|name| Place { name, cut, servers: Vec::new() }).find(is_free);
        let none = || Error::invalid("creating a variable", format!("there is no name left beside {name}"));
        let place = place.ok_or_else(none)?;
        let servers = match to {
            Where::Beside(server) => vec![placement.place_on(&place.name, dims, dtype, server)?],
            Where::Anywhere | Where::CutAs(_) => placement.place(&place.name, dims, dtype, cut)?,
        };
        Ok(Place { servers, ..place })
    }
}

/// A guard that restores which variables are created.
pub struct MakesFor<'a> {
    servers: &'a ParameterServers,
    before: Makes,
}

impl Drop for MakesFor<'_> {
    fn drop(&mut self) {
        *lock(&self.servers.makes) = self.before;
    }
}

impl fmt::Debug for ParameterServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ParameterServers({} servers, {:?})", self.count(), self.partitioner)
    }
}

/// The interface for the other crates of `distribute`. It is not public: anything in it may change.
#[doc(hidden)]
pub mod internal {
    pub use crate::cache::HostCache;
    pub use crate::dynamic::Dynamic;
    pub use crate::links::{Ask, Links, unexpected};
    pub use crate::push::PushRequests;
    pub use crate::session::{Session, Step};
    pub use crate::sharded::{EachOnce, Initial, Shard, Sharded};
    pub use crate::variable::{RemoteVariable, id_of_row, no_value, row_of_id};
    pub use crate::{Makes, Where};
}
