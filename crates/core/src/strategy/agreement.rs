//! Exchange of the results of work that each worker does alone. If a worker fails, all workers get the same error.

use super::Strategy;
use crate::failure::failure;
use bytes::Bytes;
use distribute_base::{Error, Result};
use distribute_cluster::{Fingerprint, Process, locations};
use distribute_collective::group::GroupCall;
use distribute_decisions::internal::{Outcome, merge_outcomes};

/// A report to the workers that wait for the chief's result. The report means that the chief is still working, so that
/// they wait for another timeout.
pub(crate) struct Report<'s> {
    /// The call in which the others wait; `None` if no other worker waits.
    awaited: Option<Awaited<'s>>,
}

/// The call in which workers wait for work of the chief.
struct Awaited<'s> {
    strategy: &'s Strategy,
    operation: &'static str,
    call: &'s dyn Fn() -> Fingerprint,
}

impl Report<'_> {
    /// Sends the report. In work that may take longer than the timeout, call this more often than once per timeout.
    ///
    /// # Errors
    /// Returns the error of the call if another worker disconnects or does not make the call in time.
    pub(crate) fn send(&mut self) -> Result<()> {
        let Some(Awaited { strategy, operation, call }) = &self.awaited else { return Ok(()) };
        let working = Outcome::Working.encode();
        let all = strategy.worker_call(operation, call, |mut calling| calling.all_gather_bytes(working))?;
        let all = all.unwrap_or_default().into_iter().map(Outcome::decode).collect();
        let merged = merge_outcomes(Ok(()), all, strategy.world().worker());
        merged.map(drop).map_err(|error| strategy.with_process(error))
    }
}

impl Strategy {
    /// Reports to the other workers whether this one has succeeded. Returns the value of `mine`, and the records of all
    /// workers in the order of ranks. The list is empty if this worker makes no calls with others.
    ///
    /// # Errors
    /// - [`Error::Worker`]: one or more workers failed. All workers get the error of the failed worker with the lowest
    ///   rank.
    /// - This worker's own error, if all workers failed with the same message, if the exchange itself fails, if this
    ///   worker makes no calls with others, or if its error is that of a collective, which all workers already have.
    /// - The error of the exchange, if this worker succeeded and another one makes a different call, disconnects or
    ///   times out.
    #[doc(hidden)]
    pub fn exchange_results<T>(
        &self,
        operation: &'static str,
        call: impl FnOnce() -> Fingerprint,
        mine: Result<T>,
        record: impl FnOnce(&T) -> Bytes,
    ) -> Result<(T, Vec<Bytes>)> {
        self.exchange_results_after(operation, call, Ok(()), mine, record)?
    }

    /// Acts like [`exchange_results`](Self::exchange_results), in a call that also reports the result of earlier work,
    /// `before`. If that failed on any worker, `mine` is not used. Otherwise returns the result of the exchange.
    ///
    /// # Errors
    /// - [`Error::Worker`]: the earlier work of one or more workers failed. All workers get the error of the failed
    ///   worker with the lowest rank.
    /// - The error of `before`, if all workers failed with the same message, if the exchange itself fails, or if this
    ///   worker makes no calls with others. The same holds for an error of a collective, which all workers already
    ///   have.
    pub(crate) fn exchange_results_after<T>(
        &self,
        operation: &'static str,
        call: impl FnOnce() -> Fingerprint,
        before: Result<()>,
        mine: Result<T>,
        record: impl FnOnce(&T) -> Bytes,
    ) -> Result<Result<(T, Vec<Bytes>)>> {
        // All workers already have the error of a call in which all participated, so none of them arrives here.
        let (before, mine) = match (before, mine) {
            (Err(error), _) if error.blame().is_some() => return Err(error),
            (Ok(()), Err(error)) if error.blame().is_some() => return Ok(Err(error)),
            both => both,
        };
        let outcome = || match &before {
            Ok(()) => Outcome::of(&mine, record),
            Err(error) => Outcome::FailedBefore(error.to_string()),
        };
        let all =
            self.worker_call(operation, call, |mut calling| calling.all_gather_bytes(outcome().encode()));
        let all: Vec<_> = match all {
            Ok(Some(all)) => all.into_iter().map(Outcome::decode).collect(),
            // This worker's error is the cause, even if the others make other calls.
            failed => {
                before?;
                return Ok(mine.and_then(|mine| failed.map(|_| (mine, Vec::new()))));
            }
        };
        let me = self.world().worker();
        merge_outcomes(before, all.iter().map(Outcome::before).collect(), me)
            .map_err(|error| self.with_process(error))?;
        Ok(merge_outcomes(mine, all, me).map_err(|error| self.with_process(error)))
    }

    /// Adds the worker's process to an error that names a worker, if the process is known.
    #[doc(hidden)]
    pub fn with_process(&self, mut error: Error) -> Error {
        if let Error::Worker { worker, process, .. } = &mut error {
            *process = self.process(*worker).map(Box::new);
        }
        error
    }

    /// Returns a text such as `worker 1`, with the worker's task and address if these are known.
    #[doc(hidden)]
    pub fn describe_worker(&self, worker: usize) -> String {
        match self.process(worker) {
            Some(process) => format!("worker {worker} ({process})"),
            None => format!("worker {worker}"),
        }
    }

    /// Formats the processes of `workers`, to append to an error that names the workers by rank.
    pub(crate) fn describe_processes(&self, workers: &[usize]) -> String {
        let process = |worker: &usize| Some((*worker, self.process(*worker)?));
        locations(&workers.iter().filter_map(process).collect::<Vec<_>>())
    }

    fn process(&self, worker: usize) -> Option<Process> {
        self.extended().group()?.process(worker)
    }

    /// Acts like [`exchange_results`](Self::exchange_results), for records that must be equal on all workers. `what`
    /// names the compared record in the error, and `advice` ends its message.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: the records differ.
    /// - The errors of [`exchange_results`](Self::exchange_results).
    pub(crate) fn require_equal<T>(
        &self,
        operation: &'static str,
        call: impl FnOnce() -> Fingerprint,
        mine: Result<T>,
        (what, advice): (&str, &str),
        record: impl FnOnce(&T) -> String,
    ) -> Result<T> {
        let (mine, all) = self.exchange_results(operation, call, mine, |mine| record(mine).into())?;
        let Some(first) = all.first() else { return Ok(mine) };
        match all.iter().enumerate().find(|(_, record)| *record != first) {
            None => Ok(mine),
            Some((worker, theirs)) => {
                let (theirs, first) = (String::from_utf8_lossy(theirs), String::from_utf8_lossy(first));
                let reason = format!(
                    "{what} of {} is {theirs}, but that of worker 0 is {first}; {advice}",
                    self.describe_worker(worker)
                );
                Err(Error::invalid(operation, reason))
            }
        }
    }

    /// Calls `act` on the chief, and on a process that is catching up with the others. Sends the record of the chief's
    /// result to all workers. Returns the value on a worker that called `act`, and the chief's record. The record is
    /// empty on a worker that makes no calls with others.
    ///
    /// The other workers wait for at most the timeout. If `act` takes longer, it must send its [`Report`] in between,
    /// after which they wait for another timeout.
    ///
    /// # Errors
    /// Returns the errors of [`exchange_results`](Self::exchange_results).
    pub(crate) fn on_chief<T>(
        &self,
        operation: &'static str,
        call: impl Fn() -> Fingerprint,
        act: impl FnOnce(Report<'_>) -> Result<T>,
        record: impl FnOnce(&T) -> Bytes,
    ) -> Result<(Option<T>, Bytes)> {
        let first = |all: Vec<Bytes>| all.into_iter().next().unwrap_or_default();
        if self.is_catching_up() || !self.world().is_multi_worker() {
            let (mine, all) =
                self.exchange_results(operation, call, act(Report { awaited: None }), record)?;
            return Ok((Some(mine), first(all)));
        }
        if self.world().is_chief() {
            let mine = act(self.report(operation, &call));
            let (mine, all) = self.exchange_results(operation, call, mine, record)?;
            return Ok((Some(mine), first(all)));
        }
        Ok((None, self.await_chief(operation, call)?))
    }
}

impl Strategy {
    /// Returns a report for work that this worker does alone while the others [wait](Self::await_chief) in `call`.
    pub(crate) fn report<'s>(
        &'s self,
        operation: &'static str,
        call: &'s dyn Fn() -> Fingerprint,
    ) -> Report<'s> {
        Report { awaited: Some(Awaited { strategy: self, operation, call }) }
    }

    /// Waits until the chief has finished its work, as long as it sends its [`Report`] often enough. Returns the
    /// chief's record; an empty one if this worker makes no calls with others.
    ///
    /// # Errors
    /// Returns the errors of [`exchange_results`](Self::exchange_results).
    pub(crate) fn await_chief(
        &self,
        operation: &'static str,
        call: impl Fn() -> Fingerprint,
    ) -> Result<Bytes> {
        let done = || Ok(((), Bytes::new()));
        let ((), all) = self.until_all_done(operation, &call, done, &mut || ())?;
        Ok(all.into_iter().next().unwrap_or_default())
    }

    /// Calls `act` on each worker, for a part of work that all do at the same time. Sends the record of each result to
    /// all workers, and returns the value of this worker and the records in the order of ranks.
    ///
    /// `act` must call its argument more often than once per timeout. The workers wait for each other in these calls.
    /// `count` is called after each of them, also while this worker only waits for others.
    ///
    /// # Errors
    /// Returns the errors of [`exchange_results`](Self::exchange_results). If one worker fails, the others get its
    /// error in their next call of the argument, and `act` must then return.
    pub(crate) fn on_all<T>(
        &self,
        operation: &'static str,
        call: impl Fn() -> Fingerprint,
        act: impl FnOnce(&mut dyn FnMut() -> Result<()>) -> Result<T>,
        record: impl FnOnce(&T) -> Bytes,
        count: &mut dyn FnMut(),
    ) -> Result<(T, Vec<Bytes>)> {
        let mut ended = None;
        let mine = act(&mut || {
            count();
            self.report(operation, &call).send().map_err(|error| {
                let text = error.to_string();
                ended = Some(error);
                Error::other(text)
            })
        });
        // All workers have this error already.
        if let Some(error) = ended {
            return Err(error);
        }
        let done = || {
            mine.map(|mine| {
                let record = record(&mine);
                (mine, record)
            })
        };
        self.until_all_done(operation, &call, done, count)
    }

    /// Exchanges the result of this worker with the others until none of them is still working. Calls `count` after
    /// each exchange.
    fn until_all_done<T>(
        &self,
        operation: &'static str,
        call: &dyn Fn() -> Fingerprint,
        mine: impl FnOnce() -> Result<(T, Bytes)>,
        count: &mut dyn FnMut(),
    ) -> Result<(T, Vec<Bytes>)> {
        let mine = mine();
        let outcome = Outcome::of(&mine, |(_, record)| record.clone());
        let me = self.world().worker();
        loop {
            let encoded = outcome.encode();
            let all = self.worker_call(operation, call, |mut calling| calling.all_gather_bytes(encoded));
            let all: Vec<_> = match all {
                Ok(Some(all)) => all.into_iter().map(Outcome::decode).collect(),
                // This worker's error is the cause, even if the others make other calls.
                failed => return mine.and_then(|(mine, _)| failed.map(|_| (mine, Vec::new()))),
            };
            count();
            let is_working = all.contains(&Outcome::Working);
            if mine.is_ok() && is_working {
                merge_outcomes(Ok(()), all, me).map_err(|error| self.with_process(error))?;
                continue;
            }
            let merged = merge_outcomes(mine.map(|(mine, _)| mine), all, me);
            return merged.map_err(|error| self.with_process(error));
        }
    }
}

/// Reports to the other workers, in a call that is already being made, whether this one has succeeded. If all workers
/// have succeeded, returns the value of `mine`, and the records of all workers in the order of ranks.
///
/// # Errors
/// - [`Error::Worker`]: one or more workers failed. All workers get the error of the failed worker with the lowest
///   rank.
/// - This worker's own error, if all workers failed with the same message.
/// - The error of the exchange itself.
pub fn exchange_in_call<T>(
    operation: &'static str,
    mut calling: GroupCall<'_>,
    mine: Result<T>,
    record: impl FnOnce(&T) -> Bytes,
) -> Result<(T, Vec<Bytes>)> {
    let outcome = Outcome::of(&mine, record);
    let worker = calling.world().worker();
    let all = calling.all_gather_bytes(outcome.encode()).map_err(failure(operation))?;
    merge_outcomes(mine, all.into_iter().map(Outcome::decode).collect(), worker)
}
