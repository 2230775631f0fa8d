//! The values of a variable on servers that are in the memory of this process, for candle to compute with, and the
//! requests that refresh them.

use super::links::{Ask, unexpected};
use super::{Sharded, Underway};
use candle_core::{DType, Device, Shape, Var};
use distribute_base::internal::{Coherent, DeviceCopies, lock, put};
use distribute_base::{Error, Result};
use distribute_ps_tables::{Response, Version};
use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// A candle variable that stands for one on servers. It has that one's values as they were when they were last fetched;
/// or, where only layers that look up rows use it, none, and takes no memory but addresses.
pub struct HostCache {
    tables: Sharded,
    var: Var,
    /// The version of each shard that it has.
    shards: Coherent<Version>,
    /// A [`Fetched`].
    fetched: AtomicU8,
    /// Held while all of it is fetched for the first time, because something else than rows is asked for.
    loading: Mutex<()>,
    /// Copies of it for replicas whose devices have memory of their own.
    copies: OnceLock<Arc<DeviceCopies>>,
}

/// What is fetched. Each is more than the one before.
#[repr(u8)]
enum Fetched {
    /// The rows of each batch alone, which are not kept.
    Rows,
    /// All of it, and it is not here yet.
    Loading,
    All,
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
        let fetched = if by_row { Fetched::Rows } else { Fetched::Loading };
        let (fetched, shards) = (AtomicU8::new(fetched as u8), Coherent::new(tables.shards().len()));
        Self { tables, var, shards, fetched, loading: Mutex::default(), copies: OnceLock::new() }
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
        self.fetched.load(Ordering::Relaxed) != Fetched::Rows as u8
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
        let _first = lock(&self.loading);
        if self.is_here() {
            return Ok(());
        }
        self.fetched.fetch_max(Fetched::Loading as u8, Ordering::Relaxed);
        self.refresh(operation)
    }

    /// Whether all of it is here.
    pub fn is_here(&self) -> bool {
        self.fetched.load(Ordering::Acquire) == Fetched::All as u8
    }

    /// Whether it can be computed with: as a whole, if it is used so.
    pub fn is_ready(&self) -> bool {
        self.fetched.load(Ordering::Acquire) != Fetched::Loading as u8
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
        let reads = |cache: &&Arc<HostCache>| cache.tables.reads(&cache.shards.versions());
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
