//! Workers that are threads of one process.

use super::{MultiWorker, MultiWorkerMirroredStrategy, cpus};
use distribute_base::internal::panicked;
use distribute_base::{Error, Result};
use distribute_collective::group::{Group, Links, local};
use distribute_core::CommunicationOptions;
use distribute_core::internal::check_count;
use distribute_net::JoinError;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

impl MultiWorkerMirroredStrategy {
    /// Starts `workers` workers with `replicas` CPU replicas each, each on a thread of this process, and runs `worker`
    /// on every one of them with its strategy. Returns their results, by worker.
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
    /// - [`Error::Worker`]: a worker failed or panicked; if several did, one that did not fail because of another.
    /// - [`Error::InvalidArgument`]: there is no worker or no replica.
    /// - [`Error::Io`]: the system refuses a thread.
    #[track_caller]
    pub fn on_threads<R: Send>(
        workers: usize,
        replicas: usize,
        worker: impl Fn(&Self) -> Result<R> + Sync,
    ) -> Result<Vec<R>> {
        Self::on_threads_with(CommunicationOptions::default(), workers, replicas, worker)
    }

    /// [`on_threads`](Self::on_threads) with a timeout, or packs: how long a replica waits for those of all workers in
    /// one call.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use distribute::{CommunicationOptions, Error};
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
    /// - [`Error::InvalidArgument`]: the timeout is zero, or there is no such implementation.
    #[track_caller]
    pub fn on_threads_with<R: Send>(
        options: CommunicationOptions,
        workers: usize,
        replicas: usize,
        worker: impl Fn(&Self) -> Result<R> + Sync,
    ) -> Result<Vec<R>> {
        Self::on_threads_over(Links::Memory, options, workers, replicas, worker)
    }

    /// Runs [`on_threads_with`](Self::on_threads_with) over other links, such as the sockets that link workers in
    /// processes of their own. The results are the same, to the bit.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use distribute::{CommunicationOptions, strategy::Links};
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
    /// - [`Error::Join`]: the system refuses sockets.
    #[track_caller]
    pub fn on_threads_over<R: Send>(
        links: Links,
        options: CommunicationOptions,
        workers: usize,
        replicas: usize,
        worker: impl Fn(&Self) -> Result<R> + Sync,
    ) -> Result<Vec<R>> {
        const OPERATION: &str = "MultiWorkerMirroredStrategy::on_threads";
        check_count(OPERATION, workers.saturating_mul(replicas))?;
        let groups = local::groups(links, workers, replicas).map_err(|error| match error {
            JoinError::World(error) => Error::invalid(OPERATION, error.to_string()),
            error => error.into(),
        })?;
        let strategies: Vec<Self> = groups
            .into_iter()
            .map(|group| Self::of(MultiWorker::new(cpus(replicas)?, Some(group), options)?))
            .collect::<Result<_>>()?;
        let worker = &worker;
        let results = thread::scope(|scope| {
            let start = |(number, strategy): (usize, Self)| {
                let run = move || {
                    let result = catch_unwind(AssertUnwindSafe(|| worker(&strategy)))
                        .unwrap_or_else(|panic| Err(panicked(&*panic)));
                    // The result may hold the strategy, in a model say: its end is told all the same.
                    strategy.extended().group().into_iter().for_each(Group::end);
                    result
                };
                thread::Builder::new().name(format!("worker {number}")).spawn_scoped(scope, run)
            };
            let threads: Vec<_> = strategies.into_iter().enumerate().map(start).collect();
            let join = |thread: std::io::Result<thread::ScopedJoinHandle<'_, Result<R>>>| match thread {
                Ok(thread) => thread.join().unwrap_or_else(|panic| Err(panicked(&*panic))),
                Err(source) => Err(Error::Io {
                    operation: format!("starting {workers} threads, one for each worker"),
                    source,
                }),
            };
            threads.into_iter().map(join).collect::<Vec<_>>()
        });
        let cause = |worker: usize, error: &Error| match (error, error.blame()) {
            (Error::Worker { worker: culprit, .. }, None) => *culprit == worker,
            (_, None) => true,
            (_, Some(blame)) => blame.culprits.iter().any(|replica| replica / replicas == worker),
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
                // An error that all have been told already names the worker.
                Err(error @ Error::Worker { .. }) if first == Some(number) => return Err(error),
                Err(source) if first == Some(number) => {
                    return Err(Error::worker_failed(number, source));
                }
                Err(_) => {}
            }
        }
        Ok(values)
    }
}
