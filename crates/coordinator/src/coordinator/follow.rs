//! The thread that serves one worker: it connects, sends work, collects results, and reconnects.

use super::Shared;
use crate::dispatch::Task;
use crate::failure::{Failure, FailureKind};
use crate::link::{Connect, Link, Lost, NotConnected};
use crate::message::{Batch, Hello};
use distribute_log::heard;
use parking_lot::Mutex;
use std::time::Duration;

/// The delay before a worker that cannot be reached is tried again.
const RETRY: Duration = Duration::from_millis(200);

/// The maximum time that a thread waits before it checks the state again.
const LOOK: Duration = Duration::from_millis(200);

/// Serves a worker until the coordinator stops.
pub(super) fn follow(shared: &Shared, worker: usize, connect: &dyn Connect, hello: &Hello) {
    let is_wanted = || !shared.hub.lock().is_stopped;
    while is_wanted() {
        match connect.connect(hello, &is_wanted) {
            Ok(link) => {
                let lost = work(shared, worker, &*link);
                if is_wanted() {
                    heard(|| {
                        tracing::warn!(
                            "{} works no more: {}; it is connected to again",
                            connect.name(),
                            lost.0
                        )
                    });
                }
            }
            Err(why) => {
                let (text, is_refused) = match why {
                    NotConnected::Refused(failure) => (failure.to_string(), true),
                    NotConnected::Away(text) => (text, false),
                };
                let mut state = shared.hub.lock();
                let seen = &mut state.workers[worker];
                (seen.away, seen.is_refused) = (Some(text), is_refused);
                shared.hub.settle_up(&mut state);
            }
        }
        let mut state = shared.hub.lock();
        if !state.is_stopped {
            shared.hub.wait_for_work(worker, &mut state, RETRY);
        }
    }
}

/// Sends work to a worker and collects its results, until the worker disconnects.
fn work(shared: &Shared, worker: usize, link: &dyn Link) -> Lost {
    {
        let mut state = shared.hub.lock();
        state.joined(worker);
        shared.hub.settle_up(&mut state);
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
            match link.collect(LOOK) {
                Ok(done) if done.is_empty() => {
                    if let Some(lost) = overdue(shared, worker) {
                        break lost;
                    }
                }
                Ok(done) => {
                    let mut state = shared.hub.lock();
                    if !state.dispatch.is_there(worker) {
                        break Lost("it was given up".to_owned());
                    }
                    state.done(worker, done);
                    shared.hub.settle_up(&mut state);
                    drop(state);
                    if let Err(lost) = send(shared, worker, link, &sending) {
                        break lost;
                    }
                }
                Err(lost) => break lost,
            }
        };
        let mut state = shared.hub.lock();
        if state.dispatch.is_there(worker) {
            state.lost(worker, &lost.0);
        }
        shared.hub.settle_up(&mut state);
        shared.hub.wake_all();
        lost
    })
}

/// Waits for a while until there is work for a worker, and returns whether there is. Returns `None` if the
/// worker is disconnected.
fn wait_for_work(shared: &Shared, worker: usize) -> Option<bool> {
    let mut state = shared.hub.lock();
    let is_over = |state: &super::hub::State| state.is_stopped || !state.dispatch.is_there(worker);
    if !is_over(&state) && !state.dispatch.has_work(worker) {
        shared.hub.wait_for_work(worker, &mut state, LOOK);
    }
    (!is_over(&state)).then(|| state.dispatch.has_work(worker))
}

/// Sends a worker its current work. One thread sends at a time, so that messages are in the order of the
/// decisions.
fn send(shared: &Shared, worker: usize, link: &dyn Link, sending: &Mutex<()>) -> Result<(), Lost> {
    let _one = sending.lock();
    let mut state = shared.hub.lock();
    let (floor, work) = state.take(worker);
    // Closures that cannot run anywhere have ended, and closures may be requested back from other workers.
    shared.hub.settle_up(&mut state);
    drop(state);
    if work.is_empty() {
        return Ok(());
    }
    link.submit(Batch { session: 0, floor, work })
}

/// Returns an error if the coordinator stops, or if the worker has exceeded a time limit and is disconnected.
fn overdue(shared: &Shared, worker: usize) -> Option<Lost> {
    let mut state = shared.hub.lock();
    if state.is_stopped {
        return Some(Lost("the coordinator has ended".to_owned()));
    }
    if !state.dispatch.is_there(worker) {
        return Some(Lost("it was given up".to_owned()));
    }
    let (task, since) = state.running(worker)?;
    let is_cancelled = matches!(task, Task::Closure(_)) && state.dispatch.is_settling();
    if since < if is_cancelled { shared.cancel_timeout } else { shared.closure_timeout } {
        return None;
    }
    let (_, call) = state.dispatch.running(worker)?;
    let function = call.function.clone();
    let closure = task.closure();
    let text = format!(
        "it has not ended in {:.1} s, and its worker is given up until it answers anew; give it more time (closure_timeout), or have it \
         look whether it is cancelled",
        since.as_secs_f64()
    );
    let failure = Failure::new(FailureKind::Late, text).at(&function, closure, worker);
    let why = failure.to_string();
    state.late(worker, failure);
    shared.hub.settle_up(&mut state);
    Some(Lost(why))
}
