//! The decision about a step, based on all headers: whether it is applied, with which weights, and with which warnings.

use crate::Inner;
use crate::checks::not_finite::{self, NotFinite};
use crate::checks::{MissingGradients, batch_norm, pending_losses::StepLoss};
use crate::header::{GradientKind, Position, StepHeader};
use crate::progress::{Incomplete, busy_error};
use crate::rate;
use crate::step::gather::GatheredStep;
use crate::step::{StepContext, agreement};
use crate::sync::StepSync;
use candle_core::{DType, Tensor};
use distribute_base::{Error, ErrorKind, Result};
use distribute_collective::recovery::shards::Version;
use distribute_core::ReplicaContext;
use distribute_core::internal::failure;
use distribute_decisions::internal::{MissingReport, missing_gradients};
use distribute_log::warn_or_stderr;
use std::sync::atomic::Ordering;

/// The decision about a step. It is the same on all replicas.
#[derive(Clone, Copy)]
pub(crate) struct StepDecision {
    pub(crate) action: StepAction,
    /// The mean loss over all examples.
    pub(crate) loss: f64,
    pub(crate) dtype: DType,
    /// The total number of examples of all replicas.
    examples: f64,
    pub(crate) finished: u64,
    pub(crate) learning_rate: f64,
    /// The factor that undoes the loss scale.
    unscale: f64,
}

/// The action that all replicas take in a step.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum StepAction {
    Apply,
    /// The step is skipped. Variables and slots do not change.
    Skip,
}

impl StepDecision {
    /// Returns the factors by which the gradients of the replicas are multiplied.
    pub(crate) fn weights(&self, headers: &[&StepHeader]) -> Vec<f64> {
        let weight = |header: &&StepHeader| header.weight(self.examples, headers.len()) * self.unscale;
        headers.iter().map(weight).collect()
    }
}

/// The warnings of a step, and the operation in which they occurred.
pub(crate) struct StepLog {
    pub(crate) operation: &'static str,
    /// The sequence number of the current `run`.
    pub(crate) step: u64,
    /// The warnings that replica 0 logs.
    warnings: Vec<String>,
}

impl StepLog {
    pub(crate) fn new(ctx: &ReplicaContext, operation: &'static str, warning: Option<String>) -> Self {
        Self { operation, step: ctx.step(), warnings: warning.into_iter().collect() }
    }

    pub(crate) fn warn(&mut self, warning: Option<String>) {
        self.warnings.extend(warning);
    }

    /// Logs the warnings. Call this when the other replicas no longer wait, because writing a log may take a long time.
    pub(crate) fn write(self) {
        for warning in self.warnings {
            warn_or_stderr(|| tracing::warn!(step = self.step, "{}: {warning}", self.operation));
        }
    }
}

impl Inner {
    /// Decides, on replica 0 and for all replicas, whether the step is applied or skipped, and with which learning rate
    /// and loss. Adds the step's warnings to `log`, adapts the loss scale, and records the examples and the loss in the
    /// strategy's statistics.
    ///
    /// # Errors
    /// Returns the error with which the step must fail on all replicas.
    pub(crate) fn decide(
        &self,
        log: &mut StepLog,
        step: &StepContext<'_>,
        all: &[&StepHeader],
    ) -> Result<StepDecision> {
        let StepContext { sync, gathered, .. } = step;
        let operation = log.operation;
        if let Some(differences) = gathered.differences() {
            return Err(agreement::differences_error(operation, differences));
        }
        // After local steps, workers compare their settings in the outer step.
        if !self.settings_compared.load(Ordering::Relaxed) && self.local.is_none() {
            self.settings_compared.store(true, Ordering::Relaxed);
        }
        let examples = StepHeader::examples(all);
        let Some(first) = all.iter().find(|c| c.weighting.examples() != Some(0)) else {
            if self.local.is_some() && self.parameters.strategy.world().is_multi_worker() {
                // The other workers may have examples.
                return Ok(self.decide_empty());
            }
            return Err(Error::invalid(
                operation,
                "no replica has an example; a global batch needs at least one",
            ));
        };
        if all.iter().all(|c| c.kinds.iter().all(|kind| *kind == GradientKind::Missing)) {
            return Err(Error::invalid(
                operation,
                "no replica has a gradient for any of this optimizer's variables; compute the loss with the model \
                 whose variables the optimizer has, do not detach it, and avoid operations without backward, such as \
                 candle's fused softmax_last_dim, layer_norm, rms_norm and rope: distribute::nn has them",
            ));
        }
        let (finished, learning_rate) = self.number_and_rate(operation, all)?;
        self.groups.require_rates(operation, &self.parameters, learning_rate)?;
        if !self.checks.missing_done.load(Ordering::Relaxed) {
            self.check_missing_gradients(log, all)?;
            self.check_batch_norm(log, gathered, all);
        }
        let pieces = all.iter().filter_map(|c| Some((c.weighting.examples()?, c.rows?)));
        log.warnings.extend(self.checks.examples.warning(pieces));
        // Before the factor adapts: the gradients of this step have the present one.
        let unscale = self.unscale();
        let is_read = !gathered.has_pending_losses();
        let action = if all.iter().all(|c| c.finite) {
            if is_read {
                self.checks.not_finite.reset();
            }
            self.loss_scaling.record_finite();
            StepAction::Apply
        } else {
            let (step, number) = (log.step, finished + 1);
            let overflow = all.iter().all(|header| header.loss.is_finite());
            self.decide_not_finite(log, overflow, || self.report_not_finite(sync, gathered, step, number))?
        };
        let loss = all.iter().map(|c| c.loss).sum::<f64>() / examples;
        self.parameters.strategy.step_stats().record_step(examples, is_read.then_some(loss));
        Ok(StepDecision { action, loss, dtype: first.dtype, examples, finished, learning_rate, unscale })
    }

    /// Returns the decision about a local step in which this worker has no examples: the step changes nothing.
    fn decide_empty(&self) -> StepDecision {
        StepDecision {
            action: StepAction::Skip,
            loss: f64::NAN,
            dtype: DType::F32,
            examples: 0.,
            finished: self.finished_steps(),
            learning_rate: 0.,
            unscale: 1.,
        }
    }

    /// Adds the loss of an applied step, which is still on a device. If enough losses are pending, reads them and
    /// checks that they are finite.
    ///
    /// # Errors
    /// Returns candle's error if a loss cannot be read from its device. The step has been applied even then.
    pub(crate) fn record_pending_loss(&self, log: &mut StepLog, number: u64, loss: Tensor) -> Result<()> {
        let step = log.step;
        for StepLoss { step, number, loss } in
            self.checks.pending_losses.push(StepLoss { step, number, loss })?
        {
            self.parameters.strategy.step_stats().record_loss(loss);
            let count = &self.checks.not_finite;
            if loss.is_finite() || self.not_finite == NotFinite::Ignore {
                count.reset();
            } else if count.record() {
                log.warnings.push(format!(
                    "in step {step} (number {number} of this optimizer), the loss was {loss}; the step was applied, \
                     number {} in a row. \
                     Losses on a device are checked later, many at once; with on_not_finite each step is checked and \
                     waits for the device",
                    count.in_a_row()
                ));
            }
        }
        Ok(())
    }

    /// Returns the number of finished steps, and the learning rate of this step. Returns an error if one of the two or
    /// the loss scale differs between workers, or if the state of a worker is incomplete.
    fn number_and_rate(&self, operation: &'static str, all: &[&StepHeader]) -> Result<(u64, f64)> {
        let finished = self.finished_steps();
        let workers: Vec<_> = all.iter().filter_map(|header| header.position.as_ref()).collect();
        let Some(first) = workers.first() else {
            return Ok((finished, self.rate.for_step(finished, operation)?));
        };
        let incomplete: Vec<_> = (0..workers.len()).filter(|worker| workers[*worker].incomplete).collect();
        if let Some(worker) = incomplete.first() {
            let step = workers[*worker].finished + 1;
            let partition = self.parameters.partition.as_deref();
            let state = partition.map_or(Incomplete::Tables, Incomplete::with_partition);
            return Err(state.since(operation, step, &incomplete));
        }
        // INV-109
        if workers.iter().any(|worker| worker.version != first.version) {
            return Err(versions_error(operation, &workers));
        }
        if workers.iter().any(|worker| worker.finished != first.finished) {
            let steps: Vec<_> = workers.iter().map(|worker| worker.finished.to_string()).collect();
            let reason = format!(
                "the workers have made different numbers of steps with this optimizer ({}, by worker): start them all from \
                 the beginning, or restore the same checkpoint on all",
                steps.join(", ")
            );
            return Err(Error::invalid(operation, reason));
        }
        let rates: Vec<f64> = workers
            .iter()
            .map(|worker| worker.learning_rate.clone().map_err(Error::Shared))
            .collect::<Result<_>>()?;
        rate::require_same(operation, &rates)?;
        if workers.iter().any(|worker| worker.loss_scale != first.loss_scale) {
            let scales: Vec<_> =
                workers.iter().map(|worker| worker.loss_scale.unwrap_or(1.).to_string()).collect();
            let reason = format!(
                "the workers have different loss scales ({}, by worker): restore the same checkpoint on all",
                scales.join(", ")
            );
            return Err(Error::failed(ErrorKind::Disagreement, operation, reason));
        }
        // Another step ran at the same time.
        if first.finished != finished {
            return Err(busy_error(operation));
        }
        Ok((finished, rates[0]))
    }

    /// Returns a report on the first replica, over all workers, whose loss or gradients are not finite; `None` if there
    /// is none. Exchanges the reports of all workers.
    fn report_not_finite(
        &self,
        sync: &StepSync<'_>,
        gathered: &GatheredStep,
        step: u64,
        number: u64,
    ) -> Result<Option<not_finite::NotFiniteReport>> {
        let calling = sync.group_call("the report of numbers that are not finite");
        let mine = gathered.on_host(&self.parameters);
        let mine = mine.and_then(|mine| {
            let mine: Vec<_> = mine.iter().map(|of| (of.header.loss, of.gradients.as_slice())).collect();
            not_finite::report(&self.parameters, &mine, step, number)
        });
        let Some(mut calling) = calling else { return mine };
        let mine = mine.ok().flatten();
        let record = postcard::to_stdvec(&mine).unwrap_or_default();
        let records = calling.all_gather_bytes(record.into()).map_err(failure("minimize"))?;
        Ok(records.iter().find_map(|record| postcard::from_bytes(record).ok().flatten()))
    }

    /// Reports variables that have no gradient on any replica, as a warning or as an error. This is called until a
    /// step has passed.
    fn check_missing_gradients(&self, log: &mut StepLog, all: &[&StepHeader]) -> Result<()> {
        if self.missing_gradients != MissingGradients::Quiet {
            let names = self.variable_names().enumerate();
            let with: Vec<_> = names
                .map(|(index, name)| (name, all.iter().any(|c| c.kinds[index] != GradientKind::Missing)))
                .collect();
            match (missing_gradients(&with), self.missing_gradients) {
                (None, _) => {}
                (Some(MissingReport { missing, text }), MissingGradients::Error) => {
                    let operation = log.operation;
                    return Err(Error::MissingGradients { operation, variables: missing, reason: text });
                }
                (Some(report), _) => log.warnings.push(report.text),
            }
        }
        self.checks.missing_done.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Warns about batch-norm layers that are trained but normalize as in evaluation. This is only called in the first
    /// step.
    fn check_batch_norm(&self, log: &mut StepLog, gathered: &GatheredStep, all: &[&StepHeader]) {
        if gathered.mine.iter().all(|c| c.header.weighting.examples() == Some(0)) {
            return;
        }
        // All replicas wait here, so their statistics do not change. An error of a device occurs again later.
        let unchanged_norms = self.model.unchanged_norms().unwrap_or_default();
        if !unchanged_norms.is_empty() {
            let with = |index: usize| all.iter().any(|c| c.kinds[index] != GradientKind::Missing);
            let parameters = self.variable_names().enumerate().filter(|(index, _)| with(*index));
            log.warn(batch_norm::warning(unchanged_norms, &parameters.map(|(_, name)| name).collect()));
        }
    }

    /// Decides about a step in which losses or gradients are not finite. `overflow` is `true` if only gradients are not
    /// finite, which is usual with a loss scale. `report` finds the first replica with numbers that are not finite.
    fn decide_not_finite(
        &self,
        log: &mut StepLog,
        overflow: bool,
        report: impl FnOnce() -> Result<Option<not_finite::NotFiniteReport>>,
    ) -> Result<StepAction> {
        let (operation, step) = (log.operation, log.step);
        let count = &self.checks.not_finite;
        if let Some(factor) = self.loss_scaling.record_not_finite() {
            if overflow {
                tracing::debug!(
                    step,
                    "{operation}: a gradient is not finite; the step is skipped, and the loss scale is now {factor}"
                );
            } else if count.record()
                && let Some(report) = report()?
            {
                let in_a_row = count.in_a_row();
                log.warnings.push(format!(
                    "{}; the step is skipped, number {in_a_row} in a row, and the loss scale is now {factor}",
                    report.text
                ));
            }
            count.skip();
            return Ok(StepAction::Skip);
        }
        // A dynamic loss scale skips such steps, also those with the smallest factor.
        if self.not_finite == NotFinite::Ignore && !self.loss_scaling.is_dynamic() {
            return Ok(StepAction::Apply);
        }
        if self.not_finite == NotFinite::Error {
            return match report()? {
                None => Ok(StepAction::Apply),
                Some(not_finite::NotFiniteReport { replica, variable, text }) => {
                    Err(Error::NotFinite { operation, replica, step, variable, reason: text })
                }
            };
        }
        let skips = self.not_finite == NotFinite::Skip || self.loss_scaling.is_dynamic();
        if count.record()
            && let Some(report) = report()?
        {
            let what = if skips { "the step is skipped" } else { "the step is applied" };
            log.warnings.push(format!("{}; {what}, number {} in a row", report.text, count.in_a_row()));
        }
        if !skips {
            return Ok(StepAction::Apply);
        }
        count.skip();
        Ok(StepAction::Skip)
    }
}

/// Returns the error of a step in which the slots of a sharded state with copies have different versions.
fn versions_error(operation: &'static str, workers: &[&Position]) -> Error {
    let version = |worker: &&Position| match worker.version {
        Some(Version { step, generation }) => format!("step {step} of generation {generation}"),
        None => "none".to_owned(),
    };
    let versions: Vec<_> = workers.iter().map(version).collect();
    let reason = format!(
        "the workers have different versions of the sharded state of this optimizer ({}, by worker): make the optimizer a \
         component of the Training, and restart all workers from the last checkpoint",
        versions.join(", ")
    );
    Error::failed(ErrorKind::RestoreNeeded, operation, reason)
}
