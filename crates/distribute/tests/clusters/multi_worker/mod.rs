//! Several workers, which are threads of this process. Test names contain the numbers of the rules.

mod checkpoint;
mod collectives;
mod compression;
mod cross;
mod drift;
mod faults;
mod flips;
mod heal;
mod hot_rows;
mod input;
mod local_steps;
mod logical;
mod preemption;
mod prefetch;
mod programs;
pub(crate) mod replicated;
mod settings;
mod sharded;
mod sharded_parts;
mod sharded_rules;
mod stragglers;
mod summary;
mod support;
mod table_rounding;
mod table_rules;
mod table_storage;
mod tables;
mod training;
mod variables;

use distribute::strategy::{CommunicationOptions, Links};
use distribute::{Error, MultiWorkerMirroredStrategy, Result, Strategy};
use distribute_testing::watched;

/// Returns the kind of links for a world. `DISTRIBUTE_TEST_LINKS` (`memory`, `tcp`, `tls` or `shared`) sets it for all
/// worlds. Otherwise worlds take turns.
fn links(workers: usize, replicas: usize) -> Links {
    match std::env::var("DISTRIBUTE_TEST_LINKS").as_deref() {
        Ok("memory") => Links::Memory,
        Ok("tcp") => Links::Tcp,
        Ok("tls") => Links::Tls,
        Ok("shared") => Links::Shared,
        _ => [Links::Memory, Links::Tcp, Links::Tls, Links::Shared][(workers + replicas) % 4],
    }
}

fn on_threads<R: Send>(
    workers: usize,
    replicas: usize,
    worker: impl Fn(&Strategy) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    on_threads_with(CommunicationOptions::default(), workers, replicas, worker)
}

fn on_threads_with<R: Send>(
    options: CommunicationOptions,
    workers: usize,
    replicas: usize,
    worker: impl Fn(&Strategy) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let links = links(workers, replicas);
    MultiWorkerMirroredStrategy::on_threads_over(links, options, workers, replicas, worker)
}

/// Returns the result of each worker, under a watchdog.
fn on_workers<R: Send + 'static>(
    workers: usize,
    replicas: usize,
    worker: impl Fn(&Strategy) -> Result<R> + Send + Sync + 'static,
) -> Vec<R> {
    watched(move || on_threads(workers, replicas, |strategy| worker(strategy)).unwrap())
}

/// Returns the error of each worker, all of which must fail.
fn errors<T: 'static>(
    workers: usize,
    replicas: usize,
    worker: impl Fn(&Strategy) -> Result<T> + Send + Sync + 'static,
) -> Vec<Error> {
    on_workers(workers, replicas, move |strategy| Ok(worker(strategy).err().expect("an error")))
}

/// Returns the message that all errors have, and checks that it contains `parts`.
fn one_message(errors: &[Error], parts: &[&str]) -> String {
    let text = errors[0].to_string();
    assert!(errors.iter().all(|error| error.to_string() == text), "{errors:#?}");
    assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    text
}
