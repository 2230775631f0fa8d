//! [`Evaluator`]: a separate task that evaluates each checkpoint of a training.

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
use distribute_core::internal::Notice;
use distribute_summary::SummaryWriter;
use ledger::Ledger;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The default time to wait for a checkpoint.
const PATIENCE: Duration = Duration::from_secs(3600);
/// The interval between searches for a new checkpoint.
const LOOK: Duration = Duration::from_millis(200);

/// A watch on the folder of a training's checkpoints that evaluates each of them once.
///
/// The evaluator is a separate process, the task `evaluator` of a cluster: `distribute launch --evaluator`
/// starts one. The training does not wait for it and does not depend on it. Its results go into a file of JSON
/// lines and, with [`summaries`](Self::summaries), into event files for TensorBoard. The file also lists the
/// evaluated checkpoints: an evaluator that is started again resumes after them.
///
/// At SIGTERM, which `distribute launch` sends when the training has finished, the evaluator evaluates the
/// remaining checkpoints and exits. It also exits after the checkpoint that is marked as the last
/// ([`LAST`](super::LAST)), which [`runner::run`](super::run) marks even if it ends early. Checkpoints that
/// the training removes before their evaluation are skipped;
/// [`Trainer::keep_backups`](super::Trainer::keep_backups) sets the number of checkpoints that are kept.
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
#[derive(Clone, Debug)]
pub struct Evaluator {
    checkpoints: PathBuf,
    results: PathBuf,
    summaries: Option<PathBuf>,
    patience: Duration,
}

impl Evaluator {
    /// Creates an evaluator of the checkpoints in this folder, which writes its results into this file.
    pub fn new(checkpoints: impl AsRef<Path>, results: impl AsRef<Path>) -> Self {
        let [checkpoints, results] = [checkpoints.as_ref(), results.as_ref()].map(Path::to_path_buf);
        Self { checkpoints, results, summaries: None, patience: PATIENCE }
    }

    /// Sets a folder for an event file with the results, as scalars over the steps of the training.
    #[doc(alias = "tf.keras.callbacks.TensorBoard")]
    #[doc(alias = "TensorBoard")]
    pub fn summaries(mut self, folder: impl AsRef<Path>) -> Self {
        self.summaries = Some(folder.as_ref().to_path_buf());
        self
    }

    /// Sets the time to wait for the next checkpoint; an hour by default.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Whether this process is the evaluator of the cluster in `TF_CONFIG`.
    ///
    /// # Errors
    /// - [`Error::Cluster`]: `TF_CONFIG` is malformed.
    // CL-3
    pub fn is_this_task() -> Result<bool> {
        Ok(TfConfigClusterResolver::from_env()?.task_type() == Some(Job::Evaluator))
    }

    /// Evaluates all checkpoints in order, except those already evaluated, until the last of the training or SIGTERM.
    ///
    /// For each checkpoint, `parts` are restored from it, and `evaluate` returns metrics with their names.
    /// Returns all evaluations, including earlier ones.
    ///
    /// # Errors
    /// - [`Error::NoCheckpoint`]: there is no new checkpoint within the [patience](Self::patience). The error
    ///   names the folder.
    /// - [`Error::Io`], [`Error::InvalidArgument`]: the results cannot be read or written.
    /// - The errors of [`Checkpoint::restore_from`] and of `evaluate`. The checkpoint is evaluated at the next
    ///   start.
    pub fn run(
        &self,
        parts: &Checkpoint<'_>,
        mut evaluate: impl FnMut(&Reader) -> Result<Vec<(String, f64)>>,
    ) -> Result<Vec<Evaluated>> {
        let manager = CheckpointManager::new(&self.checkpoints)?;
        let mut ledger = Ledger::open(&self.results)?;
        let summaries = self.summaries.as_ref().map_or(Ok(SummaryWriter::noop()), SummaryWriter::create)?;
        let notice = Arc::<Notice>::default();
        let _sigterm = Sigterm::watch(notice.clone(), "this evaluator evaluates what is there, and ends")?;
        let mut seen = BTreeSet::new();
        let mut deadline = Deadline::after(self.patience);
        loop {
            // Checkpoints listed from here on include all that were saved before the notice.
            let is_told = notice.is_given();
            let paths = manager.paths()?;
            let (mut is_last, mut any) = (false, false);
            for path in paths.iter().filter(|path| !seen.contains(*path)) {
                let done = self.one(path, parts, &mut ledger, &summaries, &mut evaluate);
                // Skip a checkpoint that was removed during the evaluation.
                is_last = match done {
                    Err(_) if !path.exists() => false,
                    done => done?,
                };
                any = true;
            }
            if is_last || is_told {
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
            std::thread::park_timeout(LOOK.min(deadline.remaining()));
        }
    }

    /// Evaluates a checkpoint unless that was done before. Returns whether it is the last of the training.
    fn one(
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
