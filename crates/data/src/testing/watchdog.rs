//! A limit on tests that start threads. The tests of the public interface include this file, too.

use std::sync::mpsc;
use std::time::Duration;

/// Runs a test that starts threads; fails it if it has not ended after 30 seconds.
pub(crate) fn watchdog(test: impl FnOnce() + Send + 'static) {
    let (done, wait) = mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let _done = done; // dropped at the end and by a panic alike
        test();
    });
    let ended = wait.recv_timeout(Duration::from_secs(30));
    assert_ne!(ended, Err(mpsc::RecvTimeoutError::Timeout), "the test has not ended after 30 s");
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}
