//! Moving averages of the weights, which the rule of each variable keeps in a slot.

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
    /// - [`Error::NotSupported`]: as for [`with_rule`](Self::with_rule), on parameter servers.
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
    /// - The errors of [`ema`](Self::ema), and of `body`.
    /// - [`Error::WrongContext`]: the call is inside `run`.
    /// - [`Error::NotSupported`]: several workers train independently, or for a coordinator, and would compute with
    ///   the averages. Set the values of [`ema`](Self::ema) in another model there.
    #[doc(alias = "SwapEMAWeights")]
    #[doc(alias = "swap_parameters")]
    #[track_caller]
    pub fn use_ema<T>(&self, body: impl FnOnce() -> Result<T>) -> Result<T> {
        let replaced = self.begin_ema()?;
        let result = catch_unwind(AssertUnwindSafe(body));
        let restored = replaced.restore();
        let result = result.unwrap_or_else(|panic| resume_unwind(panic))?;
        restored.map(|()| result)
    }

    /// Replaces the trained weights by their averages, until [`ReplacedWeights::restore`].
    #[doc(hidden)]
    #[track_caller]
    pub fn begin_ema(&self) -> Result<ReplacedWeights<'_>> {
        let inner = &self.inner;
        inner.require_lock_step("use_ema")?;
        let averages = inner.averages("use_ema", Location::caller())?;
        let weight = |name: &String| Ok((name.clone(), inner.model.get(name)?));
        let weights = averages.keys().map(weight).collect::<Result<_>>()?;
        let replaced = ReplacedWeights { model: &inner.model, weights };
        match averages.iter().try_for_each(|(name, average)| inner.model.set(name, average)) {
            Ok(()) => Ok(replaced),
            Err(error) => replaced.restore().and(Err(error)),
        }
    }

    /// Returns whether this optimizer keeps averages.
    #[doc(hidden)]
    pub fn has_ema(&self) -> bool {
        self.inner.has_ema()
    }
}

/// The weights of a model whose variables contain the averages in the meantime.
#[doc(hidden)]
#[derive(Debug)]
#[must_use = "the weights are not restored when this is dropped"]
pub struct ReplacedWeights<'a> {
    model: &'a Variables,
    weights: Vec<(String, Tensor)>,
}

impl ReplacedWeights<'_> {
    /// Restores the weights.
    ///
    /// # Errors
    /// Returns the first error of [`Variables::set`]. All other weights are restored even then.
    pub fn restore(self) -> Result<()> {
        // An error for one variable does not keep the averages in the others.
        let mut all = Ok(());
        for (name, weight) in &self.weights {
            all = all.and(self.model.set(name, weight));
        }
        all
    }
}

impl Inner {
    fn with_ema(&mut self, momentum: f64) -> Result<()> {
        const OPERATION: &str = "with_ema";
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
        *self.progress.slots_mut() = self.backend.new_slots(&self.parameters, &layout)?;
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
        if !self.has_ema() {
            let reason = "this optimizer keeps no averages of the weights; create it with with_ema";
            return Err(Error::invalid(operation, reason));
        }
        let one = |name: &str| {
            let (weight, offset) = (self.model.get(name)?, self.slot(name, Averaged::SLOT, at)?);
            Ok((name.to_owned(), (weight + offset)?))
        };
        self.variable_names().map(one).collect()
    }

    /// Returns an error if workers are at different steps, and would compute with values that this one sets.
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
