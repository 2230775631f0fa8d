//! What a server answers.

use super::refusal::Refusal;
use super::request::{Request, State};
use super::usage::Usage;
use crate::Pushed;
use distribute_optim::RuleSpec;
use distribute_tensor::{DType, HostTensor};
use serde::{Deserialize, Serialize};

/// What a parameter server answers to a [`Request`](super::Request).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Response {
    /// It is done.
    Done,
    /// The table is there; and whether it was not before.
    Made {
        /// Whether it is new.
        new: bool,
    },
    /// All tables, by name.
    Tables(Vec<TableInfo>),
    /// A value.
    Value(VersionedValue),
    /// The value still is what the caller has.
    Unchanged,
    /// Rows.
    Rows(HostTensor),
    /// What a gradient of rows has come to; of a dense table, of which rows neither come nor go, nothing is counted. Of a push that
    /// was applied by an earlier attempt, neither.
    Pushed(Pushed),
    /// Rows with their slots.
    State(State),
    /// Rows are there again; so many of a dynamic table are left out, because there may not be so many.
    Restored {
        /// How many.
        left_out: usize,
    },
    /// So many rows are gone.
    Evicted(usize),
    /// The greatest job that has begun.
    Job {
        /// Its number; 0 before any.
        newest: u64,
    },
    /// What the server has, and what was done with its rows.
    Usage(Usage),
    /// An answer to each request of a batch.
    Batch(Vec<Result<Response, Refusal>>),
}

/// Which value of a table it is.
///
/// As long as it stays the same, so does the value. A table that was made anew, by another one or after its server came back, has
/// other versions than the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// Which table of this name it is.
    pub made: u64,
    /// How often it has been written to.
    pub writes: u64,
}

/// A value, and which one it is: see [`Versioned`](crate::Versioned).
#[derive(Clone, Debug, PartialEq)]
pub struct VersionedValue {
    /// What the version was when the value was read: it has all that was written up to there.
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
    /// The shape of a dense table; of a dynamic one, that of a row.
    pub shape: Vec<usize>,
    /// The dtype, by its usual name.
    #[serde(with = "dtype")]
    pub dtype: DType,
    /// How many rows there are.
    pub rows: usize,
    /// In how many parts a dynamic table is saved; 0 of a dense one, which is saved by rows.
    pub parts: usize,
    /// How many bytes values and slots take.
    pub bytes: usize,
    /// The rule by which gradients are applied, if it has one.
    pub rule: Option<RuleSpec>,
}

/// The kinds of tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TableKind {
    /// A fixed number of rows: [`Table`](crate::Table).
    Dense,
    /// Ids of 64 bits: [`DynamicTable`](crate::DynamicTable).
    Dynamic,
}

impl Response {
    /// The answer to a change of a table that was made before: what it has come to then is not known any more.
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

    /// What it is, in a word, for errors.
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

/// A dtype, by its name.
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
