//! Variables on parameter servers, as those see it who use them.
//!
//! | file | what it is |
//! |---|---|
//! | `links` | the servers: requests to several of them at once |
//! | `closure` | closures that are run again, whose changes are made once |
//! | `sharded` | one variable on them, in shards: read and written |
//! | `dynamic` | one whose rows are ids |
//! | `variable` | either, as one process uses it |
//! | `cache` | its values in the memory of this process, for candle to compute with, and what refreshes them |
//! | `session` | when: between steps, never under a running graph |
//! | `push` | gradients sent, with values fetched after them, also to servers that came back without what they had |
//!
//! What a server does with it is in `distribute_ps_tables`; how it is reached, a `Channel` of that crate knows.

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

/// The parameter servers of a strategy: how they are reached, how variables are cut, and which server has which.
///
/// One who writes a strategy gets it from another; see
/// `StrategyExtended::parameter_servers`.
pub struct ParameterServers {
    session: Session,
    partitioner: Option<Arc<dyn Partitioner>>,
    placed: Mutex<Placed>,
    /// Locked while a variable is made.
    making: Mutex<Making>,
    /// How long to wait for variables that another process makes.
    patience: Duration,
    workers: usize,
    makes: Mutex<Makes>,
    /// The number of the worker that uses them in calls of a coordinator, if one does.
    worker: OnceLock<usize>,
    /// Whether a variable is that of its name, whoever makes it: those of a coordinator and its workers.
    is_shared: AtomicBool,
}

/// Which variables are made, of those that are not there yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Makes {
    /// All.
    Missing,
    /// None: another process makes them, and they are waited for.
    None,
    /// None: it is a mistake to ask for one that is not there.
    Present,
    /// None, and it is a mistake to ask for one, whether it is there or not.
    Refused,
}

/// What has been placed so far.
struct Placed {
    placement: Placement,
    /// What variables and shards are called on servers.
    tables: HashSet<String>,
}

/// Where a new variable is to go.
#[derive(Clone, Copy, Debug)]
pub enum Where {
    /// Over the servers whose turn it is, as the partitioner cuts it.
    Anywhere,
    /// On this server, whole.
    Beside(usize),
    /// Over the servers whose turn it is, cut as another is.
    CutAs(RowPartition),
}

/// Where a new variable goes.
#[derive(Debug)]
pub(crate) struct Place {
    /// What it is called on servers, where names are unique.
    pub(crate) name: String,
    pub(crate) cut: Option<RowPartition>,
    /// The server of each shard.
    pub(crate) servers: Vec<usize>,
}

impl Place {
    /// What a shard is called on its server.
    pub(crate) fn shard(&self, shard: usize) -> String {
        match self.cut {
            Some(_) => shard_name(&self.name, shard),
            None => self.name.clone(),
        }
    }

    /// What all of them are.
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

    /// Which server has which variable or shard.
    pub fn placement(&self) -> Placement {
        lock(&self.placed).placement.clone()
    }

    /// How many servers there are.
    pub fn count(&self) -> usize {
        self.links().count()
    }

    /// What each server has, and how many rows were read from it and pushed to it since it started, by all workers
    /// together.
    ///
    /// # Errors
    /// [`Error::Server`] for one that does not answer within the strategy's timeout.
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

    /// The same of those that answer within so long.
    #[doc(hidden)]
    pub fn usage_within(&self, timeout: Duration) -> Vec<Option<Usage>> {
        let usage = |answer| match answer {
            Ok(Response::Usage(usage)) => Some(usage),
            _ => None,
        };
        self.links().ask_each(&Request::Usage, timeout).into_iter().map(usage).collect()
    }

    /// How many workers the cluster has.
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

    /// Which variables are made.
    pub(crate) fn makes(&self) -> Makes {
        *lock(&self.makes)
    }

    /// Lets others be made until this is dropped.
    #[doc(hidden)]
    pub fn made_as(&self, makes: Makes) -> MakesFor<'_> {
        let before = std::mem::replace(&mut *lock(&self.makes), makes);
        MakesFor { servers: self, before }
    }

    /// These are used by a worker, in calls of a coordinator.
    #[doc(hidden)]
    pub fn is_of_worker(&self, worker: usize) {
        self.worker.get_or_init(|| worker);
        self.share();
    }

    /// A coordinator's workers use them, too: a variable is that of its name, whoever makes it.
    #[doc(hidden)]
    pub fn share(&self) {
        self.is_shared.store(true, Ordering::Release);
    }

    /// The number of the worker that uses them in calls of a coordinator.
    #[doc(hidden)]
    pub fn worker(&self) -> Option<usize> {
        self.worker.get().copied()
    }

    #[doc(hidden)]
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// How long to wait for what another process makes.
    pub(crate) fn patience(&self) -> Duration {
        self.patience
    }

    // SHARD-1, PLACE-1
    /// Decides where a new variable goes. `make` makes it there, one variable after another; if it fails, nothing has
    /// been placed.
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

    /// Where a variable of this process is, of those that are shared.
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

    /// Where a variable is that another process has made, all of it or some shards, of those that are shared.
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
        // Of a strategy's variables several may have one name, and one may be called as another's shard.
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

/// Puts back which variables are made.
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
