//! Several workers that train one model in lock step.

use super::kinds::{handle, resolve};
use super::{CommunicationOptions, DeviceName, Strategy, StrategyExtended, Threads, VariablePlacement};
use crate::checkpoint::{Checkpointed, Reader, Restore, Writer};
use crate::error::panicked;
use crate::{Error, Result};
use distribute_collective::group::{Group, memory};
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

#[derive(Debug)]
struct MultiWorker {
    devices: Vec<DeviceName>,
    group: Group,
    options: CommunicationOptions,
}

impl StrategyExtended for MultiWorker {
    fn kind(&self) -> &'static str {
        "MultiWorkerMirroredStrategy"
    }
    fn worker_devices(&self) -> &[DeviceName] {
        &self.devices
    }
    fn variable_placement(&self) -> VariablePlacement {
        VariablePlacement::Mirrored
    }
    fn group(&self) -> Option<&Group> {
        Some(&self.group)
    }
    fn communication_options(&self) -> CommunicationOptions {
        self.options
    }
    fn threads(&self) -> Option<&Threads> {
        None
    }
}

/// Synchronous training over several workers with equally many replicas: [`MirroredStrategy`](super::MirroredStrategy)
/// beyond one process. Every worker runs the same program on its part of each batch and has a copy of all variables; after
/// each step all copies are equal.
///
/// So far, workers are threads of one process ([`on_threads`](Self::on_threads)), for tests and to try out a program that is
/// meant for several machines. They exchange bytes nonetheless, as processes would. [`world`](Strategy::world) tells a
/// program which worker it is.
///
/// What takes a `&Strategy` needs no change, and trains to the bits of one process with as many replicas in all:
///
/// ```
/// # use distribute::prelude::*;
/// use candle_core::{Device, Tensor};
/// use candle_nn::{Module, linear};
///
/// fn train(strategy: &Strategy) -> distribute::Result<String> {
///     let model = strategy.replicate(|vb| linear(2, 1, vb.pp("fc")))?;
///     let optimizer = Sgd::new(&model.variables, 0.1)?;
///     let points = Tensor::arange(0f32, 32., &Device::Cpu)?.sin()?.reshape((16, 2))?;
///     for batch in &strategy.distribute_dataset(Dataset::from_slices(points)?.batch(6))? {
///         strategy.run((&model, batch?), |ctx, (linear, points)| {
///             let loss = linear.forward(&points)?.sqr()?.mean_all()?;
///             optimizer.minimize(ctx, loss, points.dim(0)?)
///         })?;
///     }
///     model.variables.sha256()
/// }
///
/// let workers = MultiWorkerMirroredStrategy::on_threads(2, 2, |strategy| train(strategy))?;
/// let one_process = MirroredStrategy::cpus(4)?;
/// let alone = train(&one_process)?;
/// assert!(workers.iter().all(|weights| *weights == alone));
/// # Ok::<(), distribute::Error>(())
/// ```
///
/// # What workers do together
///
/// Workers meet, in the same order on all, in [`run`](Strategy::run) and in what its closures do together; in
/// [`reduce`](Strategy::reduce), [`reduce_to`](Strategy::reduce_to) and [`gather`](Strategy::gather); where models and variables
/// are made, datasets distributed and their steps taken, checkpoints saved and restored. A merge function is that of one
/// worker, and what it reduces goes over all. Steps go one after another: a second `run` while one lasts is refused.
///
/// Of what only one worker may do, such as writing summaries, [`should_save_summary`](Strategy::should_save_summary) tells
/// which one; checkpoints see to it themselves. Variables that are written outside of `run` are written by each worker: by all
/// in the same way.
///
/// # Errors of workers
///
/// Where a worker makes another call, fails, ends, or is later than the timeout, all workers get one
/// [`Error::Collective`], which names its replicas by their global ids; where its data or its part of a checkpoint fails,
/// [`Error::Worker`]. The next step works, unless the worker has ended.
#[doc(alias = "tf.distribute.MultiWorkerMirroredStrategy")]
#[doc(alias = "tf.distribute.experimental.MultiWorkerMirroredStrategy")]
#[doc(alias = "CollectiveAllReduceStrategy")]
#[derive(Clone, Debug)]
pub struct MultiWorkerMirroredStrategy(Strategy);
handle!(MultiWorkerMirroredStrategy);

impl MultiWorkerMirroredStrategy {
    /// Starts `workers` workers with `replicas` CPU replicas each, each on a thread of this process, and runs `worker` on
    /// every one of them with its strategy. Returns their results, by worker.
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
    /// [`Error::Worker`] for a worker that failed or panicked; if several did, for one that did not fail because of another.
    /// [`Error::InvalidArgument`] for no worker or no replica. [`Error::Io`] if the system refuses a thread.
    #[track_caller]
    pub fn on_threads<R: Send>(
        workers: usize,
        replicas: usize,
        worker: impl Fn(&Self) -> Result<R> + Sync,
    ) -> Result<Vec<R>> {
        Self::on_threads_with(CommunicationOptions::default(), workers, replicas, worker)
    }

    /// [`on_threads`](Self::on_threads) with a timeout, or packs: how long a replica waits for those of all workers in one call.
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
    /// As [`on_threads`](Self::on_threads); and [`Error::InvalidArgument`] for a timeout of zero or an implementation that is
    /// not there.
    #[track_caller]
    pub fn on_threads_with<R: Send>(
        options: CommunicationOptions,
        workers: usize,
        replicas: usize,
        worker: impl Fn(&Self) -> Result<R> + Sync,
    ) -> Result<Vec<R>> {
        const OPERATION: &str = "MultiWorkerMirroredStrategy::on_threads";
        super::kinds::check_count(OPERATION, workers.saturating_mul(replicas))?;
        let groups = memory::groups(workers, replicas)
            .map_err(|error| Error::invalid(OPERATION, error.to_string()))?;
        let strategies: Vec<Self> =
            groups.into_iter().map(|group| Self::of_group(group, options)).collect::<Result<_>>()?;
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
                    return Err(Error::Worker { worker: number, source: Box::new(source) });
                }
                Err(_) => {}
            }
        }
        Ok(values)
    }

    /// The strategy of one worker of a group, with as many CPU replicas as the group's world says.
    #[track_caller]
    fn of_group(group: Group, options: CommunicationOptions) -> Result<Self> {
        options.check("MultiWorkerMirroredStrategy")?;
        let names: Vec<_> = (0..group.world().replicas()).map(|i| format!("cpu:{i}")).collect();
        let devices = resolve(names.iter().map(String::as_str))?;
        Strategy::new(MultiWorker { devices, group, options }).map(Self)
    }
}
