//! Several workers, which are threads of this process. Names carry the numbers of the rules.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod checkpoint;
mod collectives;
mod cross;
mod faults;
mod input;
mod programs;
mod support;
mod training;
mod variables;

use distribute::{Error, MultiWorkerMirroredStrategy, Result, Strategy};
use distribute_testing::watched;

/// What each worker returns, under a watchdog.
fn on_workers<R: Send + 'static>(
    workers: usize,
    replicas: usize,
    worker: impl Fn(&Strategy) -> Result<R> + Send + Sync + 'static,
) -> Vec<R> {
    watched(move || {
        MultiWorkerMirroredStrategy::on_threads(workers, replicas, |strategy| worker(strategy)).unwrap()
    })
}

/// The error of each worker, all of which fail.
fn errors<T: 'static>(
    workers: usize,
    replicas: usize,
    worker: impl Fn(&Strategy) -> Result<T> + Send + Sync + 'static,
) -> Vec<Error> {
    on_workers(workers, replicas, move |strategy| Ok(worker(strategy).err().expect("an error")))
}

/// The one text that all errors have, with all of these in it.
fn one_text(errors: &[Error], parts: &[&str]) -> String {
    let text = errors[0].to_string();
    assert!(errors.iter().all(|error| error.to_string() == text), "{errors:#?}");
    assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    text
}
