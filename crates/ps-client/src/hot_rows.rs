//! The hot rows of a variable, of which this process has copies. [`HotCopies`] of `ps-tables` decides which copies are
//! used.

// - INV-110: decided by `HotCopies` of `ps-tables`.

use super::row_cache::rows_of;
use super::sharded::UniqueRows;
use super::variable::id_of_row;
use super::{ParameterServers, RemoteVariable, Sharded};
use distribute_base::internal::lock;
use distribute_base::{Error, Result};
use distribute_ps_tables::{HotCopies, HotLookup, HotRowUsage, HotRows, RowLayout};
use distribute_tensor::DType;
use std::sync::{Arc, Mutex, Weak};

/// The hot rows of one variable. They are dropped with it.
#[derive(Debug)]
pub struct HotTable {
    pub(crate) copies: Mutex<HotCopies>,
    pub(crate) layout: RowLayout,
    dtype: DType,
    /// The shape of a tensor with any number of rows.
    dims: Vec<usize>,
    /// The usage of all copies, without the number of rows. It outlives this variable.
    pub(crate) usage: Arc<Mutex<HotRowUsage>>,
}

impl ParameterServers {
    /// Sets the rows of which each worker has a copy; `None` disables copies.
    #[doc(hidden)]
    pub fn with_hot_rows(self, rows: Option<HotRows>) -> Self {
        Self { hot_rows: rows, ..self }
    }

    /// Checks that a variable with `rows` rows has those that the program has named. `name` is the name that the
    /// program uses.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: the variable lacks a row.
    #[doc(hidden)]
    pub fn require_hot_rows(&self, operation: &'static str, name: &str, rows: usize) -> Result<()> {
        let named = self.hot_rows.iter().flat_map(|hot| hot.ids(name));
        match named.copied().find(|id| !(0..rows as i64).contains(id)) {
            Some(id) => {
                let reason = format!("hot_rows names row {id} of {name}, which has {rows} rows");
                Err(Error::invalid(operation, reason))
            }
            None => Ok(()),
        }
    }

    /// Creates the copies of the hot rows of a variable. Returns `None` if no row is copied, or if there are no other
    /// workers. `name` is the name that the program uses.
    #[doc(hidden)]
    pub fn hot_table(&self, name: &str, tables: &Sharded) -> Option<Arc<HotTable>> {
        let is_shared = self.session.lock_step().is_some() && self.workers > 1;
        let options = self.hot_rows.as_ref().filter(|_| is_shared)?;
        let bytes = tables.row_bytes().filter(|bytes| *bytes > 0)?;
        let layout = RowLayout { bytes, is_f32: tables.dtype() == DType::F32 };
        let copies = Mutex::new(options.copies(name, layout)?);
        let (dtype, dims, usage) = (tables.dtype(), tables.dims().to_vec(), self.hot_row_usage.clone());
        let table = Arc::new(HotTable { copies, layout, dtype, dims, usage });
        let mut all = lock(&self.hot_tables);
        all.retain(|table| table.strong_count() > 0);
        all.push(Arc::downgrade(&table));
        Some(table)
    }

    /// Returns the usage of this process's copies of hot rows. All numbers are 0 if no rows are copied. Dropped
    /// variables count, except in the number of rows.
    pub fn hot_row_usage(&self) -> HotRowUsage {
        let tables: Vec<_> = lock(&self.hot_tables).iter().filter_map(Weak::upgrade).collect();
        let mut usage = *lock(&self.hot_row_usage);
        usage.rows = tables.iter().map(|table| lock(&table.copies).copies()).sum();
        usage
    }
}

impl HotTable {
    /// Returns `true` if there is a copy of any row.
    pub(crate) fn has_copies(&self) -> bool {
        lock(&self.copies).has_any()
    }

    /// Looks up distinct ids. Returns `None` if there is no copy of any of them.
    pub(crate) fn look_up(&self, ids: &[i64]) -> Option<HotLookup> {
        let lookup = lock(&self.copies).look_up(ids);
        let misses = lookup.missing.len();
        let mut usage = lock(&self.usage);
        usage.hits += (ids.len() - misses) as u64;
        usage.misses += misses as u64;
        (!lookup.found.is_empty()).then_some(lookup)
    }

    /// Returns the rows of a lookup. `requested` contains those that were missing, in their order; `None` if none was.
    ///
    /// # Errors
    /// - [`Error::Tensor`]: the requested rows do not have the dtype and shape of the variable.
    pub(crate) fn join(&self, lookup: &HotLookup, requested: Option<&UniqueRows>) -> Result<UniqueRows> {
        let rows = rows_of(&lookup.found, self.dtype, &self.dims, self.layout.bytes)?;
        match requested {
            Some(requested) => UniqueRows::merge(&rows, &lookup.places, requested),
            None => Ok(UniqueRows { rows, places: lookup.places.iter().flatten().copied().collect() }),
        }
    }

    /// Returns a function that returns whether there is a copy of a row. The copies are locked until the function is
    /// dropped.
    pub(crate) fn copied_rows(&self) -> impl Fn(i64) -> bool {
        let copies = lock(&self.copies);
        move |id| copies.has(id)
    }

    /// Discards all copies, because the variable was written outside of steps.
    pub(crate) fn invalidate(&self) {
        lock(&self.copies).invalidate();
    }
}

impl RemoteVariable {
    /// Counts the rows in the gradients of the replicas of one worker whose changes this worker sends, so that the
    /// hottest rows are known. Call this once for each worker and step.
    pub fn count_rows<'r>(&self, replicas: impl IntoIterator<Item = &'r [usize]>) {
        let Some(hot) = self.hot_rows() else { return };
        let mut copies = lock(&hot.copies);
        if !copies.is_measured() {
            return;
        }
        let is_by_ids = self.ids().is_some();
        let id = |row: &usize| if is_by_ids { id_of_row(*row) } else { *row as i64 };
        let lookups = replicas.into_iter().map(|rows| rows.iter().map(id));
        if self.shares_requests() {
            copies.count([lookups.flatten()]);
        } else {
            copies.count(lookups);
        }
    }
}
