//! The settings of an optimizer, before it is used.

use crate::checks::{missing::MissingGradients, not_finite::NotFinite};
use crate::parameters::Parameters;
use crate::rate::Rate;
use crate::slots::Slots;
use crate::update::{self, When, sharded};
use crate::{Inner, Optimizer, Transform};
use candle_core::Var;
use distribute_base::{Error, Result};
use distribute_optim::{Rule, Schedule};
use std::sync::Arc;

impl<R: Rule> Optimizer<R> {
    /// Takes the learning rate of each step from a schedule, in place of the number given at first: a function of the
    /// finished steps, and of nothing else, so that a training that resumes with those goes on as it would have. It is
    /// called once in each step, for all replicas, on replica 0 and in cross-replica context; the others wait for it as
    /// long as the strategy's timeout.
    ///
    /// # Errors
    /// - [`Error::Hyperparameter`]: the schedule is out of range.
    ///
    /// A rate that is not finite or negative is an error of the step that would use it, and a panic is
    /// [`Error::Panicked`] there, on every replica.
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
        self.inner.compare_again();
        Ok(self)
    }

    /// Changes each replica's own gradients, before they are reduced: those of the mean loss over its examples. After
    /// what was asked for earlier.
    ///
    /// The result depends on how examples are dealt to replicas. To train like one device, change what has been
    /// reduced: [`after_reduce`](Optimizer::after_reduce).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for numbers out of range.
    pub fn before_reduce(mut self, transform: Transform) -> Result<Self> {
        transform.validate("before_reduce")?;
        self.inner.require_transform("before_reduce", When::BeforeReduce, &transform)?;
        self.inner.before_reduce.push(transform);
        self.inner.compare_again();
        Ok(self)
    }

    /// Changes the gradients of the global batch, after they have been reduced over the replicas and before the rule is
    /// applied. After what was asked for earlier.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: a number is out of range, or the transform is
    ///   [`Transform::each`] and [state is sharded](Optimizer::sharded_state).
    /// - [`Error::NotSupported`]: clipping by the global norm with variables on parameter
    ///   servers, or weight decay of a table there of which only rows are fetched.
    pub fn after_reduce(mut self, transform: Transform) -> Result<Self> {
        transform.validate("after_reduce")?;
        self.inner.require_transform("after_reduce", When::AfterReduce, &transform)?;
        self.inner.after_reduce.push(transform);
        self.inner.compare_again();
        Ok(self)
    }

    /// Says what becomes of variables that have no gradient on any replica in the first step: by default there is a
    /// warning, which names them and what has probably cut them off. It is looked at once, in the first step that this
    /// optimizer makes.
    pub fn on_missing_gradients(mut self, then: MissingGradients) -> Self {
        self.inner.missing_gradients = then;
        self.inner.compare_again();
        self
    }

    /// Says what becomes of steps in which a loss or a gradient is NaN or infinite, for all replicas: by default there
    /// is a warning of losses. What is told names the replica, the step, the variable, and whether a variable itself is
    /// not finite; of many such steps in a row it is told of the first, the tenth, the hundredth and so on.
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
    #[doc(alias = "LossScaleOptimizer")]
    pub fn on_not_finite(mut self, then: NotFinite) -> Self {
        self.inner.not_finite = then;
        self.inner.compare_again();
        self
    }

    /// Stops training the variables of some names. They keep their values, are neither reduced nor counted in norms,
    /// and have no slots, also not in checkpoints. In `minimize`, layers of [`nn`](distribute_nn) do not compute their
    /// gradients.
    ///
    /// Variables that are neither f32 nor f64, such as bf16 weights below an adapter, have to be frozen before the
    /// first step.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: no variable that is not frozen yet has such a name, or none is left to train.
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

    /// Multiplies the learning rate of the variables of some names, in each step, whatever sets or schedules it.
    /// Factors of several calls multiply. A step in which the product is more than the variable's dtype can hold is
    /// refused.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where no variable that is trained has such a name, with the names there are, and for
    /// a factor that is not finite and positive, by itself or times earlier ones: with 0, [`freeze`](Optimizer::freeze)
    /// is meant.
    #[doc(alias = "param_groups")]
    pub fn rate_factor(mut self, names: impl Fn(&str) -> bool, factor: f64) -> Result<Self> {
        self.inner.rate_factor(&names, factor)?;
        Ok(self)
    }

    /// Updates the variables of some names by other hyper-parameters, for example without weight decay. If several
    /// calls name a variable, the last one counts.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: no trained variable has such a name, and the error lists the names; the rule
    ///   keeps other slots; or it may do more than compute and [state is sharded](Optimizer::sharded_state).
    /// - [`Error::Hyperparameter`]: a hyper-parameter is out of range.
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
        self.inner.with_rule_for(&names, Box::new(rule))?;
        Ok(self)
    }

    /// Divides the optimizer's state among the workers: each keeps slots for its range of every variable, updates that,
    /// and gets the new values of the other ranges from those who own them. The weights have the bits that they have
    /// without it.
    ///
    /// With N workers each keeps one Nth of the slots, such as Adam's two, also for tables that are trained by row,
    /// and each update is computed on one worker only. Traffic is the same, but half of it, the updated weights, is
    /// sent after the update and does not overlap with backward. So this saves time on fast links or with more than
    /// two workers, and memory everywhere. For tables with gradients by row, the new values of these rows are sent in
    /// addition; with rules that move all rows, such as [`Adam`](super::Adam) unless it is lazy, all values are. With
    /// one worker nothing changes. It is off by default.
    ///
    /// Checkpoints are the same files as without it: the chief gathers the slots, one after another. What was saved
    /// with any number of workers, sharded or not, can be restored with any other. What a worker that is lost has kept
    /// is lost with it, and no other has a copy: training goes on from the last checkpoint.
    ///
    /// All workers set it alike, before the first step. Clipping by norms takes one more message. What needs whole
    /// gradients or copies of variables on each worker is refused: [`Transform::each`] after the reduction, and rules
    /// that may do more than [compute](crate::rules::Formula::only_computes).
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
    /// [`Error::InvalidArgument`] after the first step, for transforms and rules that cannot be applied to ranges, and
    /// where workers come and go.
    #[doc(alias = "ZeroRedundancyOptimizer")]
    #[doc(alias = "ZeRO")]
    pub fn sharded_state(mut self, sharded: bool) -> Result<Self> {
        self.inner.share_state(sharded)?;
        Ok(self)
    }

    /// Returns the size in bytes of the slots that this process keeps, on devices with memory of their own those of
    /// each replica. If [state is sharded](Self::sharded_state), these are the slots of the ranges that this worker
    /// updates.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] while a step is being made.
    pub fn state_bytes(&self) -> Result<usize> {
        Ok(self.inner.progress.read("state_bytes")?.iter().map(Slots::bytes).sum())
    }
}

impl Inner {
    /// Notes that a setting has changed: the workers compare all of them in the next step.
    fn compare_again(&mut self) {
        *self.agreed.get_mut() = false;
    }

    fn require_transform(&self, operation: &'static str, when: When, transform: &Transform) -> Result<()> {
        self.backend.require_transform(operation, when, transform)
    }

    fn freeze(&mut self, names: &dyn Fn(&str) -> bool) -> Result<()> {
        let Parameters { strategy, variables, frozen, unfit, partition, .. } = &*self.parameters;
        let (chosen_unfit, unfit): (Vec<_>, Vec<_>) =
            unfit.iter().cloned().partition(|(name, _)| names(name));
        let chosen = match self.choose("freeze", names) {
            Err(_) if !chosen_unfit.is_empty() => Vec::new(),
            chosen => chosen?,
        };
        let stays = |index: usize| chosen.binary_search(&index).is_err();
        if chosen.len() == variables.len() {
            return Err(Error::invalid("freeze", "these are all variables, and none is left to train"));
        }
        let (stay, go): (Vec<_>, Vec<_>) =
            variables.iter().cloned().enumerate().partition(|(index, _)| stays(*index));
        let of = |all: Vec<(usize, (String, Var))>| all.into_iter().map(|(_, variable)| variable);
        let frozen = frozen.iter().cloned().chain(chosen_unfit).chain(of(go)).collect();
        let share = partition.is_some();
        let parameters = Parameters::new(strategy.clone(), of(stay).collect(), frozen, unfit, share)?;
        self.backend = update::backend(&parameters)?;
        self.progress.keep(stays);
        self.groups.keep(stays);
        self.parameters = Arc::new(parameters);
        self.compare_again();
        Ok(())
    }

    fn rate_factor(&mut self, names: &dyn Fn(&str) -> bool, factor: f64) -> Result<()> {
        if !(factor.is_finite() && factor > 0.) {
            let reason = format!(
                "the factor must be finite and positive, not {factor}; to leave variables as they are, freeze them"
            );
            return Err(Error::invalid("rate_factor", reason));
        }
        for index in self.choose("rate_factor", names)? {
            self.groups.multiply_rate(index, factor).map_err(|(product, before)| {
                let reason = format!(
                    "the factors of variable {} multiply to {product}, with {factor:e} after {before:e}; they must stay \
                     finite and positive",
                    self.parameters.variables[index].0
                );
                Error::invalid("rate_factor", reason)
            })?;
        }
        self.compare_again();
        Ok(())
    }

    fn with_rule_for(&mut self, names: &dyn Fn(&str) -> bool, rule: Box<dyn Rule>) -> Result<()> {
        rule.validate()?;
        self.backend.require_rule("with_rule_for", &*rule)?;
        let own = self.groups.rule();
        if rule.slots() != own.slots() {
            let reason = format!("{rule:?} keeps other slots than the optimizer's {own:?}");
            return Err(Error::invalid("with_rule_for", reason));
        }
        let chosen = self.choose("with_rule_for", names)?;
        self.groups.set_rule(&chosen, rule);
        self.compare_again();
        Ok(())
    }

    fn share_state(&mut self, share: bool) -> Result<()> {
        const OPERATION: &str = "sharded_state";
        if self.finished_steps() > 0 {
            let reason = "steps have been made with this optimizer; ask for it when the optimizer is made, and restore a \
                          checkpoint after that";
            return Err(Error::invalid(OPERATION, reason));
        }
        let Parameters { strategy, variables, frozen, unfit, .. } = &*self.parameters;
        if share && strategy.extended().elastic().is_some() {
            let reason = "workers come and go, each with its part of the state: leave it whole, or let all workers be needed \
                          (min_workers)";
            return Err(Error::invalid(OPERATION, reason));
        }
        if share {
            // Also of one worker: the same program shall do for several.
            self.groups.rules().try_for_each(|rule| sharded::require_rule(OPERATION, rule))?;
            self.after_reduce
                .iter()
                .try_for_each(|transform| sharded::require_transform(OPERATION, transform))?;
        }
        let parameters =
            Parameters::new(strategy.clone(), variables.clone(), frozen.clone(), unfit.clone(), share)?;
        let backend = update::backend(&parameters)?;
        *self.progress.slots_mut() = backend.new_slots(&parameters, &self.groups.rule().slots())?;
        self.backend = backend;
        self.parameters = Arc::new(parameters);
        self.compare_again();
        Ok(())
    }

    /// The numbers of the variables that have such names, ascending: one at least.
    fn choose(&self, operation: &'static str, names: &dyn Fn(&str) -> bool) -> Result<Vec<usize>> {
        let all = self.parameters.variables.iter().enumerate();
        let chosen: Vec<usize> = all.filter(|(_, (name, _))| names(name)).map(|(index, _)| index).collect();
        if !chosen.is_empty() {
            return Ok(chosen);
        }
        let of = |all: &[(String, Var)]| -> Vec<String> {
            all.iter().map(|(name, _)| name).filter(|name| names(name)).take(20).cloned().collect()
        };
        let (frozen, unfit) = (of(&self.parameters.frozen), of(&self.parameters.unfit));
        let why = if !unfit.is_empty() {
            format!(
                "only variables that are neither f32 nor f64, and so not trained, have such names: {unfit:?}"
            )
        } else if frozen.is_empty() {
            "no variable that is trained has such a name".to_string()
        } else {
            format!("only variables that are frozen already have such names: {frozen:?}")
        };
        let (count, there) =
            (self.parameters.variables.len(), self.variable_names().take(20).collect::<Vec<_>>());
        Err(Error::invalid(operation, format!("{why}; the {count} that are trained: {there:?}")))
    }
}
