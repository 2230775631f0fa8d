//! Shares the outcome of work that each worker did alone: if one has failed, all of them get the same error.

use super::Strategy;
use bytes::Bytes;
use distribute_base::{Error, Result};
use distribute_cluster::{Fingerprint, Process, located};

/// The outcome that a worker sends to the others.
#[derive(Clone, Debug, PartialEq)]
enum Outcome {
    /// Success. The bytes are the record for the others.
    Done(Bytes),
    /// Failure, with this error message.
    Failed(String),
}

const DONE: u8 = 1;
const FAILED: u8 = 0;

impl Strategy {
    /// Reports to the other workers whether this one has succeeded. Returns the records of all, by worker; none
    /// if there is only one worker.
    ///
    /// # Errors
    /// - [`Error::Worker`]: workers have failed. The error is that of the first of them, on all workers.
    /// - This worker's own error, if all have failed alike.
    /// - The error of the exchange, if workers make other calls, disconnect or time out.
    #[doc(hidden)]
    pub fn agree<T>(
        &self,
        operation: &'static str,
        call: impl FnOnce() -> Fingerprint,
        mine: Result<T>,
        record: impl FnOnce(&T) -> Bytes,
    ) -> Result<(T, Vec<Bytes>)> {
        // All workers already have the error of a call in which all participated, so none of them arrives here.
        if mine.as_ref().is_err_and(|error| error.blame().is_some()) {
            return mine.map(|mine| (mine, Vec::new()));
        }
        let outcome = || match &mine {
            Ok(mine) => Outcome::Done(record(mine)),
            Err(error) => Outcome::Failed(error.to_string()),
        };
        let all =
            self.among_workers(operation, call, |mut calling| calling.all_gather_bytes(outcome().encode()));
        let (all, mine) = match (all, mine) {
            // This worker's error is the cause, even if the others make other calls.
            (Err(_) | Ok(None), Err(error)) => return Err(error),
            (Err(error), Ok(_)) => return Err(error),
            (Ok(None), Ok(mine)) => return Ok((mine, Vec::new())),
            (Ok(Some(all)), mine) => (all, mine),
        };
        let all: Vec<_> = all.into_iter().map(Outcome::decode).collect();
        settle(mine, all, self.world().worker()).map_err(|error| self.located(error))
    }

    /// Adds the location of the worker to an error that names one, if it is known.
    #[doc(hidden)]
    pub fn located(&self, mut error: Error) -> Error {
        if let Error::Worker { worker, process, .. } = &mut error {
            *process = self.process(*worker).map(Box::new);
        }
        error
    }

    /// Returns `worker 1`, with its task in the cluster and its address, if these are known.
    #[doc(hidden)]
    pub fn named(&self, worker: usize) -> String {
        match self.process(worker) {
            Some(process) => format!("worker {worker} ({process})"),
            None => format!("worker {worker}"),
        }
    }

    /// Returns the text about these workers that an error appends. The error names them by rank.
    pub(crate) fn whereabouts(&self, workers: &[usize]) -> String {
        let process = |worker: &usize| Some((*worker, self.process(*worker)?));
        located(&workers.iter().filter_map(process).collect::<Vec<_>>())
    }

    fn process(&self, worker: usize) -> Option<Process> {
        self.extended().group()?.process(worker)
    }

    /// Acts like [`agree`](Self::agree), for records that have to be equal on all workers; `what` names them.
    pub(crate) fn agree_on<T>(
        &self,
        operation: &'static str,
        call: impl FnOnce() -> Fingerprint,
        mine: Result<T>,
        (what, advice): (&str, &str),
        record: impl FnOnce(&T) -> String,
    ) -> Result<T> {
        let (mine, all) = self.agree(operation, call, mine, |mine| record(mine).into())?;
        let Some(first) = all.first() else { return Ok(mine) };
        match all.iter().enumerate().find(|(_, record)| *record != first) {
            None => Ok(mine),
            Some((worker, theirs)) => {
                let (theirs, first) = (String::from_utf8_lossy(theirs), String::from_utf8_lossy(first));
                let reason = format!(
                    "{what} of {} is {theirs}, but that of worker 0 is {first}; {advice}",
                    self.named(worker)
                );
                Err(Error::invalid(operation, reason))
            }
        }
    }

    /// Runs a closure on the chief alone, and gives all workers its outcome. A process that is catching up with
    /// the others has already run it.
    ///
    /// # Errors
    /// The errors of [`agree`](Self::agree).
    pub(crate) fn on_chief<T>(
        &self,
        operation: &'static str,
        call: impl FnOnce() -> Fingerprint,
        act: impl FnOnce() -> Result<T>,
        record: impl FnOnce(&T) -> Bytes,
    ) -> Result<(Option<T>, Bytes)> {
        let acts = self.world().is_chief() || self.is_settling();
        let mine = if acts { act().map(Some) } else { Ok(None) };
        let record = |mine: &Option<T>| mine.as_ref().map(record).unwrap_or_default();
        let (mine, all) = self.agree(operation, call, mine, record)?;
        Ok((mine, all.into_iter().next().unwrap_or_default()))
    }
}

impl Outcome {
    fn encode(&self) -> Bytes {
        let (kind, rest): (u8, &[u8]) = match self {
            Outcome::Done(record) => (DONE, record),
            Outcome::Failed(text) => (FAILED, text.as_bytes()),
        };
        [&[kind], rest].concat().into()
    }

    fn decode(mut bytes: Bytes) -> Self {
        match bytes.first() {
            Some(&DONE) => Outcome::Done(bytes.split_off(1)),
            Some(&FAILED) => Outcome::Failed(String::from_utf8_lossy(&bytes[1..]).into_owned()),
            _ => Outcome::Failed("it sent a record that cannot be read".into()),
        }
    }
}

/// Returns the records of all workers, or the error of the first that failed.
fn settle<T>(mine: Result<T>, all: Vec<Outcome>, me: usize) -> Result<(T, Vec<Bytes>)> {
    let alike = |error: &Error, all: &[Outcome]| {
        let text = error.to_string();
        all.iter().all(|outcome| matches!(outcome, Outcome::Failed(theirs) if *theirs == text))
    };
    if mine.as_ref().is_err_and(|error| alike(error, &all)) {
        return mine.map(|mine| (mine, Vec::new()));
    }
    let mut records = Vec::with_capacity(all.len());
    for (worker, outcome) in all.into_iter().enumerate() {
        let text = match outcome {
            Outcome::Done(record) => {
                records.push(record);
                continue;
            }
            Outcome::Failed(text) => text,
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
    fn what_is_told_is_what_is_heard() {
        for outcome in [done(""), done("record"), failed("why"), failed("")] {
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
            let error = settle(mine, all.clone(), me).unwrap_err();
            assert_eq!(error.to_string(), "worker 1 failed: no such file", "on worker {me}");
        }
        let (_, records) = settle(Ok(()), vec![done("a"), done("b")], 1).unwrap();
        assert_eq!(records, ["a", "b"]);
    }

    #[test]
    fn an_error_of_ones_own_keeps_its_type() {
        let mine = || Error::OutOfRange { operation: "x" };
        let text = mine().to_string();
        let alike = settle::<()>(Err(mine()), vec![failed(&text); 2], 1).unwrap_err();
        assert!(matches!(alike, Error::OutOfRange { .. }), "{alike}");
        let two = vec![failed(&text), done(""), failed(&text)];
        let error = settle::<()>(Err(mine()), two, 2).unwrap_err();
        assert!(matches!(error.root_cause(), Error::OutOfRange { .. }), "{error}");
        assert!(error.to_string().starts_with("worker 0 failed: "), "{error}");
    }
}
