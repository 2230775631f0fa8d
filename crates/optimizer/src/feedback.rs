//! The error feedback of compressed gradients: the residual of each replica, and the factors that all replicas share.
//!
//! A residual is the part of a replica's contributions that has not been sent. A contribution is a gradient, multiplied
//! by its weight in the sum. All applied gradients and the residuals of all replicas therefore add up to the sum of all
//! contributions.
//!
//! If workers make local steps, their outer steps take the place of steps, each worker is like one replica, and its
//! contribution is what it has changed.

// - INV-94: a residual changes in the same step as the variables, or not at all: not in a step that fails or is
//   skipped. After local steps, it changes in the outer step. Tests: `optimizer/src/feedback.rs`,
//   `multi_worker/compression/feedback.rs`, `multi_worker/local_steps/compressed.rs`.

mod saved;

use distribute_base::internal::lock;
use std::sync::Mutex;

/// The residuals of one replica, by variable. They are empty for a variable that has not been compressed yet.
pub(crate) type Residuals = Vec<Vec<f32>>;

/// The error feedback of the replicas of this process.
#[derive(Debug, Default)]
pub(crate) struct Feedback(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The residuals of the replicas of this process. The list is empty before the first step.
    replicas: Vec<Residuals>,
    /// The factor `Q` with which each variable's gradient is compressed, which is the same on all workers; empty before
    /// the variable has been compressed.
    factors: Vec<Vec<f32>>,
    /// The step that the residuals belong to, from 1; 0 before the first step. Of local steps, only outer steps count.
    step: u64,
    /// The result of the step in progress.
    pending: Option<Pending>,
    /// Memory that is reused in the next step.
    spare: Vec<Vec<f32>>,
}

/// The error feedback after a step that is not complete yet.
#[derive(Debug)]
struct Pending {
    /// The sequence number of the step, from 1.
    step: u64,
    /// The new residuals of the replicas of this process: the local replica, the variable and the residual.
    residuals: Vec<Residual>,
    /// The new factors of variables.
    factors: Vec<(usize, Vec<f32>)>,
}

/// A local replica, a variable, and the residual of the variable's gradients on the replica.
pub(crate) type Residual = (usize, usize, Vec<f32>);

impl Feedback {
    /// Calls `then` with the residual of a variable on a local replica, and returns the result of `then`. The residual
    /// is empty if there is none.
    pub(crate) fn with_residual<R>(
        &self,
        replica: usize,
        variable: usize,
        then: impl FnOnce(&[f32]) -> R,
    ) -> R {
        let residual = {
            let mut state = lock(&self.0);
            state.residual(replica, variable).map(std::mem::take).unwrap_or_default()
        };
        // Not under the lock, because the replicas' threads do this at the same time.
        let result = then(&residual);
        if let Some(place) = lock(&self.0).residual(replica, variable) {
            *place = residual;
        }
        result
    }

    /// Returns the factor of a variable, or `initial` if it has none.
    pub(crate) fn factor(&self, variable: usize, initial: impl FnOnce() -> Vec<f32>) -> Vec<f32> {
        let factor = lock(&self.0).factors.get(variable).filter(|factor| !factor.is_empty()).cloned();
        factor.unwrap_or_else(initial)
    }

    /// Returns memory for `len` numbers, whose contents are arbitrary.
    pub(crate) fn memory(&self, len: usize) -> Vec<f32> {
        let mut state = lock(&self.0);
        let found = state.spare.iter().position(|vector| vector.len() == len);
        found.map_or_else(|| vec![0.; len], |at| state.spare.swap_remove(at))
    }

    /// Takes the state of the variables for which `stays` returns `true`. Discards the result of a step that was not
    /// completed.
    pub(crate) fn retained(&self, stays: impl Fn(usize) -> bool) -> Self {
        let State { replicas, factors, step, .. } = std::mem::take(&mut *lock(&self.0));
        let retain = |all: Vec<Vec<f32>>| -> Vec<Vec<f32>> {
            let those = all.into_iter().enumerate().filter(|(variable, _)| stays(*variable));
            those.map(|(_, one)| one).collect()
        };
        let replicas = replicas.into_iter().map(retain).collect();
        let factors = retain(factors);
        Self(Mutex::new(State { replicas, factors, step, ..State::default() }))
    }

    /// Begins step number `step`. Discards the result of an earlier attempt.
    pub(crate) fn begin(&self, step: u64) {
        let mut state = lock(&self.0);
        state.discard();
        state.pending = Some(Pending { step, residuals: Vec::new(), factors: Vec::new() });
    }

    /// Sets the residuals in the result of the step in progress. Call this before the gradients are sent: once the
    /// other workers have them, they can complete the step even if this worker fails.
    // INV-94
    pub(crate) fn prepare(&self, residuals: impl IntoIterator<Item = Residual>) {
        if let Some(pending) = &mut lock(&self.0).pending {
            pending.residuals = residuals.into_iter().collect();
        }
    }

    /// Sets the factors in the result of the step in progress.
    pub(crate) fn prepare_factors(&self, factors: Vec<(usize, Vec<f32>)>) {
        if let Some(pending) = &mut lock(&self.0).pending {
            pending.factors = factors;
        }
    }

    /// Makes the result of step number `step` the current state, if there is such a result. Discards the result of any
    /// other step.
    // INV-94
    pub(crate) fn commit(&self, step: u64) {
        lock(&self.0).complete(step);
    }

    /// Continues after step number `step`, which the other workers have completed. If this worker has sent its
    /// contribution to that step, it keeps the residuals of that step. It discards residuals of any other step: they
    /// were sent in a step that this worker has not seen, or belong to an older checkpoint.
    // INV-42, INV-94
    fn keep(&self, step: u64) {
        let mut state = lock(&self.0);
        let has_sent = state.pending.as_ref().is_some_and(|pending| pending.step == step);
        if !has_sent && state.step != step {
            state.replicas.clear();
        }
        state.complete(step);
    }
}

impl State {
    fn complete(&mut self, step: u64) {
        match self.pending.take() {
            Some(pending) if pending.step == step => self.apply(pending),
            pending => {
                self.pending = pending;
                self.discard();
            }
        }
        self.step = step;
    }

    fn residual(&mut self, replica: usize, variable: usize) -> Option<&mut Vec<f32>> {
        self.replicas.get_mut(replica)?.get_mut(variable)
    }

    fn apply(&mut self, Pending { residuals, factors, .. }: Pending) {
        for (replica, variable, residual) in residuals {
            grow(&mut self.replicas, replica);
            grow(&mut self.replicas[replica], variable);
            let before = std::mem::replace(&mut self.replicas[replica][variable], residual);
            self.reuse(before);
        }
        for (variable, factor) in factors {
            grow(&mut self.factors, variable);
            self.factors[variable] = factor;
        }
    }

    /// Discards the result of a step that was not completed, and keeps its memory for reuse.
    fn discard(&mut self) {
        for (_, _, residual) in self.pending.take().into_iter().flat_map(|pending| pending.residuals) {
            self.reuse(residual);
        }
    }

    fn reuse(&mut self, vector: Vec<f32>) {
        if !vector.is_empty() {
            self.spare.push(vector);
        }
    }
}

/// Makes a vector long enough to contain an element at `at`.
fn grow<T: Default>(vector: &mut Vec<T>, at: usize) {
    if vector.len() <= at {
        vector.resize_with(at + 1, T::default);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Begins a step with `x` as its residual and factor, up to the point at which gradients are sent.
    fn send(feedback: &Feedback, step: u64, x: f32) {
        feedback.begin(step);
        feedback.prepare([(1, 2, vec![x; 3])]);
        feedback.prepare_factors(vec![(2, vec![x])]);
    }

    fn residual(feedback: &Feedback) -> Vec<f32> {
        feedback.with_residual(1, 2, <[f32]>::to_vec)
    }

    // INV-94
    #[test]
    fn a_residual_changes_only_with_its_step() {
        let feedback = Feedback::default();
        send(&feedback, 1, 1.);
        assert!(residual(&feedback).is_empty());
        feedback.commit(1);
        assert_eq!(residual(&feedback), [1.; 3]);
        // A step that fails is made again.
        send(&feedback, 2, 5.);
        send(&feedback, 2, 2.);
        feedback.commit(2);
        assert_eq!((residual(&feedback), feedback.factor(2, Vec::new)), (vec![2.; 3], vec![2.]));
    }

    #[test]
    fn variables_that_stay_keep_their_residuals_and_factors() {
        let feedback = Feedback::default();
        send(&feedback, 4, 1.);
        feedback.commit(4);
        let feedback = feedback.retained(|variable| variable != 0);
        let of = |variable| feedback.with_residual(1, variable, <[f32]>::to_vec);
        assert_eq!((of(1), of(2)), (vec![1.; 3], Vec::new()));
        assert_eq!(feedback.factor(1, Vec::new), [1.]);
        feedback.keep(4);
        assert_eq!(of(1), [1.; 3], "the step is the same");
    }

    // INV-42, INV-94
    #[test]
    fn residuals_are_those_of_the_step_that_the_other_workers_have_completed() {
        let at_two = || {
            let feedback = Feedback::default();
            send(&feedback, 2, 2.);
            feedback.commit(2);
            send(&feedback, 3, 3.);
            feedback
        };
        // The others have completed step 3, which this worker has sent, or they have not.
        let feedback = at_two();
        feedback.keep(3);
        assert_eq!(residual(&feedback), [3.; 3]);
        let feedback = at_two();
        feedback.keep(2);
        assert_eq!(residual(&feedback), [2.; 3]);
        feedback.commit(3);
        assert_eq!(residual(&feedback), [2.; 3], "step 3 is made again");
        // A process that has restored an older checkpoint, or has not sent the last step.
        for step in [1, 4, 9] {
            let feedback = at_two();
            feedback.keep(step);
            assert!(residual(&feedback).is_empty(), "step {step}");
        }
    }
}
