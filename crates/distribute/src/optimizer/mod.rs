//! Optimizers for candle models: backward, reduce, update, in one call.

mod gradients;
mod locked;
mod owners;
mod pass;

use crate::variables::Variables;
use crate::{Error, ReplicaContext, Result, Strategy};
use candle_core::{DType, Tensor, Var};
use distribute_cluster::{Fingerprint, Operation};
use distribute_optim::{Rule, Step};
use gradients::{Accumulated, Contribution, Of};
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The update rules behind the optimizers, with their hyper-parameters, and what it takes to apply one to a table of
/// one's own: dense ([`RuleExt::update`](rules::RuleExt::update)) or by row, from
/// [`IndexedSlices`](crate::IndexedSlices) ([`merge_rows`](rules::merge_rows), then
/// [`RuleExt::update_rows`](rules::RuleExt::update_rows)).
pub mod rules {
    pub use distribute_optim::{
        Adagrad, Adam, AdamW, Float, Formula, Ftrl, InvalidHyperparameter, Momentum, RmsProp, Rule, RuleExt,
        Sgd, SlotSpec, Step, UpdateError, merge_rows,
    };
}

/// Stochastic gradient descent.
#[doc(alias = "tf.keras.optimizers.SGD")]
pub type Sgd = Optimizer<rules::Sgd>;
/// Gradient descent with momentum.
pub type Momentum = Optimizer<rules::Momentum>;
/// Adam, in TensorFlow's form.
#[doc(alias = "tf.keras.optimizers.Adam")]
pub type Adam = Optimizer<rules::Adam>;
/// Adam with decoupled weight decay: candle_nn's AdamW, to the bit.
#[doc(alias = "tf.keras.optimizers.AdamW")]
pub type AdamW = Optimizer<rules::AdamW>;
/// Adagrad.
#[doc(alias = "tf.keras.optimizers.Adagrad")]
pub type Adagrad = Optimizer<rules::Adagrad>;
/// RMSprop.
#[doc(alias = "tf.keras.optimizers.RMSprop")]
pub type RmsProp = Optimizer<rules::RmsProp>;
/// FTRL.
#[doc(alias = "tf.keras.optimizers.Ftrl")]
pub type Ftrl = Optimizer<rules::Ftrl>;

/// Trains the variables of one model by an update rule.
///
/// One optimizer serves all replicas: each calls [`minimize`](Optimizer::minimize) once in a step. Gradients are
/// averaged over all *examples*, so N replicas train like one device on the same global batch, partial batches and
/// empty pieces included. Each replica reduces and updates its own range of the parameters, in place, in one pass.
///
/// A variable without gradient on some replicas counts as zero there; without gradient on all, it and its slots stay
/// as they are.
#[doc(alias = "tf.keras.optimizers.Optimizer")]
#[derive(Debug)]
pub struct Optimizer<R> {
    rule: R,
    id: u64,
    strategy: Strategy,
    variables: Vec<(String, Var)>,
    /// The bits of an f64.
    learning_rate: AtomicU64,
    clip: Option<f64>,
    state: Mutex<State>,
}

/// What changes from step to step.
#[derive(Debug)]
struct State {
    finished: u64,
    /// For each variable, what the rule keeps beside it.
    slots: Vec<pass::Slots>,
}

impl<R: Rule + Default> Optimizer<R> {
    /// Binds to a model's variables, with the rule's default hyper-parameters.
    ///
    /// # Errors
    /// As [`Optimizer::with_rule`].
    pub fn new(variables: &Variables, learning_rate: f64) -> Result<Self> {
        Self::with_rule(R::default(), variables, learning_rate)
    }
}

impl<R: Rule> Optimizer<R> {
    /// Binds to a model's variables, with a rule of chosen hyper-parameters.
    ///
    /// # Errors
    /// [`Error::Hyperparameter`] for one out of range; [`Error::InvalidArgument`] for a variable that is neither f32
    /// nor f64, not on the CPU, or where there is none.
    pub fn with_rule(rule: R, variables: &Variables, learning_rate: f64) -> Result<Self> {
        static IDS: AtomicU64 = AtomicU64::new(1);
        rule.validate()?;
        let strategy = variables.strategy().clone();
        let variables = variables.trainable();
        if variables.is_empty() {
            return Err(Error::invalid(
                "Optimizer::new",
                "the model has no variables to train; build it with replicate",
            ));
        }
        let layout = rule.slots();
        if layout.len() > pass::MOST_SLOTS {
            let reason =
                format!("rule {} keeps {} slots, of {} at most", rule.name(), layout.len(), pass::MOST_SLOTS);
            return Err(Error::invalid("Optimizer::with_rule", reason));
        }
        let slots =
            variables.iter().map(|(name, v)| pass::Slots::new(name, v, &layout)).collect::<Result<_>>()?;
        let optimizer = Self {
            rule,
            id: IDS.fetch_add(1, Ordering::Relaxed),
            strategy,
            variables,
            learning_rate: AtomicU64::new(0),
            clip: None,
            state: Mutex::new(State { finished: 0, slots }),
        };
        optimizer.set_learning_rate(learning_rate)?;
        Ok(optimizer)
    }

    /// Scales the gradients, after they have been reduced over all replicas, so that their norm over all variables
    /// together is `max_norm` at most.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `max_norm` is positive.
    #[doc(alias = "tf.clip_by_global_norm")]
    pub fn clip_global_norm(mut self, max_norm: f64) -> Result<Self> {
        if max_norm.is_nan() || max_norm <= 0. {
            return Err(Error::invalid(
                "clip_global_norm",
                format!("the norm must be positive, not {max_norm}"),
            ));
        }
        self.clip = Some(max_norm);
        Ok(self)
    }

    /// The learning rate of the next step.
    #[doc(alias = "tf.keras.optimizers.Optimizer.learning_rate")]
    pub fn learning_rate(&self) -> f64 {
        f64::from_bits(self.learning_rate.load(Ordering::Relaxed))
    }

    /// Sets the learning rate of the next step. Between runs: within one, replicas would race for it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a negative number, an infinite one or NaN.
    pub fn set_learning_rate(&self, learning_rate: f64) -> Result<()> {
        if !(learning_rate.is_finite() && learning_rate >= 0.) {
            let reason = format!("the learning rate must be finite and not negative, not {learning_rate}");
            return Err(Error::invalid("set_learning_rate", reason));
        }
        self.learning_rate.store(learning_rate.to_bits(), Ordering::Relaxed);
        Ok(())
    }

    /// How many steps have been made.
    #[doc(alias = "tf.keras.optimizers.Optimizer.iterations")]
    pub fn finished_steps(&self) -> u64 {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).finished
    }

    /// The names of the variables that are trained.
    pub fn variable_names(&self) -> impl Iterator<Item = &str> {
        self.variables.iter().map(|(name, _)| name.as_str())
    }

    /// The names of what the rule keeps beside each variable: of Adam `m` and `v`.
    pub fn slot_names(&self) -> impl Iterator<Item = &'static str> + use<R> {
        self.rule.slots().into_iter().map(|slot| slot.name)
    }

    /// A copy of what the rule keeps beside a variable, such as Adam's `m` and `v`, of the variable's shape and dtype.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an unknown variable or slot: it lists those there are.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use candle_nn::{VarBuilder, linear};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let model = strategy.replicate(|vb: VarBuilder| linear(4, 2, vb.pp("fc")))?;
    /// let optimizer = Adam::new(&model.variables, 1e-3)?;
    /// assert!(optimizer.slot_names().eq(["m", "v"]));
    /// assert_eq!(optimizer.slot("fc.weight", "m")?.dims(), [2, 4]);
    /// assert!(optimizer.slot("fc.weight", "momentum").is_err());
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "get_slot")]
    pub fn slot(&self, variable: &str, slot: &str) -> Result<Tensor> {
        let unknown = |what: &str, name: &str, all: Vec<&str>| {
            Error::invalid("slot", format!("no {what} is named {name:?}; there are {all:?}"))
        };
        let position = self.variable_names().position(|name| name == variable);
        let position = position
            .ok_or_else(|| unknown("variable", variable, self.variable_names().take(20).collect()))?;
        let index = self.slot_names().position(|name| name == slot);
        let index = index.ok_or_else(|| unknown("slot", slot, self.slot_names().collect()))?;
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.slots[position].tensor(index, &self.variables[position].1)
    }

    /// One training step: backward from `loss`, which is the mean over this replica's `examples`; reduction of the
    /// gradients over all replicas, weighted by examples; update of the variables. Gives the mean loss over all
    /// examples of all replicas, detached. The loss is taken by value: its graph is freed here.
    ///
    /// All replicas have to call this, or [`skip`](Optimizer::skip) or [`minimize_each`](Optimizer::minimize_each), the
    /// same number of times. With 0 examples the loss has no weight.
    ///
    /// # Errors
    /// [`Error::Collective`] on every replica where one does not come or fails; [`Error::InvalidArgument`] for a loss
    /// that is not a scalar or depends on none of the variables, or where no replica has examples; [`Error::Candle`] where backward fails. The variables have
    /// not changed then. [`Error::Panicked`] where a rule of your own panics: what it had written stays.
    #[doc(alias = "tf.keras.optimizers.Optimizer.minimize")]
    #[doc(alias = "tf.keras.optimizers.Optimizer.apply_gradients")]
    #[track_caller]
    pub fn minimize(&self, ctx: &ReplicaContext, loss: Tensor, examples: usize) -> Result<Tensor> {
        let at = Location::caller();
        let of = if ctx.member().is_some() { Of::Sum } else { Of::Mean };
        let mut gradients = Accumulated::new(&self.variables, of);
        gradients.add(ctx, loss, examples, at)?;
        self.apply(ctx, gradients.finish(), at)
    }

    /// One training step over several micro-batches: as [`minimize`](Optimizer::minimize), with the gradients of all
    /// of them accumulated before the one reduction. Each item is a loss and its number of examples; they are asked for
    /// one after another, and the graph of each is freed before the next.
    ///
    /// # Errors
    /// As [`minimize`](Optimizer::minimize), and those of the items.
    #[track_caller]
    pub fn minimize_each(
        &self,
        ctx: &ReplicaContext,
        losses: impl IntoIterator<Item = Result<(Tensor, usize)>>,
    ) -> Result<Tensor> {
        let at = Location::caller();
        let mut gradients = Accumulated::new(&self.variables, Of::Sum);
        for item in losses {
            let (loss, examples) = item?;
            gradients.add(ctx, loss, examples, at)?;
        }
        self.apply(ctx, gradients.finish(), at)
    }

    /// Takes part in a step without an example: for a replica whose piece of the batch is empty.
    ///
    /// # Errors
    /// As [`minimize`](Optimizer::minimize).
    #[track_caller]
    pub fn skip(&self, ctx: &ReplicaContext) -> Result<Tensor> {
        let at = Location::caller();
        ctx.join_gradients(None, at)?;
        self.apply(ctx, Accumulated::new(&self.variables, Of::Sum).finish(), at)
    }

    fn apply(
        &self,
        ctx: &ReplicaContext,
        mine: Contribution,
        at: &'static Location<'static>,
    ) -> Result<Tensor> {
        ctx.require_current("minimize")?;
        if ctx.strategy() != &self.strategy {
            return Err(Error::MixedStrategies {
                operation: "minimize",
                current: ctx.strategy().to_string(),
                other: self.strategy.to_string(),
            });
        }
        let outcome = match ctx.member() {
            None => Arc::new(self.update(&[Arc::new(mine)], &pass::Workers::alone()).map_err(Arc::new)),
            Some(member) => {
                let call =
                    Fingerprint::new(Operation::Minimize, format!("{} {}", self.rule.name(), self.id), at);
                member.cooperate(call, mine, |all, helpers| {
                    let broadcast = |work: &pass::Work<'_>| helpers.broadcast(work);
                    let workers = pass::Workers { count: helpers.size(), broadcast: &broadcast };
                    self.update(&all, &workers).map_err(Arc::new)
                })?
            }
        };
        match &*outcome {
            Ok(mean) => Ok(Tensor::new(mean.value, &candle_core::Device::Cpu)?.to_dtype(mean.dtype)?),
            // The one error is told on every replica: it is about the step, not about a replica.
            Err(error) => Err(Error::Shared(error.clone())),
        }
    }

    /// On replica 0, with the other replicas as workers.
    fn update(&self, all: &[Arc<Contribution>], workers: &pass::Workers<'_>) -> Result<MeanLoss> {
        let examples: usize = all.iter().map(|c| c.examples).sum();
        let Some(dtype) = all.iter().find(|c| c.examples > 0).map(|c| c.dtype) else {
            return Err(Error::invalid(
                "minimize",
                "no replica has an example; a global batch has at least one",
            ));
        };
        let weight = |c: &Arc<Contribution>| if c.of == Of::Mean { 1. } else { 1. / examples as f64 };
        let weights: Vec<f64> = all.iter().map(weight).collect();
        let value = all.iter().map(|c| c.loss).sum::<f64>() / examples as f64;

        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let step = Step::after(state.finished, self.learning_rate());
        let slots = &mut state.slots;
        pass::run(&self.rule, step, self.clip, &self.variables, slots, all, &weights, workers)?;
        state.finished += 1;
        Ok(MeanLoss { value, dtype })
    }
}

struct MeanLoss {
    value: f64,
    dtype: DType,
}
