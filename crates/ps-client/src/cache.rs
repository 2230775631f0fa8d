//! The values of a variable on servers that are in the memory of this process, for candle to compute with, and the requests that refresh them.

use super::links::{Ask, unexpected};
use super::{Sharded, Underway};
use candle_core::{DType, Device, Shape, Var};
use distribute_base::internal::{DeviceCopies, lock, put};
use distribute_base::{Error, Result};
use distribute_params::{Response, Version};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// A candle variable that stands for one on servers. It has that one's values as they were when they were last fetched; or, where
/// only layers that look up rows use it, none, and takes no memory but addresses.
pub struct HostCache {
    tables: Sharded,
    var: Var,
    /// The version of each shard that it has. Locked while it is written.
    known: Mutex<Vec<Option<Version>>>,
    /// Whether all of it is fetched.
    whole: AtomicBool,
    /// Whether it has been, once at least.
    filled: AtomicBool,
    /// Held while it is for the first time, because something else than rows is asked for.
    becoming: Mutex<()>,
    /// Copies of it for replicas whose devices have memory of their own.
    copies: OnceLock<Arc<DeviceCopies>>,
}

impl HostCache {
    /// Creates a candle variable for a cache.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: this process has no addresses for so many elements.
    pub fn zeros(shape: &Shape, dtype: DType) -> Result<Var> {
        let bytes =
            shape.dims().iter().try_fold(dtype.size_in_bytes(), |bytes, size| bytes.checked_mul(*size));
        // candle would end the process. Memory is taken when it is written, and tables of rows never are.
        if bytes.is_none_or(|bytes| Vec::<u8>::new().try_reserve_exact(bytes).is_err()) {
            let reason = format!("there is no memory for {dtype:?}{:?}", shape.dims());
            return Err(Error::invalid("creating a variable", reason));
        }
        Ok(Var::zeros(shape, dtype, &Device::Cpu)?)
    }

    /// Caches a variable, which is fetched as a whole, unless `by_row`.
    pub fn new(tables: Sharded, var: Var, by_row: bool) -> Self {
        let (known, becoming, copies) = (Mutex::default(), Mutex::default(), OnceLock::new());
        let (whole, filled) = (AtomicBool::new(!by_row), AtomicBool::new(false));
        Self { tables, var, known, whole, filled, becoming, copies }
    }

    /// The variable of candle.
    pub fn var(&self) -> &Var {
        &self.var
    }

    /// Sets the copies of it on devices, which follow what is fetched.
    pub fn set_device_copies(&self, copies: Arc<DeviceCopies>) {
        // A variable is made once, and gets them then.
        let _ = self.copies.set(copies);
    }

    /// Whether all of it is fetched at the beginning of a step.
    pub fn is_whole(&self) -> bool {
        self.whole.load(Ordering::Relaxed)
    }

    /// Fetches what has changed, if all of it is fetched. No thread may be computing with it.
    ///
    /// # Errors
    /// [`Error::Server`].
    pub fn refresh(self: &Arc<Self>, operation: &'static str) -> Result<()> {
        fetch_all(operation, std::slice::from_ref(self))
    }

    /// Fetches all of it from now on, at once if it is not here yet. Other threads that load it wait.
    ///
    /// # Errors
    /// [`Error::Server`]. The next step fetches it then, and no thread can compute with it before.
    pub fn load(self: &Arc<Self>, operation: &'static str) -> Result<()> {
        let _first = lock(&self.becoming);
        if self.is_here() {
            return Ok(());
        }
        self.whole.store(true, Ordering::Relaxed);
        self.refresh(operation)
    }

    /// Whether all of it is here.
    pub fn is_here(&self) -> bool {
        self.is_whole() && self.filled.load(Ordering::Acquire)
    }

    /// Whether it can be computed with: as a whole, if it is used so.
    pub fn is_ready(&self) -> bool {
        !self.is_whole() || self.is_here()
    }
}

/// Requests for what has changed of caches, in flight.
pub(crate) struct Fetch {
    /// The caches that are fetched, with the number of shards of each. None is kept alive.
    caches: Vec<(Weak<HostCache>, usize)>,
    answers: Underway,
}

impl Fetch {
    /// Asks for what has changed of those that are fetched as a whole. `None` if there is none.
    pub(crate) fn start(caches: &[Arc<HostCache>]) -> Option<Self> {
        let whole: Vec<_> = caches.iter().filter(|cache| cache.is_whole()).collect();
        let reads = |cache: &&Arc<HostCache>| cache.tables.reads(&lock(&cache.known));
        let requests: Vec<Ask> = whole.iter().flat_map(reads).collect();
        let answers = whole.first()?.tables.links().start(requests);
        let caches = whole.into_iter().map(|cache| (Arc::downgrade(cache), cache.tables.shards().len()));
        Some(Self { caches: caches.collect(), answers })
    }

    /// Writes what has come. No thread may be computing with it.
    ///
    /// # Errors
    /// That of a server which has not answered. No value has changed then, unless it is memory that fails.
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
            let mut known = lock(&cache.known);
            known.resize(cache.tables.shards().len(), None);
            // Should memory fail, it is fetched again.
            known[i] = None;
            let written = put(&cache.var, at, &value);
            cache.copies.get().into_iter().for_each(|copies| copies.written());
            written?;
            known[i] = Some(version);
        }
        fetched.iter().for_each(|cache| cache.filled.store(true, Ordering::Release));
        Ok(())
    }
}

/// Fetches what has changed of some caches. No thread may be computing with them.
///
/// # Errors
/// Those of [`Fetch::finish`].
pub(crate) fn fetch_all(operation: &'static str, caches: &[Arc<HostCache>]) -> Result<()> {
    Fetch::start(caches).map_or(Ok(()), |fetch| fetch.finish(operation))
}

impl fmt::Debug for HostCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostCache({:?}, whole: {})", self.var.shape(), self.is_whole())
    }
}
