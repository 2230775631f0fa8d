//! The steps that this worker has made alone: the optimizers that are within their local steps, those that were dropped
//! there, and the variables that therefore differ between the workers.

use super::variable::{Variable, WeakVariable};
use crate::strategy::Strategy;
use candle_core::TensorId;
use distribute_base::Result;
use distribute_base::internal::lock;
use distribute_decisions::internal::{Alone, Meeting};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// The record of the local steps of all optimizers of a strategy.
#[derive(Debug, Default)]
struct Apart(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The optimizers that are within their local steps, by name.
    within: BTreeMap<String, WithinLocalSteps>,
    /// The optimizers that were dropped before their outer step.
    abandoned: Vec<AbandonedOptimizer>,
    /// The number of outer steps since the state of optimizers was last restored, or was transferred after a
    /// rendezvous. It includes all optimizers, also dropped ones.
    outer: u64,
    met: Option<Met>,
}

/// The result of the last step that all workers began together.
#[derive(Clone, Copy, Debug)]
struct Met {
    /// The generation of the group.
    generation: u64,
    /// The number of outer steps, as in [`State`].
    outer: u64,
    /// The number of rows in the batches of the workers of lower rank, if known.
    rows_before: Option<usize>,
}

/// An optimizer within its local steps.
#[derive(Debug)]
struct WithinLocalSteps {
    /// The number of local steps since its last outer step, at least 1.
    since: u64,
    /// The variables that it trains.
    trained: Vec<TensorId>,
}

#[derive(Debug)]
struct AbandonedOptimizer {
    /// The number of local steps since its last outer step.
    steps: u64,
    /// The variables that it trained and that have not been set on all workers since.
    variables: Vec<WeakVariable>,
}

impl AbandonedOptimizer {
    /// Returns `true` if any of the variables still differs between the workers.
    fn differs(&self) -> bool {
        self.variables.iter().any(WeakVariable::is_alive)
    }
}

impl State {
    /// Returns the number of local steps of dropped optimizers of which a variable still differs between the workers.
    fn abandoned_steps(&self) -> u64 {
        self.abandoned.iter().filter(|one| one.differs()).map(|one| one.steps).sum()
    }

    /// Returns the last step that all workers began together, if no optimizer has made an outer step since, and the
    /// group has not re-formed.
    fn met_in(&self, generation: u64) -> Option<Met> {
        self.met.filter(|met| met.generation == generation && met.outer == self.outer)
    }
}

impl Strategy {
    /// Records the number of local steps that an optimizer of the variables `trained` has made since its last outer
    /// step. Names of optimizers are unique.
    #[doc(hidden)]
    pub fn record_local_steps(&self, optimizer: &str, since: u64, trained: &[TensorId]) {
        let apart = self.extension::<Apart>();
        let within = &mut lock(&apart.0).within;
        match (since, within.get_mut(optimizer)) {
            (0, None) => {}
            (0, Some(_)) => drop(within.remove(optimizer)),
            (_, Some(one)) => one.since = since,
            (_, None) => {
                let one = WithinLocalSteps { since, trained: trained.to_vec() };
                within.insert(optimizer.to_owned(), one);
            }
        }
    }

    /// Records that the number of an optimizer's outer steps has changed from `before` to `after`.
    #[doc(hidden)]
    pub fn record_outer_steps(&self, before: u64, after: u64) {
        let apart = self.extension::<Apart>();
        let outer = &mut lock(&apart.0).outer;
        *outer = outer.wrapping_add(after.wrapping_sub(before));
    }

    /// Records that all workers have restored the state of optimizers. From now on, they count outer steps from 0.
    #[doc(hidden)]
    pub fn forget_outer_steps(&self) {
        let apart = self.extension::<Apart>();
        let mut state = lock(&apart.0);
        (state.outer, state.met) = (0, None);
    }

    /// Records that a worker's state has been transferred to others after a rendezvous. `all_received` is `true` if all
    /// other workers have received it, so that all have the same weights.
    #[doc(hidden)]
    pub fn record_transfer(&self, all_received: bool) {
        let apart = self.extension::<Apart>();
        let mut state = lock(&apart.0);
        (state.outer, state.met) = (0, None);
        if all_received {
            state.abandoned.clear();
        }
    }

    /// Records that an optimizer of the variables `trained` was dropped `since` local steps after its last outer step.
    /// With a single worker, no other worker has different weights.
    #[doc(hidden)]
    pub fn record_dropped_optimizer(&self, optimizer: &str, since: u64, trained: &[TensorId]) {
        let has_others = self.world().is_multi_worker();
        let variables =
            || trained.iter().filter_map(|id| Some(self.container(*id)?.downgrade())).collect::<Vec<_>>();
        let variables = if has_others { variables() } else { Vec::new() };
        let apart = self.extension::<Apart>();
        let mut state = lock(&apart.0);
        state.within.remove(optimizer);
        state.abandoned.push(AbandonedOptimizer { steps: since, variables });
        state.abandoned.retain(AbandonedOptimizer::differs);
    }

    /// Records that all workers have set this variable to the same value.
    pub(crate) fn record_equal(&self, variable: &Variable) {
        if self.local_steps().is_none() {
            return;
        }
        let is_other = |weak: &WeakVariable| weak.upgrade().is_some_and(|other| other.id() != variable.id());
        let apart = self.extension::<Apart>();
        let abandoned = &mut lock(&apart.0).abandoned;
        abandoned.iter_mut().for_each(|one| one.variables.retain(is_other));
        abandoned.retain(AbandonedOptimizer::differs);
    }

    /// Records that all workers have begun a step together, with this number of rows on the workers of lower rank.
    pub(crate) fn record_meeting(&self, rows_before: Option<usize>) {
        if self.local_steps().is_some() {
            let (apart, generation) = (self.extension::<Apart>(), self.generation());
            let mut state = lock(&apart.0);
            state.met = Some(Met { generation, outer: state.outer, rows_before });
        }
    }

    /// Returns `true` if the workers have begun a step together since the last outer step of any optimizer, so that
    /// some of them may have trained alone since.
    #[doc(hidden)]
    pub fn may_be_apart(&self) -> bool {
        let generation = self.generation();
        lock(&self.extension::<Apart>().0).met_in(generation).is_some()
    }

    /// Returns how the next step involves the other workers and, if this worker makes it alone, the number of rows on
    /// the workers of lower rank when they last began a step together, if known.
    pub(crate) fn next_meeting(&self) -> (Meeting, Option<usize>) {
        let Some(settings) = self.local_steps() else { return (Meeting::Complete, None) };
        let apart = self.extension::<Apart>();
        let state = lock(&apart.0);
        let longest = state.within.values().map(|one| one.since).max().unwrap_or_default();
        // A lost worker is noticed when all begin a step together. It may have completed the training, and exited.
        let met = state.met_in(self.generation()).filter(|_| state.abandoned_steps() == 0);
        (settings.meeting(longest, met.is_some()), met.and_then(|met| met.rows_before))
    }

    /// Returns `true` if this worker has trained alone since the workers last agreed on their weights.
    #[doc(hidden)]
    pub fn is_apart(&self) -> bool {
        self.local_steps().is_some() && !lock(&self.extension::<Apart>().0).within.is_empty()
    }

    /// Returns the progress of this worker's local steps; `None` in lock step.
    pub(crate) fn alone(&self) -> Option<Alone> {
        let settings = self.local_steps()?;
        let apart = self.extension::<Apart>();
        let state = lock(&apart.0);
        let since = state.within.values().map(|one| one.since).sum();
        Some(Alone { settings, since, outer: state.outer, abandoned: state.abandoned_steps() })
    }

    /// Returns an error if the workers currently have different weights. Returns `Ok` if there are no other workers, or
    /// if this worker makes no calls with them.
    ///
    /// # Errors
    /// - [`Error::Failed`](distribute_base::Error::Failed) of the kind `Usage`: the workers have trained alone since
    ///   the last outer step.
    pub(crate) fn require_agreement(&self, operation: &'static str) -> Result<()> {
        let Some(alone) = self.alone().filter(|_| self.group().is_some()) else { return Ok(()) };
        alone.own_weights(operation).map_or(Ok(()), Err)
    }

    /// Returns an optimizer that is within its local steps and trains one of the variables, and the index of that
    /// variable. Returns `None` if there is no such optimizer.
    #[doc(hidden)]
    pub fn within_local_steps_of(&self, variables: &[TensorId]) -> Option<(String, usize)> {
        let apart = self.extension::<Apart>();
        let state = lock(&apart.0);
        state.within.iter().find_map(|(optimizer, one)| {
            let shared = variables.iter().position(|variable| one.trained.contains(variable))?;
            Some((optimizer.clone(), shared))
        })
    }
}
