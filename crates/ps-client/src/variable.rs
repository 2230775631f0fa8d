//! [`RemoteVariable`]: a variable on parameter servers, and what this process knows about it.

use super::hot_rows::HotTable;
use super::prefetched::PrefetchedRows;
use super::row_cache::RowCache;
use super::sharded::{RowRead, UniqueRows};
use super::{Dynamic, HostCache, Sharded};
use candle_core::Var;
use distribute_base::internal::lock;
use distribute_base::{Error, Result};
use distribute_optim::RuleSpec;
use distribute_ps_tables::{PrefetchRequest, UniqueIds};
use distribute_tensor::HostTensor;
use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// A variable on parameter servers, and the candle variable that represents it in this process.
#[derive(Debug)]
pub struct RemoteVariable {
    addressing: RowAddressing,
    /// The rule by which servers update the variable, if this process has set one.
    pub(crate) rule: Mutex<Option<RuleSpec>>,
    /// The cache of rows that this process has read; `None` if rows are not cached.
    row_cache: Option<Arc<RowCache>>,
    /// The hot rows, of which each worker has a copy; `None` if there are none.
    hot_rows: Option<Arc<HotTable>>,
    /// The rows that this process requests before the step that looks them up.
    pub(crate) prefetched: PrefetchedRows,
    /// The variables on whose tables this one is, if it combines several.
    parts: Vec<Arc<RemoteVariable>>,
    /// Whether a restore of the values has begun and has not succeeded.
    incomplete: AtomicBool,
}

#[derive(Debug)]
enum RowAddressing {
    /// Rows with indices from 0. There is a cache if the variable was created from a candle tensor.
    Numbered(Sharded, Option<Arc<HostCache>>),
    /// Rows with ids. A single row represents all of them in candle's graph; its value is never read.
    Ids(Dynamic, Var),
}

/// The sign bit of an id. Flipping it maps ids to row numbers with the same order.
const SIGN: u64 = 1 << 63;

/// Returns the row number that represents an id in gradients. Row numbers have the same order as ids.
pub fn row_of_id(id: i64) -> usize {
    (id.cast_unsigned() ^ SIGN) as usize
}

/// Returns the id that is represented by a row number from [`row_of_id`].
pub fn id_of_row(row: usize) -> i64 {
    (row as u64 ^ SIGN).cast_signed()
}

/// Returns the error of an operation that needs a single value, for a variable whose rows have ids.
pub fn no_value(operation: &'static str) -> Error {
    Error::NotSupported {
        operation,
        strategy: "ParameterServerStrategy",
        what: "using a table of ids as one value, since any id has a row",
        advice: "gather the rows of ids, read those that exist by dynamic_rows, and save and restore it by \
                 a Checkpoint",
    }
}

impl RemoteVariable {
    /// Creates a variable whose rows have indices from 0.
    pub fn new(tables: Sharded, cache: Option<Arc<HostCache>>) -> Self {
        Self::with_addressing(RowAddressing::Numbered(tables, cache))
    }

    /// Creates a variable whose rows have ids. `row` is a single row that represents all of them.
    pub fn with_ids(tables: Dynamic, row: Var) -> Self {
        Self::with_addressing(RowAddressing::Ids(tables, row))
    }

    fn with_addressing(addressing: RowAddressing) -> Self {
        let (rule, row_cache, hot_rows, prefetched, parts, incomplete) = Default::default();
        Self { addressing, rule, row_cache, hot_rows, prefetched, parts, incomplete }
    }

    /// Calls `restore`, which sets all values. Until a restore has succeeded, the variable is
    /// [incomplete](Self::is_incomplete).
    ///
    /// # Errors
    /// Returns the error of `restore`.
    pub fn restoring<T>(&self, restore: impl FnOnce() -> Result<T>) -> Result<T> {
        self.incomplete.store(true, Ordering::Relaxed);
        let restored = restore()?;
        self.incomplete.store(false, Ordering::Relaxed);
        Ok(restored)
    }

    /// Returns `true` if the last restore has failed or is in progress, so that some rows may have older values.
    pub fn is_incomplete(&self) -> bool {
        self.incomplete.load(Ordering::Relaxed)
    }

    /// Sets the cache of rows that this process reads; `None` disables caching.
    pub fn with_row_cache(self, cache: Option<Arc<RowCache>>) -> Self {
        Self { row_cache: cache, ..self }
    }

    /// Sets the hot rows, of which each worker has a copy; `None` if there are none.
    pub fn with_hot_rows(self, hot_rows: Option<Arc<HotTable>>) -> Self {
        Self { hot_rows, ..self }
    }

    /// Returns `true` if all replicas of this process request a row together, because it is cached or prefetched.
    pub(crate) fn shares_requests(&self) -> bool {
        self.row_cache.is_some() || self.prefetched.is_used()
    }

    /// Returns the hot rows, of which each worker has a copy, if there can be any.
    pub(crate) fn hot_rows(&self) -> Option<&Arc<HotTable>> {
        self.hot_rows.as_ref()
    }

    /// Sets the variables that this one combines: a write to it changes them.
    pub fn with_parts(self, parts: Vec<Arc<RemoteVariable>>) -> Self {
        Self { parts, ..self }
    }

    /// Removes all cached and prefetched rows and copies of hot rows, also those of the variables that this one
    /// combines, because the variable is written outside the steps of an optimizer.
    pub fn invalidate_rows(&self) {
        self.prefetched.discard();
        self.hot_rows.iter().for_each(|hot| hot.invalidate());
        self.row_cache.iter().for_each(|cache| cache.invalidate());
        self.parts.iter().for_each(|part| part.invalidate_rows());
    }

    /// Forgets the rule that this process has set, so that the rule is sent again when it is needed.
    pub fn forget_rule(&self) {
        *lock(&self.rule) = None;
    }

    /// Returns the tables on the servers, as shards.
    pub fn tables(&self) -> &Sharded {
        match &self.addressing {
            RowAddressing::Numbered(tables, _) => tables,
            RowAddressing::Ids(ids, _) => ids.tables(),
        }
    }

    /// Returns the tables if the rows have indices, and `None` if they have ids.
    pub fn numbered(&self) -> Option<&Sharded> {
        match &self.addressing {
            RowAddressing::Numbered(tables, _) => Some(tables),
            RowAddressing::Ids(..) => None,
        }
    }

    /// Returns the tables if the rows have indices, so that the variable has a value of a fixed shape. `operation` is
    /// the name of the call in the error.
    ///
    /// # Errors
    /// - [`Error::NotSupported`]: the rows have ids. Such rows are created on demand and form no tensor.
    pub fn value(&self, operation: &'static str) -> Result<&Sharded> {
        self.numbered().ok_or_else(|| no_value(operation))
    }

    /// Returns the tables if the rows have ids, and otherwise `None`.
    pub fn ids(&self) -> Option<&Dynamic> {
        match &self.addressing {
            RowAddressing::Numbered(..) => None,
            RowAddressing::Ids(ids, _) => Some(ids),
        }
    }

    /// Returns the index of the server of a row, which must exist. Rows with ids have the numbers that [`row_of_id`]
    /// returns.
    pub fn server_of(&self, row: usize) -> usize {
        let shard = match &self.addressing {
            RowAddressing::Numbered(tables, _) => tables.partition.location(row).shard,
            RowAddressing::Ids(ids, _) => ids.shard(id_of_row(row)),
        };
        self.tables().shards().get(shard).map_or(0, |shard| shard.server)
    }

    /// Returns the cache that candle computes with, if the variable was created from a candle tensor.
    pub fn cache(&self) -> Option<&Arc<HostCache>> {
        match &self.addressing {
            RowAddressing::Numbered(_, cache) => cache.as_ref(),
            RowAddressing::Ids(..) => None,
        }
    }

    /// Returns the candle variable that represents this variable in a graph, if there is one.
    pub fn var(&self) -> Option<&Var> {
        match &self.addressing {
            RowAddressing::Numbered(_, cache) => cache.as_ref().map(|cache| cache.var()),
            RowAddressing::Ids(_, row) => Some(row),
        }
    }

    /// Returns `true` if only the rows that a batch looks up are fetched.
    pub fn is_fetched_by_row(&self) -> bool {
        self.ids().is_some() || self.cache().is_some_and(|cache| !cache.fetches_all())
    }

    /// Returns `true` if candle can compute with the variable.
    pub fn is_ready(&self) -> bool {
        self.cache().is_none_or(|cache| cache.is_ready())
    }

    /// Prepares a read of the rows of `ids`, without sending it. A row whose id is repeated is read once. `is_running`
    /// is whether a run is in progress; rows that are cached, hot or prefetched are then not requested.
    ///
    /// # Errors
    /// - [`Error::Params`]: an id is out of range.
    /// - [`Error::InvalidArgument`]: the variable is a scalar.
    pub fn row_read(&self, operation: &'static str, ids: &[i64], is_running: bool) -> Result<RowRead<'_>> {
        let cache = self.row_cache.as_ref();
        let hot = self.hot_rows.as_deref().filter(|hot| is_running && hot.has_copies());
        if !is_running || (cache.is_none() && hot.is_none() && !self.prefetched.is_used()) {
            return self.read_of_tables(operation, ids);
        }
        let unique = UniqueIds::new(ids);
        let Some(cache) = cache else {
            let read = self.read_or_copied(operation, hot, unique.ids())?;
            return Ok(read.then(move |UniqueRows { rows, places }| {
                Ok(UniqueRows { rows, places: unique.spread(&places, 1) })
            }));
        };
        let lookup = cache.look_up(unique.ids());
        Ok(self.read_or_copied(operation, hot, &lookup.missing)?.then(move |fetched| {
            let rows = cache.insert(&lookup, &fetched.in_order()?)?;
            Ok(UniqueRows { rows, places: unique.spread(&lookup.places, 1) })
        }))
    }

    /// Prepares a read of the rows of distinct ids, without those of which `hot` has a copy.
    fn read_or_copied<'a>(
        &'a self,
        operation: &'static str,
        hot: Option<&'a HotTable>,
        ids: &[i64],
    ) -> Result<RowRead<'a>> {
        let found = hot.and_then(|hot| Some((hot, hot.look_up(ids)?)));
        let Some((hot, lookup)) = found else { return self.read_or_prefetched(operation, ids) };
        if lookup.missing.is_empty() {
            return Ok(RowRead::new(self.tables().channels(), Vec::new(), move |_| hot.join(&lookup, None)));
        }
        let read = self.read_or_prefetched(operation, &lookup.missing)?;
        Ok(read.then(move |requested| hot.join(&lookup, Some(&requested))))
    }

    /// Prepares a read of the rows of distinct ids. Prefetched rows are requested again only if they could not be
    /// fetched.
    fn read_or_prefetched(&self, operation: &'static str, ids: &[i64]) -> Result<RowRead<'_>> {
        let Some(found) = self.prefetched.look_up(ids) else { return self.read_of_tables(operation, ids) };
        let deadline = found.deadline(self.tables().channels().timeout());
        let late = match found.late() {
            [] => None,
            late => Some(self.read_of_tables(operation, late)?.by(deadline)),
        };
        let ids = ids.to_vec();
        let join = move |late| match found.join(operation, late)? {
            Ok(rows) => Ok(rows),
            Err(error) if deadline.has_passed() => Err(Error::Shared(error)),
            // This read returns the reason, if there still is one.
            Err(_) => self.read_of_tables(operation, &ids)?.by(deadline).send(operation),
        };
        Ok(match late {
            Some(read) => read.then(move |late| join(Some(late))),
            None => RowRead::new(self.tables().channels(), Vec::new(), move |_| join(None)),
        })
    }

    /// Prepares a read of the rows of `ids` from the tables.
    fn read_of_tables(&self, operation: &'static str, ids: &[i64]) -> Result<RowRead<'_>> {
        match &self.addressing {
            RowAddressing::Numbered(tables, _) => tables.row_read(operation, ids),
            RowAddressing::Ids(rows, _) => Ok(rows.row_read(operation, ids)),
        }
    }

    /// Returns the rows to prefetch after a change of the tables, without those that are cached or hot.
    pub(crate) fn prefetch_request(&self) -> PrefetchRequest {
        let is_cached = self.row_cache.as_ref().map(|cache| cache.fresh_rows());
        let is_copied = self.hot_rows.as_ref().map(|hot| hot.copied_rows());
        let is_here = |id| {
            is_cached.as_ref().is_some_and(|is_cached| is_cached(id))
                || is_copied.as_ref().is_some_and(|is_copied| is_copied(id))
        };
        self.prefetched.end_change(is_here)
    }

    /// Prepares a read of the rows of `ids` from the tables, which does not borrow this variable.
    ///
    /// # Errors
    /// - [`Error::Params`]: an id is out of range.
    /// - [`Error::InvalidArgument`]: the variable is a scalar.
    pub(crate) fn detached_read(&self, operation: &'static str, ids: &[i64]) -> Result<RowRead<'static>> {
        match &self.addressing {
            RowAddressing::Numbered(tables, _) => {
                Sharded::row_read_of(Cow::Owned(tables.clone()), operation, ids)
            }
            RowAddressing::Ids(rows, _) => Ok(Dynamic::row_read_of(Cow::Owned(rows.clone()), operation, ids)),
        }
    }

    /// Reads the rows with the given ids, in the same order.
    ///
    /// # Errors
    /// - [`Error::Params`]: an id is out of range.
    /// - [`Error::InvalidArgument`]: the variable is a scalar.
    /// - [`Error::Server`]: a server did not answer.
    pub fn read_rows(&self, operation: &'static str, ids: &[i64]) -> Result<HostTensor> {
        match &self.addressing {
            RowAddressing::Numbered(tables, _) => tables.read_rows(operation, ids),
            RowAddressing::Ids(tables, _) => tables.read_unique(operation, ids)?.in_order(),
        }
    }
}
