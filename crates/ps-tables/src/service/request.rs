//! [`Request`]: the requests to a parameter server.

use super::spec::TableSpec;
use crate::{DynamicState, Error, Origin, Push, Result, StateColumn};
use distribute_optim::RuleSpec;
use distribute_tensor::{HostTensor, Write};
use std::ops::Range;

/// A request to a parameter server about its tables, as data.
///
/// Rows of a dense table are indices in its shard, from 0. Rows of a dynamic table are ids. Unless a variant states
/// otherwise, its response is [`Response::Done`](super::Response::Done).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Request {
    /// Creates a table, unless it exists with the same specification. The response is
    /// [`Response::Created`](super::Response::Created).
    Create(TableSpec),
    /// Removes a table, if there is one. The response is [`Response::Done`](super::Response::Done).
    Remove {
        /// The name of the table.
        table: String,
    },
    /// Lists the tables. The response is [`Response::Tables`](super::Response::Tables).
    List,
    /// Sets the rule that applies gradients: see [`Table::set_rule`](crate::Table::set_rule).
    SetRule {
        /// The name of the table.
        table: String,
        /// The rule that applies gradients.
        rule: RuleSpec,
    },
    /// Reads a complete dense table. The response is [`Response::Value`](super::Response::Value) or, if the table has
    /// not changed since version `known`, [`Response::Unchanged`](super::Response::Unchanged).
    Read {
        /// The name of the table.
        table: String,
        /// The version of the value that the client has; `None` if it has none.
        known: Option<super::Version>,
        /// Whether a connection may round the value, because the client only computes with it. Otherwise the response
        /// is exact.
        may_round: bool,
    },
    /// Reads rows, in the given order. The response is [`Response::Rows`](super::Response::Rows).
    ReadRows {
        /// The name of the table.
        table: String,
        /// The indices or ids of the rows.
        rows: Vec<i64>,
    },
    /// Writes a value to a complete dense table: see [`Table::write`](crate::Table::write).
    Write {
        /// The name of the table.
        table: String,
        /// The operation that combines old and new values, such as assignment or addition.
        how: Write,
        /// The value that is written to the table.
        value: HostTensor,
    },
    /// Writes values to rows of a dense table: see [`Table::write_rows`](crate::Table::write_rows).
    WriteRows {
        /// The name of the table.
        table: String,
        /// The operation that combines old and new values, such as assignment or addition.
        how: Write,
        /// The indices of the rows.
        rows: Vec<i64>,
        /// The values, one row for each element of `rows`.
        values: HostTensor,
    },
    /// Applies a gradient of a complete dense table: see [`Table::push`](crate::Table::push).
    Push {
        /// The name of the table.
        table: String,
        /// The step of the gradient, and whether it is checked and counted.
        push: Push,
        /// The gradient of the complete table.
        gradient: HostTensor,
    },
    /// Applies a gradient of rows: see [`Table::push_rows`](crate::Table::push_rows) and
    /// [`DynamicTable::push_rows`](crate::DynamicTable::push_rows). The response is
    /// [`Response::Pushed`](super::Response::Pushed).
    PushRows {
        /// The name of the table.
        table: String,
        /// The step of the gradient, and whether it is checked and counted.
        push: Push,
        /// The indices or ids of the rows.
        rows: Vec<i64>,
        /// The gradient, one row for each element of `rows`.
        gradient: HostTensor,
    },
    /// Reads values and slots of a range of rows of a dense table, for saving. The response is
    /// [`Response::State`](super::Response::State).
    StateRows {
        /// The name of the table.
        table: String,
        /// The range of rows.
        rows: Range<usize>,
    },
    /// Reads one of the [parts](crate::TableInfo::parts) of a dynamic table, for saving. The response is
    /// [`Response::State`](super::Response::State).
    StatePart {
        /// The name of the table.
        table: String,
        /// The index of the part.
        part: usize,
    },
    /// Reads the ids of a [part](Self::StatePart) of a dynamic table with one column. The response is
    /// [`Response::State`](super::Response::State), with [`State::Ids`] that has this column alone.
    StateColumn {
        /// The name of the table.
        table: String,
        /// The index of the part.
        part: usize,
        /// The column.
        column: StateColumn,
    },
    /// Restores saved rows and slots. The response is [`Response::Restored`](super::Response::Restored).
    Restore {
        /// The name of the table.
        table: String,
        /// The saved state.
        state: State,
    },
    /// Evicts rows of a dynamic table that were not pushed for too long: see
    /// [`DynamicTable::evict`](crate::DynamicTable::evict). The response is
    /// [`Response::Evicted`](super::Response::Evicted).
    Evict {
        /// The name of the table.
        table: String,
        /// The current step, from which the age of rows is computed.
        now: u64,
    },
    /// Removes the rows of a dynamic table whose ids are in an inclusive range but not in a list. The response is
    /// [`Response::Evicted`](super::Response::Evicted).
    Keep {
        /// The name of the table.
        table: String,
        /// The first and the last id of the range.
        between: (i64, i64),
        /// The ids whose rows are kept.
        ids: Vec<i64>,
    },
    /// Applies a change for a closure, unless an earlier execution of the same closure, on any worker, has already
    /// applied it. The response is that of the change. If the change was already applied, the response contains no
    /// effects.
    ///
    /// A change that is refused is not applied, and not recorded.
    Once {
        /// The closure that makes the change.
        origin: Origin,
        /// The index of the change among the closure's changes to this table.
        number: u64,
        /// The change, which must modify the contents of one table.
        change: Box<Request>,
    },
    /// Begins a job, unless a job with a greater number has begun. From then on, changes by closures of other jobs are
    /// refused. The response is [`Response::Job`](super::Response::Job), with the greatest number. Once it is sent,
    /// every change of an earlier job either was applied or never will be. The number 0 begins no job, and only reads
    /// the greatest number.
    ///
    /// A coordinator that starts begins a job with a greater number than all earlier ones. Changes by closures of an
    /// earlier coordinator, which workers may still run, are then [refused](crate::RefusalKind::Stale).
    BeginJob {
        /// The number of the job.
        job: u64,
    },
    /// Reads the rows of a table that have changed since a position in the log. The response is
    /// [`Response::Changed`](super::Response::Changed). This requires a server with a folder, which begins to record
    /// changed rows at the first such request.
    Changed {
        /// The name of the table.
        table: String,
        /// The position in the previous response; `None` reads all rows.
        since: Option<super::LogPosition>,
    },
    /// Reads the usage of the server. The response is [`Response::Usage`](super::Response::Usage).
    Usage,
    /// Executes several requests in the given order. The response is [`Response::Batch`](super::Response::Batch). The
    /// refusal of a request does not affect the others.
    Batch(Vec<Request>),
}

/// The state of rows of a table: values, slots, or both.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum State {
    /// Rows of a dense table.
    Rows {
        /// The index of the first row.
        first: usize,
        /// The values of the rows.
        values: HostTensor,
        /// The slots by name.
        slots: Vec<(String, HostTensor)>,
    },
    /// Rows of a dynamic table.
    Ids(DynamicState),
    /// The slots of rows of a dense table. Restoring them does not change the values.
    Slots {
        /// The index of the first row.
        first: usize,
        /// The slots by name.
        slots: Vec<(String, HostTensor)>,
    },
    /// The slots of rows of a dynamic table. Restoring them gives an id without a row its initial values.
    IdSlots {
        /// The ids of the rows.
        ids: Vec<i64>,
        /// The slots by name, each with one row for each id.
        slots: Vec<(String, HostTensor)>,
    },
    /// The values of rows of a dynamic table. Restoring them does not change slots; new rows get initial slots.
    IdValues {
        /// The ids of the rows.
        ids: Vec<i64>,
        /// The [uses](DynamicState::used) of each id.
        used: Vec<u64>,
        /// The values, one row for each id.
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
            Self::StateRows { .. } | Self::StatePart { .. } | Self::StateColumn { .. } => "state",
            Self::Restore { .. } => "restore",
            Self::Evict { .. } => "evict",
            Self::Keep { .. } => "keep",
            Self::Once { change, .. } => change.operation(),
            Self::BeginJob { .. } => "begin_job",
            Self::Changed { .. } => "changed",
            Self::Usage => "usage",
            Self::Batch(_) => "batch",
        }
    }

    /// Returns the name of the request's table; `None` for [`List`](Self::List), [`Usage`](Self::Usage),
    /// [`Batch`](Self::Batch) and [`BeginJob`](Self::BeginJob).
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
            | Self::StateColumn { table, .. }
            | Self::Restore { table, .. }
            | Self::Evict { table, .. }
            | Self::Keep { table, .. }
            | Self::Changed { table, .. } => Some(table),
            Self::Once { change, .. } => change.table(),
            Self::List | Self::Usage | Self::BeginJob { .. } | Self::Batch(_) => None,
        }
    }

    /// Checks that the request is valid: a batch contains no batch, and a change by a closure concerns the contents of
    /// one table.
    ///
    /// # Errors
    /// - [`Error::NestedBatch`]: a batch contains a batch.
    /// - [`Error::NotOnce`]: the change cannot be applied exactly once for a closure.
    pub fn check(&self) -> Result<()> {
        match self {
            Self::Batch(all) => match all.iter().position(|one| matches!(one, Self::Batch(_))) {
                Some(position) => Err(Error::NestedBatch { position }),
                None => Ok(()),
            },
            Self::Once { change, .. } if !change.can_be_exactly_once() => {
                Err(Error::NotOnce { operation: change.operation() })
            }
            _ => Ok(()),
        }
    }

    /// Returns whether the request can be executed [once](Self::Once) for a closure, because it changes the contents of
    /// one table. Creating or removing a table and setting its rule are idempotent, so they need no such protection.
    pub fn can_be_exactly_once(&self) -> bool {
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
            | Self::Changed { .. }
            | Self::Read { .. }
            | Self::ReadRows { .. }
            | Self::StateRows { .. }
            | Self::StatePart { .. }
            | Self::StateColumn { .. } => false,
        }
    }

    /// Returns whether the request may change the server's state. A batch does if one of its requests does.
    pub fn is_change(&self) -> bool {
        match self {
            Self::List
            | Self::Usage
            | Self::Changed { .. }
            | Self::Read { .. }
            | Self::ReadRows { .. }
            | Self::StateRows { .. }
            | Self::StatePart { .. }
            | Self::StateColumn { .. } => false,
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

    /// Describes the request for errors: its operation and its table or, for a batch, the number of its requests and
    /// the description of the first one.
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
