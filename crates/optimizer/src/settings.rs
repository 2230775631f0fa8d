//! What can be asked of an optimizer before it is used.

use crate::rate::Rate;
use crate::update::servers;
use crate::update::sharded::settings;
use crate::{MissingGradients, NotFinite, Optimizer, Transform};
use distribute_base::Result;
use distribute_optim::{Rule, Schedule};

impl<R: Rule> Optimizer<R> {
    /// Takes the learning rate of each step from a schedule, in place of the number given at first: a function of the
    /// finished steps, and of nothing else, so that a training that resumes with those goes on as it would have. It is
    /// called once in each step, for all replicas, on replica 0 and in cross-replica context; the others wait for it as long
    /// as the strategy's timeout.
    ///
    /// # Errors
    /// [`Error::Hyperparameter`](crate::Error::Hyperparameter) for a schedule out of range. A rate that is not finite or
    /// negative is an error of the step that would take it, and a panic is [`Error::Panicked`](crate::Error::Panicked)
    /// there, on every replica.
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
        self.rate = Rate::Schedule(Box::new(schedule));
        self.compare_again();
        Ok(self)
    }

    /// Changes each replica's own gradients, before they are reduced: those of the mean loss over its examples. After
    /// what was asked for earlier.
    ///
    /// The result depends on how examples are dealt to replicas. To train like one device, change what has been reduced:
    /// [`after_reduce`](Optimizer::after_reduce).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for numbers out of range.
    pub fn before_reduce(mut self, transform: Transform) -> Result<Self> {
        transform.validate("before_reduce")?;
        if transform.reads_values() || transform.closure().is_some() {
            servers::require_transform("before_reduce", &transform, &self.trained)?;
        }
        self.before_reduce.push(transform);
        self.compare_again();
        Ok(self)
    }

    /// Changes the gradients of the global batch, after they have been reduced over the replicas and before the rule is
    /// applied. After what was asked for earlier.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for numbers out of range, and for [`Transform::each`] where
    /// [state is sharded](Optimizer::sharded_state). [`Error::NotSupported`](crate::Error::NotSupported) for clipping by the global norm
    /// of variables on parameter servers, and for weight decay of a table there of which only rows are fetched.
    pub fn after_reduce(mut self, transform: Transform) -> Result<Self> {
        transform.validate("after_reduce")?;
        servers::require_transform("after_reduce", &transform, &self.trained)?;
        if self.trained.shards.is_some() {
            settings::require_transform("after_reduce", &transform)?;
        }
        self.after_reduce.push(transform);
        self.compare_again();
        Ok(self)
    }

    /// Says what becomes of variables that have no gradient on any replica in the first step: by default there is a
    /// warning, which names them and what has probably cut them off. It is looked at once, in the first step that this
    /// optimizer makes.
    pub fn on_missing_gradients(mut self, then: MissingGradients) -> Self {
        self.missing_gradients = then;
        self.compare_again();
        self
    }

    /// Says what becomes of steps in which a loss or a gradient is NaN or infinite, for all replicas: by default there is a
    /// warning of losses. What is told names the replica, the step, the variable, and whether a variable itself is not
    /// finite; of many such steps in a row it is told of the first, the tenth, the hundredth and so on.
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
    /// assert!(matches!(error.root_cause(), Error::NotFinite { replica: 1, step: 1, variable: Some(w), .. } if w == "w"));
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "tf.debugging.check_numerics")]
    #[doc(alias = "LossScaleOptimizer")]
    pub fn on_not_finite(mut self, then: NotFinite) -> Self {
        self.not_finite = then;
        self.compare_again();
        self
    }
}
