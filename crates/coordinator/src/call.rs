//! Calls of functions on workers, as data.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The identity of a function of the program. All tasks of a job run the same program, so they have the same functions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FunctionId {
    /// The path of the function in the program: `packages::train_step`.
    pub name: String,
    /// A hash of the function's source code. Tasks with different hashes reject each other.
    pub source: u64,
}

/// The sequence number of a closure: a call that one of the workers executes. Closures are numbered from 0 in the order
/// in which they are scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClosureId(pub u64);

/// The sequence number of a resource: a value that each worker creates and keeps for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ResourceId(pub u64);

/// An argument of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Argument {
    /// A value, encoded as bytes.
    Value(Bytes),
    /// The value of a resource on the worker that executes the call.
    Resource(ResourceId),
}

/// A call of a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// The function to call.
    pub function: FunctionId,
    /// The arguments that are passed to the function.
    pub arguments: Vec<Argument>,
}

impl Call {
    /// Returns the resources among the arguments.
    pub fn resources(&self) -> impl Iterator<Item = ResourceId> + '_ {
        self.arguments.iter().filter_map(|argument| match argument {
            Argument::Resource(id) => Some(*id),
            Argument::Value(_) => None,
        })
    }
}

/// The closure that makes a change of a variable, regardless of how often and where it is executed. Parameter servers
/// use it to apply each change of a closure at most once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Origin {
    /// The number of the coordinator's job, which is different for each start of a coordinator.
    pub job: u64,
    /// The sequence number of the closure.
    pub closure: ClosureId,
    /// The oldest closure that may still be running. Changes by earlier closures are rejected, because all of them have
    /// ended.
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
