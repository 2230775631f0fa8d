//! The cache of rows that this process has read. [`CachedRows`] of `ps-tables` decides which rows it contains.

use distribute_base::Result;
use distribute_base::internal::lock;
use distribute_ps_tables::{CacheLookup, CachedRows, RowCacheOptions, RowCacheUsage, StepClock};
use distribute_tensor::{DType, HostTensor, codec};
use std::sync::{Arc, Mutex};

/// The clock of this process that all caches share.
pub(crate) type SharedClock = Arc<Mutex<StepClock>>;

/// A cache of the rows of one table that this process has read.
#[derive(Debug)]
pub struct RowCache {
    clock: SharedClock,
    row_bytes: usize,
    /// The size of a row in a message, in bytes.
    sent_bytes: usize,
    rows: Mutex<CachedRows>,
    /// The usage of all caches, without the number of rows. It outlives this cache.
    usage: Arc<Mutex<RowCacheUsage>>,
}

impl RowCache {
    /// Creates a cache for rows of `row_bytes` bytes; `None` if no row fits.
    pub(crate) fn new(options: RowCacheOptions, row_bytes: usize, clock: SharedClock) -> Option<Self> {
        let rows = Mutex::new(CachedRows::new(options, row_bytes)?);
        Some(Self { clock, row_bytes, sent_bytes: row_bytes, rows, usage: Arc::default() })
    }

    /// Sets the size of a row in a message, and the usage in which this cache counts.
    pub(crate) fn counted(mut self, sent_bytes: usize, usage: Arc<Mutex<RowCacheUsage>>) -> Self {
        (self.sent_bytes, self.usage) = (sent_bytes, usage);
        self
    }

    /// Looks up ids, each of which must occur once.
    pub(crate) fn look_up(&self, ids: &[i64]) -> CacheLookup {
        let mut rows = lock(&self.rows);
        let now = lock(&self.clock).now();
        let lookup = rows.look_up(ids, now);
        let max_age = rows.usage().max_age;
        drop(rows);
        let misses = lookup.missing.len();
        let hits = (ids.len() - misses) as u64;
        let mut all = lock(&self.usage);
        all.hits += hits;
        all.misses += misses as u64;
        all.saved_bytes += hits * self.sent_bytes as u64;
        all.max_age = all.max_age.max(max_age);
        drop(all);
        lookup
    }

    /// Returns a function that returns whether a lookup now would find the row of an id. The cache is locked until the
    /// function is dropped.
    pub(crate) fn fresh_rows(&self) -> impl Fn(i64) -> bool {
        let rows = lock(&self.rows);
        let now = lock(&self.clock).now();
        move |id| rows.has(id, now)
    }

    /// Inserts fetched rows, in the order of [`CacheLookup::missing`]. Returns the cached rows of the lookup, followed
    /// by the fetched ones.
    ///
    /// # Errors
    /// - [`Error::Tensor`](distribute_base::Error::Tensor): the rows do not have the dtype and shape of the table.
    pub(crate) fn insert(&self, lookup: &CacheLookup, fetched: &HostTensor) -> Result<HostTensor> {
        lock(&self.rows).insert(lookup, &bytes_of(fetched));
        if lookup.found.is_empty() {
            return Ok(fetched.clone());
        }
        let found = rows_of(&lookup.found, fetched.dtype(), fetched.dims(), self.row_bytes)?;
        Ok(HostTensor::concat(&[&found, fetched], 0)?)
    }

    /// Removes all rows, because the table was written outside steps.
    pub(crate) fn invalidate(&self) {
        lock(&self.rows).invalidate();
    }

    /// Returns the number of cached rows.
    pub(crate) fn len(&self) -> u64 {
        lock(&self.rows).usage().rows
    }
}

/// Encodes rows as bytes.
pub(crate) fn bytes_of(rows: &HostTensor) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(rows.len() * rows.dtype().bytes().unwrap_or(1));
    codec::append(rows.buffer(), 0..rows.len(), &mut bytes);
    bytes
}

/// Decodes rows from their bytes. `dims` is the shape of a tensor with any number of such rows.
pub(crate) fn rows_of(bytes: &[u8], dtype: DType, dims: &[usize], row_bytes: usize) -> Result<HostTensor> {
    let mut dims = dims.to_vec();
    if let Some(count) = dims.first_mut() {
        *count = bytes.len() / row_bytes;
    }
    let buffer = codec::read(dtype, bytes).map_err(|position| {
        distribute_base::Error::invalid("reading cached rows", format!("byte {position} is not {dtype}"))
    })?;
    Ok(HostTensor::from_buffer(buffer, dims)?)
}
