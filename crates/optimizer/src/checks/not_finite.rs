//! NaN and infinity in losses and gradients: who had them first.

use crate::Parameters;
use crate::checks::finite::{first_in, first_of};
use distribute_base::Result;
use distribute_base::internal::ReplicaGradient;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};

/// The reaction to a step in which a loss or a gradient is NaN or infinite:
/// [`on_not_finite`](crate::Optimizer::on_not_finite).
///
/// Gradients are those that each replica brings to the reduction, after
/// [`before_reduce`](crate::Optimizer::before_reduce). To look at them takes one pass over them on each replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NotFinite {
    /// The step is made, and nothing is said.
    Ignore,
    /// The step is applied. Losses are checked and warned of; gradients are not checked, which costs nothing. The
    /// losses of a single replica on a GPU are checked up to 32 steps later.
    #[default]
    WarnOfLoss,
    /// The step is made, and there is a warning, of losses and gradients.
    Warn,
    /// The step is left out, on all replicas: variables, slots and finished steps stay as they are, and there is a
    /// warning. [`skipped_steps`](crate::Optimizer::skipped_steps) counts them.
    Skip,
    /// [`Error::NotFinite`](crate::Error::NotFinite) on every replica; nothing has changed.
    Error,
}

impl NotFinite {
    pub(crate) fn looks_at_gradients(self) -> bool {
        matches!(self, NotFinite::Warn | NotFinite::Skip | NotFinite::Error)
    }
}

/// The number of steps of an optimizer that were not finite.
#[derive(Debug, Default)]
pub(crate) struct Count {
    /// One after another, up to now.
    in_a_row: AtomicU64,
    skipped: AtomicU64,
}

impl Count {
    /// Counts one; whether to tell of it: of the first in a row, the tenth, the hundredth and so on.
    pub(crate) fn one(&self) -> bool {
        let count = 1 + self.in_a_row.fetch_add(1, Ordering::Relaxed);
        10u64.pow(count.ilog10()) == count
    }

    /// After one that was finite.
    pub(crate) fn end(&self) {
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

/// The first replica with a number that is not finite, and where the number is.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) replica: usize,
    /// The first by name of those whose gradient has one.
    pub(crate) variable: Option<String>,
    pub(crate) text: String,
}

/// The report of the first of this process's replicas whose loss, summed over its examples, or gradients on the host
/// are not finite. Reads all of them, and all variables.
pub(crate) fn report(
    parameters: &Parameters,
    all: &[(f64, &[Option<ReplicaGradient>])],
    step: u64,
    number: u64,
) -> Result<Option<Report>> {
    for (replica, (loss, gradients)) in parameters.strategy.world().local_replicas().zip(all) {
        let loss = (!loss.is_finite()).then_some(loss);
        let mut found = Vec::new();
        for ((name, variable), ready) in parameters.variables.iter().zip(*gradients) {
            if let Some(ready) = ready
                && let Some((at, value)) = first_of(ready, variable)?
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
        return Ok(Some(Report {
            replica,
            variable: found.first().map(|(name, ..)| name.to_string()),
            text,
        }));
    }
    Ok(None)
}

/// Returns the origin of the number: a variable that is not finite itself, or this step.
fn origin(parameters: &Parameters) -> Result<String> {
    parameters.bring_back(&Vec::new())?;
    for (name, variable) in &parameters.variables {
        if let Some((at, value)) = first_in(variable.as_tensor())? {
            return Ok(format!(
                "variable {name} itself is {value} at element {at}: an earlier step, or whoever set it, has made it so; lower \
                 the learning rate or clip gradients, and look at the steps before"
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
    fn of_many_in_a_row_some_are_told_of() {
        let count = Count::default();
        let told: Vec<u64> = (1..=1000).filter(|_| count.one()).collect();
        assert_eq!(told, [1, 10, 100, 1000]);
        assert_eq!(count.in_a_row(), 1000);
        count.end();
        assert!(count.one() && count.in_a_row() == 1);
    }
}
