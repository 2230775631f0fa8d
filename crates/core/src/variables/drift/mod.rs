//! Checks that variables which should be the same on all workers are. In each step some of their elements are
//! compared, by a checksum in the header of the step. Only if one differs, a second call of the workers finds
//! the variable.

mod judge;
mod plan;

use self::judge::{Sum, judge};
use self::plan::Plan;
use super::variable::{Variable, WeakVariable};
use crate::strategy::{Strategy, record};
use distribute_base::internal::lock;
use distribute_base::{Error, Result};
use distribute_cluster::{Fingerprint, Operation};
use distribute_log::heard;
use serde::{Deserialize, Serialize};
use std::panic::Location;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// The variables of a strategy that have to be the same on all workers.
#[derive(Debug, Default)]
pub(crate) struct Mirrored {
    variables: Mutex<InOrder>,
    /// Whether it has warned that workers have different variables.
    told: AtomicBool,
}

#[derive(Debug, Default)]
struct InOrder {
    /// The variables in the order of creation, if there is a plan.
    variables: Vec<WeakVariable>,
    /// The plan; `None` after a variable was created.
    planned: Option<Planned>,
}

/// The plan of the comparison, and a checksum of the properties that have to be the same on all workers.
#[derive(Debug)]
struct Planned {
    plan: Plan,
    /// The checksum of names, dtypes, shapes and the number of steps in which all elements are compared.
    variables: u32,
}

/// A worker's digest of the elements that are compared in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Digest {
    variables: u32,
    elements: u32,
}

impl Mirrored {
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

    /// Starts again with the variables that have not been dropped, because new workers don't know of the
    /// others.
    pub(crate) fn renew(&self) {
        let mut all = lock(&self.variables);
        all.variables.retain(WeakVariable::is_alive);
        all.planned = None;
    }

    /// Returns this worker's digest for the step after `steps` others, if all elements are compared in `every`
    /// steps.
    fn digest(&self, steps: u64, every: u64) -> Result<Digest> {
        let mut all = lock(&self.variables);
        let InOrder { variables, planned } = &mut *all;
        let number = steps % every;
        // Dropped variables are left out from the next round on, which starts in the same step on all workers.
        if number == 0 && !variables.iter().all(WeakVariable::is_alive) {
            *planned = None;
        }
        let planned = planned.get_or_insert_with(|| Planned::new(variables, every));
        let mut elements = 0;
        for (index, range) in planned.plan.part(number, every) {
            if let Some(variable) = variables.get(index).and_then(WeakVariable::upgrade) {
                elements = variable.checksum(range, elements)?;
            }
        }
        Ok(Digest { variables: planned.variables, elements })
    }

    /// Returns the checksums of all variables, in the order of creation.
    fn sums(&self) -> Result<Vec<Sum>> {
        let mut all: Vec<Variable> =
            lock(&self.variables).variables.iter().filter_map(WeakVariable::upgrade).collect();
        all.sort_by_key(Variable::id);
        let sum = |variable: &Variable| {
            let (id, name, value) = (variable.id(), variable.name().to_string(), value(variable));
            Ok(Sum { id, name, value, sum: variable.checksum(0..variable.elements(), 0)? })
        };
        all.iter().map(sum).collect()
    }
}

impl Planned {
    /// Plans the comparison of the variables that have not been dropped, in the order of creation.
    fn new(variables: &mut Vec<WeakVariable>, every: u64) -> Self {
        let mut all: Vec<Variable> = variables.iter().filter_map(WeakVariable::upgrade).collect();
        all.sort_by_key(Variable::id);
        let plan = Plan::new(all.iter().map(|variable| (variable.elements(), variable.element_bytes())));
        let digest = all.iter().fold(crc32c::crc32c(&every.to_le_bytes()), |digest, variable| {
            let text = format!("{} {} {}\n", variable.id(), variable.name(), value(variable));
            crc32c::crc32c_append(digest, text.as_bytes())
        });
        *variables = all.iter().map(Variable::downgrade).collect();
        Self { plan, variables: digest }
    }
}

/// Returns dtype and shape.
fn value(variable: &Variable) -> String {
    format!("{}{:?}", variable.dtype(), variable.dims())
}

impl Strategy {
    /// Returns the digest that this worker sends when its next step begins; `None` if variables are not
    /// compared. No step is running, so no thread writes them.
    pub(crate) fn drift_digest(&self) -> Result<Option<Digest>> {
        match self.extended().check_drift_every() {
            0 => Ok(None),
            every => {
                let _compare = tracing::trace_span!("compare").entered();
                self.extension::<Mirrored>().digest(self.steps(), every).map(Some)
            }
        }
    }

    /// Returns an error if the variables of workers have drifted apart, by the digests that the workers have
    /// sent.
    ///
    /// # Errors
    /// - [`Error::Drift`]: variables differ. The error is the same on all workers.
    pub(crate) fn require_no_drift(
        &self,
        all: &[Option<Digest>],
        at: &'static Location<'static>,
    ) -> Result<()> {
        let variables = |digest: &Option<Digest>| digest.map(|digest| digest.variables);
        let Some(first) = all.first() else { return Ok(()) };
        if let Some(other) = all.iter().position(|digest| variables(digest) != variables(first)) {
            if !self.extension::<Mirrored>().told.swap(true, Ordering::Relaxed) {
                heard(|| tracing::warn!("{}", not_compared(&self.named(other))));
            }
            return Ok(());
        }
        if all.iter().all(|digest| digest == first) {
            return Ok(());
        }
        let sums = self.or_tell_workers(self.extension::<Mirrored>().sums())?;
        let call =
            || Fingerprint::new(Operation::Run, "checksums of all variables, of which one differs", at);
        let said =
            self.among_workers("run", call, |mut calling| calling.all_gather_bytes(record::encode(&sums)))?;
        let all: Vec<Vec<Sum>> =
            record::decode_all("run", &said.unwrap_or_default()).map_err(|error| self.located(error))?;
        // If none differs any more, a thread was writing during the first comparison.
        let Some(drifted) = judge(&all) else { return Ok(()) };
        let (step, every) = (self.steps() + 1, self.extended().check_drift_every());
        let reason = format!(
            "{}{}; it drifted apart within the last {every} steps: restore a checkpoint of before step {} on all workers, or start \
             them again.{} What a worker writes between steps has to be the same on all; where it is, the memory or the processor \
             of a machine is to be doubted. What is meant to differ is an ON_READ variable",
            drifted.text,
            self.whereabouts(&drifted.workers),
            step.saturating_sub(every).max(1),
            met_again(self.generation()),
        );
        Err(Error::Drift { step, variable: drifted.variable, workers: drifted.workers, reason })
    }
}

/// Returns the likely cause after a rendezvous, as a message.
fn met_again(generation: u64) -> String {
    if generation < 2 {
        return String::new();
    }
    format!(
        " The workers have met again after one was lost (generation {generation}): a variable that is in no part of the Checkpoint \
         given to Training::new is not taken over by the process in its place, which has it as it was made; make what it belongs \
         to a part."
    )
}

fn not_compared(worker: &str) -> String {
    format!(
        "variables are not compared between workers, so that it is not noticed if they drift apart: {worker} has others \
         than worker 0, or another check_drift_every; create the same variables on all workers, in the same order"
    )
}
