//! Variables on parameter servers, as those see it who use them.
//!
//! | file | what it is |
//! |---|---|
//! | `links` | the servers: questions to several of them at once |
//! | `forgotten` | servers that came back without what they had |
//! | `dynamic` | one whose rows are ids |
//! | `sharded` | one variable on them, in shards: read, written, updated |
//! | `staged` | what of it is in the memory of this process, for candle to compute with |
//! | `pull` | bringing that up to date |
//! | `steps` | when: between steps, never under a running graph |
//!
//! What a server does with it is in `distribute_params`; how it is reached, a `Channel` of that crate knows.

mod dynamic;
mod forgotten;
mod links;
mod pull;
mod sharded;
mod staged;
mod steps;

pub(crate) use dynamic::Dynamic;
pub(crate) use links::{Ask, Links, Underway};
pub(crate) use pull::{Pull, pull};
use sharded::Making;
pub(crate) use sharded::{Initial, Shard, Sharded};
pub(crate) use staged::Staged;
pub(crate) use steps::{Finish, Step, Steps};

use crate::lock::lock;
use crate::{Error, Result};
use distribute_params::{
    Channel, Partitioner, Placement, PlacementPolicy, RowPartition, partition, shard_name,
};
use distribute_tensor::DType;
use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The parameter servers of a strategy: how they are reached, how variables are cut, and which server has which.
///
/// One who writes a strategy gets it from another; see
/// [`StrategyExtended::parameter_servers`](crate::StrategyExtended::parameter_servers).
pub struct ParameterServers {
    links: Arc<Links>,
    partitioner: Option<Arc<dyn Partitioner>>,
    placed: Mutex<Placed>,
    /// Locked while a variable is made.
    making: Mutex<Making>,
    /// How long to wait for variables that another process makes.
    patience: Duration,
    workers: usize,
    /// Whether this process makes variables that are not there yet.
    makes: bool,
    steps: Steps,
}

/// What has been placed so far.
struct Placed {
    placement: Placement,
    /// What variables and shards are called on servers.
    tables: HashSet<String>,
}

/// Where a new variable is to go.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Where {
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
    pub(crate) fn new(
        channels: Vec<Arc<dyn Channel>>,
        (timeout, patience): (Duration, Duration),
        (partitioner, policy): (Option<Arc<dyn Partitioner>>, PlacementPolicy),
        (workers, makes): (usize, bool),
        staleness: usize,
    ) -> Result<Self> {
        let placement = Placement::new(channels.len(), policy)?;
        let placed = Mutex::new(Placed { placement, tables: HashSet::new() });
        let links = Arc::new(Links::new(channels, timeout));
        let steps = Steps::new(staleness, timeout);
        let making = Mutex::default();
        Ok(Self { links, partitioner, placed, making, patience, workers, makes, steps })
    }

    /// Which server has which variable or shard.
    pub fn placement(&self) -> Placement {
        lock(&self.placed).placement.clone()
    }

    /// How many servers there are.
    pub fn count(&self) -> usize {
        self.links.count()
    }

    /// How many workers the cluster has.
    pub(crate) fn workers(&self) -> usize {
        self.workers
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.links.timeout()
    }

    pub(crate) fn links(&self) -> &Arc<Links> {
        &self.links
    }

    pub(crate) fn makes_variables(&self) -> bool {
        self.makes
    }

    pub(crate) fn steps(&self) -> &Steps {
        &self.steps
    }

    /// How long to wait for what another process makes.
    pub(crate) fn patience(&self) -> Duration {
        self.patience
    }

    // SHARD-1, PLACE-1
    /// Decides where a new variable goes. `make` makes it there, one variable after another; if it fails, nothing has been placed.
    fn place<T>(
        &self,
        variable: (&str, &[usize], DType),
        to: Where,
        make: impl FnOnce(&Place, &mut Making) -> Result<T>,
    ) -> Result<T> {
        let mut making = lock(&self.making);
        let before = lock(&self.placed).placement.mark();
        let place = self.choose(variable, to)?;
        let made = make(&place, &mut making);
        let mut placed = lock(&self.placed);
        if made.is_err() {
            placed.placement.undo(before);
        } else {
            placed.tables.extend(place.tables());
        }
        made
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

impl fmt::Debug for ParameterServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ParameterServers({} servers, {:?})", self.count(), self.partitioner)
    }
}
