//! The requests to a server.

use super::spec::TableSpec;
use crate::{DynamicState, Error, Origin, Push, Result};
use distribute_optim::RuleSpec;
use distribute_tensor::{HostTensor, Write};
use std::ops::Range;

/// A request to a parameter server about its tables, as data.
///
/// The rows of a dense table are those of the shard, counted from 0. The rows of a dynamic table are ids.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Request {
    /// Creates a table, unless it exists with the same specification. The response is
    /// [`Response::Made`](super::Response::Made).
    Create(TableSpec),
    /// Removes a table, if there is one. The response is [`Response::Done`](super::Response::Done).
    Remove {
        /// The table.
        table: String,
    },
    /// Lists the tables. The response is [`Response::Tables`](super::Response::Tables).
    List,
    /// Sets the rule that applies gradients: see [`Table::set_rule`](crate::Table::set_rule).
    SetRule {
        /// The table.
        table: String,
        /// The rule.
        rule: RuleSpec,
    },
    /// Reads all of a dense table. The response is [`Response::Value`](super::Response::Value) or, if the table
    /// has not changed since version `known`, [`Response::Unchanged`](super::Response::Unchanged).
    Read {
        /// The table.
        table: String,
        /// The version that the client has.
        known: Option<super::Version>,
    },
    /// Reads rows, in this order. The response is [`Response::Rows`](super::Response::Rows).
    ReadRows {
        /// The table.
        table: String,
        /// The rows or ids.
        rows: Vec<i64>,
    },
    /// Writes a value into all of a dense table: see [`Table::write`](crate::Table::write).
    Write {
        /// The table.
        table: String,
        /// The way of writing.
        how: Write,
        /// The value.
        value: HostTensor,
    },
    /// Writes rows of a dense table: see [`Table::write_rows`](crate::Table::write_rows).
    WriteRows {
        /// The table.
        table: String,
        /// The way of writing.
        how: Write,
        /// The rows.
        rows: Vec<i64>,
        /// A row of values for each.
        values: HostTensor,
    },
    /// Applies a gradient of all of a dense table: see [`Table::push`](crate::Table::push).
    Push {
        /// The table.
        table: String,
        /// The way in which the gradient is applied.
        push: Push,
        /// The gradient.
        gradient: HostTensor,
    },
    /// Applies a gradient of rows: see [`Table::push_rows`](crate::Table::push_rows) and
    /// [`DynamicTable::push_rows`](crate::DynamicTable::push_rows). The response is
    /// [`Response::Pushed`](super::Response::Pushed).
    PushRows {
        /// The table.
        table: String,
        /// The way in which the gradient is applied.
        push: Push,
        /// The rows or ids.
        rows: Vec<i64>,
        /// A row of the gradient for each.
        gradient: HostTensor,
    },
    /// Reads values and slots of some rows of a dense table, for saving. The response is
    /// [`Response::State`](super::Response::State).
    StateRows {
        /// The table.
        table: String,
        /// The range of rows.
        rows: Range<usize>,
    },
    /// Reads one of the [parts](crate::TableInfo::parts) of a dynamic table, for saving. The response is
    /// [`Response::State`](super::Response::State).
    StatePart {
        /// The table.
        table: String,
        /// The number of the part.
        part: usize,
    },
    /// Restores saved rows and slots. The response is [`Response::Restored`](super::Response::Restored).
    Restore {
        /// The table.
        table: String,
        /// The saved state.
        state: State,
    },
    /// Evicts rows of a dynamic table that have not been used for long: see
    /// [`DynamicTable::evict`](crate::DynamicTable::evict). The response is
    /// [`Response::Evicted`](super::Response::Evicted).
    Evict {
        /// The table.
        table: String,
        /// The number of the step.
        now: u64,
    },
    /// Removes the rows of a dynamic table whose ids are in an inclusive range but not in a list. The response
    /// is [`Response::Evicted`](super::Response::Evicted).
    Keep {
        /// The table.
        table: String,
        /// The first and the last id of the range.
        between: (i64, i64),
        /// The ids whose rows stay.
        ids: Vec<i64>,
    },
    /// Makes a change for a closure, unless it was made for an earlier execution of the same closure, on any
    /// worker. The response is that of the change. If the change was made before, it is an empty response of
    /// the same kind.
    ///
    /// A change that is refused has not been made, and is not recorded.
    Once {
        /// The closure that makes the change.
        origin: Origin,
        /// The number of the change among the closure's changes of this table.
        number: u64,
        /// The change, which must change the contents of one table.
        change: Box<Request>,
    },
    /// Begins a job: from now on only its closures may change tables, unless a job with a greater number has
    /// begun. The response, [`Response::Job`](super::Response::Job), has the greatest number. Once it is sent,
    /// changes of earlier jobs have been made or never will be. The number 0 begins no job, and only asks for
    /// the greatest number.
    ///
    /// A coordinator that starts begins a job whose number is greater than all before. Workers that still run
    /// closures of a previous coordinator are then [refused](crate::RefusalKind::Stale).
    BeginJob {
        /// The number of the job.
        job: u64,
    },
    /// Reads the usage of the server. The response is [`Response::Usage`](super::Response::Usage).
    Usage,
    /// Executes several requests, in this order. The response is [`Response::Batch`](super::Response::Batch). A
    /// refused request does not affect the others.
    Batch(Vec<Request>),
}

/// The state of rows of a table: values, slots, or both.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum State {
    /// Rows of a dense table.
    Rows {
        /// The first of the rows.
        first: usize,
        /// The values.
        values: HostTensor,
        /// The name of each slot, and its contents.
        slots: Vec<(String, HostTensor)>,
    },
    /// Rows of a dynamic table.
    Ids(DynamicState),
    /// Only the slots of rows of a dense table. Restoring them keeps the values.
    Slots {
        /// The first of the rows.
        first: usize,
        /// The name of each slot, and its contents.
        slots: Vec<(String, HostTensor)>,
    },
    /// Only the slots of rows of a dynamic table. An id without a row gets one with its initial values.
    IdSlots {
        /// The ids.
        ids: Vec<i64>,
        /// The name of each slot, and a row of it for each id.
        slots: Vec<(String, HostTensor)>,
    },
    /// Only the values of rows of a dynamic table. Slots are kept, and new rows have initial slots.
    IdValues {
        /// The ids.
        ids: Vec<i64>,
        /// The step in which each id was last pushed to.
        used: Vec<u64>,
        /// A row of values for each.
        values: HostTensor,
    },
}

impl Request {
    /// Returns the name of the operation, for errors.
    pub fn operation(&self) -> &'static str {
        match self {
            Self::Create(_) => "create",
            Self::Remove { .. } => "remove",
            Self::List => "list",
            Self::SetRule { .. } => "set_rule",
            Self::Read { .. } => "read",
            Self::ReadRows { .. } => "read_rows",
            Self::Write { how, .. } | Self::WriteRows { how, .. } => how.name(),
            Self::Push { .. } => "push",
            Self::PushRows { .. } => "push_rows",
            Self::StateRows { .. } | Self::StatePart { .. } => "state",
            Self::Restore { .. } => "restore",
            Self::Evict { .. } => "evict",
            Self::Keep { .. } => "keep",
            Self::Once { change, .. } => change.operation(),
            Self::BeginJob { .. } => "begin_job",
            Self::Usage => "usage",
            Self::Batch(_) => "batch",
        }
    }

    /// Returns the table of the request, or `None` for a list, a usage, a batch or a job.
    pub fn table(&self) -> Option<&str> {
        match self {
            Self::Create(spec) => Some(&spec.name),
            Self::Remove { table }
            | Self::SetRule { table, .. }
            | Self::Read { table, .. }
            | Self::ReadRows { table, .. }
            | Self::Write { table, .. }
            | Self::WriteRows { table, .. }
            | Self::Push { table, .. }
            | Self::PushRows { table, .. }
            | Self::StateRows { table, .. }
            | Self::StatePart { table, .. }
            | Self::Restore { table, .. }
            | Self::Evict { table, .. }
            | Self::Keep { table, .. } => Some(table),
            Self::Once { change, .. } => change.table(),
            Self::List | Self::Usage | Self::BeginJob { .. } | Self::Batch(_) => None,
        }
    }

    /// Checks that the request is valid: a batch contains no batch, and a change for a closure changes one
    /// table.
    ///
    /// # Errors
    /// - [`Error::NestedBatch`]: a batch contains a batch.
    /// - [`Error::NotOnce`]: the change cannot be made for a closure.
    pub fn check(&self) -> Result<()> {
        match self {
            Self::Batch(all) => match all.iter().position(|one| matches!(one, Self::Batch(_))) {
                Some(position) => Err(Error::NestedBatch { position }),
                None => Ok(()),
            },
            Self::Once { change, .. } if !change.can_be_once() => {
                Err(Error::NotOnce { operation: change.operation() })
            }
            _ => Ok(()),
        }
    }

    /// Returns whether the request can be made [once](Self::Once) for a closure, because it changes the
    /// contents of one table. Creating a table, setting its rule and removing it are idempotent.
    pub fn can_be_once(&self) -> bool {
        match self {
            Self::Write { .. }
            | Self::WriteRows { .. }
            | Self::Push { .. }
            | Self::PushRows { .. }
            | Self::Restore { .. }
            | Self::Evict { .. }
            | Self::Keep { .. } => true,
            Self::Create(_)
            | Self::Remove { .. }
            | Self::SetRule { .. }
            | Self::Once { .. }
            | Self::BeginJob { .. }
            | Self::Batch(_) => false,
            Self::List
            | Self::Usage
            | Self::Read { .. }
            | Self::ReadRows { .. }
            | Self::StateRows { .. }
            | Self::StatePart { .. } => false,
        }
    }

    /// Returns whether the request changes the server's state, so that it must not be repeated.
    pub fn is_change(&self) -> bool {
        match self {
            Self::List
            | Self::Usage
            | Self::Read { .. }
            | Self::ReadRows { .. }
            | Self::StateRows { .. }
            | Self::StatePart { .. } => false,
            Self::Create(_)
            | Self::Remove { .. }
            | Self::SetRule { .. }
            | Self::Write { .. }
            | Self::WriteRows { .. }
            | Self::Push { .. }
            | Self::PushRows { .. }
            | Self::Restore { .. }
            | Self::Evict { .. }
            | Self::Keep { .. }
            | Self::Once { .. }
            | Self::BeginJob { .. } => true,
            Self::Batch(all) => all.iter().any(Self::is_change),
        }
    }

    /// Describes the operation and the table, for errors.
    pub fn describe(&self) -> String {
        match (self, self.table()) {
            (Self::Batch(all), _) => match &all[..] {
                [] => "batch of nothing".to_owned(),
                [first, ..] => format!("batch of {}, the first of them {}", all.len(), first.describe()),
            },
            (_, Some(table)) => format!("{} of table {table}", self.operation()),
            (_, None) => self.operation().to_owned(),
        }
    }
}
