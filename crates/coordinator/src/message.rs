//! The messages between a coordinator and its workers, and their encoding.

use crate::call::{Call, ClosureId, FunctionId, ResourceId};
use crate::failure::Failure;
use bytes::Bytes;
use distribute_cluster::bounded::Budget;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The first byte of every message: the version of this format.
const VERSION: u8 = 1;

/// A request of a coordinator to a worker's service.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Begin to work for this coordinator, and drop everything of earlier ones.
    Hello(Hello),
    /// Add work to the queue.
    Submit(Batch),
    /// Return results as soon as there are some.
    Collect {
        /// The id of the session to which the results belong.
        session: u64,
    },
}

/// The first message of a coordinator to a worker, with what the worker needs to begin a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The number of the coordinator's job, which is greater for each later start.
    pub job: u64,
    /// The index of the worker.
    pub worker: usize,
    /// The number of workers.
    pub workers: usize,
    /// The functions of the coordinator's program, sorted.
    pub functions: Vec<FunctionId>,
    /// The settings that the program sends to all its workers.
    pub settings: Bytes,
}

/// A response of a worker.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Response {
    /// The worker has accepted the coordinator, and has begun a session with this id.
    Welcome { session: u64 },
    /// The worker rejects the coordinator.
    Refused(Failure),
    /// A batch was received.
    Submitted,
    /// The results since the last request.
    Collected(Vec<Done>),
    /// The session of the request has ended.
    SessionOver,
}

/// A batch of work for one worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// The id of the session to which the batch belongs.
    pub session: u64,
    /// The oldest closure that has not ended.
    pub floor: ClosureId,
    /// The items of work, in order.
    pub work: Vec<Work>,
}

/// An item of work for a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// Run a closure after those that are already waiting.
    Call {
        /// The sequence number of the closure.
        closure: ClosureId,
        /// The call that the closure makes.
        call: Call,
    },
    /// Create a resource before running any waiting closure.
    Create {
        /// The sequence number of the resource.
        resource: ResourceId,
        /// The call that creates it.
        call: Call,
        /// Whether the worker may create missing variables.
        creates_variables: bool,
        /// The position at which the resource continues, if there is one.
        position: Option<Bytes>,
    },
    /// Drop a resource.
    Forget(ResourceId),
    /// Return a closure that has not begun.
    Return(ClosureId),
    /// Cancel a closure.
    Cancel(ClosureId),
}

/// A result of a worker. Each closure and each resource is reported once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Done {
    /// A closure was executed, or was cancelled before it began.
    Called {
        /// The sequence number of the closure.
        closure: ClosureId,
        /// The encoded result or the failure of the closure.
        result: Result<Bytes, Failure>,
        /// The running time in microseconds.
        micros: u64,
        /// The new positions of resources that the closure has moved.
        positions: Vec<(ResourceId, Bytes)>,
    },
    /// A resource was created, or could not be created.
    Created {
        /// The sequence number of the resource.
        resource: ResourceId,
        /// The failure, if the resource could not be created.
        result: Result<(), Failure>,
    },
    /// A closure was returned without running, as requested.
    Returned(ClosureId),
}

/// Encodes a message.
///
/// # Errors
/// Returns an error if a part of the message cannot be encoded.
pub(crate) fn encode(message: &impl Serialize) -> Result<Bytes, postcard::Error> {
    postcard::to_extend(message, vec![VERSION]).map(Bytes::from)
}

/// Decodes a message from untrusted bytes.
///
/// # Errors
/// Returns a description of the problem if the bytes are not a message of this version.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, &'static str> {
    match bytes.split_first() {
        Some((&VERSION, rest)) => {
            let (budget, mut from) = (Budget::of(rest.len()), postcard::Deserializer::from_bytes(rest));
            // INV-28
            match budget.decode(&mut from) {
                Ok(message) if matches!(from.finalize(), Ok([])) => Ok(message),
                Ok(_) => Err("more than a message"),
                Err(_) if budget.is_spent() => Err("more elements than a message of its length can have"),
                Err(_) => Err("bytes that are no message"),
            }
        }
        Some(_) => Err("a message of another version"),
        None => Err("nothing"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Argument;

    // INV-28
    #[test]
    fn a_message_of_small_parts_does_not_take_a_hundred_times_its_bytes() {
        let batch = |work: usize| {
            let work = (0..work as u64).map(|closure| Work::Cancel(ClosureId(closure % 100))).collect();
            encode(&Request::Submit(Batch { session: 1, floor: ClosureId(0), work })).unwrap()
        };
        let few = batch(1_000);
        assert!(decode::<Request>(&few).is_ok());
        // A message of a coordinator.
        let value = Argument::Value(Bytes::from(vec![7; 100]));
        let call = || Call {
            function: FunctionId { name: "packages::train_step".into(), source: 7 },
            arguments: vec![value.clone(); 3],
        };
        let work =
            (0..5_000).map(|closure| Work::Call { closure: ClosureId(closure), call: call() }).collect();
        let calls = Request::Submit(Batch { session: 1, floor: ClosureId(0), work });
        assert_eq!(decode::<Request>(&encode(&calls).unwrap()), Ok(calls));
        // 6 million parts of 2 bytes, each of which takes more than 100 in memory.
        let many = batch(6_000_000);
        assert!(many.len() < 13 << 20 && size_of::<Work>() > 100);
        assert_eq!(decode::<Request>(&many), Err("more elements than a message of its length can have"));
        let done = vec![Done::Returned(ClosureId(1)); 6_000_000];
        let response = encode(&Response::Collected(done)).unwrap();
        assert_eq!(decode::<Response>(&response), Err("more elements than a message of its length can have"));
        assert_eq!(decode::<Request>(&[&few[..], &[0]].concat()), Err("more than a message"));
    }
}
