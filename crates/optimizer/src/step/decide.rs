//! The decision about a step, once all headers are known: whether it is made, by what numbers, and what is warned of.

use crate::Inner;
use crate::checks::missing::{self, MissingGradients};
use crate::checks::not_finite::{self, NotFinite};
use crate::checks::{batch_norm, unread::Loss};
use crate::header::{GradientKind, StepHeader};
use crate::progress::busy;
use crate::step::gather::GatheredStep;
use crate::step::{Step, agreement};
use crate::sync::StepSync;
use crate::update::sharded;
use candle_core::{DType, Tensor};
use distribute_base::{Error, Result};
use distribute_core::ReplicaContext;
use distribute_core::internal::failure;
use distribute_log::heard;
use std::sync::atomic::Ordering;

/// The decision about a step.
#[derive(Clone, Copy)]
pub(crate) struct StepDecision {
    pub(crate) verdict: Verdict,
    /// The mean over all examples.
    pub(crate) loss: f64,
    pub(crate) dtype: DType,
    /// The number of examples of all replicas.
    examples: f64,
    pub(crate) finished: u64,
    pub(crate) learning_rate: f64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Apply,
    /// The step changes nothing.
    Skip,
}

impl StepDecision {
    /// Returns the factor of the gradients of each replica.
    pub(crate) fn weights(&self, headers: &[&StepHeader]) -> Vec<f64> {
        headers.iter().map(|header| header.weight(self.examples, headers.len())).collect()
    }
}

/// A replica's call that makes a step.
pub(crate) struct StepLog {
    pub(crate) operation: &'static str,
    /// The number of the `run`.
    pub(crate) step: u64,
    /// Warnings that replica 0 logs.
    warnings: Vec<String>,
}

impl StepLog {
    pub(crate) fn new(ctx: &ReplicaContext, operation: &'static str, warning: Option<String>) -> Self {
        Self { operation, step: ctx.step(), warnings: warning.into_iter().collect() }
    }

    /// Adds what is to be said.
    pub(crate) fn warn(&mut self, warning: Option<String>) {
        self.warnings.extend(warning);
    }

    /// Says it, once the others don't wait for this replica any more: who writes a log may take long.
    pub(crate) fn tell(self) {
        for warning in self.warnings {
            heard(|| tracing::warn!(step = self.step, "{}: {warning}", self.operation));
        }
    }
}

impl Inner {
    /// Decides for all, on replica 0.
    ///
    /// # Errors
    /// The errors for which no replica makes the step.
    pub(crate) fn decide(
        &self,
        log: &mut StepLog,
        step: &Step<'_>,
        all: &[&StepHeader],
    ) -> Result<StepDecision> {
        let Step { sync, gathered, .. } = step;
        let operation = log.operation;
        if let Some(differences) = gathered.differences() {
            return Err(agreement::refused(operation, differences));
        }
        if !self.agreed.load(Ordering::Relaxed) {
            self.agreed.store(true, Ordering::Relaxed);
        }
        let examples = StepHeader::examples(all);
        let Some(first) = all.iter().find(|c| c.weighting.examples() != Some(0)) else {
            return Err(Error::invalid(
                operation,
                "no replica has an example; a global batch has at least one",
            ));
        };
        if all.iter().all(|c| c.kinds.iter().all(|kind| *kind == GradientKind::Nothing)) {
            return Err(Error::invalid(
                operation,
                "no replica has a gradient for any of this optimizer's variables; compute the loss with the model whose \
                 variables were given to the optimizer, do not detach it, and leave out what has no backward, such as \
                 candle's fused softmax_last_dim, layer_norm, rms_norm and rope: distribute::nn has them",
            ));
        }
        let (finished, learning_rate) = self.rate_of(operation, all)?;
        self.groups.require_rates(operation, &self.parameters, learning_rate)?;
        if !self.seen.gradients.load(Ordering::Relaxed) {
            self.look_for_gradients(log, all)?;
            self.look_at_batch_norm(log, gathered, all);
        }
        let pieces = all.iter().filter_map(|c| Some((c.weighting.examples()?, c.rows?)));
        log.warnings.extend(self.seen.examples.warning(pieces));
        let is_read = !gathered.is_unread();
        let verdict = if all.iter().all(|c| c.finite) {
            if is_read {
                self.seen.not_finite.end();
            }
            Verdict::Apply
        } else {
            let (step, number) = (log.step, finished + 1);
            self.decide_not_finite(log, || self.report_not_finite(sync, gathered, step, number))?
        };
        let loss = all.iter().map(|c| c.loss).sum::<f64>() / examples;
        self.parameters.strategy.pulse().beat(examples, is_read.then_some(loss));
        Ok(StepDecision { verdict, loss, dtype: first.dtype, examples, finished, learning_rate })
    }

    /// Records the loss of an applied step that was not read. Some losses are read now, and checked like the others.
    ///
    /// # Errors
    /// candle's, of the device: the step was made.
    pub(crate) fn record_pending_loss(&self, log: &mut StepLog, number: u64, loss: Tensor) -> Result<()> {
        let step = log.step;
        for Loss { step, number, loss } in self.seen.unread.push(Loss { step, number, loss })? {
            self.parameters.strategy.pulse().had(loss);
            let count = &self.seen.not_finite;
            if loss.is_finite() || self.not_finite == NotFinite::Ignore {
                count.end();
            } else if count.one() {
                log.warnings.push(format!(
                    "in step {step} (number {number} of this optimizer), the loss was {loss}; the step was made, number {} in a row. \
                     Losses on a device are looked at later, many at once: with on_not_finite each step is, and waits for the device",
                    count.in_a_row()
                ));
            }
        }
        Ok(())
    }

    /// Returns the number of steps before this one, and its learning rate.
    fn rate_of(&self, operation: &'static str, all: &[&StepHeader]) -> Result<(u64, f64)> {
        let finished = self.finished_steps();
        let workers: Vec<_> = all.iter().filter_map(|header| header.position.as_ref()).collect();
        let Some(first) = workers.first() else {
            return Ok((finished, self.rate.of_step(finished, operation)?));
        };
        let incomplete: Vec<_> = (0..workers.len()).filter(|worker| workers[*worker].incomplete).collect();
        if let Some(worker) = incomplete.first() {
            return Err(sharded::incomplete(operation, workers[*worker].finished + 1, &incomplete));
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
        if rates.iter().any(|rate| rate.to_bits() != rates[0].to_bits()) {
            let rates: Vec<_> = rates.iter().map(ToString::to_string).collect();
            let reason = format!(
                "the workers have different learning rates ({}, by worker): set the same on all, or give all of them the same \
                 schedule",
                rates.join(", ")
            );
            return Err(Error::invalid(operation, reason));
        }
        // Beside this one another was made.
        if first.finished != finished {
            return Err(busy(operation));
        }
        Ok((finished, rates[0]))
    }

    /// The report of the first replica of all workers whose loss or gradients are not finite.
    fn report_not_finite(
        &self,
        sync: &StepSync<'_>,
        gathered: &GatheredStep,
        step: u64,
        number: u64,
    ) -> Result<Option<not_finite::Report>> {
        let calling = sync.calling("the report of numbers that are not finite");
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

    /// Reports, in the first step, variables that have no gradient on any replica.
    fn look_for_gradients(&self, log: &mut StepLog, all: &[&StepHeader]) -> Result<()> {
        if self.missing_gradients != MissingGradients::Quiet {
            let names = self.variable_names().enumerate();
            let with: Vec<_> = names
                .map(|(index, name)| (name, all.iter().any(|c| c.kinds[index] != GradientKind::Nothing)))
                .collect();
            match (missing::report(&with), self.missing_gradients) {
                (None, _) => {}
                (Some(missing::Report { missing, text }), MissingGradients::Error) => {
                    let operation = log.operation;
                    return Err(Error::MissingGradients { operation, variables: missing, reason: text });
                }
                (Some(report), _) => log.warnings.push(report.text),
            }
        }
        self.seen.gradients.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Reports, in the first step, batch-norm layers that are trained but normalise as in evaluation.
    fn look_at_batch_norm(&self, log: &mut StepLog, gathered: &GatheredStep, all: &[&StepHeader]) {
        if gathered.mine.iter().all(|c| c.header.weighting.examples() == Some(0)) {
            return;
        }
        // All replicas wait here, so their statistics stay as they are. An error of a device comes again where it
        // matters.
        let evaluated = self.model.evaluated().unwrap_or_default();
        if !evaluated.is_empty() {
            let with = |index: usize| all.iter().any(|c| c.kinds[index] != GradientKind::Nothing);
            let parameters = self.variable_names().enumerate().filter(|(index, _)| with(*index));
            log.warn(batch_norm::warning(evaluated, &parameters.map(|(_, name)| name).collect()));
        }
    }

    /// Decides about a step that is not finite.
    fn decide_not_finite(
        &self,
        log: &mut StepLog,
        report: impl FnOnce() -> Result<Option<not_finite::Report>>,
    ) -> Result<Verdict> {
        let (operation, step) = (log.operation, log.step);
        if self.not_finite == NotFinite::Ignore {
            return Ok(Verdict::Apply);
        }
        if self.not_finite == NotFinite::Error {
            return match report()? {
                None => Ok(Verdict::Apply),
                Some(not_finite::Report { replica, variable, text }) => {
                    Err(Error::NotFinite { operation, replica, step, variable, reason: text })
                }
            };
        }
        let (count, skips) = (&self.seen.not_finite, self.not_finite == NotFinite::Skip);
        if count.one()
            && let Some(report) = report()?
        {
            let what = if skips { "the step is left out" } else { "the step is made" };
            log.warnings.push(format!("{}; {what}, number {} in a row", report.text, count.in_a_row()));
        }
        if !skips {
            return Ok(Verdict::Apply);
        }
        count.skip();
        Ok(Verdict::Skip)
    }
}
