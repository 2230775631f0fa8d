//! Calls on workers, as data.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The identity of a function of the program. All tasks of a job run the same program, and therefore have the same
/// functions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FunctionId {
    /// The path of the function in the program: `packages::train_step`.
    pub name: String,
    /// A hash of the function's source. Tasks whose functions differ reject each other.
    pub source: u64,
}

/// The sequence number of a closure, which is a scheduled call. Closures are numbered from 0 in the order of
/// scheduling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClosureId(pub u64);

/// The sequence number of a resource, which is a value that each worker creates and keeps separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ResourceId(pub u64);

/// An argument of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Argument {
    /// A value, encoded as bytes.
    Value(Bytes),
    /// The value that the worker has created for a resource.
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

/// The origin of a change of a variable: a closure, regardless of how often and where it is executed. Parameter servers
/// use it to apply each change of a closure at most once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Origin {
    /// The number of the coordinator's job, which is different for each start of a coordinator.
    pub job: u64,
    /// The sequence number of the closure.
    pub closure: ClosureId,
    /// The oldest closure that may not have ended. All closures before it have ended, and further changes by them are
    /// rejected.
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
