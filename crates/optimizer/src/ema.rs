//! Moving averages of the weights. The rule of each variable keeps its average in a slot.

use crate::{Inner, Optimizer, slots};
use candle_core::Tensor;
use distribute_base::{Error, Result};
use distribute_core::Variables;
use distribute_optim::{Averaged, Rule};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};

impl<R: Rule> Optimizer<R> {
    /// Keeps an exponential moving average of the trained weights: after each step, average ← momentum · average + (1 −
    /// momentum) · weight. The average is initially equal to the weight. A momentum of 0.999 averages over about 1000
    /// steps.
    ///
    /// The averages are kept in an additional slot of the rule, so they are part of checkpoints, sharded over workers
    /// by [`shard_state`](Self::shard_state), and kept on parameter servers if the variables are there.
    /// [`use_ema`](Self::use_ema) evaluates or saves a model with them.
    ///
    /// The average of a row of a table changes in the steps in which the rule changes the row. If all replicas lack the
    /// gradient of a variable in a step, its average does not change. Frozen variables and running statistics of
    /// batch-norm have no averages.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// # use candle_nn::Init;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let model = strategy.replicate(|vb| vb.get_with_hints(1, "w", Init::Const(1.)))?;
    /// let optimizer = Sgd::new(&model.variables, 0.5)?.with_ema(0.75)?;
    /// strategy.run(&model, |ctx, w| optimizer.minimize(ctx, w.sum_all()?, 1))?;
    /// let weight = || Ok::<_, distribute::Error>(model.variables.get("w")?.to_vec1::<f32>()?);
    /// assert_eq!(weight()?, [0.5]);
    /// assert_eq!(optimizer.use_ema(weight)?, [0.75 * 1. + 0.25 * 0.5]);
    /// assert_eq!(weight()?, [0.5]);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::Hyperparameter`]: the momentum is not in [0, 1), or there are averages already.
    /// - [`Error::InvalidArgument`]: a step has already been made, or the rule keeps too many slots.
    /// - [`Error::NotSupported`]: as for [`with_rule`](Self::with_rule), on parameter servers; a table is stored in
    ///   bf16; or the workers make [local steps](distribute_core::strategy::LocalSteps).
    #[doc(alias = "tf.train.ExponentialMovingAverage")]
    #[doc(alias = "ExponentialMovingAverage")]
    #[doc(alias = "ema_momentum")]
    #[doc(alias = "AveragedModel")]
    pub fn with_ema(mut self, momentum: f64) -> Result<Self> {
        self.inner.with_ema(momentum)?;
        Ok(self)
    }

    /// Returns the averages of the trained weights, by name.
    ///
    /// If the [state is sharded](Self::shard_state), all workers must make this call together, between runs.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: there are no [averages](Self::with_ema), or a step is in progress.
    /// - [`Error::NotSupported`]: a variable is a table of ids on parameter servers.
    /// - The other errors of [`slot`](Self::slot).
    #[track_caller]
    pub fn ema(&self) -> Result<BTreeMap<String, Tensor>> {
        self.inner.averages("ema", Location::caller())
    }

    /// Calls `body` while the trained weights are replaced by their averages, and returns the result of `body`, which
    /// can evaluate the model, or save it with [`Variables::save`](distribute_core::Variables::save).
    ///
    /// All workers must make this call together, between runs. Afterwards the weights are exactly the same as before,
    /// even if `body` returns an error or panics. `body` must not make a step. Until `body` returns, this process has
    /// two copies of the weights.
    ///
    /// # Errors
    /// - The errors of [`ema`](Self::ema), of [`Variables::set`](distribute_core::Variables::set), and of `body`.
    /// - [`Error::IncompleteState`]: `body`, or the replacement of the weights, failed, and the weights could not be
    ///   restored. `source` is the error of that failure.
    /// - [`Error::WrongContext`]: the call is inside `run`.
    /// - [`Error::NotSupported`]: several workers train independently, or for a coordinator, and would compute with
    ///   the averages. Set the values of [`ema`](Self::ema) in another model there.
    #[doc(alias = "SwapEMAWeights")]
    #[doc(alias = "swap_parameters")]
    #[track_caller]
    pub fn use_ema<T>(&self, body: impl FnOnce() -> Result<T>) -> Result<T> {
        let replaced = self.begin_ema()?;
        match catch_unwind(AssertUnwindSafe(body)) {
            Ok(result) => replaced.restore_after(result),
            Err(panic) => {
                // The panic is the cause.
                let _ = replaced.restore();
                resume_unwind(panic)
            }
        }
    }

    /// Replaces the trained weights by their averages until [`ReplacedWeights::restore`] is called.
    #[track_caller]
    fn begin_ema(&self) -> Result<ReplacedWeights<'_>> {
        let inner = &self.inner;
        inner.require_lock_step("use_ema")?;
        inner.require_ema("use_ema")?;
        let (finished, weights) = (inner.finished_steps(), Vec::new());
        let mut replaced = ReplacedWeights { model: &inner.model, finished, weights };
        let at = Location::caller();
        // One variable after another, so that only one average is in memory in addition to the weights.
        match self.variable_names().try_for_each(|name| replaced.replace(inner, name, at)) {
            Ok(()) => Ok(replaced),
            Err(error) => replaced.restore_after(Err(error)),
        }
    }

    /// Returns whether this optimizer keeps averages.
    #[doc(hidden)]
    pub fn has_ema(&self) -> bool {
        self.inner.has_ema()
    }
}

/// The weights of a model whose variables contain their averages.
#[derive(Debug)]
#[must_use = "the weights are not restored when this is dropped"]
struct ReplacedWeights<'a> {
    model: &'a Variables,
    /// The number of finished steps of the optimizer.
    finished: u64,
    weights: Vec<(String, Tensor)>,
}

impl ReplacedWeights<'_> {
    /// Replaces a variable by its average, and keeps its value.
    fn replace(&mut self, optimizer: &Inner, name: &str, at: &'static Location<'static>) -> Result<()> {
        let weight = self.model.get(name)?;
        let average = optimizer.average(name, &weight, at)?;
        // Kept first: a failed write may have changed a part of the variable.
        self.weights.push((name.to_owned(), weight));
        self.model.set(name, &average)
    }

    /// Restores the weights, and returns `result`, which was computed with the averages.
    ///
    /// # Errors
    /// - The errors of [`restore`](Self::restore), and of `result`.
    /// - [`Error::IncompleteState`]: both are errors. `source` is the error of `result`.
    fn restore_after<T>(self, result: Result<T>) -> Result<T> {
        let step = self.finished + 1;
        match (self.restore(), result) {
            (Ok(()), result) => result,
            (Err(error), Ok(_)) => Err(error),
            (Err(error), Err(source)) => Err(not_restored(step, &error, source)),
        }
    }

    /// Restores the weights.
    ///
    /// # Errors
    /// Returns the first error of [`Variables::set`]. All other weights are restored even then.
    fn restore(self) -> Result<()> {
        // An error for one variable does not keep the averages in the others.
        let mut all = Ok(());
        for (name, weight) in &self.weights {
            all = all.and(self.model.set(name, weight));
        }
        all
    }
}

/// Returns the error of a call that failed, if the weights could not be restored after the failure.
fn not_restored(step: u64, error: &Error, source: Error) -> Error {
    let reason = format!(
        "{source}; after this, the weights could not be restored, so some variables still contain their averages: \
         {error}; restore the last checkpoint on all workers"
    );
    Error::IncompleteState { operation: "use_ema", step, reason, source: Some(Box::new(source)) }
}

impl Inner {
    fn with_ema(&mut self, momentum: f64) -> Result<()> {
        self.require_no_local_steps(
            "with_ema",
            "averages of weights of workers that train alone (local_steps), which would be others on each worker",
            "leave out with_ema: outer steps average the weights of the workers",
        )?;
        const OPERATION: &str = "with_ema";
        if self.parameters.is_any_rounded() {
            return Err(Error::NotSupported {
                operation: OPERATION,
                strategy: self.parameters.strategy.extended().kind(),
                what: "averages of tables in RowFormat::Bf16: each rounding would change the average as much as the weight",
                advice: "use RowFormat::Full, or leave out with_ema",
            });
        }
        if self.finished_steps() > 0 {
            let reason = "this optimizer has already made steps; set this when the optimizer is created, and restore \
                          a checkpoint afterwards";
            return Err(Error::invalid(OPERATION, reason));
        }
        let mut groups = self.groups.clone();
        groups.average(momentum);
        groups.rules().try_for_each(|rule| {
            rule.validate()?;
            self.backend.require_rule(OPERATION, rule)
        })?;
        let layout = slots::layout(OPERATION, groups.rule())?;
        let copies = self.backend.new_copies(&self.parameters, &layout)?;
        self.progress.reset(self.backend.new_slots(&self.parameters, &layout)?, copies);
        self.groups = groups;
        self.ema = Some(momentum);
        self.require_comparison();
        Ok(())
    }

    fn has_ema(&self) -> bool {
        self.groups.rule().slots().iter().any(|slot| slot.name == Averaged::SLOT)
    }

    /// Returns the average of each trained variable.
    fn averages(
        &self,
        operation: &'static str,
        at: &'static Location<'static>,
    ) -> Result<BTreeMap<String, Tensor>> {
        self.require_ema(operation)?;
        let one = |name: &str| Ok((name.to_owned(), self.average(name, &self.model.get(name)?, at)?));
        self.variable_names().map(one).collect()
    }

    /// Returns the average of a trained variable with the value `weight`.
    fn average(&self, name: &str, weight: &Tensor, at: &'static Location<'static>) -> Result<Tensor> {
        Ok((weight + self.slot(name, Averaged::SLOT, at)?)?)
    }

    /// Returns an error if this optimizer keeps no averages.
    fn require_ema(&self, operation: &'static str) -> Result<()> {
        if self.has_ema() {
            return Ok(());
        }
        let reason = "this optimizer keeps no averages of the weights; create it with with_ema";
        Err(Error::invalid(operation, reason))
    }

    /// Returns an error if workers are at different steps, because they would compute with the values that this worker
    /// sets.
    fn require_lock_step(&self, operation: &'static str) -> Result<()> {
        let strategy = &self.parameters.strategy;
        let are_independent = strategy.extended().independent().is_some_and(|of| of.workers > 1);
        if !are_independent && strategy.scheduled_workers()? <= 1 {
            return Ok(());
        }
        Err(Error::NotSupported {
            operation,
            strategy: strategy.extended().kind(),
            what: "replacing weights that other workers train with at the same time",
            advice: "set the values of Optimizer::ema in another model",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device};
    use candle_nn::{Init, VarBuilder};
    use distribute_strategies::OneDeviceStrategy;

    #[test]
    fn the_error_of_a_failed_restore_keeps_its_cause() {
        let strategy = OneDeviceStrategy::new("cpu:0").unwrap();
        let model = strategy.replicate(|vb: VarBuilder| vb.get_with_hints(2, "w", Init::Const(1.))).unwrap();
        let replaced = |length: usize| {
            let weight = Tensor::zeros(length, DType::F32, &Device::Cpu).unwrap();
            ReplacedWeights { model: &model.variables, finished: 3, weights: vec![("w".into(), weight)] }
        };
        let cause = || Err::<(), _>(Error::other("the disk is full"));
        let error = replaced(2).restore_after(cause()).unwrap_err();
        assert_eq!(error.to_string(), "the disk is full");
        assert!(replaced(3).restore_after(Ok(())).is_err());
        let error = replaced(3).restore_after(cause()).unwrap_err();
        assert!(matches!(error, Error::IncompleteState { step: 4, .. }), "{error}");
        assert_eq!(error.root_cause().to_string(), "the disk is full");
        assert!(
            error.to_string().contains("could not be restored") && error.to_string().contains("set"),
            "{error}"
        );
    }
}
