//! A check for NaN and infinity in losses and gradients. It identifies the first replica that has them.

use crate::Parameters;
use crate::checks::finite::{first_in_gradient, first_in_tensor};
use distribute_base::Result;
use distribute_base::internal::ReplicaGradient;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};

/// The reaction to a step in which a loss or a gradient is NaN or infinite. Set it with
/// [`on_not_finite`](crate::Optimizer::on_not_finite).
///
/// The gradients are those that each replica contributes to the reduction, after
/// [`before_reduce`](crate::Optimizer::before_reduce). Checking them costs each replica one pass over its gradients. Of
/// consecutive steps with such numbers, only the first, the tenth, the hundredth and so on are reported in a warning.
///
/// A dynamic [`LossScale`](crate::LossScale) skips such steps with any of these settings. [`Error`](Self::Error) is
/// then returned only if the factor cannot become smaller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NotFinite {
    /// Applies the step without a warning.
    Ignore,
    /// Applies the step. Logs a warning if a loss is not finite. Gradients are not checked, so this adds no cost. With
    /// a single replica on a GPU, a loss may be checked up to 32 steps later.
    #[default]
    WarnOfLoss,
    /// Applies the step. Logs a warning if a loss or a gradient is not finite.
    Warn,
    /// Skips the step on all replicas and logs a warning. Trained variables, slots and the number of finished steps do
    /// not change. [`skipped_steps`](crate::Optimizer::skipped_steps) counts these steps.
    Skip,
    /// Returns [`Error::NotFinite`](crate::Error::NotFinite) on every replica. Trained variables and slots do not
    /// change.
    Error,
}

impl NotFinite {
    pub(crate) fn looks_at_gradients(self) -> bool {
        matches!(self, NotFinite::Warn | NotFinite::Skip | NotFinite::Error)
    }
}

/// A counter of an optimizer's steps that were not finite.
#[derive(Debug, Default)]
pub(crate) struct NotFiniteCount {
    /// The number of consecutive steps, up to the last one, that were not finite.
    in_a_row: AtomicU64,
    skipped: AtomicU64,
}

impl NotFiniteCount {
    /// Counts a step that was not finite. Returns `true` if the step should be reported: the first of consecutive ones,
    /// the tenth, the hundredth and so on.
    pub(crate) fn record(&self) -> bool {
        let count = 1 + self.in_a_row.fetch_add(1, Ordering::Relaxed);
        10u64.pow(count.ilog10()) == count
    }

    /// Resets the number of consecutive steps, after a finite step.
    pub(crate) fn reset(&self) {
        if self.in_a_row.load(Ordering::Relaxed) != 0 {
            self.in_a_row.store(0, Ordering::Relaxed);
        }
    }

    pub(crate) fn in_a_row(&self) -> u64 {
        self.in_a_row.load(Ordering::Relaxed)
    }

    pub(crate) fn skip(&self) {
        self.skipped.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn skipped(&self) -> u64 {
        self.skipped.load(Ordering::Relaxed)
    }
}

/// The first replica with a number that is not finite, and the location of that number.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct NotFiniteReport {
    pub(crate) replica: usize,
    /// The first variable, by name, whose gradient contains such a number; `None` if only the loss does.
    pub(crate) variable: Option<String>,
    pub(crate) text: String,
}

/// Returns a report on the first replica of this process whose loss or gradients on the host are not finite; `None` if
/// there is none.
///
/// For each replica, `all` contains the loss, summed over the examples, and the gradients. `step` and `number` are the
/// sequence numbers of the run and of the optimizer's step. To find the origin of the number, variables on devices are
/// copied to the host.
pub(crate) fn report(
    parameters: &Parameters,
    all: &[(f64, &[Option<ReplicaGradient>])],
    step: u64,
    number: u64,
) -> Result<Option<NotFiniteReport>> {
    for (replica, (loss, gradients)) in parameters.strategy.world().local_replicas().zip(all) {
        let loss = (!loss.is_finite()).then_some(loss);
        let mut found = Vec::new();
        for ((name, variable), ready) in parameters.variables.iter().zip(*gradients) {
            if let Some(ready) = ready
                && let Some((at, value)) = first_in_gradient(ready, variable, parameters.wire())?
            {
                found.push((name, at, value));
            }
        }
        if loss.is_none() && found.is_empty() {
            continue;
        }
        let loss = loss.map(|loss| format!("the loss is {loss}"));
        let gradients = found.first().map(|(name, at, value)| {
            format!(
                "the gradients of {} of {} variables are not finite, first by name {name}: {value} at element {at}",
                found.len(),
                parameters.variables.len()
            )
        });
        let what: Vec<String> = loss.into_iter().chain(gradients).collect();
        let text = format!(
            "on replica {replica}, in step {step} (number {number} of this optimizer), {}; {}",
            what.join(", and "),
            origin(parameters)?
        );
        return Ok(Some(NotFiniteReport {
            replica,
            variable: found.first().map(|(name, ..)| name.to_string()),
            text,
        }));
    }
    Ok(None)
}

/// Returns a description of the likely origin of a number that is not finite: a variable that is itself not finite, or
/// a computation in this step.
fn origin(parameters: &Parameters) -> Result<String> {
    parameters.sync_to_host(&Vec::new())?;
    for (name, variable) in &parameters.variables {
        if let Some((at, value)) = first_in_tensor(variable.as_tensor())? {
            return Ok(format!(
                "variable {name} itself is {value} at element {at}: an earlier step or an assignment caused this; \
                 lower the learning rate or clip gradients, and check earlier steps"
            ));
        }
    }
    Ok("all variables are finite, so it arose in this replica's forward or backward: look for a logarithm or a division of \
        0, an exponential, or NaN in the input"
        .into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_of_many_consecutive_steps_are_reported() {
        let count = NotFiniteCount::default();
        let warned: Vec<u64> = (1..=1000).filter(|_| count.record()).collect();
        assert_eq!(warned, [1, 10, 100, 1000]);
        assert_eq!(count.in_a_row(), 1000);
        count.reset();
        assert!(count.record() && count.in_a_row() == 1);
    }
}
