//! The thread that serves one worker: it connects, sends work, collects results, and reconnects.

use super::Shared;
use crate::dispatch::Task;
use crate::failure::{Failure, FailureKind};
use crate::link::{Connect, Disconnected, Link, NotConnected};
use crate::message::{Batch, Hello};
use distribute_log::warn_or_stderr;
use parking_lot::Mutex;
use std::time::Duration;

/// The pause before another attempt to connect to a worker that cannot be reached.
const RETRY: Duration = Duration::from_millis(200);

/// The maximum time for which the thread waits before it checks the state again.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Connects to a worker and serves it, until the coordinator stops.
pub(super) fn serve_worker(shared: &Shared, worker: usize, connect: &dyn Connect, hello: &Hello) {
    let is_wanted = || !shared.hub.lock().is_stopped;
    while is_wanted() {
        match connect.connect(hello, &is_wanted) {
            Ok(link) => {
                let lost = work(shared, worker, &*link);
                if is_wanted() {
                    warn_or_stderr(|| {
                        tracing::warn!("{} has disconnected: {}; reconnecting", connect.name(), lost.0)
                    });
                }
            }
            Err(why) => {
                let (text, refused) = match why {
                    NotConnected::Refused(failure) => (failure.to_string(), Some(failure.kind)),
                    NotConnected::Unreachable(text) => (text, None),
                };
                let mut state = shared.hub.lock();
                let seen = &mut state.workers[worker];
                (seen.disconnect_reason, seen.refused) = (Some(text), refused);
                shared.hub.publish_outcomes(&mut state);
            }
        }
        let mut state = shared.hub.lock();
        if !state.is_stopped {
            shared.hub.wait_for_work(worker, &mut state, RETRY);
        }
    }
}

/// Sends work to a worker and collects its results, until the worker disconnects or the coordinator stops.
fn work(shared: &Shared, worker: usize, link: &dyn Link) -> Disconnected {
    {
        let mut state = shared.hub.lock();
        state.worker_joined(worker);
        shared.hub.publish_outcomes(&mut state);
    }
    let sending = Mutex::new(());
    std::thread::scope(|scope| {
        // A second thread sends new closures. This thread sends work that follows from results.
        scope.spawn(|| {
            while let Some(is_work) = wait_for_work(shared, worker) {
                if is_work && send(shared, worker, link, &sending).is_err() {
                    return;
                }
            }
        });
        let lost = loop {
            match link.collect(CHECK_INTERVAL) {
                Ok(done) if done.is_empty() => {
                    if let Some(lost) = overdue(shared, worker) {
                        break lost;
                    }
                }
                Ok(done) => {
                    let mut state = shared.hub.lock();
                    if !state.dispatch.is_connected(worker) {
                        break Disconnected("its task timed out".to_owned());
                    }
                    state.record_results(worker, done);
                    shared.hub.publish_outcomes(&mut state);
                    drop(state);
                    if let Err(lost) = send(shared, worker, link, &sending) {
                        break lost;
                    }
                }
                Err(lost) => break lost,
            }
        };
        let mut state = shared.hub.lock();
        if state.dispatch.is_connected(worker) {
            state.worker_lost(worker, &lost.0);
        }
        shared.hub.publish_outcomes(&mut state);
        shared.hub.wake_all();
        lost
    })
}

/// Waits a limited time for work for a worker, and returns whether there is any. Returns `None` if the worker is
/// disconnected or the coordinator stops.
fn wait_for_work(shared: &Shared, worker: usize) -> Option<bool> {
    let mut state = shared.hub.lock();
    let is_over = |state: &super::hub::State| state.is_stopped || !state.dispatch.is_connected(worker);
    if !is_over(&state) && !state.dispatch.has_work(worker) {
        shared.hub.wait_for_work(worker, &mut state, CHECK_INTERVAL);
    }
    (!is_over(&state)).then(|| state.dispatch.has_work(worker))
}

/// Sends a worker its pending work. Only one thread sends at a time, so that messages are sent in the order of the
/// decisions.
fn send(shared: &Shared, worker: usize, link: &dyn Link, sending: &Mutex<()>) -> Result<(), Disconnected> {
    let _one = sending.lock();
    let mut state = shared.hub.lock();
    let (floor, work) = state.take(worker);
    // Closures that cannot run anywhere have ended, and closures may be requested back from other workers.
    shared.hub.publish_outcomes(&mut state);
    drop(state);
    if work.is_empty() {
        return Ok(());
    }
    link.submit(Batch { session: 0, floor, work })
}

/// Checks the time limits of a worker's current task. If one was exceeded, the task fails, and the worker is
/// disconnected. Returns the reason if the worker is disconnected or the coordinator stops, and otherwise `None`.
fn overdue(shared: &Shared, worker: usize) -> Option<Disconnected> {
    let mut state = shared.hub.lock();
    if state.is_stopped {
        return Some(Disconnected("the coordinator has ended".to_owned()));
    }
    if !state.dispatch.is_connected(worker) {
        return Some(Disconnected("its task timed out".to_owned()));
    }
    let (task, since) = state.running(worker)?;
    let is_cancelled = matches!(task, Task::Closure(_)) && state.dispatch.is_cancelling();
    if since < if is_cancelled { shared.cancel_timeout } else { shared.closure_timeout } {
        return None;
    }
    let (_, call) = state.dispatch.running(worker)?;
    let function = call.function.clone();
    let closure = task.closure();
    let text = format!(
        "it did not finish within {:.1} s, and its worker is not used until it answers again; raise \
         closure_timeout, or let the function check whether it is cancelled",
        since.as_secs_f64()
    );
    let failure = Failure::new(FailureKind::TimedOut, text).at(&function, closure, worker);
    let why = failure.to_string();
    state.worker_timed_out(worker, failure);
    shared.hub.publish_outcomes(&mut state);
    Some(Disconnected(why))
}
