//! A variable on parameter servers, as one process uses it.

use super::{Dynamic, HostCache, Sharded};
use candle_core::Var;
use distribute_base::internal::lock;
use distribute_base::{Error, Result};
use distribute_optim::RuleSpec;
use distribute_tensor::HostTensor;
use std::sync::{Arc, Mutex};

/// A variable on parameter servers, with the candle variable that stands for it in this process.
#[derive(Debug)]
pub struct RemoteVariable {
    kind: Kind,
    /// The rule by which servers update it, if this process has set one.
    pub(crate) rule: Mutex<Option<RuleSpec>>,
}

#[derive(Debug)]
enum Kind {
    /// Rows with numbers. There is a cache if the variable was created from a candle tensor.
    Numbered(Sharded, Option<Arc<HostCache>>),
    /// Rows with ids. One row stands for all of them in candle's graph, and is never read.
    Ids(Dynamic, Var),
}

/// The sign bit. It is the largest bit of a row number, and marks negative ids.
const SIGN: u64 = 1 << 63;

/// Returns the row number that stands for an id in gradients. Row numbers have the order of ids.
pub fn row_of_id(id: i64) -> usize {
    (id.cast_unsigned() ^ SIGN) as usize
}

/// Returns the id of a row number from [`row_of_id`].
pub fn id_of_row(row: usize) -> i64 {
    (row as u64 ^ SIGN).cast_signed()
}

/// Returns the error of an operation that takes a table of ids as one value.
pub fn no_value(operation: &'static str) -> Error {
    Error::NotSupported {
        operation,
        strategy: "ParameterServerStrategy",
        what: "using a table of ids as one value, since any id has a row",
        advice: "gather the rows of ids, take those there are by dynamic_rows, and save and restore it by a Checkpoint",
    }
}

impl RemoteVariable {
    /// Creates a variable whose rows have numbers.
    pub fn new(tables: Sharded, cache: Option<Arc<HostCache>>) -> Self {
        Self { kind: Kind::Numbered(tables, cache), rule: Mutex::default() }
    }

    /// Creates a variable whose rows are ids. `row` is a single row, which gives the shape of all rows.
    pub fn of_ids(tables: Dynamic, row: Var) -> Self {
        Self { kind: Kind::Ids(tables, row), rule: Mutex::default() }
    }

    /// Forgets the rule that this process has set, so that it is sent again before it is needed.
    pub fn forget_rule(&self) {
        *lock(&self.rule) = None;
    }

    /// Returns the tables on servers.
    pub fn tables(&self) -> &Sharded {
        match &self.kind {
            Kind::Numbered(tables, _) => tables,
            Kind::Ids(ids, _) => ids.tables(),
        }
    }

    /// Returns the tables, if rows have numbers.
    pub fn numbered(&self) -> Option<&Sharded> {
        match &self.kind {
            Kind::Numbered(tables, _) => Some(tables),
            Kind::Ids(..) => None,
        }
    }

    /// Returns the tables, if all rows together are one value.
    ///
    /// # Errors
    /// - [`Error::NotSupported`]: the rows are ids.
    pub fn value(&self, operation: &'static str) -> Result<&Sharded> {
        self.numbered().ok_or_else(|| no_value(operation))
    }

    /// Returns the tables, if rows are ids.
    pub fn ids(&self) -> Option<&Dynamic> {
        match &self.kind {
            Kind::Numbered(..) => None,
            Kind::Ids(ids, _) => Some(ids),
        }
    }

    /// Returns the cache that candle computes with, if the variable was created from a candle tensor.
    pub fn cache(&self) -> Option<&Arc<HostCache>> {
        match &self.kind {
            Kind::Numbered(_, cache) => cache.as_ref(),
            Kind::Ids(..) => None,
        }
    }

    /// Returns the candle variable that stands for it in a graph.
    pub fn var(&self) -> Option<&Var> {
        match &self.kind {
            Kind::Numbered(_, cache) => cache.as_ref().map(|cache| cache.var()),
            Kind::Ids(_, row) => Some(row),
        }
    }

    /// Whether candle has only the rows of each batch.
    pub fn is_fetched_by_row(&self) -> bool {
        self.ids().is_some() || self.cache().is_some_and(|cache| !cache.is_whole())
    }

    /// Whether candle can compute with it.
    pub fn is_ready(&self) -> bool {
        self.cache().is_none_or(|cache| cache.is_ready())
    }

    /// Reads the rows of some ids, in their order.
    ///
    /// # Errors
    /// - [`Error::Params`]: an id is out of range.
    /// - [`Error::InvalidArgument`]: the variable is a scalar.
    /// - [`Error::Server`]: a server did not answer.
    pub fn read_rows(&self, operation: &'static str, ids: &[i64]) -> Result<HostTensor> {
        match &self.kind {
            Kind::Numbered(tables, _) => tables.read_rows(operation, ids),
            Kind::Ids(tables, _) => tables.read_each(operation, ids)?.in_order(),
        }
    }
}
