//! Calls of a coordinator: their encoding, and their execution by a worker.

use bytes::Bytes;
use distribute_coordinator::dispatch::Task;
use distribute_coordinator::{Argument, Call, Origin, ResourceId};

/// The task that a worker executes: a closure, or the creation of a resource.
#[derive(Clone, Debug)]
pub enum Doing {
    Closure { origin: Origin, which: usize, resources: Vec<ResourceId> },
    Resource { id: ResourceId, which: usize, position: u64 },
}

impl Doing {
    /// Returns the id that the coordinator uses for the task.
    pub fn task(&self) -> Task {
        match self {
            Self::Closure { origin, .. } => Task::Closure(origin.closure),
            Self::Resource { id, .. } => Task::Resource(*id),
        }
    }
}

/// Returns the index, in the program, of the closure or resource that a call executes; `usize::MAX` if the call does
/// not contain an index.
pub fn which(call: &Call) -> usize {
    match call.arguments.first() {
        Some(Argument::Value(bytes)) => number(bytes) as usize,
        _ => usize::MAX,
    }
}

/// Encodes a number as bytes.
pub fn bytes(number: u64) -> Bytes {
    Bytes::copy_from_slice(&number.to_le_bytes())
}

pub fn number(bytes: &Bytes) -> u64 {
    bytes.first_chunk().map_or(u64::MAX, |first| u64::from_le_bytes(*first))
}
