//! Settings of an optimizer, which must be made before it is used.

use crate::checks::{MissingGradients, not_finite::NotFinite};
use crate::parameters::Parameters;
use crate::rate::Rate;
use crate::slots::{self, Slots};
use crate::update::{self, When, sharded};
use crate::{Inner, Optimizer, Transform};
use candle_core::Var;
use distribute_base::{Error, Result};
use distribute_decisions::internal::Sharding;
use distribute_optim::{Averaged, Rule, Schedule};
use std::sync::Arc;

impl<R: Rule> Optimizer<R> {
    /// Takes the learning rate of each step from a schedule, instead of using a constant rate. A schedule depends only
    /// on the number of finished steps, so a resumed training run continues with the same rates. Replica 0 calls the
    /// schedule once per step for all replicas, in cross-replica context. The other replicas wait for the schedule, but
    /// no longer than the strategy's timeout.
    ///
    /// # Errors
    /// - [`Error::Hyperparameter`]: a parameter of the schedule is out of range.
    ///
    /// If a rate is negative or not finite, the step that would use it returns an error. If the schedule panics,
    /// the step returns [`Error::Panicked`] on every replica.
    ///
    /// ```
    /// # use distribute::{optimizer::schedules::{CosineDecay, Warmup}, prelude::*};
    /// # use candle_nn::linear;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let model = strategy.replicate(|vb| linear(4, 2, vb.pp("fc")))?;
    /// // From 0 to 0.1 in 100 steps, then down to 0 again in 900.
    /// let optimizer = Adam::new(&model.variables, 0.)?
    ///     .with_schedule(Warmup::new(0., 100, CosineDecay::new(0.1, 900)))?;
    /// assert_eq!(optimizer.learning_rate(), 0.);
    /// // A function will do, too.
    /// let optimizer = optimizer.with_schedule(|finished: u64| 0.1 / (finished + 1) as f64)?;
    /// assert_eq!(optimizer.learning_rate(), 0.1);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "tf.keras.optimizers.schedules.LearningRateSchedule")]
    #[doc(alias = "LearningRateSchedule")]
    pub fn with_schedule(mut self, schedule: impl Schedule) -> Result<Self> {
        schedule.validate()?;
        self.inner.rate = Rate::Schedule(Box::new(schedule));
        self.inner.require_comparison();
        Ok(self)
    }

    /// Adds a transform of each replica's own gradients, which is applied before they are reduced. These are gradients
    /// of the mean loss over the replica's examples. Transforms are applied in the order in which they were added.
    ///
    /// The result depends on how examples are distributed over replicas. To train like a single device, transform
    /// the reduced gradients with [`after_reduce`](Optimizer::after_reduce) instead.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: a parameter of the transform is out of range.
    /// - [`Error::NotSupported`]: the variables are on parameter servers, and the transform is [`Transform::each`] with
    ///   a table of ids, or the weight decay of a table of which only rows are fetched.
    pub fn before_reduce(mut self, transform: Transform) -> Result<Self> {
        transform.validate("before_reduce")?;
        self.inner.require_transform("before_reduce", When::BeforeReduce, &transform)?;
        self.inner.before_reduce.push(transform);
        self.inner.require_comparison();
        Ok(self)
    }

    /// Adds a transform of the gradients of the global batch. The transform is applied after the gradients have been
    /// reduced over the replicas, and before the update rule. Transforms are applied in the order in which they were
    /// added.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: a parameter of the transform is out of range, or the transform is
    ///   [`Transform::each`] and the [state is sharded](Optimizer::shard_state).
    /// - [`Error::NotSupported`]: the variables are on parameter servers, and the transform clips by the global norm,
    ///   is the weight decay of a table of which only rows are fetched, or is [`Transform::each`] with a table of ids.
    /// - [`Error::NotSupported`]: the workers store tables together, and the transform is [`Transform::each`].
    pub fn after_reduce(mut self, transform: Transform) -> Result<Self> {
        transform.validate("after_reduce")?;
        self.inner.require_transform("after_reduce", When::AfterReduce, &transform)?;
        self.inner.after_reduce.push(transform);
        self.inner.require_comparison();
        Ok(self)
    }

    /// Sets the reaction to variables that have no gradient on any replica. Only the first step of this optimizer
    /// detects them. By default, a warning names the variables and the likely cause.
    pub fn on_missing_gradients(mut self, then: MissingGradients) -> Self {
        self.inner.missing_gradients = then;
        self.inner.require_comparison();
        self
    }

    /// Sets the reaction to steps in which a loss or a gradient on any replica is NaN or infinite. By default, a
    /// warning is logged if a loss is not finite. The message names the replica, the step and the variable. If a
    /// variable itself contains such values, the message also names that variable. Of consecutive such steps, the
    /// first, the tenth, the hundredth and so on are reported. With a [dynamic loss scale](crate::LossScale::Dynamic),
    /// such steps are skipped as long as the factor is greater than 1; this setting applies afterwards.
    ///
    /// ```
    /// # use distribute::{Error, optimizer::NotFinite, prelude::*};
    /// # use candle_nn::Init;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let model = strategy.replicate(|vb| vb.get_with_hints(1, "w", Init::Const(0.)))?;
    /// let optimizer = Sgd::new(&model.variables, 1.)?.on_not_finite(NotFinite::Error);
    /// let error = strategy.run(&model, |ctx, w| {
    ///     // On replica 1, the root of 0 has an infinite slope.
    ///     let loss = if ctx.replica_id_in_sync_group() == 1 { w.sqrt()? } else { w.clone() };
    ///     optimizer.minimize(ctx, loss.sum_all()?, 1)
    /// });
    /// let error = error.unwrap_err();
    /// let Error::NotFinite { replica, step, variable, .. } = error.root_cause() else { panic!("{error}") };
    /// assert_eq!((*replica, *step, variable.as_deref()), (1, 1, Some("w")));
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "tf.debugging.check_numerics")]
    pub fn on_not_finite(mut self, then: NotFinite) -> Self {
        self.inner.not_finite = then;
        self.inner.require_comparison();
        self
    }

    /// Freezes the variables for whose names `names` returns `true`. They keep their values and have no slots, not even
    /// in checkpoints. Their gradients are neither reduced nor counted in norms, and layers of [`nn`](distribute_nn) do
    /// not compute them in `minimize`. What [compression](distribute_core::strategy::Compression) has not sent yet of
    /// them is dropped; the other variables keep their residuals.
    ///
    /// Variables that are neither f32 nor f64, such as bf16 weights under an adapter, must be frozen before the
    /// first step.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: `names` selects no unfrozen variable, or no variable would be left to train.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// # use candle_nn::{Linear, VarBuilder, linear};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let model = strategy.replicate(|vb: VarBuilder| -> candle_core::Result<(Linear, Linear)> {
    ///     Ok((linear(4, 8, vb.pp("bert"))?, linear(8, 2, vb.pp("head"))?))
    /// })?;
    /// // The head trains, biases at a tenth of the rate.
    /// let optimizer = Adam::new(&model.variables, 1e-3)?
    ///     .freeze(|name| name.starts_with("bert."))?
    ///     .rate_factor(|name| name.ends_with(".bias"), 0.1)?;
    /// assert!(optimizer.variable_names().eq(["head.bias", "head.weight"]));
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "trainable")]
    #[doc(alias = "requires_grad")]
    pub fn freeze(mut self, names: impl Fn(&str) -> bool) -> Result<Self> {
        self.inner.freeze(&names)?;
        Ok(self)
    }

    /// Multiplies the learning rate of the variables that `names` selects by `factor`. Factors from several calls are
    /// multiplied. If the resulting rate exceeds the range of a variable's dtype, the step returns an error.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: `names` selects no trained variable; the error lists their names.
    /// - [`Error::InvalidArgument`]: the factor, or its product with earlier factors, is not finite and positive.
    ///   Instead of 0, use [`freeze`](Optimizer::freeze).
    #[doc(alias = "param_groups")]
    pub fn rate_factor(mut self, names: impl Fn(&str) -> bool, factor: f64) -> Result<Self> {
        self.inner.rate_factor(&names, factor)?;
        Ok(self)
    }

    /// Sets different hyper-parameters for the variables that `names` selects, for example no weight decay. If several
    /// calls select a variable, the last one applies to it.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: `names` selects no trained variable (the error lists their names); the rule keeps
    ///   different slots or has a different [unit](Rule::unit); or the rule may do more than compute and the [state is
    ///   sharded](Optimizer::shard_state).
    /// - [`Error::Hyperparameter`]: a hyper-parameter is out of range.
    /// - [`Error::NotSupported`]: variables are on parameter servers, and the rule is a custom one.
    ///
    /// ```
    /// # use distribute::{optimizer::rules, prelude::*};
    /// # use candle_nn::{VarBuilder, linear};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let model = strategy.replicate(|vb: VarBuilder| linear(4, 2, vb.pp("fc")))?;
    /// // Neither biases nor norms decay, as is usual for transformers.
    /// let still = rules::AdamW { weight_decay: 0., ..Default::default() };
    /// let optimizer = AdamW::new(&model.variables, 1e-3)?
    ///     .with_rule_for(|name| name.ends_with("bias") || name.contains("norm"), still)?;
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "exclude_from_weight_decay")]
    #[doc(alias = "param_groups")]
    pub fn with_rule_for(mut self, names: impl Fn(&str) -> bool, rule: R) -> Result<Self> {
        self.inner.with_rule_for(&names, Arc::new(rule))?;
        Ok(self)
    }

    /// Shards the optimizer's state over the workers. Each worker keeps slots only for its range of every variable,
    /// updates that range, and receives the new values of the other ranges. The weights are bit-identical to those
    /// without sharding.
    ///
    /// With N workers, each keeps one Nth of the slots, such as Adam's two, and computes one Nth of the update. This
    /// includes tables that are trained by row. The amount of data sent is the same, but half of it, the updated
    /// weights, is sent after the update and does not overlap with the backward pass. Sharding therefore always saves
    /// memory, but saves time only on fast links or with more than two workers. For tables with gradients by row, the
    /// new values of these rows are sent in addition. If the rule changes all rows, as [`Adam`](super::Adam) does
    /// unless it is lazy, all values are sent. With one worker nothing changes. Sharding is off by default.
    ///
    /// A rule that needs complete rows or variables ([`Rule::unit`]), such as [`RowAdagrad`](super::RowAdagrad), does
    /// not split variables: each worker updates some of them. The largest variable then bounds what is saved.
    ///
    /// Checkpoints have the same format as without sharding, and each worker writes its own slots. In a folder that the
    /// workers do not share, and for a save in the background, the chief gathers them, one after another. A checkpoint
    /// can be restored with any number of workers, sharded or not. If a worker fails, its slots are lost
    /// because no other worker has a copy, unless there are [copies](Self::shard_state_replicated). Training must then
    /// be restored from the last checkpoint.
    ///
    /// The setting must be the same on all workers, and be made before the first step. Clipping by norms requires one
    /// more message. Transforms and rules that need complete gradients or variables on each worker are not supported.
    /// These are [`Transform::each`] after the reduction, and rules that may do more than
    /// [compute](crate::rules::Formula::only_computes).
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use candle_nn::linear;
    /// let bytes = MultiWorkerMirroredStrategy::on_threads(2, 1, |strategy| {
    ///     let model = strategy.replicate(|vb| linear(1024, 16, vb.pp("fc")))?;
    ///     let optimizer = Adam::new(&model.variables, 1e-3)?.shard_state()?;
    ///     // As on one worker.
    ///     assert_eq!(optimizer.slot("fc.weight", "m")?.dims(), [16, 1024]);
    ///     optimizer.state_bytes()
    /// })?;
    /// // Two slots of four bytes for each of 1024 · 16 weights and 16 biases. One worker has those of all biases.
    /// assert_eq!(bytes.iter().sum::<usize>(), 2 * 4 * (1024 + 1) * 16);
    /// assert_eq!(*bytes.iter().min().unwrap(), 2 * 4 * 1024 * 8);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: a step has already been made; a transform or a rule cannot be applied to ranges;
    ///   or the training run is elastic.
    /// - [`Error::NotSupported`]: the workers store tables together.
    #[doc(alias = "ZeroRedundancyOptimizer")]
    #[doc(alias = "ZeRO")]
    pub fn shard_state(mut self) -> Result<Self> {
        self.inner.shard_state(false)?;
        Ok(self)
    }

    /// Shards the optimizer's state like [`shard_state`](Self::shard_state), and keeps a copy of each worker's shard at
    /// the next worker, so that a [`Training`] loses no step with a worker. After a loss, the other workers and the
    /// replacement of the lost one receive the shards that they lack from the workers with the copies.
    ///
    /// With N workers, each keeps two Nths of the slots. In each step, a worker sends its range of the reduced
    /// gradients to the next worker, which computes the same slots from it. This is one message more, with one Nth of
    /// the bytes of the gradients. Each worker computes three Nths of the update. With one worker nothing changes.
    ///
    /// If two workers are lost at the same time, and one is next to the other (the last one is next to the first), a
    /// shard is lost with its copy. `Training` then returns an error of the kind
    /// [`RestoreNeeded`](distribute_base::ErrorKind::RestoreNeeded) on all workers, and logs which shards are lost.
    /// Restart all from the last checkpoint.
    ///
    /// The weights, and the checkpoints, are bit-identical to those without sharding.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use candle_nn::linear;
    /// let bytes = MultiWorkerMirroredStrategy::on_threads(4, 1, |strategy| {
    ///     let model = strategy.replicate(|vb| linear(1024, 16, vb.pp("fc")))?;
    ///     Adam::new(&model.variables, 1e-3)?.shard_state_replicated()?.state_bytes()
    /// })?;
    /// // Each slot is on two workers.
    /// assert_eq!(bytes.iter().sum::<usize>(), 2 * (2 * 4 * (1024 + 1) * 16));
    /// # Ok::<(), distribute::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`shard_state`](Self::shard_state).
    ///
    /// [`Training`]: https://docs.rs/distribute/latest/distribute/struct.Training.html
    #[doc(alias = "replicate_state")]
    #[doc(alias = "redundancy")]
    pub fn shard_state_replicated(mut self) -> Result<Self> {
        self.inner.shard_state(true)?;
        Ok(self)
    }

    /// Returns the size in bytes of the slots that this process keeps. On devices with separate memory, this includes
    /// the slots of each replica. If the [state is sharded](Self::shard_state), it only includes the ranges that this
    /// worker updates, and those of which it has [copies](Self::shard_state_replicated).
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: a step is in progress.
    pub fn state_bytes(&self) -> Result<usize> {
        let own: usize = self.inner.progress.read("state_bytes")?.iter().map(Slots::bytes).sum();
        Ok(own + self.inner.progress.copies().slots.iter().map(Slots::bytes).sum::<usize>())
    }
}

impl Inner {
    /// Records that a setting has changed. The workers then compare all settings in the next step.
    pub(crate) fn require_comparison(&mut self) {
        *self.settings_compared.get_mut() = false;
    }

    fn require_transform(&self, operation: &'static str, when: When, transform: &Transform) -> Result<()> {
        self.backend.require_transform(operation, when, transform)
    }

    fn freeze(&mut self, names: &dyn Fn(&str) -> bool) -> Result<()> {
        self.local.as_ref().map_or(Ok(()), |local| local.require_unused("freeze"))?;
        let Parameters { strategy, variables, frozen, untrainable, partition, .. } = &*self.parameters;
        let (chosen_untrainable, untrainable): (Vec<_>, Vec<_>) =
            untrainable.iter().cloned().partition(|(name, _)| names(name));
        let chosen = match self.find_variables("freeze", names) {
            Err(_) if !chosen_untrainable.is_empty() => Vec::new(),
            chosen => chosen?,
        };
        let stays = |index: usize| chosen.binary_search(&index).is_err();
        if chosen.len() == variables.len() {
            return Err(Error::invalid("freeze", "these are all variables, so none is left to train"));
        }
        let (stay, go): (Vec<_>, Vec<_>) =
            variables.iter().cloned().enumerate().partition(|(index, _)| stays(*index));
        let of = |all: Vec<(usize, (String, Var))>| all.into_iter().map(|(_, variable)| variable);
        let frozen = frozen.iter().cloned().chain(chosen_untrainable).chain(of(go)).collect();
        let sharding = partition.as_ref().map(|partition| partition.sharding());
        let mut parameters =
            Parameters::new(strategy.clone(), of(stay).collect(), frozen, untrainable, sharding)?;
        self.backend = update::backend(&parameters)?;
        parameters.feedback = self.parameters.feedback.retained(stays);
        self.progress.retain(stays);
        self.groups.retain(stays);
        if let Some(local) = &mut self.local {
            local.set_trained(&parameters);
        }
        self.parameters = Arc::new(parameters);
        self.require_comparison();
        Ok(())
    }

    fn rate_factor(&mut self, names: &dyn Fn(&str) -> bool, factor: f64) -> Result<()> {
        if !(factor.is_finite() && factor > 0.) {
            let reason = format!(
                "the factor must be finite and positive, not {factor}; to keep variables unchanged, freeze them"
            );
            return Err(Error::invalid("rate_factor", reason));
        }
        for index in self.find_variables("rate_factor", names)? {
            self.groups.multiply_rate(index, factor).map_err(|(product, before)| {
                let reason = format!(
                    "the factors of variable {} multiply to {product}, with {factor:e} after {before:e}; they must stay \
                     finite and positive",
                    self.parameters.variables[index].0
                );
                Error::invalid("rate_factor", reason)
            })?;
        }
        self.require_comparison();
        Ok(())
    }

    fn with_rule_for(&mut self, names: &dyn Fn(&str) -> bool, rule: Arc<dyn Rule>) -> Result<()> {
        let rule = match self.ema {
            Some(momentum) => Arc::new(Averaged { rule, momentum }),
            None => rule,
        };
        rule.validate()?;
        self.backend.require_rule("with_rule_for", &*rule)?;
        let own = self.groups.rule();
        if rule.slots() != own.slots() {
            let reason = format!("{rule:?} keeps other slots than the optimizer's {own:?}");
            return Err(Error::invalid("with_rule_for", reason));
        }
        slots::layout("with_rule_for", &*rule)?;
        if rule.unit() != own.unit() {
            let reason = format!(
                "{rule:?} needs a {:?} at once, and the optimizer's {own:?} a {:?}; train with two optimizers",
                rule.unit(),
                own.unit()
            );
            return Err(Error::invalid("with_rule_for", reason));
        }
        let chosen = self.find_variables("with_rule_for", names)?;
        self.groups.set_rule(&chosen, rule);
        self.require_comparison();
        Ok(())
    }

    fn shard_state(&mut self, is_replicated: bool) -> Result<()> {
        const OPERATION: &str = "shard_state";
        if self.finished_steps() > 0 {
            let reason = "this optimizer has already made steps; set this when the optimizer is created, and restore \
                          a checkpoint afterwards";
            return Err(Error::invalid(OPERATION, reason));
        }
        self.require_no_local_steps(
            OPERATION,
            "sharding the state of workers that train alone (local_steps)",
            "leave it out: each worker has its own slots",
        )?;
        let Parameters { strategy, variables, frozen, untrainable, .. } = &*self.parameters;
        if let Some(range) = strategy.extended().elastic() {
            if range.start() != range.end() {
                let reason = "workers may leave, each with its shard of the state: do not shard the state, or require \
                              all workers (min_workers)";
                return Err(Error::invalid(OPERATION, reason));
            }
            if !is_replicated {
                let reason = "spares may replace workers, each of which has a shard of the state: keep copies \
                              (shard_state_replicated), or leave out the spares";
                return Err(Error::invalid(OPERATION, reason));
            }
        }
        if strategy.session().is_some_and(|session| session.lock_step().is_some()) {
            return Err(Error::NotSupported {
                operation: OPERATION,
                strategy: strategy.extended().kind(),
                what: "sharding the state of a strategy whose workers store tables together",
                advice: "leave it out: the state of tables is stored with their rows",
            });
        }
        // Required even with one worker, so that the same program works with several.
        self.groups.rules().try_for_each(|rule| sharded::require_rule(OPERATION, rule))?;
        self.after_reduce
            .iter()
            .try_for_each(|transform| sharded::require_transform(OPERATION, transform))?;
        let (unit, frozen) = (self.groups.rule().unit(), frozen.clone());
        let sharding = Some(Sharding { unit, is_replicated });
        let parameters =
            Parameters::new(strategy.clone(), variables.clone(), frozen, untrainable.clone(), sharding)?;
        let (backend, layout) = (update::backend(&parameters)?, self.groups.rule().slots());
        self.progress
            .reset(backend.new_slots(&parameters, &layout)?, backend.new_copies(&parameters, &layout)?);
        self.backend = backend;
        self.parameters = Arc::new(parameters);
        self.require_comparison();
        Ok(())
    }

    /// Returns the indices, in ascending order, of the trained variables that `names` selects. Returns an error if
    /// there are none.
    fn find_variables(&self, operation: &'static str, names: &dyn Fn(&str) -> bool) -> Result<Vec<usize>> {
        let all = self.parameters.variables.iter().enumerate();
        let chosen: Vec<usize> = all.filter(|(_, (name, _))| names(name)).map(|(index, _)| index).collect();
        if !chosen.is_empty() {
            return Ok(chosen);
        }
        let of = |all: &[(String, Var)]| -> Vec<String> {
            all.iter().map(|(name, _)| name).filter(|name| names(name)).take(20).cloned().collect()
        };
        let (frozen, untrainable) = (of(&self.parameters.frozen), of(&self.parameters.untrainable));
        let why = if !untrainable.is_empty() {
            format!(
                "only variables that are neither f32 nor f64, and therefore not trained, have such names: {untrainable:?}"
            )
        } else if frozen.is_empty() {
            "no trained variable has such a name".to_string()
        } else {
            format!("only frozen variables have such names: {frozen:?}")
        };
        let (count, there) =
            (self.parameters.variables.len(), self.variable_names().take(20).collect::<Vec<_>>());
        Err(Error::invalid(operation, format!("{why}; the {count} trained variables: {there:?}")))
    }
}
