//! What coordinator and workers send each other, and its form as bytes.

use crate::call::{Call, ClosureId, FunctionId, ResourceId};
use crate::failure::Failure;
use bytes::Bytes;
use distribute_cluster::bounded::Budget;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// What every message begins with: the version of this format.
const VERSION: u8 = 1;

/// What a coordinator asks of a worker's service.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Question {
    /// Work for this coordinator from now on, and forget what was before.
    Hello(Hello),
    /// Something to do.
    Submit(Batch),
    /// Say what was done, as soon as there is something to say.
    Collect {
        /// The session that this is about.
        session: u64,
    },
}

/// Who asks a worker to work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The coordinator's start. A later one has a greater number.
    pub job: u64,
    /// The number that the worker has.
    pub worker: usize,
    /// How many workers there are.
    pub workers: usize,
    /// The functions of the coordinator's program, in order.
    pub functions: Vec<FunctionId>,
    /// What the program has to say to all its workers.
    pub settings: Bytes,
}

/// What a worker answers.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// The number of the session that has begun.
    Welcome { session: u64 },
    /// It does not work for this coordinator.
    Refused(Failure),
    /// A batch has come.
    Submitted,
    /// What was done since this was asked last.
    Collected(Vec<Done>),
    /// The session that was asked about is over.
    Over,
}

/// Things to do for one worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// The session that it is for.
    pub session: u64,
    /// All closures before this one have ended.
    pub floor: ClosureId,
    /// What to do.
    pub work: Vec<Work>,
}

/// Something for a worker to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// Run a closure, behind those that wait already.
    Call {
        /// Its number.
        closure: ClosureId,
        /// What it is.
        call: Call,
    },
    /// Make a resource, before any closure that waits.
    Make {
        /// Its number.
        resource: ResourceId,
        /// How.
        call: Call,
        /// Whether variables that are not there may be made.
        makes_variables: bool,
        /// Where it was, if it goes on there.
        position: Option<Bytes>,
    },
    /// Let go of a resource.
    Forget(ResourceId),
    /// Give a closure back that does not run yet.
    Return(ClosureId),
    /// Nobody wants the result of this closure any more.
    Cancel(ClosureId),
}

/// What a worker has done. Everything that it was given to call or make comes back so, once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Done {
    /// A closure has run.
    Called {
        /// Its number.
        closure: ClosureId,
        /// The bytes of its result.
        result: Result<Bytes, Failure>,
        /// How long it ran, in microseconds.
        micros: u64,
        /// Where resources are that it has moved.
        positions: Vec<(ResourceId, Bytes)>,
    },
    /// A resource was made, or not.
    Made {
        /// Its number.
        resource: ResourceId,
        /// Why not.
        result: Result<(), Failure>,
    },
    /// A closure did not run, as was asked.
    Returned(ClosureId),
}

/// The bytes of a message.
///
/// # Errors
/// Where something in it cannot be encoded.
pub(crate) fn encode(message: &impl Serialize) -> Result<Bytes, postcard::Error> {
    postcard::to_extend(message, vec![VERSION]).map(Bytes::from)
}

/// The message in bytes that may be anything.
///
/// # Errors
/// What is wrong with them.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, &'static str> {
    match bytes.split_first() {
        Some((&VERSION, rest)) => {
            let (budget, mut from) = (Budget::of(rest.len()), postcard::Deserializer::from_bytes(rest));
            // INV-28
            match budget.decode(&mut from) {
                Ok(message) if matches!(from.finalize(), Ok([])) => Ok(message),
                Ok(_) => Err("more than a message"),
                Err(_) if budget.is_spent() => Err("more parts than a message of its length may have"),
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
            encode(&Question::Submit(Batch { session: 1, floor: ClosureId(0), work })).unwrap()
        };
        let few = batch(1_000);
        assert!(decode::<Question>(&few).is_ok());
        // What a coordinator sends.
        let value = Argument::Value(Bytes::from(vec![7; 100]));
        let call = || Call {
            function: FunctionId { name: "packages::train_step".into(), source: 7 },
            arguments: vec![value.clone(); 3],
        };
        let work =
            (0..5_000).map(|closure| Work::Call { closure: ClosureId(closure), call: call() }).collect();
        let calls = Question::Submit(Batch { session: 1, floor: ClosureId(0), work });
        assert_eq!(decode::<Question>(&encode(&calls).unwrap()), Ok(calls));
        // 6 million parts of 2 bytes, each of which takes more than 100.
        let many = batch(6_000_000);
        assert!(many.len() < 13 << 20 && size_of::<Work>() > 100);
        assert_eq!(decode::<Question>(&many), Err("more parts than a message of its length may have"));
        let done = vec![Done::Returned(ClosureId(1)); 6_000_000];
        let answer = encode(&Answer::Collected(done)).unwrap();
        assert_eq!(decode::<Answer>(&answer), Err("more parts than a message of its length may have"));
        assert_eq!(decode::<Question>(&[&few[..], &[0]].concat()), Err("more than a message"));
    }
}
