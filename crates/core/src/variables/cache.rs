//! A scope in which variables on servers are read once.

use crate::strategy::Strategy;
use distribute_base::internal::lock;
use distribute_base::{Error, Result};
use distribute_ps_client::internal::Sharded;
use distribute_tensor::HostTensor;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// The values that were read in a scope, by their tables.
type Read = Arc<Mutex<HashMap<Vec<(usize, String)>, HostTensor>>>;

thread_local! {
    /// The values that were read in the scope of this thread.
    static SCOPE: RefCell<Option<Cached>> = const { RefCell::new(None) };
}

/// The scope of a thread, for entering it on another.
#[derive(Clone)]
pub(crate) struct Cached {
    strategy: Strategy,
    read: Read,
}

/// Leaves a scope when dropped.
pub struct Entered(Option<Cached>);

impl Drop for Entered {
    fn drop(&mut self) {
        SCOPE.set(self.0.take());
    }
}

impl Cached {
    /// Returns the scope of this thread.
    pub(crate) fn current() -> Option<Self> {
        SCOPE.with_borrow(Clone::clone)
    }

    /// Enters the scope on this thread.
    pub(crate) fn enter(self) -> Entered {
        Entered(SCOPE.replace(Some(self)))
    }
}

// CACHE-1
impl Strategy {
    /// Reads each of this strategy's variables on parameter servers at most once while `body` runs. This
    /// applies to complete reads, on this thread and by the replicas of its runs. Such reads do not see writes
    /// made in the meantime. Rows are always read from the servers.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: called inside another such scope.
    /// - The error of `body`.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// # use distribute::{LocalCluster, ParameterServerStrategy, Variable};
    /// let cluster = LocalCluster::new(1, 1)?;
    /// let strategy = ParameterServerStrategy::builder().cluster_resolver(cluster.resolver()).build()?;
    /// let rate = strategy.scope(|| Variable::new("rate", 1f32))?;
    /// strategy.cache_variable_reads(|| {
    ///     assert_eq!(rate.read::<f32>()?, 1.);
    ///     rate.assign(2f32)?;
    ///     assert_eq!(rate.read::<f32>()?, 1.);
    ///     Ok(())
    /// })?;
    /// assert_eq!(rate.read::<f32>()?, 2.);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "CachingVariable")]
    pub fn cache_variable_reads<T>(&self, body: impl FnOnce() -> Result<T>) -> Result<T> {
        if Cached::current().is_some() {
            let reason = "it is being called inside of another such scope; one is enough, and a new one begins behind it";
            return Err(Error::invalid("cache_variable_reads", reason));
        }
        let _scope = Cached { strategy: self.clone(), read: Read::default() }.enter();
        body()
    }
}

/// Returns the complete value of a variable on servers, from the scope if it was read there before.
pub(super) fn read(variable: &Sharded) -> Result<HostTensor> {
    let of_strategy = |scope: &Cached| {
        let servers = scope.strategy.extended().parameter_servers();
        servers.is_some_and(|servers| Arc::ptr_eq(servers.links(), variable.links()))
    };
    let Some(scope) = Cached::current().filter(of_strategy) else { return variable.read() };
    let tables: Vec<_> = variable.shards().iter().map(|shard| (shard.server, shard.table.clone())).collect();
    // Held during the fetch, so that the replicas fetch each variable once.
    let mut read = lock(&scope.read);
    if let Some(value) = read.get(&tables) {
        return Ok(value.clone());
    }
    let value = variable.read()?;
    read.insert(tables, value.clone());
    Ok(value)
}
