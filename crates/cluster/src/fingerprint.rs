//! What a member is doing, and whether two members do the same.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

/// A call in which all members of a group take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Every member contributes, every member gets the reduction.
    AllReduce,
    /// Every member contributes, every member gets the concatenation.
    AllGather,
    /// One function runs once with the arguments of all members.
    MergeCall,
    /// Gradients are reduced and variables updated.
    Minimize,
    /// A variable is created, one for all members.
    CreateVariable,
    /// What members write to a variable is combined.
    WriteVariable,
    /// Members wait for each other.
    Barrier,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::AllReduce => "all_reduce",
            Operation::AllGather => "all_gather",
            Operation::MergeCall => "merge_call",
            Operation::Minimize => "minimize",
            Operation::CreateVariable => "creation of a variable",
            Operation::WriteVariable => "write to a variable",
            Operation::Barrier => "barrier",
        })
    }
}

/// What one member is doing: compared between members before any data moves.
#[derive(Clone, Debug)]
pub struct Fingerprint {
    /// The kind of call.
    pub operation: Operation,
    /// What has to be equal on all members besides: reduce operation, dtypes, shapes, structure.
    pub detail: Arc<str>,
    /// The line of the user's program. Not compared: branches may make the same call in different places.
    pub at: &'static Location<'static>,
    /// The second half of a call whose first half has been counted. Not compared.
    pub continues: bool,
}

impl Fingerprint {
    /// A fingerprint of a call made at `at`.
    pub fn new(operation: Operation, detail: impl Into<Arc<str>>, at: &'static Location<'static>) -> Self {
        Self { operation, detail: detail.into(), at, continues: false }
    }

    /// That of a later part of the same call, after its first half has been counted.
    pub fn part(&self, part: &str) -> Self {
        Self { detail: format!("{}: {part}", self.detail).into(), continues: true, ..self.clone() }
    }

    /// Whether two members do the same.
    pub fn matches(&self, other: &Self) -> bool {
        self.operation == other.operation && self.detail == other.detail
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.operation)?;
        if !self.detail.is_empty() {
            write!(f, " ({})", self.detail)?;
        }
        write!(f, " at {}", self.at)
    }
}
