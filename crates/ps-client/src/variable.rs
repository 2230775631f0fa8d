//! A variable on parameter servers, as one process uses it.

use super::{Dynamic, HostCache, Sharded};
use candle_core::Var;
use distribute_base::internal::lock;
use distribute_base::{Error, Result};
use distribute_optim::RuleSpec;
use distribute_tensor::HostTensor;
use std::sync::{Arc, Mutex};

/// A variable on parameter servers, with what candle computes with in this process.
#[derive(Debug)]
pub struct RemoteVariable {
    kind: Kind,
    /// The rule by which servers update it, if this process has set one.
    pub(crate) rule: Mutex<Option<RuleSpec>>,
}

#[derive(Debug)]
enum Kind {
    /// Rows have numbers. There is a cache if the variable was made of a candle tensor.
    Numbered(Sharded, Option<Arc<HostCache>>),
    /// Rows are ids. One row stands for all of them in candle's graph, and is never read.
    Ids(Dynamic, Var),
}

/// The sign bit, which of row numbers is the largest and of ids marks those below 0.
const SIGN: u64 = 1 << 63;

/// Returns the number by which gradients know the row of an id: in the order of ids.
pub fn row_of_id(id: i64) -> usize {
    (id.cast_unsigned() ^ SIGN) as usize
}

/// Returns the id of such a number.
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
    /// A variable whose rows have numbers.
    pub fn new(tables: Sharded, cache: Option<Arc<HostCache>>) -> Self {
        Self { kind: Kind::Numbered(tables, cache), rule: Mutex::default() }
    }

    /// A variable whose rows are ids, with rows of the shape of `row`, which is one.
    pub fn of_ids(tables: Dynamic, row: Var) -> Self {
        Self { kind: Kind::Ids(tables, row), rule: Mutex::default() }
    }

    /// Forgets the rule that this process has set, so that it is sent again before it is needed.
    pub fn forget_rule(&self) {
        *lock(&self.rule) = None;
    }

    /// The tables in which servers have it.
    pub fn tables(&self) -> &Sharded {
        match &self.kind {
            Kind::Numbered(tables, _) => tables,
            Kind::Ids(ids, _) => ids.tables(),
        }
    }

    /// The tables, if rows have numbers.
    pub fn numbered(&self) -> Option<&Sharded> {
        match &self.kind {
            Kind::Numbered(tables, _) => Some(tables),
            Kind::Ids(..) => None,
        }
    }

    /// The tables, of which all rows are one value.
    ///
    /// # Errors
    /// [`Error::NotSupported`]: rows are ids.
    pub fn value(&self, operation: &'static str) -> Result<&Sharded> {
        self.numbered().ok_or_else(|| no_value(operation))
    }

    /// The tables, if rows are ids.
    pub fn ids(&self) -> Option<&Dynamic> {
        match &self.kind {
            Kind::Numbered(..) => None,
            Kind::Ids(ids, _) => Some(ids),
        }
    }

    /// The cache that candle computes with, if it was made of a candle tensor.
    pub fn cache(&self) -> Option<&Arc<HostCache>> {
        match &self.kind {
            Kind::Numbered(_, cache) => cache.as_ref(),
            Kind::Ids(..) => None,
        }
    }

    /// The candle variable that stands for it in a graph.
    pub fn var(&self) -> Option<&Var> {
        match &self.kind {
            Kind::Numbered(_, cache) => cache.as_ref().map(|cache| cache.var()),
            Kind::Ids(_, row) => Some(row),
        }
    }

    /// Whether candle has nothing of it but the rows of each batch.
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
    /// [`Error::Params`]: an id is no row; [`Error::InvalidArgument`]: the variable is a scalar; [`Error::Server`].
    pub fn read_rows(&self, operation: &'static str, ids: &[i64]) -> Result<HostTensor> {
        match &self.kind {
            Kind::Numbered(tables, _) => tables.read_rows(operation, ids),
            Kind::Ids(tables, _) => tables.read_each(operation, ids)?.in_order(),
        }
    }
}
