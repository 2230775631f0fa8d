//! The latest report of a job, and the thread that requests reports.

use crate::history::History;
use crate::{FORMAT, Report};
use distribute_cluster::Stopwatch;
use parking_lot::{Condvar, Mutex};
use std::path::Path;
use std::time::Duration;

/// The interval between two reports.
const INTERVAL: Duration = Duration::from_millis(500);

/// A source of reports about a job.
///
/// A thread of the monitor requests a report twice a second. While the source is busy, clients receive the previous
/// report with its age.
pub trait Source: Send + 'static {
    /// Returns the current report. The monitor adds the values that depend on earlier reports: rates, history and
    /// times.
    fn report(&mut self) -> Report;
}

/// The latest report, shared between threads.
pub(crate) struct Board {
    state: Mutex<State>,
    changed: Condvar,
    clock: Stopwatch,
}

struct State {
    latest: Report,
    /// The time at which the report was requested, since the start of the monitor.
    made: Duration,
    is_over: bool,
}

impl Board {
    pub(crate) fn new() -> Self {
        let latest =
            Report { format: FORMAT, program: program(), process: std::process::id(), ..Report::default() };
        let state = State { latest, made: Duration::ZERO, is_over: false };
        Self { state: Mutex::new(state), changed: Condvar::new(), clock: Stopwatch::start() }
    }

    /// Returns the latest report, with its current age.
    pub(crate) fn report(&self) -> Report {
        let now = self.clock.elapsed();
        let state = self.state.lock();
        Report { age: now.saturating_sub(state.made).as_secs_f64(), ..state.latest.clone() }
    }

    /// Requests reports from the source until the monitor shuts down.
    pub(crate) fn follow(&self, mut source: impl Source) {
        let mut history = History::new();
        loop {
            let now = self.clock.elapsed();
            let mut report = source.report();
            (report.format, report.program, report.process) = (FORMAT, program(), std::process::id());
            (report.seconds, report.age) = (now.as_secs_f64(), 0.);
            history.add(&mut report);
            let mut state = self.state.lock();
            (state.latest, state.made) = (report, now);
            if state.is_over {
                return;
            }
            self.changed.wait_while_for(&mut state, |state| !state.is_over, INTERVAL);
            if state.is_over {
                return;
            }
        }
    }

    pub(crate) fn end(&self) {
        self.state.lock().is_over = true;
        self.changed.notify_all();
    }

    pub(crate) fn is_over(&self) -> bool {
        self.state.lock().is_over
    }
}

/// Returns the file name of this program.
fn program() -> String {
    let path = std::env::args_os().next().unwrap_or_default();
    Path::new(&path).file_name().unwrap_or_default().to_string_lossy().into_owned()
}
