//! A scope in which each variable on parameter servers is read only once.

use crate::strategy::Strategy;
use distribute_base::internal::lock;
use distribute_base::{Error, Result};
use distribute_ps_client::internal::Sharded;
use distribute_tensor::HostTensor;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// The values that were read in a scope. The key identifies a variable by the server and name of each of its tables.
type CachedValues = Arc<Mutex<HashMap<Vec<(usize, String)>, HostTensor>>>;

thread_local! {
    /// The scope that this thread is in, if any.
    static SCOPE: RefCell<Option<ReadCache>> = const { RefCell::new(None) };
}

/// A scope of cached reads. A clone can be entered on another thread.
#[derive(Clone)]
pub(crate) struct ReadCache {
    strategy: Strategy,
    read: CachedValues,
}

/// A guard that restores the previous scope when it is dropped.
pub struct CacheGuard(Option<ReadCache>);

impl Drop for CacheGuard {
    fn drop(&mut self) {
        SCOPE.set(self.0.take());
    }
}

impl ReadCache {
    /// Returns the scope that this thread is in, if any.
    pub(crate) fn current() -> Option<Self> {
        SCOPE.with_borrow(Clone::clone)
    }

    /// Enters the scope on this thread.
    pub(crate) fn enter(self) -> CacheGuard {
        CacheGuard(SCOPE.replace(Some(self)))
    }
}

// CACHE-1
impl Strategy {
    /// Calls `body`, and reads each of this strategy's variables on parameter servers at most once during the call.
    /// This applies to reads of complete values, on this thread and by the replicas of runs that it starts. Cached
    /// values do not reflect later writes. Rows are always read from the servers.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: called inside another scope of this kind.
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
        if ReadCache::current().is_some() {
            let reason = "it was called inside another such scope; leave that scope first";
            return Err(Error::invalid("cache_variable_reads", reason));
        }
        let _scope = ReadCache { strategy: self.clone(), read: CachedValues::default() }.enter();
        body()
    }
}

/// Returns the complete value of a variable on parameter servers. Uses the value from the scope if the
/// variable has already been read in it.
pub(super) fn read(variable: &Sharded) -> Result<HostTensor> {
    let of_strategy = |scope: &ReadCache| {
        let servers = scope.strategy.extended().parameter_servers();
        servers.is_some_and(|servers| Arc::ptr_eq(servers.channels(), variable.channels()))
    };
    let Some(scope) = ReadCache::current().filter(of_strategy) else { return variable.read() };
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
