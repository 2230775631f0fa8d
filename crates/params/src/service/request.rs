//! What can be asked of a server.

use super::spec::TableSpec;
use crate::{DynamicState, Error, Origin, Push, Result};
use distribute_optim::RuleSpec;
use distribute_tensor::{HostTensor, Write};
use std::ops::Range;

/// What is asked of a parameter server about its tables, as data.
///
/// Rows of a dense table are those of the shard, counted from 0; of a dynamic one they are ids.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Request {
    /// Makes a table, unless it has been made by the same specification before: [`Response::Made`](super::Response::Made).
    Create(TableSpec),
    /// Removes a table, if there is one: [`Response::Done`](super::Response::Done).
    Remove {
        /// The table.
        table: String,
    },
    /// Says which tables there are: [`Response::Tables`](super::Response::Tables).
    List,
    /// Sets the rule by which gradients are applied: see [`Table::set_rule`](crate::Table::set_rule).
    SetRule {
        /// The table.
        table: String,
        /// The rule.
        rule: RuleSpec,
    },
    /// All of a dense table: [`Response::Value`](super::Response::Value) or, where it still is what it was at version `known`,
    /// [`Response::Unchanged`](super::Response::Unchanged).
    Read {
        /// The table.
        table: String,
        /// The version that the caller has.
        known: Option<super::Version>,
    },
    /// Rows, in this order: [`Response::Rows`](super::Response::Rows).
    ReadRows {
        /// The table.
        table: String,
        /// The rows, or ids.
        rows: Vec<i64>,
    },
    /// Writes a value into all of a dense table: see [`Table::write`](crate::Table::write).
    Write {
        /// The table.
        table: String,
        /// How.
        how: Write,
        /// What.
        value: HostTensor,
    },
    /// Writes rows of a dense table: see [`Table::write_rows`](crate::Table::write_rows).
    WriteRows {
        /// The table.
        table: String,
        /// How.
        how: Write,
        /// Which rows.
        rows: Vec<i64>,
        /// A row of values for each.
        values: HostTensor,
    },
    /// Applies a gradient of all of a dense table: see [`Table::push`](crate::Table::push).
    Push {
        /// The table.
        table: String,
        /// How it is applied.
        push: Push,
        /// The gradient.
        gradient: HostTensor,
    },
    /// Applies a gradient of rows: see [`Table::push_rows`](crate::Table::push_rows) and
    /// [`DynamicTable::push_rows`](crate::DynamicTable::push_rows). The answer is
    /// [`Response::Pushed`](super::Response::Pushed).
    PushRows {
        /// The table.
        table: String,
        /// How it is applied.
        push: Push,
        /// The rows, or ids.
        rows: Vec<i64>,
        /// A row of it for each.
        gradient: HostTensor,
    },
    /// Values and slots of some rows of a dense table, to be saved: [`Response::State`](super::Response::State).
    StateRows {
        /// The table.
        table: String,
        /// Which rows.
        rows: Range<usize>,
    },
    /// One of the [parts](crate::TableInfo::parts) of a dynamic table, to be saved: [`Response::State`](super::Response::State).
    StatePart {
        /// The table.
        table: String,
        /// Which part.
        part: usize,
    },
    /// Puts rows and slots back that were saved. The answer is [`Response::Restored`](super::Response::Restored).
    Restore {
        /// The table.
        table: String,
        /// What was saved.
        state: State,
    },
    /// Removes rows of a dynamic table that have not been used for long: see
    /// [`DynamicTable::evict`](crate::DynamicTable::evict). The answer is [`Response::Evicted`](super::Response::Evicted).
    Evict {
        /// The table.
        table: String,
        /// The number of the step.
        now: u64,
    },
    /// Removes the rows of a dynamic table whose ids are in a range, both ends included, but not among some. The answer is
    /// [`Response::Evicted`](super::Response::Evicted).
    Keep {
        /// The table.
        table: String,
        /// The first and the last id of the range.
        between: (i64, i64),
        /// The ids whose rows stay.
        ids: Vec<i64>,
    },
    /// A change that a closure makes, unless it was made for an earlier execution of the same closure, on whichever worker. The answer is
    /// that of the change or, where it was made before, one of its kind that tells of nothing.
    ///
    /// One that is refused has not been made, and is not remembered.
    Once {
        /// Whose change it is.
        origin: Origin,
        /// Which of the closure's changes of this table.
        number: u64,
        /// The change: one of what is in a table.
        change: Box<Request>,
    },
    /// From now on closures of this job alone may change tables, if no greater one has begun: [`Response::Job`](super::Response::Job)
    /// tells the greatest. Changes of closures before have been made when it is answered, or never are. 0 begins none, and asks.
    ///
    /// A coordinator that starts begins a job whose number is greater than all before: what workers still do for another one, that it has
    /// replaced, is [refused](crate::RefusalKind::Stale) then.
    BeginJob {
        /// The job.
        job: u64,
    },
    /// What the server has, and what was done with its rows: [`Response::Usage`](super::Response::Usage).
    Usage,
    /// Several requests, in this order: [`Response::Batch`](super::Response::Batch). One that is refused leaves the others as
    /// they are.
    Batch(Vec<Request>),
}

/// Rows of a table with their slots, or one of both.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum State {
    /// Of a dense table.
    Rows {
        /// The first of the rows.
        first: usize,
        /// The values.
        values: HostTensor,
        /// The name of each slot, and what is in it.
        slots: Vec<(String, HostTensor)>,
    },
    /// Of a dynamic one.
    Ids(DynamicState),
    /// Slots of rows of a dense table alone: put back, they leave the values as they are.
    Slots {
        /// The first of the rows.
        first: usize,
        /// The name of each slot, and what is in it.
        slots: Vec<(String, HostTensor)>,
    },
    /// Slots of rows of a dynamic table alone. An id that has no row gets one, of its initial values.
    IdSlots {
        /// The ids.
        ids: Vec<i64>,
        /// The name of each slot, and a row of it for each id.
        slots: Vec<(String, HostTensor)>,
    },
    /// Rows of a dynamic table without their slots, which stay, and begin anew where there was no row.
    IdValues {
        /// The ids.
        ids: Vec<i64>,
        /// The step in which each was last pushed to.
        used: Vec<u64>,
        /// A row of values for each.
        values: HostTensor,
    },
}

impl Request {
    /// What is done, in a word, for errors.
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

    /// The table that it is about; none of a list, of usage, a batch and a job.
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

    /// Whether it is one that can be asked: no batch has a batch in it, and what is to be made once for a closure can be.
    ///
    /// # Errors
    /// [`Error::NestedBatch`], [`Error::NotOnce`].
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

    /// Whether it can be made [once](Self::Once) for a closure: it changes what is in one table. To make a table, to set its rule
    /// and to remove it are the same however often they are done.
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

    /// Whether it changes something on the server, so that it may not be done twice.
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

    /// Operation and table, for errors.
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
