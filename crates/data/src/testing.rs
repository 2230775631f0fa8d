//! Helpers for tests.

use crate::Dataset;
use distribute_tensor::HostTensor;
use distribute_tensor::Nest;
use std::sync::mpsc;
use std::time::Duration;

/// The elements of a dataset of numbers.
pub(crate) fn values(data: &Dataset<i64>) -> Vec<i64> {
    data.iter().map(Result::unwrap).collect()
}

/// The elements of a dataset of batches of numbers.
pub(crate) fn ids<T: Nest>(data: &Dataset<T>) -> Vec<Vec<i64>> {
    data.typed::<HostTensor>()
        .iter()
        .map(|batch| batch.unwrap().as_slice::<i64>().unwrap().to_vec())
        .collect()
}

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
