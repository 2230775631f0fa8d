//! The outcome of work that each worker does alone. If a worker fails, all workers get the same error.

use bytes::Bytes;
use distribute_base::{Error, Result};

/// The outcome that a worker sends to the others.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Success, with the bytes of the record for the other workers.
    Done(Bytes),
    /// Failure, with the error message.
    Failed(String),
    /// Failure in an earlier part of the work, with the error message.
    FailedBefore(String),
    /// The chief is still working. The other workers make the same call again.
    Working,
}

const DONE: u8 = 1;
const FAILED: u8 = 0;
const WORKING: u8 = 2;
const FAILED_BEFORE: u8 = 3;

impl Outcome {
    /// Returns the outcome of work with this result. `record` returns the bytes for the other workers.
    pub fn of<T>(result: &Result<T>, record: impl FnOnce(&T) -> Bytes) -> Self {
        match result {
            Ok(done) => Self::Done(record(done)),
            Err(error) => Self::Failed(error.to_string()),
        }
    }

    /// Returns the outcome of the earlier part of the work.
    pub fn before(&self) -> Self {
        match self {
            Self::FailedBefore(text) => Self::Failed(text.clone()),
            Self::Done(_) | Self::Failed(_) | Self::Working => Self::Done(Bytes::new()),
        }
    }

    /// Returns the bytes of the outcome.
    pub fn encode(&self) -> Bytes {
        let (kind, rest): (u8, &[u8]) = match self {
            Outcome::Done(record) => (DONE, record),
            Outcome::Failed(text) => (FAILED, text.as_bytes()),
            Outcome::FailedBefore(text) => (FAILED_BEFORE, text.as_bytes()),
            Outcome::Working => (WORKING, &[]),
        };
        [&[kind], rest].concat().into()
    }

    /// Returns the outcome with these bytes. Bytes that cannot be read are a failure.
    pub fn decode(mut bytes: Bytes) -> Self {
        match bytes.first() {
            Some(&DONE) => Outcome::Done(bytes.split_off(1)),
            Some(&WORKING) => Outcome::Working,
            Some(&FAILED) => Outcome::Failed(String::from_utf8_lossy(&bytes[1..]).into_owned()),
            Some(&FAILED_BEFORE) => Outcome::FailedBefore(String::from_utf8_lossy(&bytes[1..]).into_owned()),
            _ => Outcome::Failed("it sent a record that cannot be read".into()),
        }
    }
}

/// Returns the value of `mine` and the records of all workers, or the error of the failed worker with the lowest rank.
/// If all failed with the same message, returns this worker's own error. The record of a worker that is still working
/// is empty. `me` is the rank of this worker.
pub fn merge_outcomes<T>(mine: Result<T>, all: Vec<Outcome>, me: usize) -> Result<(T, Vec<Bytes>)> {
    let all_failed_alike = |error: &Error, all: &[Outcome]| {
        let text = error.to_string();
        all.iter().all(|outcome| matches!(outcome, Outcome::Failed(theirs) if *theirs == text))
    };
    if mine.as_ref().is_err_and(|error| all_failed_alike(error, &all)) {
        return mine.map(|mine| (mine, Vec::new()));
    }
    let mut records = Vec::with_capacity(all.len());
    for (worker, outcome) in all.into_iter().enumerate() {
        let text = match outcome {
            Outcome::Done(record) => {
                records.push(record);
                continue;
            }
            Outcome::Working => {
                records.push(Bytes::new());
                continue;
            }
            Outcome::Failed(text) | Outcome::FailedBefore(text) => text,
        };
        let source = match mine {
            // If this worker has failed in the same way, its typed error is more useful than a text.
            Err(error) if worker == me || error.to_string() == text => error,
            _ => Error::other(text),
        };
        return Err(Error::worker_failed(worker, source));
    }
    Ok((mine?, records))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(record: &'static str) -> Outcome {
        Outcome::Done(Bytes::from_static(record.as_bytes()))
    }

    fn failed(text: &str) -> Outcome {
        Outcome::Failed(text.into())
    }

    #[test]
    fn outcomes_round_trip_and_invalid_bytes_are_failures() {
        let before = Outcome::FailedBefore("earlier".into());
        for outcome in [done(""), done("record"), failed("why"), failed(""), before, Outcome::Working] {
            assert_eq!(Outcome::decode(outcome.encode()), outcome);
        }
        for broken in [&b""[..], b"\x07odd"] {
            assert!(matches!(Outcome::decode(Bytes::from_static(broken)), Outcome::Failed(_)));
        }
    }

    #[test]
    fn the_error_of_the_first_that_failed_is_that_of_all() {
        let all = vec![done("a"), failed("no such file"), failed("other")];
        let mine = [Ok(()), Err(Error::other("no such file")), Err(Error::other("other"))];
        for (me, mine) in mine.into_iter().enumerate() {
            let error = merge_outcomes(mine, all.clone(), me).unwrap_err();
            assert_eq!(error.to_string(), "worker 1 failed: no such file", "on worker {me}");
        }
        let (_, records) = merge_outcomes(Ok(()), vec![done("a"), done("b")], 1).unwrap();
        assert_eq!(records, ["a", "b"]);
    }

    #[test]
    fn failures_before_precede_those_of_other_workers() {
        let all = [failed("step 2"), Outcome::FailedBefore("step 1".into())];
        let before: Vec<_> = all.iter().map(Outcome::before).collect();
        for (me, mine) in [Ok(()), Err(Error::other("step 1"))].into_iter().enumerate() {
            let error = merge_outcomes(mine, before.clone(), me).unwrap_err();
            assert_eq!(error.to_string(), "worker 1 failed: step 1", "on worker {me}");
        }
        assert!(merge_outcomes(Ok(()), vec![all[0].before(), done("").before()], 0).is_ok());
    }

    #[test]
    fn a_local_error_keeps_its_type() {
        let mine = || Error::OutOfRange { operation: "x" };
        let text = mine().to_string();
        let error = merge_outcomes::<()>(Err(mine()), vec![failed(&text); 2], 1).unwrap_err();
        assert!(matches!(error, Error::OutOfRange { .. }), "{error}");
        let two = vec![failed(&text), done(""), failed(&text)];
        let error = merge_outcomes::<()>(Err(mine()), two, 2).unwrap_err();
        assert!(matches!(error.root_cause(), Error::OutOfRange { .. }), "{error}");
        assert!(error.to_string().starts_with("worker 0 failed: "), "{error}");
    }
}
