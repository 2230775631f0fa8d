//! [`Evaluator`]: a separate task that evaluates each checkpoint of a training run.

// - **INV-67** An evaluator evaluates each checkpoint once, also after a restart: the result is written,
//   atomically, before the next one is begun. Tests: `computing/runner/evaluator.rs`.

mod ledger;

pub use ledger::Evaluated;

use super::{LAST, STEP};
use crate::preemption::Sigterm;
use distribute_base::{Error, Result};
use distribute_checkpoint::CheckpointManager;
use distribute_checkpoint::{Reader, Value};
use distribute_cluster::resolver::{ClusterResolver, TfConfigClusterResolver};
use distribute_cluster::{Deadline, Job};
use distribute_core::Checkpoint;
use distribute_decisions::internal::Notice;
use distribute_summary::SummaryWriter;
use ledger::Ledger;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The default time to wait for a new checkpoint.
const PATIENCE: Duration = Duration::from_secs(3600);
/// The interval at which the folder is searched for new checkpoints.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// An evaluator, which watches the folder with a training run's checkpoints and evaluates each checkpoint once.
///
/// The evaluator is a separate process, the task `evaluator` of a cluster, which `distribute launch --evaluator`
/// starts. Training does not wait for it and does not depend on it. Results are written to a file of JSON lines and,
/// with [`summaries`](Self::summaries), to event files for TensorBoard. After a restart, the evaluator reads the file
/// of results and continues with the checkpoints that are not in it.
///
/// On SIGTERM, which `distribute launch` sends when training has finished, the evaluator evaluates the remaining
/// checkpoints and exits. It also exits after the checkpoint that is marked as the last ([`LAST`](super::LAST)).
/// [`runner::run`](super::run) marks its last checkpoint even if it ends early. Checkpoints that are deleted before
/// they are evaluated are skipped. [`Trainer::keep_backups`](super::Trainer::keep_backups) sets the number of
/// checkpoints that are kept.
///
/// ```
/// # use distribute::prelude::*;
/// use candle_core::{Device, Tensor};
/// use candle_nn::{Module, linear};
/// use distribute::Checkpoint;
/// use distribute::runner::{self, Datasets, Evaluator, Trainer};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let folder = folder.path();
/// # let build = |vb: candle_nn::VarBuilder<'static>| linear(2, 1, vb.pp("fc"));
/// # let points = Dataset::from_slices(Tensor::arange(0f32, 64., &Device::Cpu)?.sin()?.reshape((32, 2))?)?;
/// # let held_out = points.take(8);
/// # let trains = MirroredStrategy::cpus(2)?;
/// # let trained = trains.replicate(build)?;
/// # let optimizer = Sgd::new(&trained.variables, 0.1)?;
/// # let trainer = Trainer::new(8).epochs(2).backup(folder.join("run"));
/// # let datasets = Datasets::new(move |_| Ok(points.clone()));
/// # runner::run(&trainer, &trained, &optimizer, &datasets, |linear, points, _| {
/// #     Ok((linear.forward(&points)?.sqr()?.mean_all()?, points.dim(0)?))
/// # })?;
/// let strategy = MirroredStrategy::cpus(1)?; // this process alone
/// let model = strategy.replicate(build)?;
/// let batches = strategy.distribute_dataset(held_out.batch(8))?;
/// let parts = Checkpoint::new().part("model", &model.variables); // of all that is in the checkpoints
///
/// let evaluator = Evaluator::new(folder.join("run"), folder.join("evaluations.jsonl"));
/// let all = evaluator.run(&parts, |_checkpoint| {
///     let loss = runner::evaluate(&model, &batches, |linear, points| {
///         Ok((linear.forward(&points)?.sqr()?.mean_all()?, points.dim(0)?))
///     })?;
///     Ok(vec![("loss".into(), loss)])
/// })?;
/// assert!(all[1].last && all[1].metrics[0].1 < all[0].metrics[0].1);
/// # Ok::<(), distribute::Error>(())
/// ```
#[doc(alias = "tf.keras.utils.SidecarEvaluator")]
#[doc(alias = "SidecarEvaluator")]
#[must_use]
#[derive(Clone, Debug)]
pub struct Evaluator {
    checkpoints: PathBuf,
    results: PathBuf,
    summaries: Option<PathBuf>,
    patience: Duration,
}

impl Evaluator {
    /// Creates an evaluator of the checkpoints in the folder `checkpoints`. Results are written to the file
    /// `results`.
    pub fn new(checkpoints: impl AsRef<Path>, results: impl AsRef<Path>) -> Self {
        let [checkpoints, results] = [checkpoints.as_ref(), results.as_ref()].map(Path::to_path_buf);
        Self { checkpoints, results, summaries: None, patience: PATIENCE }
    }

    /// Sets the folder of an event file to which the results are also written, as scalars by training step.
    #[doc(alias = "tf.keras.callbacks.TensorBoard")]
    #[doc(alias = "TensorBoard")]
    pub fn summaries(mut self, folder: impl AsRef<Path>) -> Self {
        self.summaries = Some(folder.as_ref().to_path_buf());
        self
    }

    /// Sets the maximum time to wait for a new checkpoint; one hour by default.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Returns `true` if this process is the evaluator task of the cluster in `TF_CONFIG`.
    ///
    /// # Errors
    /// - [`Error::Cluster`]: `TF_CONFIG` is malformed.
    // CL-3
    pub fn is_this_task() -> Result<bool> {
        Ok(TfConfigClusterResolver::from_env()?.task_type() == Some(Job::Evaluator))
    }

    /// Evaluates checkpoints in order, except those already evaluated. Returns after the last one of the training
    /// run, or after SIGTERM.
    ///
    /// For each checkpoint, restores `parts` and calls `evaluate`, which returns metrics as pairs of name and value.
    /// Returns all evaluations, including those of earlier runs.
    ///
    /// # Errors
    /// - [`Error::NoCheckpoint`]: no new checkpoint appeared within the [patience](Self::patience). The error names the
    ///   folder.
    /// - [`Error::Io`]: the results file cannot be read or written, or the handler of SIGTERM cannot be installed.
    /// - [`Error::InvalidArgument`]: a line of the results file was not written by an evaluator.
    /// - The errors of [`Checkpoint::restore_from`], of `evaluate` and of writing the event file. The next run
    ///   evaluates that checkpoint again. Errors are ignored if the checkpoint has been deleted.
    /// - The errors of [`CheckpointManager::new`] and [`CheckpointManager::paths`].
    pub fn run(
        &self,
        parts: &Checkpoint<'_>,
        mut evaluate: impl FnMut(&Reader) -> Result<Vec<(String, f64)>>,
    ) -> Result<Vec<Evaluated>> {
        let manager = CheckpointManager::new(&self.checkpoints)?;
        let mut ledger = Ledger::open(&self.results)?;
        let summaries = self.summaries.as_ref().map_or(Ok(SummaryWriter::noop()), SummaryWriter::create)?;
        let notice = Arc::<Notice>::default();
        let _sigterm =
            Sigterm::watch(notice.clone(), "this evaluator evaluates the existing checkpoints, and exits")?;
        let mut seen = BTreeSet::new();
        let mut deadline = Deadline::after(self.patience);
        loop {
            // Checkpoints listed from here on include all that were saved before the notice.
            let is_notified = notice.is_received();
            let paths = manager.paths()?;
            let (mut is_last, mut any) = (false, false);
            for path in paths.iter().filter(|path| !seen.contains(*path)) {
                let done = self.evaluate_checkpoint(path, parts, &mut ledger, &summaries, &mut evaluate);
                // Skip a checkpoint that was removed during the evaluation.
                is_last = match done {
                    Err(_) if !path.exists() => false,
                    done => done?,
                };
                any = true;
            }
            if is_last || is_notified {
                summaries.close()?;
                return Ok(ledger.entries);
            }
            if any {
                deadline = Deadline::after(self.patience);
            } else if deadline.has_passed() {
                let after = paths.last().and_then(|path| Some(path.file_name()?.to_string_lossy().into()));
                return Err(Error::NoCheckpoint {
                    folder: self.checkpoints.clone(),
                    after,
                    waited: self.patience,
                });
            }
            seen = paths.into_iter().collect();
            std::thread::park_timeout(POLL_INTERVAL.min(deadline.remaining()));
        }
    }

    /// Evaluates a checkpoint and adds the result to the ledger, unless the ledger contains the checkpoint. Returns
    /// `true` if it is the last checkpoint of the training run.
    fn evaluate_checkpoint(
        &self,
        path: &Path,
        parts: &Checkpoint<'_>,
        ledger: &mut Ledger,
        summaries: &SummaryWriter,
        evaluate: &mut impl FnMut(&Reader) -> Result<Vec<(String, f64)>>,
    ) -> Result<bool> {
        let checkpoint = Reader::open(path)?;
        let last = checkpoint.metadata(LAST).and_then(Value::as_bool).unwrap_or_default();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if ledger.has(&name, checkpoint.checksum()) {
            return Ok(last);
        }
        parts.restore_from(&checkpoint)?;
        let metrics = evaluate(&checkpoint)?;
        let step = checkpoint.metadata(STEP).and_then(Value::as_u64);
        // A checkpoint without this metadata has its number as the step.
        let number = || name.rsplit('-').next().and_then(|number| number.parse().ok()).unwrap_or_default();
        let step = step.unwrap_or_else(number);
        // Written before the evaluation is recorded: a duplicate value is better than a missing one.
        metrics.iter().try_for_each(|(tag, value)| summaries.scalar(tag, *value, step))?;
        summaries.flush()?;
        let checksum = checkpoint.checksum();
        ledger.add(Evaluated { checkpoint: name, checksum, step, last, metrics })?;
        Ok(last)
    }
}
