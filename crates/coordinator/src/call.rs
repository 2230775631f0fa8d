//! What is run on a worker, as data.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A function that all tasks of a job have, since they run the same program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FunctionId {
    /// Its path in the program: `packages::train_step`.
    pub name: String,
    /// A hash of its source: tasks whose functions differ refuse each other.
    pub source: u64,
}

/// The number of a closure: a call that was scheduled. They count up from 0 in the order of scheduling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClosureId(pub u64);

/// The number of a resource: a value that each worker has made for itself, and keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ResourceId(pub u64);

/// An argument of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Argument {
    /// A value, as the bytes of its type's encoding.
    Value(Bytes),
    /// What the worker has made for a resource.
    Resource(ResourceId),
}

/// A call of a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// What is called.
    pub function: FunctionId,
    /// With what.
    pub arguments: Vec<Argument>,
}

impl Call {
    /// The resources among its arguments.
    pub fn resources(&self) -> impl Iterator<Item = ResourceId> + '_ {
        self.arguments.iter().filter_map(|argument| match argument {
            Argument::Resource(id) => Some(*id),
            Argument::Value(_) => None,
        })
    }
}

/// Which closure a change of a variable comes from, however often and wherever that is run. Parameter servers make each change of a
/// closure once at most by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Origin {
    /// The coordinator's start: a number that no other start of any coordinator has.
    pub job: u64,
    /// The closure.
    pub closure: ClosureId,
    /// All closures before this one have ended: nothing will come of them any more.
    pub floor: ClosureId,
}

impl fmt::Display for FunctionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl fmt::Display for ClosureId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "closure {}", self.0)
    }
}

impl fmt::Display for ResourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "resource {}", self.0)
    }
}
