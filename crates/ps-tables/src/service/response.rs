//! The responses of a server.

use super::refusal::Refusal;
use super::request::{Request, State};
use super::usage::Usage;
use crate::Pushed;
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
    Made {
        /// Whether it was created by this request.
        new: bool,
    },
    /// All tables, by name.
    Tables(Vec<TableInfo>),
    /// A value.
    Value(VersionedValue),
    /// The value has not changed since the version of the client.
    Unchanged,
    /// Rows.
    Rows(HostTensor),
    /// The effects of a gradient of rows. All counts are zero for a dense table, whose rows are fixed, and for
    /// a push that an earlier attempt has applied.
    Pushed(Pushed),
    /// Rows with their slots.
    State(State),
    /// Rows were restored, except those that exceed the maximum of a dynamic table.
    Restored {
        /// The number of rows that were left out.
        left_out: usize,
    },
    /// The number of rows that were removed.
    Evicted(usize),
    /// The greatest job that has begun.
    Job {
        /// Its number; 0 if there is none.
        newest: u64,
    },
    /// The tables of the server, and the use of their rows.
    Usage(Usage),
    /// The response to each request of a batch.
    Batch(Vec<Result<Response, Refusal>>),
}

/// A version of the value of a table.
///
/// The value is the same as long as the version is the same. A table that is created again, by another client
/// or after a restart of its server, has other versions than before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// The number of the table among all tables of this name.
    pub made: u64,
    /// The number of writes.
    pub writes: u64,
}

/// A value with its version: see [`Versioned`](crate::Versioned).
#[derive(Clone, Debug, PartialEq)]
pub struct VersionedValue {
    /// The version at the time of reading: the value includes all writes up to this version.
    pub version: Version,
    /// The value.
    pub value: HostTensor,
}

/// A table of a server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableInfo {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: TableKind,
    /// The shape of a dense table, or of a row of a dynamic table.
    pub shape: Vec<usize>,
    /// The dtype, serialized by name.
    #[serde(with = "dtype")]
    pub dtype: DType,
    /// The number of rows.
    pub rows: usize,
    /// The number of parts in which a dynamic table is saved; 0 for a dense table, which is saved by rows.
    pub parts: usize,
    /// The number of bytes of values and slots.
    pub bytes: usize,
    /// The rule that applies gradients, if there is one.
    pub rule: Option<RuleSpec>,
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
    /// Returns the response to a change that was already made. The effects of the first time are not known any
    /// more.
    pub(super) fn repeated(change: &Request) -> Self {
        match change {
            Request::Once { change, .. } => Self::repeated(change),
            Request::Create(_) => Self::Made { new: false },
            Request::PushRows { .. } => Self::Pushed(Pushed::default()),
            Request::Restore { .. } => Self::Restored { left_out: 0 },
            Request::Evict { .. } | Request::Keep { .. } => Self::Evicted(0),
            _ => Self::Done,
        }
    }

    /// Returns the name of the response, for errors.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Made { .. } => "made",
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
            Self::Batch(_) => "a batch",
        }
    }
}

/// The serialization of a dtype by its name.
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
