//! Whether variables that are the same on all workers still are: in each step a part of them is compared, by a checksum that
//! goes with the call by which the step begins. Only where one differs do the workers meet once more, to find out which.

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
    /// Whether it has been told that workers have different ones.
    told: AtomicBool,
}

#[derive(Debug, Default)]
struct InOrder {
    /// In the order of creation, where there is a plan.
    variables: Vec<WeakVariable>,
    /// None since a variable was created.
    planned: Option<Planned>,
}

/// How variables are compared, and what has to be the same on all workers for that.
#[derive(Debug)]
struct Planned {
    plan: Plan,
    /// The checksum of names, dtypes, shapes, and of how many steps all are compared in.
    variables: u32,
}

/// What a worker has of the part that is compared in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Digest {
    variables: u32,
    elements: u32,
}

impl Mirrored {
    /// Compares `variable`, too, from now on.
    pub(crate) fn add(&self, variable: &Variable) {
        let mut all = lock(&self.variables);
        // Forgets dropped variables, at an amortized cost.
        if all.variables.len() == all.variables.capacity() {
            all.variables.retain(WeakVariable::is_alive);
        }
        all.variables.push(variable.downgrade());
        all.planned = None;
    }

    /// Begins anew with those that are alive, for a world in which others don't know of the rest.
    pub(crate) fn renew(&self) {
        let mut all = lock(&self.variables);
        all.variables.retain(WeakVariable::is_alive);
        all.planned = None;
    }

    /// What this worker has of the part of the step behind `steps` others, where all are compared in `every` steps.
    fn digest(&self, steps: u64, every: u64) -> Result<Digest> {
        let mut all = lock(&self.variables);
        let InOrder { variables, planned } = &mut *all;
        let number = steps % every;
        // Those that have been dropped are left out from the next round on, of which all workers have the same.
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

    /// The checksums of all variables, in the order of creation.
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
    /// Of those that are still there, in the order of creation.
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

/// Dtype and shape.
fn value(variable: &Variable) -> String {
    format!("{}{:?}", variable.dtype(), variable.dims())
}

impl Strategy {
    /// What this worker tells the others of its variables where its next step begins; none if they are not compared. Nobody
    /// writes them then: no step is being made.
    pub(crate) fn drift_digest(&self) -> Result<Option<Digest>> {
        match self.extended().check_drift_every() {
            0 => Ok(None),
            every => {
                let _compare = tracing::trace_span!("compare").entered();
                self.extension::<Mirrored>().digest(self.steps(), every).map(Some)
            }
        }
    }

    /// Refuses to begin a step of workers whose variables have drifted apart, by what each has told of its own.
    ///
    /// # Errors
    /// [`Error::Drift`], the same on all workers.
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
        // Where none differs any more, a thread was writing meanwhile.
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

/// What is likely where workers have met again, in words.
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
