//! Workers that are threads of one process.

use super::builder::MultiWorkerMirroredStrategyBuilder;
use super::{MultiWorker, MultiWorkerMirroredStrategy, cpus};
use distribute_base::internal::{lock, panicked};
use distribute_base::{Error, Result};
use distribute_cluster::{ReplicaCount, World};
use distribute_collective::group::{Group, Links, local};
use distribute_core::internal::check_count;
use distribute_core::{CommunicationOptions, Strategy};
use distribute_net::JoinError;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::thread;

const OPERATION: &str = "MultiWorkerMirroredStrategy::on_threads";

impl MultiWorkerMirroredStrategy {
    /// Starts `workers` workers with `replicas` CPU replicas each. Every worker is a thread of this process that
    /// calls `worker` with its strategy. Waits for all of them and returns their results in the order of the
    /// workers.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// let sums = MultiWorkerMirroredStrategy::on_threads(2, 3, |strategy| {
    ///     let ids = strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, ctx.replica_id_in_sync_group() as f32))?;
    ///     Ok((strategy.world().worker(), ids.values()[0]))
    /// })?;
    /// assert_eq!(sums, [(0, 15.), (1, 15.)]);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::Worker`]: a worker failed or panicked. If several workers failed, the error is from one whose failure
    ///   was not caused by another.
    /// - [`Error::InvalidArgument`]: `workers` or `replicas` is 0, or there are more than 4096 replicas.
    /// - [`Error::Io`]: the operating system cannot start a thread.
    #[track_caller]
    pub fn on_threads<R: Send>(
        workers: usize,
        replicas: usize,
        worker: impl Fn(&Strategy) -> Result<R> + Sync,
    ) -> Result<Vec<R>> {
        Self::on_threads_with(CommunicationOptions::default(), workers, replicas, worker)
    }

    /// Acts like [`on_threads`](Self::on_threads), with options for collectives, such as a timeout or the size of
    /// packs. The timeout is the maximum time that a replica waits for the replicas of all workers in one call.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use distribute::{Error, strategy::CommunicationOptions};
    /// use std::time::Duration;
    /// let options = CommunicationOptions { timeout: Some(Duration::from_secs(5)), ..Default::default() };
    /// let failed = MultiWorkerMirroredStrategy::on_threads_with(options, 3, 1, |strategy| {
    ///     match strategy.world().worker() {
    ///         2 => Err(Error::other("out of disk")),
    ///         _ => strategy.reduce(ReduceOp::Sum, 1f32, None), // not waited for: worker 2 has ended
    ///     }
    /// });
    /// assert_eq!(failed.unwrap_err().to_string(), "worker 2 failed: out of disk");
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// - The errors of [`on_threads`](Self::on_threads).
    /// - [`Error::InvalidArgument`]: the timeout is zero, or the implementation is not supported.
    #[track_caller]
    pub fn on_threads_with<R: Send>(
        options: CommunicationOptions,
        workers: usize,
        replicas: usize,
        worker: impl Fn(&Strategy) -> Result<R> + Sync,
    ) -> Result<Vec<R>> {
        Self::on_threads_over(Links::Memory, options, workers, replicas, worker)
    }

    /// Acts like [`on_threads_with`](Self::on_threads_with), over the given kind of connection, such as the sockets
    /// that workers in separate processes use. The results are bit-identical.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use distribute::strategy::{CommunicationOptions, Links};
    /// let options = CommunicationOptions::default();
    /// let ids = MultiWorkerMirroredStrategy::on_threads_over(Links::Tcp, options, 3, 1, |strategy| {
    ///     strategy.reduce(ReduceOp::Sum, strategy.world().worker() as f32, None)
    /// })?;
    /// assert_eq!(ids, [3., 3., 3.]);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    ///
    /// # Errors
    /// - The errors of [`on_threads_with`](Self::on_threads_with).
    /// - [`Error::Join`]: a socket cannot be opened.
    #[track_caller]
    pub fn on_threads_over<R: Send>(
        links: Links,
        options: CommunicationOptions,
        workers: usize,
        replicas: usize,
        worker: impl Fn(&Strategy) -> Result<R> + Sync,
    ) -> Result<Vec<R>> {
        options.check(OPERATION)?;
        let build = |group| Strategy::new(MultiWorker::new(cpus(replicas)?, Some(group), options)?);
        run_on_threads(links, (workers, ReplicaCount::PerWorker(replicas)), build, worker)
    }
}

impl MultiWorkerMirroredStrategyBuilder {
    /// Starts `workers` workers as threads of this process, like [`MultiWorkerMirroredStrategy::on_threads_over`], with
    /// the settings of this builder. Devices, and settings of the cluster and of connections, are ignored, except for
    /// connections to parameter servers with [`TableHosts::Servers`](super::TableHosts::Servers).
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use candle_core::{Device, Module, Tensor};
    /// use distribute::strategy::{Links, TableHosts, TableOptions};
    /// let tables = TableOptions { min_bytes: 0, ..TableHosts::Workers.into() };
    /// let sums = MultiWorkerMirroredStrategy::builder().tables(tables).on_threads(Links::Memory, 2, |strategy| {
    ///     let model = strategy.replicate(|vb| distribute::nn::embedding(1000, 8, vb))?;
    ///     let optimizer = Sgd::new(&model.variables, 0.1)?;
    ///     let ids = Tensor::new(&[7u32, 990, 7], &Device::Cpu)?;
    ///     strategy.run(&model, |ctx, words| optimizer.minimize(ctx, words.forward(&ids)?.sqr()?.mean_all()?, 3))?;
    ///     model.variables.sha256()
    /// })?;
    /// assert_eq!(sums[0], sums[1]);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`MultiWorkerMirroredStrategy::on_threads_over`] and of [`build`](Self::build).
    #[track_caller]
    pub fn on_threads<R: Send>(
        self,
        links: Links,
        workers: usize,
        worker: impl Fn(&Strategy) -> Result<R> + Sync,
    ) -> Result<Vec<R>> {
        let servers = self.table_servers()?;
        let build = |group| self.of_group(group, servers.clone()).build();
        run_on_threads(links, (workers, self.replica_count(self.replicas)?), build, worker)
    }
}

/// Runs workers as threads of this process. Each builds its strategy on its own thread, because building may be a call
/// of all workers.
fn run_on_threads<R: Send>(
    links: Links,
    (workers, replicas): (usize, ReplicaCount),
    build: impl Fn(Group) -> Result<Strategy> + Sync,
    worker: impl Fn(&Strategy) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    check_count(
        OPERATION,
        match replicas {
            ReplicaCount::PerWorker(replicas) => workers.saturating_mul(replicas),
            ReplicaCount::Total(replicas) => replicas,
        },
    )?;
    let groups = local::groups_of(links, workers, replicas).map_err(|error| match error {
        JoinError::World(error) => Error::invalid(OPERATION, error.to_string()),
        error => error.into(),
    })?;
    let (build, worker, ended) = (&build, &worker, &Mutex::new(Vec::new()));
    let results = thread::scope(|scope| {
        let start = |(number, group): (usize, Group)| {
            let run = move || {
                let strategy = build(group.clone()).inspect_err(|_| group.end())?;
                let result = catch_unwind(AssertUnwindSafe(|| worker(&strategy)))
                    .unwrap_or_else(|panic| Err(panicked(&*panic)));
                // The result may hold the strategy, for example in a model, so the end is signalled explicitly.
                group.end();
                lock(ended).push(strategy);
                result
            };
            thread::Builder::new().name(format!("worker {number}")).spawn_scoped(scope, run)
        };
        let threads: Vec<_> = groups.into_iter().enumerate().map(start).collect();
        let join = |thread: std::io::Result<thread::ScopedJoinHandle<'_, Result<R>>>| match thread {
            Ok(thread) => thread.join().unwrap_or_else(|panic| Err(panicked(&*panic))),
            Err(source) => Err(Error::Io {
                operation: format!("starting {workers} threads, one for each worker"),
                source,
            }),
        };
        threads.into_iter().map(join).collect::<Vec<_>>()
    });
    // A strategy whose workers share tables waits, when it is dropped, until the others have closed their connections.
    for strategy in lock(ended).iter() {
        strategy.extended().parameter_servers().into_iter().for_each(|servers| servers.disconnect());
    }
    let world = World::with_count(workers, 0, replicas);
    let cause = |worker: usize, error: &Error| match (error, error.blame()) {
        (Error::Worker { worker: culprit, .. }, None) => *culprit == worker,
        (_, None) => true,
        (_, Some(blame)) => {
            let own = world.as_ref().map_or(0..0, |world| world.replicas_of(worker));
            blame.culprits.iter().any(|replica| own.contains(replica))
        }
    };
    let failed =
        results.iter().enumerate().filter_map(|(number, result)| Some((number, result.as_ref().err()?)));
    let first =
        failed.clone().find(|(number, error)| cause(*number, error)).or_else(|| failed.clone().next());
    let first = first.map(|(number, _)| number);
    let mut values = Vec::with_capacity(workers);
    for (number, result) in results.into_iter().enumerate() {
        match result {
            Ok(value) => values.push(value),
            // An error that all workers received already names the worker.
            Err(error @ Error::Worker { .. }) if first == Some(number) => return Err(error),
            Err(source) if first == Some(number) => {
                return Err(Error::worker_failed(number, source));
            }
            Err(_) => {}
        }
    }
    Ok(values)
}
