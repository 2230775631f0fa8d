//! A watchdog that limits the time of a test.

use std::sync::mpsc;
use std::time::Duration;

/// Runs a test that starts threads or processes, and fails if it has not ended after one minute.
pub fn watched<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
    watched_for(Duration::from_secs(60), body)
}

/// Runs a test like [`watched`], but with a different time limit.
pub fn watched_for<T: Send + 'static>(max: Duration, body: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, wait) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let _ = done.send(body());
    });
    match wait.recv_timeout(max) {
        Ok(value) => value,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("the test has not ended after {max:?}"),
        Err(mpsc::RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!("the body ended without a result"),
        },
    }
}
