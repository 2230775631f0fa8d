//! Whether workers share an optimizer's state, and what that takes.

use crate::slots::Slots;
use crate::{Optimizer, Parameters, Transform};
use distribute_base::{Error, Result};
use distribute_optim::Rule;
use std::sync::Arc;

impl<R: Rule> Optimizer<R> {
    /// Divides the optimizer's state among the workers: each keeps slots for its range of every variable, updates that, and gets
    /// the new values of the other ranges from those who own them. The weights have the bits that they have without it.
    ///
    /// With N workers the slots, such as Adam's two, take one Nth of the memory on each, those of tables that are trained by row
    /// included, and the update is computed once in all and not on every worker. As many bytes are sent; but where without it two
    /// workers send all gradients while backward runs, with it they send half of them then and half of the weights after the
    /// update, during which nobody computes. So it saves time where links are fast or workers are more than two, and memory
    /// everywhere. Of tables with gradients by row, the new values of these rows are sent in addition; by rules that move all rows,
    /// such as [`Adam`](crate::Adam) unless it is lazy, all values. With one worker nothing changes. It is off by default.
    ///
    /// Checkpoints are the same files as without it: the chief gathers the slots, one after another. What was saved with any
    /// number of workers, sharded or not, can be restored with any other. What a worker that is lost has kept is lost with it, and
    /// no other has a copy: training goes on from the last checkpoint.
    ///
    /// All workers set it alike, before the first step. Clipping by norms takes one more message. What needs whole gradients or
    /// copies of variables on each worker is refused: [`Transform::each`] after the reduction, and rules that may do more than
    /// [compute](crate::rules::Formula::only_computes).
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use candle_nn::linear;
    /// let bytes = MultiWorkerMirroredStrategy::on_threads(2, 1, |strategy| {
    ///     let model = strategy.replicate(|vb| linear(1024, 16, vb.pp("fc")))?;
    ///     let optimizer = Adam::new(&model.variables, 1e-3)?.sharded_state(true)?;
    ///     // As on one worker.
    ///     assert_eq!(optimizer.slot("fc.weight", "m")?.dims(), [16, 1024]);
    ///     optimizer.state_bytes()
    /// })?;
    /// // Two numbers of four bytes beside each of 1024 · 16 weights and 16 biases, all of which are one worker's.
    /// assert_eq!(bytes.iter().sum::<usize>(), 2 * 4 * (1024 + 1) * 16);
    /// assert_eq!(*bytes.iter().min().unwrap(), 2 * 4 * 1024 * 8);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] after the first step, for transforms and rules that cannot be applied to ranges, and where workers
    /// come and go.
    #[doc(alias = "ZeroRedundancyOptimizer")]
    #[doc(alias = "ZeRO")]
    pub fn sharded_state(mut self, sharded: bool) -> Result<Self> {
        const OPERATION: &str = "sharded_state";
        if self.finished_steps() > 0 {
            let reason = "steps have been made with this optimizer; ask for it when the optimizer is made, and restore a \
                          checkpoint after that";
            return Err(Error::invalid(OPERATION, reason));
        }
        if sharded && self.parameters.strategy.extended().elastic().is_some() {
            let reason = "workers come and go, each with its part of the state: leave it whole, or let all workers be needed \
                          (min_workers)";
            return Err(Error::invalid(OPERATION, reason));
        }
        if sharded {
            require_rule(OPERATION, &self.rule)?;
            self.groups.all().try_for_each(|rule| require_rule(OPERATION, rule))?;
            self.after_reduce.iter().try_for_each(|transform| require_transform(OPERATION, transform))?;
        }
        let Parameters { strategy, variables, frozen, unfit, .. } = &*self.parameters;
        let parameters =
            Parameters::new(strategy.clone(), variables.clone(), frozen.clone(), unfit.clone(), sharded)?;
        *self.progress.slots_mut() = parameters.new_slots(&self.rule.slots())?;
        self.parameters = Arc::new(parameters);
        self.compare_again();
        Ok(self)
    }

    /// How many bytes the slots take that this process keeps: on devices with memory of their own, those of each replica. Where [state is sharded](Self::sharded_state), they are those of the
    /// ranges that this worker owns.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] while a step is being made.
    pub fn state_bytes(&self) -> Result<usize> {
        Ok(self.progress.read("state_bytes")?.iter().map(Slots::bytes).sum())
    }
}

/// Refuses a rule that is not applied where variables lie.
pub(crate) fn require_rule<R: Rule>(operation: &'static str, rule: &R) -> Result<()> {
    if rule.only_computes() {
        return Ok(());
    }
    let reason = format!(
        "rule {} may do more than compute, and is applied to copies of whole variables, which a sharded state has not; if its \
         kernel does nothing but arithmetic, let only_computes say so; or leave the state whole, by sharded_state(false)",
        rule.name()
    );
    Err(Error::invalid(operation, reason))
}

/// Refuses a transform that needs whole gradients.
pub(crate) fn require_transform(operation: &'static str, transform: &Transform) -> Result<()> {
    if transform.closure().is_none() {
        return Ok(());
    }
    let reason = "Transform::each gets whole gradients after the reduction, and with a sharded state no worker has them; give it to \
                  before_reduce, or leave the state whole, by sharded_state(false)";
    Err(Error::invalid(operation, reason))
}

/// Some workers have updated their part of the state, and were not told that the others have.
pub(crate) fn incomplete(operation: &'static str, step: u64, workers: &[usize]) -> Error {
    let names: Vec<_> = workers.iter().map(|worker| format!("worker {worker}")).collect();
    let reason = format!(
        "step {step} of this optimizer, whose state is sharded, has ended on {} between the update of the state and the exchange \
         of the new weights; {ADVICE}",
        names.join(", ")
    );
    Error::IncompleteState { operation, step, reason, source: None }
}

/// The step in which that happens.
pub(crate) fn ended(operation: &'static str, step: u64, source: Error) -> Error {
    let reason = format!(
        "{source}; step {step} of this optimizer, whose state is sharded, has ended here between the update of the state and the \
         exchange of the new weights: no weight has changed; {ADVICE}"
    );
    Error::IncompleteState { operation, step, reason, source: Some(Box::new(source)) }
}

const ADVICE: &str = "restore the last checkpoint on all workers";
