//! The last calls of this worker: records each call of its sessions, and reports them with a blame.

use crate::sync::{Mutex, lock};
use distribute_cluster::flight_recorder::{Progress, Ticket};
use distribute_cluster::{Blame, Fault, FlightRecorder, RecordedCall, Standing, Stopwatch};
use distribute_log::heard;
use std::fmt;

/// The calls of all sessions of a group. It reads the clock twice for each.
#[derive(Debug)]
pub(super) struct Recorder {
    clock: Stopwatch,
    calls: Mutex<FlightRecorder>,
    /// The workers that were awaited when this one last waited.
    awaited: Mutex<Vec<usize>>,
}

impl Recorder {
    pub(super) fn new() -> Self {
        Self {
            clock: Stopwatch::start(),
            calls: Mutex::new(FlightRecorder::new()),
            awaited: Mutex::default(),
        }
    }

    /// Records that replicas with these standings begin a call, or go on with the one `of`. `None` if none of them
    /// makes one.
    pub(super) fn begin(&self, step: u64, standings: &[Standing], of: Option<Ticket>) -> Option<Ticket> {
        let (standing, call) = standings.iter().find_map(|standing| Some((standing, standing.call()?)))?;
        let now = self.clock.elapsed();
        let mut calls = lock(&self.calls);
        match of {
            Some(ticket) => {
                calls.go_on(ticket, call.clone());
                Some(ticket)
            }
            None => {
                let number = standing.completed.saturating_add(u64::from(!call.continues));
                Some(calls.begin(now, step, number, call.clone()))
            }
        }
    }

    /// Records that a call, or a part of it, is over.
    pub(super) fn end(&self, ticket: Ticket, completed: bool) {
        let now = self.clock.elapsed();
        lock(&self.calls).end(now, ticket, completed);
    }

    /// Records for whom this worker waits from now on. It allocates nothing, but for the first time.
    pub(super) fn await_all(&self, workers: impl Iterator<Item = usize>) {
        let mut awaited = lock(&self.awaited);
        awaited.clear();
        awaited.extend(workers);
    }

    /// The call that is under way, and the workers of which nothing has been heard in it.
    pub(super) fn awaited(&self) -> Option<(RecordedCall, Vec<usize>)> {
        let call = self.calls().into_iter().next().filter(|call| call.progress == Progress::Running)?;
        Some((call, lock(&self.awaited).clone()))
    }

    /// The last calls, the latest first.
    pub(super) fn calls(&self) -> Vec<RecordedCall> {
        let now = self.clock.elapsed();
        lock(&self.calls).calls(now)
    }

    /// Tells what this worker did before `blame`. To be called without a lock that others need: a logger may be slow.
    ///
    /// Where a worker was late or lost, the user reads it in any program. Other faults say by themselves which calls
    /// differ.
    pub(super) fn tell(&self, worker: usize, blame: &Blame) {
        let calls = &Lines(self);
        match blame.fault {
            Fault::Late | Fault::Lost => {
                heard(|| tracing::warn!("the last calls of worker {worker}, the latest first:{calls}"));
            }
            _ => tracing::info!("the last calls of worker {worker}, the latest first:{calls}"),
        }
    }
}

/// The last calls, one per line, formatted only if there is a subscriber.
struct Lines<'a>(&'a Recorder);

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.calls().iter().try_for_each(|call| write!(f, "\n  {call}"))
    }
}
