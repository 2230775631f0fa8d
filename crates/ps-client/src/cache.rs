//! The cached values of a variable on servers, which candle computes with, and the requests that refresh them.

use super::links::{Ask, unexpected};
use super::{Sharded, Underway};
use candle_core::{DType, Device, Shape, Var};
use distribute_base::internal::{Coherent, DeviceCopies, lock, put};
use distribute_base::{Error, Result};
use distribute_ps_tables::{Response, Version};
use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// A candle variable that stands for one on servers. It holds the values that were fetched last. If only layers that
/// look up rows use it, it holds none and reserves addresses but no memory.
pub struct HostCache {
    tables: Sharded,
    var: Var,
    /// The cached version of each shard.
    shards: Coherent<Version>,
    /// A [`Fetched`].
    fetched: AtomicU8,
    /// A lock, held while all values are fetched for the first time, because an operation other than a lookup of rows
    /// needs them.
    loading: Mutex<()>,
    /// The copies for replicas whose devices have memory of their own.
    copies: OnceLock<Arc<DeviceCopies>>,
}

/// The values that are fetched. Each variant includes those before it.
#[repr(u8)]
enum Fetched {
    /// The rows of each batch, which are not cached.
    Rows,
    /// All values, which have not arrived yet.
    Loading,
    All,
}

impl HostCache {
    /// Creates a candle variable for a cache.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: this process has no address space for this number of elements.
    pub fn zeros(shape: &Shape, dtype: DType) -> Result<Var> {
        let bytes =
            shape.dims().iter().try_fold(dtype.size_in_bytes(), |bytes, size| bytes.checked_mul(*size));
        // candle would abort the process. Memory is committed on the first write, and caches of rows are never
        // written.
        if bytes.is_none_or(|bytes| Vec::<u8>::new().try_reserve_exact(bytes).is_err()) {
            let reason = format!("there is no memory for {dtype:?}{:?}", shape.dims());
            return Err(Error::invalid("creating a variable", reason));
        }
        Ok(Var::zeros(shape, dtype, &Device::Cpu)?)
    }

    /// Creates a cache of a variable. It is fetched completely unless `by_row` is set.
    pub fn new(tables: Sharded, var: Var, by_row: bool) -> Self {
        let fetched = if by_row { Fetched::Rows } else { Fetched::Loading };
        let (fetched, shards) = (AtomicU8::new(fetched as u8), Coherent::new(tables.shards().len()));
        Self { tables, var, shards, fetched, loading: Mutex::default(), copies: OnceLock::new() }
    }

    /// Returns the candle variable.
    pub fn var(&self) -> &Var {
        &self.var
    }

    /// Sets the copies on devices. They are marked stale when values are fetched.
    pub fn set_device_copies(&self, copies: Arc<DeviceCopies>) {
        // A variable is created once, and only then gets its copies.
        let _ = self.copies.set(copies);
    }

    /// Whether all values are fetched at the beginning of a step.
    pub fn is_whole(&self) -> bool {
        self.fetched.load(Ordering::Relaxed) != Fetched::Rows as u8
    }

    /// Fetches the shards that have changed, if all values are fetched. No thread may be computing with them.
    ///
    /// # Errors
    /// - [`Error::Server`]: a server did not answer.
    pub fn refresh(self: &Arc<Self>, operation: &'static str) -> Result<()> {
        fetch_all(operation, std::slice::from_ref(self))
    }

    /// Fetches all values from now on, and at once if they have not been fetched yet. Other threads that load them
    /// wait.
    ///
    /// # Errors
    /// - [`Error::Server`]: a server did not answer. The next step then fetches the values. No thread can compute with
    ///   them before.
    pub fn load(self: &Arc<Self>, operation: &'static str) -> Result<()> {
        let _first = lock(&self.loading);
        if self.is_here() {
            return Ok(());
        }
        self.fetched.fetch_max(Fetched::Loading as u8, Ordering::Relaxed);
        self.refresh(operation)
    }

    /// Whether all values have been fetched.
    pub fn is_here(&self) -> bool {
        self.fetched.load(Ordering::Acquire) == Fetched::All as u8
    }

    /// Whether candle can compute with it: all values are there, if any operation needs all of them.
    pub fn is_ready(&self) -> bool {
        self.fetched.load(Ordering::Acquire) != Fetched::Loading as u8
    }
}

/// The requests that refresh some caches, in flight.
pub(crate) struct Fetch {
    /// The caches that are refreshed, with the number of shards of each. They are not kept alive.
    caches: Vec<(Weak<HostCache>, usize)>,
    answers: Underway,
}

impl Fetch {
    /// Requests the changed shards of the caches that are fetched completely. Returns `None` if there is no such
    /// cache.
    pub(crate) fn start(caches: &[Arc<HostCache>]) -> Option<Self> {
        let whole: Vec<_> = caches.iter().filter(|cache| cache.is_whole()).collect();
        let reads = |cache: &&Arc<HostCache>| cache.tables.reads(&cache.shards.versions());
        let requests: Vec<Ask> = whole.iter().flat_map(reads).collect();
        let answers = whole.first()?.tables.links().start(requests);
        let caches = whole.into_iter().map(|cache| (Arc::downgrade(cache), cache.tables.shards().len()));
        Some(Self { caches: caches.collect(), answers })
    }

    /// Writes the values that have arrived. No thread may be computing with them.
    ///
    /// # Errors
    /// Returns the error of the first server that did not answer. No value has changed then, unless copying into
    /// memory fails.
    pub(crate) fn finish(self, operation: &'static str) -> Result<()> {
        let mut answers = self.answers.wait(operation)?.into_iter();
        let (mut changes, mut fetched) = (Vec::new(), Vec::new());
        for (cache, shards) in self.caches {
            let answers: Vec<Response> = answers.by_ref().take(shards).collect();
            let Some(cache) = cache.upgrade() else { continue };
            let mut before = 0;
            for ((i, shard), answer) in cache.tables.shards().iter().enumerate().zip(answers) {
                match answer {
                    Response::Unchanged => before += cache.tables.elements_of(i),
                    Response::Value(found) => {
                        let value = cache.tables.fits(operation, shard, found.value)?;
                        let len = value.len();
                        changes.push((cache.clone(), i, before, found.version, value));
                        before += len;
                    }
                    other => return Err(unexpected(operation, shard.server, &other)),
                }
            }
            fetched.push(cache);
        }
        for (cache, i, at, version, value) in changes {
            cache.shards.store(i, version, || {
                let written = put(&cache.var, at, &value);
                cache.copies.get().into_iter().for_each(|copies| copies.written());
                written
            })?;
        }
        fetched.iter().for_each(|cache| cache.fetched.store(Fetched::All as u8, Ordering::Release));
        Ok(())
    }
}

/// Fetches the changed shards of some caches. No thread may be computing with them.
///
/// # Errors
/// Returns the errors of [`Fetch::finish`].
pub(crate) fn fetch_all(operation: &'static str, caches: &[Arc<HostCache>]) -> Result<()> {
    Fetch::start(caches).map_or(Ok(()), |fetch| fetch.finish(operation))
}

impl fmt::Debug for HostCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostCache({:?}, whole: {})", self.var.shape(), self.is_whole())
    }
}
