//! Local steps: each worker makes some steps alone, after which the workers agree on new weights in an *outer step*.
//!
//! A local step is a step of this worker's replicas, as if there were no other workers. An outer step is part of the
//! last local step before it: if the outer step fails on a worker, that worker has not made the local step either. When
//! that step begins, and the one after it, the workers compare their positions within the local steps, and their
//! numbers of outer steps. They begin all other steps alone.
//!
//! If the strategy has a compression, workers send what they have changed since the last outer step in a compressed
//! form, with error feedback like gradients. The new weights begin at those after the last outer step, and change by
//! what all workers have decoded.
//!
//! | module | contents |
//! |---|---|
//! | `outer` | the new weights as pure functions |
//! | `exchange` | the calls of an outer step, in a step or between two |
//! | `contribution` | the contribution of this worker |
//! | `mean` | the mean of the contributions of all workers, compressed or not |
//! | `flat` | the values of all trained variables as vectors |
//! | `state` | local steps in a checkpoint |

// - **INV-98** After an outer step, all workers have the same weights and the same outer momentum, to the bit. A step
//   that ends with an outer step is made completely or not at all on each worker. Tests: `multi_worker/local_steps.rs`,
//   `optimizer/src/local_steps/outer.rs`.
// - **INV-106** Workers that have made different numbers of outer steps since the last restore, or that have dropped an
//   optimizer between two and not set its variables since, make no further step together: all get one error. Tests:
//   `multi_worker/local_steps/failures.rs`.

mod contribution;
mod exchange;
mod flat;
mod mean;
mod outer;
mod state;

use crate::header::OuterHeader;
use crate::parameters::Parameters;
use crate::progress::Change;
use crate::slots::Slots;
use crate::step::StepContext;
use crate::step::decide::{StepDecision, StepLog};
use crate::sync::Threads;
use crate::{Inner, Optimizer};
use candle_core::TensorId;
use contribution::Mine;
use distribute_base::internal::lock;
use distribute_base::{Error, ErrorKind, Result};
use distribute_collective::threads::Member;
use distribute_core::Strategy;
use distribute_core::internal::require_outside_of_run;
use distribute_core::strategy::{Compression, LocalSteps, Outer};
use distribute_decisions::internal::digest;
use distribute_log::warn_or_stderr;
use distribute_optim::Rule;
use exchange::Calls;
use flat::Flat;
use std::panic::Location;
use std::sync::{Arc, Mutex};

/// The local steps of an optimizer.
#[derive(Debug)]
pub(crate) struct LocalTraining {
    settings: LocalSteps,
    strategy: Strategy,
    /// The name of the optimizer, which no other optimizer of the strategy has.
    optimizer: String,
    /// The candle variables that are trained.
    trained: Vec<TensorId>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The number of local steps since the last outer step, including those that were skipped.
    since: u64,
    /// The number of outer steps.
    outer: u64,
    /// The weights after the last outer step. `None` if the outer step does not begin at them, or if no local step has
    /// begun since, so the variables still contain them.
    agreed: Option<Arc<Flat>>,
    /// The momentum of outer steps, which is the same on all workers; `None` before the first outer step, and if outer
    /// steps have none.
    momentum: Option<Flat>,
    /// The state before the step in progress, if that step ends with an outer step.
    backup: Option<Backup>,
}

/// The state of an optimizer before a step, to which a failure of the outer step returns.
#[derive(Debug)]
struct Backup {
    weights: Arc<Flat>,
    slots: Vec<Slots>,
    finished: u64,
    loss_scale: Option<(f64, u64)>,
}

impl<R: Rule> Optimizer<R> {
    /// Makes the outer step now, if the workers have trained alone since the last one. The next outer step follows
    /// after the [set number of steps](distribute_core::strategy::LocalSteps). Without local steps, this does nothing.
    ///
    /// All workers make this call together, between runs. Call it before a checkpoint is saved, before an evaluation,
    /// and at the end of a training.
    ///
    /// # Errors
    /// - [`Error::Collective`]: a worker does not make this call, fails or times out.
    /// - [`Error::Worker`]: a worker cannot read its weights.
    /// - [`Error::Failed`] of the kind `Disagreement`: the workers have different settings of this optimizer, or have
    ///   made different numbers of outer or local steps.
    /// - [`Error::InvalidArgument`]: the workers have different learning rates, or a step is in progress.
    /// - [`Error::WrongContext`]: called inside `run`.
    ///
    /// After an error, no variable has changed, unless writing one of them failed.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use candle_nn::Init;
    /// use distribute::strategy::{Links, LocalSteps, Outer};
    /// let local = LocalSteps { steps: 100, outer: Outer::Average };
    /// let weights = MultiWorkerMirroredStrategy::builder().local_steps(local).on_threads(Links::Memory, 2, |strategy|
    ///     { let model = strategy.replicate(|vb| vb.get_with_hints((), "w", Init::Const(0.)))?;
    ///     let optimizer = Sgd::new(&model.variables, 1.)?;
    ///     let slope = [-1., -2.][strategy.world().worker()];
    ///     strategy.run(&model, |ctx, w| optimizer.minimize(ctx, (w * slope)?, 1))?;
    ///     optimizer.finish_local_steps()?;
    ///     Ok(model.variables.get("w")?.to_scalar::<f32>()?)
    /// })?;
    /// assert_eq!(weights, [1.5, 1.5]);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[track_caller]
    pub fn finish_local_steps(&self) -> Result<()> {
        let at = Location::caller();
        require_outside_of_run("finish_local_steps", "all workers call it between runs")?;
        match &self.inner.local {
            Some(local) => local.finish(&self.inner, at),
            None => Ok(()),
        }
    }
}

impl LocalTraining {
    /// Returns the local steps of the optimizer with the given name; `None` if its workers train in lock step.
    pub(crate) fn of(parameters: &Parameters, optimizer: String) -> Option<Self> {
        let strategy = parameters.strategy.clone();
        let settings = strategy.local_steps()?;
        let trained = ids(parameters);
        Some(Self { settings, strategy, optimizer, trained, state: Mutex::default() })
    }

    /// Trains the variables of `parameters` from now on, after some were frozen.
    pub(crate) fn set_trained(&mut self, parameters: &Parameters) {
        self.trained = ids(parameters);
    }

    /// Saves the weights that the next step needs. If that step ends with an outer step, returns the facts that the
    /// workers compare. Replica 0 of each worker makes this call before replicas exchange headers, so that a rule whose
    /// `Debug` text takes long delays no replica beyond the deadline.
    pub(crate) fn begin(&self, optimizer: &Inner, operation: &'static str) -> Result<Option<OuterHeader>> {
        let mut state = lock(&self.state);
        let is_outer = state.since + 1 >= self.settings.steps;
        let is_first = state.since == 0 && self.begins_at_agreed();
        if !is_outer && !is_first {
            return Ok(None);
        }
        if is_first {
            self.require_equal_weights(optimizer, operation)?;
        }
        let change = optimizer.progress.change(operation)?;
        let weights = Arc::new(weights(optimizer, &change)?);
        if is_first {
            state.agreed = Some(weights.clone());
        }
        if !is_outer {
            return Ok(None);
        }
        let (finished, loss_scale) = (optimizer.finished_steps(), optimizer.loss_scaling.state());
        state.backup = Some(Backup { weights, slots: change.slots().clone(), finished, loss_scale });
        Ok(Some(header(optimizer, state.outer, state.since + 1)))
    }

    /// Returns an error if another optimizer is within its local steps and trains one of this optimizer's variables.
    /// The variable then has a different value on each worker, and outer steps would begin at these values.
    ///
    /// # Errors
    ///
    /// - [`Error::Failed`] of the kind `Usage`: there is such an optimizer. All workers get this error if all have made
    ///   the same steps.
    // INV-98
    fn require_equal_weights(&self, optimizer: &Inner, operation: &'static str) -> Result<()> {
        let Some((other, shared)) = self.strategy.within_local_steps_of(&self.trained) else { return Ok(()) };
        let variable = optimizer.parameters.variables.get(shared).map_or("", |(name, _)| name.as_str());
        let reason = format!(
            "{} trains variable {variable:?}, which {other} has trained since its last outer step, so each worker has \
             another value of it: call finish_local_steps() of {other} before, or train each variable with one optimizer",
            self.optimizer
        );
        Err(Error::failed(ErrorKind::Usage, operation, reason))
    }

    /// Makes a local step of this worker, followed by the outer step if it is due. All replicas of this worker make
    /// this call. `group` is the member that makes calls with the other workers.
    pub(crate) fn step(
        &self,
        optimizer: &Inner,
        group: &Member,
        log: &mut StepLog,
        step: StepContext<'_>,
    ) -> Result<StepDecision> {
        let (sync, operation, outer) = (step.sync, log.operation, step.gathered.outer());
        let made = optimizer.decide_and_apply(log, step);
        // Only replica 0 reads this state.
        let leads = sync.member.rank() == 0;
        let Some(header) = outer else {
            if leads && made.is_ok() {
                let (since, outer) = self.position();
                self.set_position(since + 1, outer);
            }
            return made;
        };
        let agreed = made.and_then(|decision| {
            // All replicas have left the previous call on the leader.
            let met = sync.run_on_each("its local steps", |_| Ok(()));
            met.and_then(|_| {
                sync.run_on_leader(|threads| {
                    let calls = Calls::InStep { member: group, fingerprint: sync.fingerprint };
                    self.agree(optimizer, operation, &calls, &header, threads)
                })
            })
            .or_else(|error| {
                if !leads {
                    return Err(error);
                }
                self.undo(optimizer, operation, error, decision.finished)
            })?;
            Ok(decision)
        });
        if leads {
            lock(&self.state).backup = None;
        }
        agreed
    }

    /// Makes an outer step between two runs, if this worker has made local steps since the last one.
    fn finish(&self, optimizer: &Inner, at: &'static Location<'static>) -> Result<()> {
        const OPERATION: &str = "finish_local_steps";
        // Alone, this worker's weights would be divided by the number of all workers.
        self.strategy.require_caught_up(OPERATION)?;
        let (since, outer) = self.position();
        let calls = Calls::Between { optimizer, at };
        if since == 0 {
            // Its first local step may have failed on this worker alone.
            return match self.strategy.may_be_apart() {
                true => calls.compare(optimizer, OPERATION, &header(optimizer, outer, since), Ok(())),
                false => Ok(()),
            };
        }
        self.agree(optimizer, OPERATION, &calls, &header(optimizer, outer, since), &Threads::alone())?;
        self.strategy.record_write();
        Ok(())
    }

    /// Makes an outer step together with the other workers. If it fails before the first write, nothing has changed.
    fn agree(
        &self,
        optimizer: &Inner,
        operation: &'static str,
        calls: &Calls<'_>,
        header: &OuterHeader,
        threads: &Threads<'_>,
    ) -> Result<()> {
        let _span = tracing::trace_span!("outer step").entered();
        let (agreed, momentum) = {
            let state = lock(&self.state);
            (state.agreed.clone(), state.momentum.clone())
        };
        let parameters = &*optimizer.parameters;
        let contribution = || {
            parameters.sync_to_host_with_slots(&optimizer.progress.change(operation)?, &Vec::new())?;
            Mine::new(parameters, agreed.as_deref(), threads)
        };
        let mine = calls.compare(optimizer, operation, header, contribution())?;
        let mean = mean::of(optimizer, operation, calls, mine, header.outer + 1, threads)?;
        let momentum = match (self.settings.outer, agreed) {
            (Outer::Average, Some(agreed)) => {
                let change = optimizer.progress.change(operation)?;
                write(optimizer, &change, |parameters| mean.write_change(&agreed, parameters))?;
                None
            }
            (Outer::Nesterov { .. }, None) => {
                let reason = "the weights after the last outer step are missing: restore a checkpoint";
                return Err(Error::invalid(operation, reason));
            }
            // The contributions are weights.
            (Outer::Average, None) => {
                let (weights, change) = (mean.into_flat(), optimizer.progress.change(operation)?);
                write(optimizer, &change, |parameters| weights.write_to(parameters))?;
                None
            }
            (Outer::Nesterov { learning_rate, momentum: decay }, Some(agreed)) => {
                let mean = mean.into_flat();
                let mut momentum = momentum.unwrap_or_else(|| mean.zeros());
                let mut weights = Arc::unwrap_or_clone(agreed);
                weights.descend(&mean, &mut momentum, learning_rate, decay)?;
                let change = optimizer.progress.change(operation)?;
                write(optimizer, &change, |parameters| weights.write_to(parameters))?;
                Some(momentum)
            }
        };
        // INV-94: nothing fails from here on.
        parameters.feedback.commit(header.outer + 1);
        lock(&self.state).momentum = momentum;
        self.set_position(0, header.outer + 1);
        Ok(())
    }

    /// Restores the state before a step whose outer step has failed, and returns the error of the outer step.
    /// `finished` is the number of steps before the failed one.
    fn undo(&self, optimizer: &Inner, operation: &'static str, error: Error, finished: u64) -> Result<()> {
        let undo = || -> Result<()> {
            let Some(backup) = lock(&self.state).backup.take() else { return Ok(()) };
            let Backup { weights, slots, finished, loss_scale } = backup;
            let change = optimizer.progress.change(operation)?;
            // If a write fails, the next step does not train with it.
            change.begin();
            write(optimizer, &change, |parameters| weights.write_to(parameters))?;
            *change.slots() = slots;
            change.set_finished(finished);
            loss_scale.into_iter().for_each(|state| optimizer.loss_scaling.restore(state));
            Ok(())
        };
        Err(match undo() {
            Ok(()) => error,
            Err(undo) => {
                let reason = format!("{error}; the local step before it could not be undone: {undo}");
                let (step, source) = (finished + 1, Some(Box::new(error)));
                Error::IncompleteState { operation, step, reason, source }
            }
        })
    }

    /// Returns `true` if outer steps begin at the weights after the last one, so workers send what they have changed.
    /// Otherwise they send their weights.
    fn begins_at_agreed(&self) -> bool {
        self.settings.outer != Outer::Average || self.strategy.extended().compression() != Compression::None
    }

    /// Returns the number of steps since the last outer step, and the number of outer steps.
    fn position(&self) -> (u64, u64) {
        let state = lock(&self.state);
        (state.since, state.outer)
    }

    /// Sets the number of steps since the last outer step, and the number of outer steps. If `since` is 0, drops the
    /// weights on which the workers last agreed.
    fn set_position(&self, since: u64, outer: u64) {
        let mut state = lock(&self.state);
        if since == 0 {
            state.agreed = None;
        }
        self.strategy.record_local_steps(&self.optimizer, since, &self.trained);
        self.strategy.record_outer_steps(state.outer, outer);
        (state.since, state.outer) = (since, outer);
    }

    /// Returns an error if local steps have been made, because the state of local steps depends on the trained
    /// variables.
    ///
    /// # Errors
    ///
    /// - [`Error::InvalidArgument`]: local steps have been made.
    pub(crate) fn require_unused(&self, operation: &'static str) -> Result<()> {
        let state = lock(&self.state);
        if state.since == 0 && state.momentum.is_none() {
            return Ok(());
        }
        let reason = "this optimizer has made local steps: set this when the optimizer is created";
        Err(Error::invalid(operation, reason))
    }
}

impl Drop for LocalTraining {
    fn drop(&mut self) {
        let (since, _) = self.position();
        if since == 0 {
            return;
        }
        if self.strategy.world().is_multi_worker() {
            // A program that exits makes no further call that could return this as an error.
            warn_or_stderr(|| {
                tracing::warn!(
                    "an optimizer was dropped {since} steps after its last outer step, so each worker keeps other weights: \
                     call finish_local_steps() before"
                );
            });
        }
        // The outer steps still count.
        self.strategy.record_dropped_optimizer(&self.optimizer, since, &self.trained);
    }
}

impl Inner {
    /// Returns an error if the workers make local steps. `what` and `advice` become part of the error.
    ///
    /// # Errors
    ///
    /// - [`Error::NotSupported`]: the workers make local steps.
    pub(crate) fn require_no_local_steps(
        &self,
        operation: &'static str,
        what: &'static str,
        advice: &'static str,
    ) -> Result<()> {
        if self.local.is_none() {
            return Ok(());
        }
        let strategy = self.parameters.strategy.extended().kind();
        Err(Error::NotSupported { operation, strategy, what, advice })
    }
}

/// Returns the candle variables that are trained.
fn ids(parameters: &Parameters) -> Vec<TensorId> {
    parameters.variables.iter().map(|(_, variable)| variable.id()).collect()
}

/// Returns the facts of this worker that an outer step compares; `outer` is the number of outer steps so far, and
/// `since` that of local steps. Formatting rules and transforms calls the program's code.
fn header(optimizer: &Inner, outer: u64, since: u64) -> OuterHeader {
    let (settings, learning_rate) = (digest(&optimizer.settings()), optimizer.rate.constant());
    OuterHeader { outer, since, settings, learning_rate }
}

/// Returns the weights. Variables and slots that were updated on devices are first copied to the host.
fn weights(optimizer: &Inner, change: &Change<'_>) -> Result<Flat> {
    optimizer.parameters.sync_to_host_with_slots(change, &Vec::new())?;
    Flat::of(&optimizer.parameters)
}

/// Writes the weights on the host by `write`, and refreshes their copies. `_change` proves that the caller has the
/// right to change them.
fn write(
    optimizer: &Inner,
    _change: &Change<'_>,
    write: impl FnOnce(&Parameters) -> Result<()>,
) -> Result<()> {
    let parameters = &*optimizer.parameters;
    let written = parameters.mark_written(0..parameters.variables.len());
    write(parameters)?;
    drop(written);
    parameters.copy_to_followers()
}
