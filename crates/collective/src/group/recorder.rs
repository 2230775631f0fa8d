//! The latest calls of this worker in all sessions of a group, which are logged with a blame.

use crate::sync::{Mutex, lock};
use distribute_cluster::flight_recorder::{Progress, Ticket};
use distribute_cluster::{Blame, Fault, Fingerprint, FlightRecorder, RecordedCall, ReplicaStatus, Stopwatch};
use distribute_log::warn_or_stderr;
use std::fmt;
use std::time::Duration;

/// A record of the latest calls in all sessions of a group. Recording a call reads the clock twice.
#[derive(Debug)]
pub(super) struct Recorder {
    clock: Stopwatch,
    calls: Mutex<Calls>,
    /// The workers for which this worker waited most recently.
    awaited: Mutex<Vec<usize>>,
}

#[derive(Debug)]
struct Calls {
    flight: FlightRecorder,
    /// The time at which the current call, or its current part, began.
    began: Duration,
    /// The time spent in calls since the last call of [`take_waits`](Recorder::take_waits): in total, and by the worker
    /// whose message ended the wait.
    waited: Duration,
    waited_for: Vec<Duration>,
}

/// The time that this worker has spent in exchanges with other workers since the last query.
#[derive(Clone, Copy, Debug)]
pub struct Waits<'a> {
    /// The total time.
    pub total: Duration,
    /// The part of the total for which each worker is responsible, by rank: a wait counts for the worker whose message
    /// ended it.
    pub by_worker: &'a [Duration],
}

impl Calls {
    fn end(&mut self, now: Duration, ticket: Ticket, completed: bool, last: Option<usize>) {
        self.flight.end(now, ticket, completed);
        let time = now.saturating_sub(self.began);
        self.waited = self.waited.saturating_add(time);
        if let Some(last) = last {
            if self.waited_for.len() <= last {
                self.waited_for.resize(last + 1, Duration::ZERO);
            }
            self.waited_for[last] += time;
        }
    }
}

impl Recorder {
    pub(super) fn new() -> Self {
        Self {
            clock: Stopwatch::start(),
            calls: Mutex::new(Calls {
                flight: FlightRecorder::new(),
                began: Duration::ZERO,
                waited: Duration::ZERO,
                waited_for: Vec::new(),
            }),
            awaited: Mutex::default(),
        }
    }

    /// Records that the replicas with the given statuses began a call [at](Self::now) `began`, or continued the call
    /// `parent`. Returns `None` if none of them makes a call.
    pub(super) fn begin(
        &self,
        step: u64,
        statuses: &[ReplicaStatus],
        parent: Option<Ticket>,
        began: Duration,
    ) -> Option<Ticket> {
        let (status, call) = statuses.iter().find_map(|status| Some((status, status.call()?)))?;
        let mut calls = lock(&self.calls);
        calls.began = began;
        match parent {
            Some(ticket) => {
                calls.flight.continue_call(ticket, call.clone());
                Some(ticket)
            }
            None => {
                let number = status.completed.saturating_add(u64::from(!call.continues));
                Some(calls.flight.begin(began, step, number, call.clone()))
            }
        }
    }

    /// Returns the time to pass to [`begin`](Self::begin) and [`record`](Self::record).
    pub(super) fn now(&self) -> Duration {
        self.clock.elapsed()
    }

    /// Records a call that has completed, or a round of the call `parent`. `number` is the number of the call in the
    /// step, `began` the time at which it began, and `last` the worker whose message ended the wait, if this worker has
    /// waited.
    pub(super) fn record(
        &self,
        step: u64,
        number: u64,
        call: Fingerprint,
        (parent, began): (Option<Ticket>, Duration),
        last: Option<usize>,
    ) -> Ticket {
        let now = self.clock.elapsed();
        let mut calls = lock(&self.calls);
        let ticket = match parent {
            Some(ticket) => {
                calls.flight.continue_call(ticket, call);
                ticket
            }
            None => calls.flight.begin(began, step, number, call),
        };
        calls.began = began;
        calls.end(now, ticket, true, last);
        ticket
    }

    /// Records that a call, or a round of it, has ended. `last` is the worker whose message ended the wait, if this
    /// worker has waited.
    pub(super) fn end(&self, ticket: Ticket, completed: bool, last: Option<usize>) {
        let now = self.clock.elapsed();
        let mut calls = lock(&self.calls);
        calls.end(now, ticket, completed, last);
    }

    /// Calls `act` with the time spent in calls since this method was last called.
    pub(super) fn take_waits<T>(&self, act: impl FnOnce(Waits<'_>) -> T) -> T {
        let mut calls = lock(&self.calls);
        let result = act(Waits { total: calls.waited, by_worker: &calls.waited_for });
        calls.waited = Duration::ZERO;
        calls.waited_for.fill(Duration::ZERO);
        result
    }

    /// Records the workers for which this worker begins to wait.
    pub(super) fn await_all(&self, workers: impl Iterator<Item = usize>) {
        let mut awaited = lock(&self.awaited);
        awaited.clear();
        awaited.extend(workers);
    }

    /// Returns the call in progress, with the workers from which nothing has been received in it; `None` if no call is
    /// in progress.
    pub(super) fn awaited(&self) -> Option<(RecordedCall, Vec<usize>)> {
        let call = self.calls().into_iter().next().filter(|call| call.progress == Progress::Running)?;
        Some((call, lock(&self.awaited).clone()))
    }

    /// Returns the latest calls, newest first.
    pub(super) fn calls(&self) -> Vec<RecordedCall> {
        let now = self.clock.elapsed();
        lock(&self.calls).flight.calls(now)
    }

    /// Logs the latest calls of this worker, because of `blame`. Do not call this while holding a lock, because a
    /// logger may be slow.
    ///
    /// If a worker timed out or was lost, or if data arrived changed, the calls are logged as a warning, which is
    /// printed by default. For other faults, their level is INFO, because the blame already names the calls that
    /// differ.
    pub(super) fn log_last_calls(&self, worker: usize, blame: &Blame) {
        let calls = &Lines(self);
        match blame.fault {
            Fault::TimedOut | Fault::Lost | Fault::Corrupted => {
                warn_or_stderr(|| {
                    tracing::warn!("the last calls of worker {worker}, the latest first:{calls}")
                });
            }
            _ => tracing::info!("the last calls of worker {worker}, the latest first:{calls}"),
        }
    }
}

/// The latest calls as text, one per line, formatted only if a subscriber logs them.
struct Lines<'a>(&'a Recorder);

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.calls().iter().try_for_each(|call| write!(f, "\n  {call}"))
    }
}
