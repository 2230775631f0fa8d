//! Checks that variables that should be equal on all workers are equal. When a step begins, the workers compare a
//! checksum of some of the elements, which is part of the header that each worker sends. If a checksum differs, the
//! workers make a second call to find the variable.
//!
//! By default, every byte is read once within 100 steps, regardless of how much a step reads. `distribute-bench
//! --filter drift` measures the cost. It is less than 0.1 % of a step that reads all variables, and about 0.35 % of a
//! step that reads a few rows of large tables. A faster checksum would not help, because most of the time is spent
//! reading memory. A checksum that is updated when rows are written would not detect writes by candle's own calls, nor
//! failing memory.
//!
//! The elements of each step, and the variables that differ, are decided in `distribute-decisions`.

// - **INV-37** Variables that have to be the same on all workers are compared between them, each within a number of
//   steps, at a time when no thread writes them. If one differs, no step begins, and all workers get one error that
//   names it. After local steps, they are compared when the workers have agreed. Tests: `decisions/src/drift/plan.rs`,
//   `clusters/multi_worker/drift.rs`, `multi_worker/local_steps/failures.rs`.

use super::variable::{Variable, WeakVariable};
use crate::strategy::{Strategy, wire};
use distribute_base::internal::lock;
use distribute_base::{Error, Result};
use distribute_cluster::{Fingerprint, Operation};
use distribute_collective::recovery::Counters;
use distribute_decisions::internal::{ComparisonPlan, Drift, VariableChecksum, find_drift};
use distribute_log::warn_or_stderr;
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;
use std::panic::Location;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// The variables of a strategy that must be equal on all workers.
#[derive(Debug, Default)]
pub(crate) struct DriftCheck {
    variables: Mutex<OrderedVariables>,
    /// Whether a warning has been logged that the workers have different variables.
    has_warned: AtomicBool,
}

#[derive(Debug, Default)]
struct OrderedVariables {
    /// The variables, sorted in the order of creation if there is a plan.
    variables: Vec<WeakVariable>,
    /// The plan; `None` if it must be made again, for example after a variable has been created.
    planned: Option<Planned>,
    /// The number of steps before the last comparison; `None` if the current workers have not compared variables yet.
    compared: Option<u64>,
}

/// The plan of the comparison, with a checksum of the properties that must be equal on all workers.
#[derive(Debug)]
struct Planned {
    plan: ComparisonPlan,
    /// A checksum of the ids, names, dtypes and shapes, and of the number of steps within which all elements are
    /// compared.
    variables: u32,
}

/// A worker's digest of the elements that are compared in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Digest {
    variables: u32,
    elements: u32,
}

impl DriftCheck {
    /// Includes `variable` in the comparison.
    pub(crate) fn add(&self, variable: &Variable) {
        let mut all = lock(&self.variables);
        // Forgets dropped variables, at an amortized cost.
        if all.variables.len() == all.variables.capacity() {
            all.variables.retain(WeakVariable::is_alive);
        }
        all.variables.push(variable.downgrade());
        all.planned = None;
    }

    /// Discards the plan and the dropped variables, because new workers have only the variables that still exist.
    fn restart(&self) {
        let mut all = lock(&self.variables);
        all.variables.retain(WeakVariable::is_alive);
        all.planned = None;
        all.compared = None;
    }

    /// Returns this worker's digest for the step after the first `steps` steps. All elements are compared within
    /// `every` steps. With `catches_up`, the digest also includes the elements of the steps since the last comparison.
    fn digest(&self, steps: u64, every: u64, catches_up: bool) -> Result<Digest> {
        let mut all = lock(&self.variables);
        let OrderedVariables { variables, planned, compared } = &mut *all;
        let numbers = match compared.filter(|_| catches_up) {
            Some(compared) => steps_to_compare(compared, steps, every),
            None => steps..=steps,
        };
        // Dropped variables are left out from the next round on, which starts in the same step on all workers.
        if numbers.clone().any(|number| number % every == 0) && !variables.iter().all(WeakVariable::is_alive)
        {
            *planned = None;
        }
        let planned = planned.get_or_insert_with(|| Planned::new(variables, every));
        let mut elements = 0;
        for (index, range) in numbers.flat_map(|number| planned.plan.part(number % every, every)) {
            if let Some(variable) = variables.get(index).and_then(WeakVariable::upgrade) {
                elements = variable.checksum(range, elements)?;
            }
        }
        Ok(Digest { variables: planned.variables, elements })
    }

    /// Records that variables have been compared after the first `steps` steps.
    fn set_compared(&self, steps: u64) {
        lock(&self.variables).compared = Some(steps);
    }

    /// Returns the checksums of all variables, in the order of creation.
    fn sums(&self) -> Result<Vec<VariableChecksum>> {
        let mut all: Vec<Variable> =
            lock(&self.variables).variables.iter().filter_map(WeakVariable::upgrade).collect();
        all.sort_by_key(Variable::id);
        let sum = |variable: &Variable| {
            let (id, name, value) = (variable.id(), variable.name().to_string(), value(variable));
            Ok(VariableChecksum { id, name, value, sum: variable.checksum(0..variable.elements(), 0)? })
        };
        all.iter().map(sum).collect()
    }
}

impl Planned {
    /// Plans the comparison of the variables that have not been dropped, in the order of creation.
    fn new(variables: &mut Vec<WeakVariable>, every: u64) -> Self {
        let mut all: Vec<Variable> = variables.iter().filter_map(WeakVariable::upgrade).collect();
        all.sort_by_key(Variable::id);
        let plan =
            ComparisonPlan::new(all.iter().map(|variable| (variable.elements(), variable.element_bytes())));
        let digest = all.iter().fold(crc32c::crc32c(&every.to_le_bytes()), |digest, variable| {
            let text = format!("{} {} {}\n", variable.id(), variable.name(), value(variable));
            crc32c::crc32c_append(digest, text.as_bytes())
        });
        *variables = all.iter().map(Variable::downgrade).collect();
        Self { plan, variables: digest }
    }
}

/// Returns the steps whose elements are compared now, after `steps` steps: those since the last comparison, which was
/// after `compared` steps. If these are more than `every` steps, returns the last `every`, because their elements are
/// all elements.
fn steps_to_compare(compared: u64, steps: u64, every: u64) -> RangeInclusive<u64> {
    let first = (compared.saturating_add(1)).max(steps.saturating_sub(every - 1));
    // After a restore, the number of steps may be smaller.
    first.min(steps)..=steps
}

/// Describes the dtype and shape of a variable.
fn value(variable: &Variable) -> String {
    format!("{}{:?}", variable.dtype(), variable.dims())
}

impl Strategy {
    /// Sets the counters to the values that all workers have agreed on. The check that variables are equal on all
    /// workers starts over.
    #[doc(hidden)]
    pub fn set_counters(&self, counters: Counters) {
        self.store_counters(counters);
        // Workers that joined later don't know that some variables have been dropped.
        self.extension::<DriftCheck>().restart();
    }

    /// Returns the digest that this worker sends at the beginning of its next step. Returns `None` if variables are not
    /// compared. No step is running at this time, so no thread writes variables.
    pub(crate) fn drift_digest(&self) -> Result<Option<Digest>> {
        match self.extended().check_drift_every() {
            0 => Ok(None),
            // Each worker has its own weights.
            _ if self.is_apart() => Ok(None),
            every => {
                let _compare = tracing::trace_span!("compare").entered();
                // Nothing was compared while each worker had its own weights.
                let catches_up = self.local_steps().is_some();
                self.extension::<DriftCheck>().digest(self.steps(), every, catches_up).map(Some)
            }
        }
    }

    /// Returns an error if the workers' variables have drifted apart. `all` contains the digests that the workers have
    /// sent. If the workers have different variables, nothing is compared, and a warning is logged once.
    ///
    /// # Errors
    /// - [`Error::Drift`]: a variable differs. The error is the same on all workers.
    /// - The errors of [`worker_call`](Self::worker_call), and of reading the variables.
    pub(crate) fn require_no_drift(
        &self,
        all: &[Option<Digest>],
        at: &'static Location<'static>,
    ) -> Result<()> {
        let variables = |digest: &Option<Digest>| digest.map(|digest| digest.variables);
        let Some(first) = all.first() else { return Ok(()) };
        if let Some(other) = all.iter().position(|digest| variables(digest) != variables(first)) {
            if !self.extension::<DriftCheck>().has_warned.swap(true, Ordering::Relaxed) {
                warn_or_stderr(|| tracing::warn!("{}", not_compared(&self.describe_worker(other))));
            }
            return Ok(());
        }
        if all.iter().all(|digest| digest == first) {
            if first.is_some() {
                self.extension::<DriftCheck>().set_compared(self.steps());
            }
            return Ok(());
        }
        // If no variable differs any more, a thread was writing during the first comparison.
        self.compare_variables(at)
    }

    /// Compares all variables that must be equal on all workers. All workers must make this call.
    ///
    /// # Errors
    /// Returns the errors of [`require_no_drift`](Self::require_no_drift).
    #[doc(hidden)]
    pub fn compare_variables(&self, at: &'static Location<'static>) -> Result<()> {
        let sums = self.abort_peers_on_err(self.extension::<DriftCheck>().sums())?;
        let call = || Fingerprint::new(Operation::Run, "checksums of all variables", at);
        let records =
            self.worker_call("run", call, |mut calling| calling.all_gather_bytes(wire::encode(&sums)))?;
        let all: Vec<Vec<VariableChecksum>> = wire::decode_all("run", &records.unwrap_or_default())
            .map_err(|error| self.with_process(error))?;
        let Some(Drift { variables, workers, text }) = find_drift(&all) else {
            self.extension::<DriftCheck>().set_compared(self.steps());
            return Ok(());
        };
        let (step, every) = (self.steps() + 1, self.extended().check_drift_every());
        let reason = format!(
            "{}{}; it drifted apart within the last {every} steps: restore a checkpoint from before step {} on all \
             workers, or restart them.{} What a worker writes between steps has to be the same on all; if it is, \
             suspect the memory or the processor of a machine. Values that should differ belong in an ON_READ variable",
            text,
            self.describe_processes(&workers),
            step.saturating_sub(every).max(1),
            cause_after_rendezvous(self.generation()),
        );
        let variable = variables.first().cloned().unwrap_or_default();
        Err(Error::Drift { step, variable, variables, workers, reason })
    }
}

/// Returns a sentence on the likely cause if the group has re-formed, otherwise an empty string.
fn cause_after_rendezvous(generation: u64) -> String {
    if generation < 2 {
        return String::new();
    }
    format!(
        " The group has re-formed after a worker failed (generation {generation}): the replacement does not receive \
         variables outside the Checkpoint passed to Training::new, and has their initial values; add them as a component."
    )
}

fn not_compared(worker: &str) -> String {
    format!(
        "variables are not compared between workers, so drift would not be noticed: {worker} has other variables than \
         worker 0, or another check_drift_every; create the same variables on all workers, in the same order"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    // INV-37
    #[test]
    fn the_elements_of_each_step_are_compared_once() {
        for every in [1, 2, 7, 100] {
            let (mut compared, mut seen) = (0, vec![0]);
            for steps in [1, 2, 3, 6, 12, 13, 20, 21] {
                seen.extend(steps_to_compare(compared, steps, every));
                compared = steps;
            }
            let mut expected: Vec<_> = (0..=21).collect();
            // If more steps were missed than there are parts, each part is compared once.
            expected.retain(|step| seen.contains(step) || every >= 7);
            assert_eq!(seen, expected, "{every}");
            assert_eq!(steps_to_compare(3, 50, every).count() as u64, every.min(47));
            assert_eq!(steps_to_compare(50, 20, every), 20..=20);
        }
    }
}
