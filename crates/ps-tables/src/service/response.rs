//! [`Response`]: the responses of a parameter server.

use super::refusal::Refusal;
use super::request::{Request, State};
use super::usage::{RowReads, Usage};
use crate::PushResult;
use distribute_optim::RuleSpec;
use distribute_tensor::{DType, HostTensor};
use serde::{Deserialize, Serialize};

/// A response of a parameter server to a [`Request`](super::Request).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Response {
    /// The request was executed.
    Done,
    /// The table exists.
    Created {
        /// Whether this request created the table.
        new: bool,
    },
    /// All tables, sorted by name.
    Tables(Vec<TableInfo>),
    /// The value of the table, with its version.
    Value(VersionedValue),
    /// The value has not changed since the version that the client has.
    Unchanged,
    /// The requested rows.
    Rows(HostTensor),
    /// The numbers of rows that a gradient has updated, created and evicted. All are 0 for a dense table, whose rows
    /// are fixed, and for a push that was already applied.
    Pushed(PushResult),
    /// Rows and their slots.
    State(State),
    /// Rows were restored, except those beyond the maximum number of rows of a dynamic table.
    Restored {
        /// The number of rows that were not restored.
        left_out: usize,
    },
    /// The number of rows that were removed.
    Evicted(usize),
    /// The greatest job that has begun.
    Job {
        /// The number of the job; 0 if there is none.
        newest: u64,
    },
    /// The usage of the server.
    Usage(Usage),
    /// The rows that have changed.
    Changed(ChangedRows),
    /// The response to each request of a batch.
    Batch(Vec<Result<Response, Refusal>>),
}

/// A version of a table's value.
///
/// If two reads return the same version, no write was completed between them. A value may contain part of a write in
/// progress, which is not counted yet. A table that is created again, by another client or after a restart of its
/// server, has versions that differ from all earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// A number that distinguishes the table from all others with the same name.
    pub created: u64,
    /// The number of completed writes to the table.
    pub writes: u64,
}

/// A position in the log of a server: a response or a file includes the changes before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LogPosition {
    /// A number that distinguishes the log from other logs, and from itself before changes were lost.
    pub history: u64,
    /// The number of the first change that is not included.
    pub next: u64,
}

/// The rows of a table that have changed since a position in the log.
#[derive(Clone, Debug, PartialEq)]
pub struct ChangedRows {
    /// The position in the log: the values include exactly the changes before it.
    pub position: LogPosition,
    /// Whether these are all rows of the table, because no position was given, or because the server does not know what
    /// has changed since then.
    pub complete: bool,
    /// The indices or ids of the rows, in ascending order.
    pub rows: Vec<i64>,
    /// The number of the last change of each row. For a row whose changes were not recorded, it is the last number
    /// before recording began. Only a complete response contains such rows.
    pub numbers: Vec<u64>,
    /// The values, one row for each element of `rows`.
    pub values: HostTensor,
}

/// A value with its version: see [`Versioned`](crate::Versioned).
#[derive(Clone, Debug, PartialEq)]
pub struct VersionedValue {
    /// The version when the value was read. The value includes all writes up to this version.
    pub version: Version,
    /// The value as of this version.
    pub value: HostTensor,
}

/// The properties of a table on a server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableInfo {
    /// The name of the table.
    pub name: String,
    /// The kind of the table.
    pub kind: TableKind,
    /// The shape of a dense table, or of a row of a dynamic table.
    pub shape: Vec<usize>,
    /// The dtype, serialized by name.
    #[serde(with = "dtype")]
    pub dtype: DType,
    /// The number of rows.
    pub rows: usize,
    /// The number of parts in which a dynamic table is saved. It is 0 for a dense table, which is saved in ranges of
    /// rows.
    pub parts: usize,
    /// The size in bytes: see [`Table::bytes`](crate::Table::bytes) and
    /// [`DynamicTable::bytes`](crate::DynamicTable::bytes).
    pub bytes: usize,
    /// The rule that applies gradients, if there is one.
    pub rule: Option<RuleSpec>,
    /// The rows that were read individually since the server started.
    pub reads: RowReads,
}

/// The kinds of tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TableKind {
    /// A table with a fixed number of rows: [`Table`](crate::Table).
    Dense,
    /// A table of 64-bit ids: [`DynamicTable`](crate::DynamicTable).
    Dynamic,
}

impl Response {
    /// Returns the response to a change that was already applied, possibly on behalf of another client. Its effects are
    /// unknown here, so the response contains none.
    #[doc(hidden)]
    pub fn repeated(change: &Request) -> Self {
        match change {
            Request::Once { change, .. } => Self::repeated(change),
            Request::Create(_) => Self::Created { new: false },
            Request::PushRows { .. } => Self::Pushed(PushResult::default()),
            Request::Restore { .. } => Self::Restored { left_out: 0 },
            Request::Evict { .. } | Request::Keep { .. } => Self::Evicted(0),
            _ => Self::Done,
        }
    }

    /// Returns the name of the variant, for errors.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Created { .. } => "created",
            Self::Tables(_) => "tables",
            Self::Value(_) => "a value",
            Self::Unchanged => "unchanged",
            Self::Rows(_) => "rows",
            Self::Pushed(_) => "pushed",
            Self::State(_) => "a state",
            Self::Restored { .. } => "restored",
            Self::Evicted(_) => "evicted",
            Self::Job { .. } => "a job",
            Self::Usage(_) => "usage",
            Self::Changed(_) => "changed rows",
            Self::Batch(_) => "a batch",
        }
    }
}

/// Serializes a dtype as its name.
mod dtype {
    use distribute_tensor::DType;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(dtype: &DType, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(dtype.name())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<DType, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}
