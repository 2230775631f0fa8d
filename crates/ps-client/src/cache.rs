//! The cached values of variables on parameter servers. candle computes with these values.

use super::channels::{ServerRequest, unexpected};
use super::{PendingReplies, Sharded};
use bytemuck::{Zeroable, allocation::try_zeroed_vec};
use candle_core::{DType, Device, Shape, Var, WithDType};
use distribute_base::internal::{Coherent, DeviceCopies, candle_write, lock, put};
use distribute_base::{Error, Result};
use distribute_ps_tables::{Response, Version};
use distribute_tensor::Write;
use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// A candle variable with the latest fetched values of a variable on parameter servers. If only layers that look up
/// rows use the variable, no values are cached: the candle variable reserves address space, but takes no memory.
pub struct HostCache {
    tables: Sharded,
    var: Var,
    /// The version of each shard's cached value.
    shards: Coherent<Version>,
    /// A [`Fetched`] as a number: which values are fetched.
    fetched: AtomicU8,
    /// A lock that is held while all values are fetched for the first time, because an operation other than a lookup of
    /// rows needs them.
    loading: Mutex<()>,
    /// The copies for replicas whose devices have separate memory.
    copies: OnceLock<Arc<DeviceCopies>>,
}

/// The values of a variable that are fetched. Each variant includes the previous ones.
#[repr(u8)]
enum Fetched {
    /// Only the rows that a batch looks up, which are not cached.
    Rows,
    /// All values, which have not arrived yet.
    Loading,
    All,
}

impl HostCache {
    /// Creates the candle variable for a cache. Its values are zeros, which take no memory until they are written.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: this process does not have enough address space for the variable.
    pub fn zeros(shape: &Shape, dtype: DType) -> Result<Var> {
        // Var::zeros would abort the process if there is not enough. Memory is committed on the first write, and caches
        // of rows are never written.
        match dtype {
            DType::F32 => zeros_of::<f32>(shape, dtype),
            DType::F64 => zeros_of::<f64>(shape, dtype),
            DType::F16 => zeros_of::<half::f16>(shape, dtype),
            DType::BF16 => zeros_of::<half::bf16>(shape, dtype),
            DType::I64 => zeros_of::<i64>(shape, dtype),
            DType::I32 => zeros_of::<i32>(shape, dtype),
            DType::I16 => zeros_of::<i16>(shape, dtype),
            DType::U32 => zeros_of::<u32>(shape, dtype),
            DType::U8 => zeros_of::<u8>(shape, dtype),
            // Tables on servers have none of these dtypes.
            _ => Ok(Var::zeros(shape, dtype, &Device::Cpu)?),
        }
    }

    /// Creates the cache of a variable. Each step fetches the complete value when it begins. If `by_row` is `true`,
    /// only the rows that a batch looks up are fetched, until [`load`](Self::load) is called.
    pub fn new(tables: Sharded, var: Var, by_row: bool) -> Self {
        let fetched = if by_row { Fetched::Rows } else { Fetched::Loading };
        let (fetched, shards) = (AtomicU8::new(fetched as u8), Coherent::new(tables.shards().len()));
        Self { tables, var, shards, fetched, loading: Mutex::default(), copies: OnceLock::new() }
    }

    /// Returns the candle variable.
    pub fn var(&self) -> &Var {
        &self.var
    }

    /// Sets the copies for replicas whose devices have separate memory, unless they have already been set. The copies
    /// become stale whenever values are fetched.
    pub fn set_device_copies(&self, copies: Arc<DeviceCopies>) {
        // A variable is created once, and only then gets its copies.
        let _ = self.copies.set(copies);
    }

    /// Returns `true` if each step fetches all values when it begins, and not only the rows that a batch looks up.
    pub fn fetches_all(&self) -> bool {
        self.fetched.load(Ordering::Relaxed) != Fetched::Rows as u8
    }

    /// Fetches the shards that have changed. Does nothing if only rows are fetched. No thread may be computing with the
    /// values.
    ///
    /// # Errors
    /// - [`Error::Server`]: a server did not answer, or its response does not match the request.
    /// - [`Error::InvalidArgument`]: the value on a server has a different shape or dtype.
    pub fn refresh(self: &Arc<Self>, operation: &'static str) -> Result<()> {
        fetch_all(operation, std::slice::from_ref(self))
    }

    /// Makes each later step fetch all values, and not only the rows that a batch looks up. Returns once the values
    /// have been fetched for the first time. Concurrent calls wait for that fetch.
    ///
    /// # Errors
    /// - [`Error::Server`], [`Error::InvalidArgument`]: see [`refresh`](Self::refresh). The next step tries again.
    ///   Until the values have been fetched, [`is_ready`](Self::is_ready) returns `false`.
    pub fn load(self: &Arc<Self>, operation: &'static str) -> Result<()> {
        let _first = lock(&self.loading);
        if self.is_complete() {
            return Ok(());
        }
        self.fetched.fetch_max(Fetched::Loading as u8, Ordering::Relaxed);
        self.refresh(operation)
    }

    /// Returns `true` if all values have been fetched.
    pub fn is_complete(&self) -> bool {
        self.fetched.load(Ordering::Acquire) == Fetched::All as u8
    }

    /// Returns `true` if candle can compute with the cache: all values were fetched, or only rows are looked up.
    pub fn is_ready(&self) -> bool {
        self.fetched.load(Ordering::Acquire) != Fetched::Loading as u8
    }
}

/// Creates a variable of zeros that the operating system provides, so that no page is touched.
fn zeros_of<T: WithDType + Zeroable>(shape: &Shape, dtype: DType) -> Result<Var> {
    let elements = shape.dims().iter().try_fold(1usize, |elements, size| elements.checked_mul(*size));
    let zeros = elements.and_then(|elements| try_zeroed_vec::<T>(elements).ok());
    let zeros = zeros.ok_or_else(|| {
        Error::invalid("creating a variable", format!("there is no memory for {dtype:?}{:?}", shape.dims()))
    })?;
    Ok(Var::from_vec(zeros, shape, &Device::Cpu)?)
}

/// Requests in flight that refresh caches.
pub(crate) struct Fetch {
    /// The caches to refresh, each with its number of shards. A fetch does not keep caches alive.
    caches: Vec<(Weak<HostCache>, usize)>,
    answers: PendingReplies,
}

impl Fetch {
    /// Requests the changed shards of the caches whose values are all fetched. Returns `None` if there are no such
    /// caches.
    pub(crate) fn start(caches: &[Arc<HostCache>]) -> Option<Self> {
        let whole: Vec<_> = caches.iter().filter(|cache| cache.fetches_all()).collect();
        let reads = |cache: &&Arc<HostCache>| cache.tables.read_requests(&cache.shards.versions(), true);
        let requests: Vec<ServerRequest> = whole.iter().flat_map(reads).collect();
        let channels = whole.first()?.tables.channels();
        let answers = channels.start(requests, channels.deadline());
        let caches = whole.into_iter().map(|cache| (Arc::downgrade(cache), cache.tables.shards().len()));
        Some(Self { caches: caches.collect(), answers })
    }

    /// Waits for the values and writes them into the caches. No thread may be computing with them.
    ///
    /// # Errors
    /// Returns the first error: a server did not answer, or its value has a different shape or dtype. No value has
    /// changed then. If writing to memory fails, some values may have changed.
    pub(crate) fn finish(self, operation: &'static str) -> Result<()> {
        let mut answers = self.answers.wait(operation)?.into_iter();
        let (mut changes, mut fetched) = (Vec::new(), Vec::new());
        for (cache, shards) in self.caches {
            let answers: Vec<Response> = answers.by_ref().take(shards).collect();
            let Some(cache) = cache.upgrade() else { continue };
            for ((i, shard), answer) in cache.tables.shards().iter().enumerate().zip(answers) {
                match answer {
                    Response::Unchanged => {}
                    Response::Value(found) => {
                        let value = cache.tables.validate(operation, shard, found.value)?;
                        changes.push((cache.clone(), i, found.version, value));
                    }
                    other => return Err(unexpected(operation, shard.server, &other)),
                }
            }
            fetched.push(cache);
        }
        for (cache, i, version, value) in changes {
            cache.shards.store(i, version, || {
                let written = match cache.tables.scattered_rows(i) {
                    Some(rows) => candle_write::write(&cache.var, Write::Assign, &value, Some(rows)),
                    None => put(&cache.var, cache.tables.elements_before(i), &value),
                };
                cache.copies.get().into_iter().for_each(|copies| copies.mark_written());
                written
            })?;
        }
        fetched.iter().for_each(|cache| cache.fetched.store(Fetched::All as u8, Ordering::Release));
        Ok(())
    }
}

/// Fetches the changed shards of caches. No thread may be computing with their values.
///
/// # Errors
/// Returns the errors of [`Fetch::finish`].
pub(crate) fn fetch_all(operation: &'static str, caches: &[Arc<HostCache>]) -> Result<()> {
    Fetch::start(caches).map_or(Ok(()), |fetch| fetch.finish(operation))
}

impl fmt::Debug for HostCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostCache({:?}, fetches all: {})", self.var.shape(), self.fetches_all())
    }
}
