//! The watchdog of the tests.

use std::sync::mpsc;
use std::time::Duration;

/// Fails a test that hangs.
pub fn watched<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, wait) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let _ = done.send(body());
    });
    match wait.recv_timeout(Duration::from_secs(60)) {
        Ok(value) => value,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("the test hangs"),
        Err(mpsc::RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!("the body ended without a result"),
        },
    }
}
