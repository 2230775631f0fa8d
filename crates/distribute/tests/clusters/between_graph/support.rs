//! Workers as threads of one cluster.

use distribute::between_graph::AsyncWorkerStrategy;
use distribute::cluster::Job;
use distribute::parameter_server::ParameterServerStrategyBuilder;
use distribute::{LocalCluster, Result};
use std::time::Duration;

pub const PATIENCE: Duration = Duration::from_secs(30);

/// Returns the settings of one worker of a cluster.
pub fn settings(cluster: &LocalCluster, worker: usize) -> ParameterServerStrategyBuilder {
    let settings = distribute::ParameterServerStrategy::builder().join_timeout(PATIENCE);
    settings.cluster_resolver(cluster.resolver_of(Job::Worker.task(worker)))
}

/// Creates one worker of a cluster, with the given number of replicas.
pub fn worker(cluster: &LocalCluster, worker: usize, replicas: usize) -> AsyncWorkerStrategy {
    let devices: Vec<_> = (0..replicas).map(|device| format!("cpu:{device}")).collect();
    let settings = settings(cluster, worker).devices(devices.iter().map(String::as_str));
    AsyncWorkerStrategy::of(settings).unwrap()
}

/// Runs the same program on all workers at once, each on a thread, and returns the results.
pub fn all<T: Send>(
    workers: usize,
    servers: usize,
    program: impl Fn(AsyncWorkerStrategy) -> Result<T> + Sync,
) -> Vec<T> {
    let cluster = LocalCluster::new(workers, servers).unwrap();
    std::thread::scope(|scope| {
        let run = |number| {
            let (cluster, program) = (&cluster, &program);
            scope.spawn(move || {
                program(worker(cluster, number, 1)).unwrap_or_else(|error| panic!("worker {number}: {error}"))
            })
        };
        let running: Vec<_> = (0..workers).map(run).collect();
        running.into_iter().map(|worker| worker.join().unwrap()).collect()
    })
}
