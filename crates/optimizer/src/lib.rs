//! Optimizers for candle models: the backward pass, the reduction of gradients and the update in one call.
//!
//! | to | use |
//! |---|---|
//! | train with a loss | [`Optimizer::minimize`], [`minimize_each`](Optimizer::minimize_each), [`skip`](Optimizer::skip) |
//! | train with your own gradients, dense or by row | [`Gradients`], [`Optimizer::apply_gradients`], [`Weighting`] |
//! | change gradients | [`Transform`], [`Optimizer::before_reduce`], [`Optimizer::after_reduce`] |
//! | change the learning rate | [`Optimizer::with_schedule`], [`schedules`], [`Optimizer::set_learning_rate`] |
//! | freeze variables, or train some with other rules | [`Optimizer::freeze`], [`rate_factor`](Optimizer::rate_factor), [`with_rule_for`](Optimizer::with_rule_for) |
//! | scale losses for f16 | [`Optimizer::with_loss_scale`], [`LossScale`] |
//! | detect NaN and variables without a gradient | [`Optimizer::on_not_finite`], [`Optimizer::on_missing_gradients`] |
//! | average the weights | [`Optimizer::with_ema`], [`Optimizer::use_ema`] |
//! | read slots | [`Optimizer::slot`] |
//! | shard slots over workers | [`Optimizer::shard_state`], [`Optimizer::shard_state_replicated`] |
//! | write an update rule, or update your own table | [`rules`] |
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | `minimize` | the calls that make a step |
//! | `step` | the algorithm: backward, gather, decide, exchange, reduce and update |
//! | `header` | the facts that all replicas need before they exchange gradients |
//! | `reduce` | sums of gradients, over the replicas of this process and over workers |
//! | `row_owners` | the workers that store the rows of a table |
//! | `update` | the backends: in memory, on devices, sharded over workers, on parameter servers |
//! | `checks` | the warnings and errors of a step |
//! | `parameters`, `groups`, `settings`, `transform`, `rate`, `loss_scale` | the trained variables, their rules, and the settings |
//! | `progress`, `slots`, `state`, `live` | steps and slots, also in checkpoints |
//! | `ema` | moving averages of the weights |
//! | `feedback` | the residuals of compressed gradients |
//! | `local_steps` | steps of each worker alone, and the outer steps after them |
//! | `gradients` | gradients for users |
//! | `sync` | the threads of a step |
//!
//! Inside a step, a gradient is always represented by the enum
//! [`ReplicaGradient`](distribute_base::internal::ReplicaGradient): dense or by row, on the host, in a bucket, in packs
//! or on a device. A `GradientRange` borrows a range of it for reading. An [`Optimizer<R>`](Optimizer) only adds the
//! type of the rule, so the code of a step is compiled only once for all rules.
//!
//! This crate never opens a connection. It uses the connections of a group or of `distribute-ps-client`. The backward
//! pass through candle's graph is in `distribute-nn`, and decisions that are only functions are in
//! `distribute-decisions`.

mod checks;
mod ema;
mod feedback;
mod gradients;
mod groups;
mod header;
mod live;
mod local_steps;
mod loss_scale;
mod minimize;
mod parameters;
mod progress;
mod rate;
mod reduce;
mod row_owners;
mod settings;
mod slots;
mod state;
mod step;
mod sync;
mod transform;
mod update;

pub use checks::MissingGradients;
pub use checks::not_finite::NotFinite;
pub use distribute_decisions::LossScale;
#[doc(hidden)]
pub use gradients::{Gradient, Gradients, Weighting, backward};
pub use transform::Transform;

use candle_core::Tensor;
use checks::Checks;
use distribute_base::{Error, Result};
use distribute_core::Variables;
use distribute_core::internal::require_outside_of_run;
use distribute_decisions::internal::LossScaling;
use distribute_optim::Rule;
use groups::Groups;
use local_steps::LocalTraining;
use parameters::Parameters;
use progress::Progress;
use rate::Rate;
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use update::Backend;

/// The update rules of the optimizers, with their hyper-parameters.
///
/// To write one, implement [`Formula`](rules::Formula), the update of one element, and pass it to
/// [`Optimizer::with_rule`]. Sparse updates, checkpoints and several workers need no further code. Workers compare the
/// rule's `Debug` text in the first step, so it should contain the hyper-parameters.
///
/// ```
/// use distribute::optimizer::rules::{Float, Formula, SlotSpec, Step};
/// use distribute::prelude::*;
///
/// /// Moves by the sign of a running average.
/// #[derive(Debug)]
/// struct SignMomentum { beta: f64 }
///
/// impl Formula for SignMomentum {
///     type Slots<T: Copy> = [T; 1];
///
///     fn label(&self) -> &'static str {
///         "sign_momentum"
///     }
///
///     fn layout(&self) -> [SlotSpec; 1] {
///         [SlotSpec::zeros("m")]
///     }
///
///     fn kernel<F: Float>(&self, at: Step) -> impl Fn(F, F, [F; 1]) -> (F, [F; 1]) {
///         let [beta, rest, rate] = [self.beta, 1.0 - self.beta, at.learning_rate()].map(F::from_f64);
///         move |var, grad, [m]| {
///             let m = beta * m + rest * grad;
///             (var - rate.copysign(m), [m])
///         }
///     }
/// }
///
/// # fn main() -> distribute::Result<()> {
/// let strategy = MirroredStrategy::cpus(2)?;
/// let model = strategy.replicate(|vb| vb.get_with_hints(1, "w", candle_nn::Init::Const(1.)))?;
/// let optimizer = Optimizer::with_rule(SignMomentum { beta: 0.5 }, &model.variables, 0.25)?;
/// strategy.run(&model, |ctx, w| optimizer.minimize(ctx, w.sum_all()?, 1))?;
/// assert_eq!(model.variables.get("w")?.to_vec1::<f32>()?, [0.75]);
/// # Ok(())
/// # }
/// ```
///
/// Rules can also be applied to your own tables: with dense gradients ([`RuleExt::update`](rules::RuleExt::update)), or
/// by row from [`IndexedSlices`](distribute_tensor::IndexedSlices) ([`merge_rows`](rules::merge_rows), followed by
/// [`RuleExt::update_rows`](rules::RuleExt::update_rows)).
pub mod rules {
    pub use distribute_optim::{
        Adafactor, Adagrad, Adam, AdamW, Averaged, Float, Formula, Ftrl, InvalidHyperparameter, Lamb, Lion,
        Momentum, NAdam, RmsProp, RowAdagrad, Rule, RuleExt, Sgd, SlotShape, SlotSpec, Step, Unit,
        UpdateError, merge_rows,
    };
}

/// Learning rates as functions of the step, for [`Optimizer::with_schedule`].
pub mod schedules {
    pub use distribute_optim::Schedule;
    pub use distribute_optim::schedules::*;
}

/// Stochastic gradient descent.
#[doc(alias = "tf.keras.optimizers.SGD")]
pub type Sgd = Optimizer<rules::Sgd>;
/// Stochastic gradient descent with momentum.
pub type Momentum = Optimizer<rules::Momentum>;
/// Adam, as TensorFlow defines it.
#[doc(alias = "tf.keras.optimizers.Adam")]
pub type Adam = Optimizer<rules::Adam>;
/// Adam with decoupled weight decay. The results are bit-identical to those of candle_nn's AdamW.
#[doc(alias = "tf.keras.optimizers.AdamW")]
pub type AdamW = Optimizer<rules::AdamW>;
/// Adagrad, which divides by the root of the sum of all squared gradients.
#[doc(alias = "tf.keras.optimizers.Adagrad")]
pub type Adagrad = Optimizer<rules::Adagrad>;
/// RMSprop, which divides by the root of a moving average of squared gradients.
#[doc(alias = "tf.keras.optimizers.RMSprop")]
pub type RmsProp = Optimizer<rules::RmsProp>;
/// Adagrad with one accumulator for each row, for tables of embeddings.
pub type RowAdagrad = Optimizer<rules::RowAdagrad>;
/// FTRL ("follow the regularized leader"), which can make weights exactly zero.
#[doc(alias = "tf.keras.optimizers.Ftrl")]
pub type Ftrl = Optimizer<rules::Ftrl>;

/// NAdam, which is Adam with Nesterov momentum, as Keras defines it.
#[doc(alias = "tf.keras.optimizers.Nadam")]
pub type NAdam = Optimizer<rules::NAdam>;
/// Adafactor, whose state is a moment for each row and each column of a matrix.
#[doc(alias = "tf.keras.optimizers.Adafactor")]
pub type Adafactor = Optimizer<rules::Adafactor>;
/// LAMB, which scales the steps of each variable to its norm.
#[doc(alias = "tf.keras.optimizers.Lamb")]
pub type Lamb = Optimizer<rules::Lamb>;
/// Lion, whose steps have the same size for all weights.
#[doc(alias = "tf.keras.optimizers.Lion")]
pub type Lion = Optimizer<rules::Lion>;

/// An optimizer that trains the variables of one model with an update rule.
///
/// All replicas share one optimizer, and each calls [`minimize`](Optimizer::minimize) once per step. Gradients are
/// averaged over all *examples*, so N replicas train like a single device on the same global batch, even if some
/// per-replica batches are smaller or empty. Each replica reduces and updates its own range of the parameters, in
/// place and in one pass.
///
/// If only some replicas lack the gradient of a variable, their gradient is taken to be zero. If all replicas lack it,
/// the variable and its slots do not change.
#[doc(alias = "tf.keras.optimizers.Optimizer")]
#[derive(Debug)]
pub struct Optimizer<R> {
    inner: Inner,
    rule: PhantomData<fn() -> R>,
}

/// The fields of an optimizer that do not depend on the type of its rule, so that the code of a step is compiled only
/// once.
#[derive(Debug)]
struct Inner {
    groups: Groups,
    /// The momentum of the averages of the weights; `None` if there are none.
    ema: Option<f64>,
    /// The sequence number of this optimizer among the optimizers of its strategy, from 1. It is the same on all
    /// workers.
    number: u64,
    parameters: Arc<Parameters>,
    /// The backend that updates the variables and keeps the slots.
    backend: Box<dyn Backend>,
    /// All variables of the model, including frozen ones.
    model: Variables,
    rate: Rate,
    before_reduce: Vec<Transform>,
    after_reduce: Vec<Transform>,
    missing_gradients: MissingGradients,
    not_finite: NotFinite,
    loss_scaling: LossScaling,
    progress: Progress,
    /// The local steps; `None` if all workers make each step together.
    local: Option<LocalTraining>,
    /// Whether the workers have already compared these settings in a step.
    settings_compared: AtomicBool,
    checks: Checks,
}

impl<R: Rule + Default> Optimizer<R> {
    /// Creates an optimizer for a model's variables, with the default hyper-parameters of the rule and the given
    /// learning rate.
    ///
    /// # Errors
    /// Returns the errors of [`Optimizer::with_rule`].
    pub fn new(variables: &Variables, learning_rate: f64) -> Result<Self> {
        Self::with_rule(R::default(), variables, learning_rate)
    }
}

impl<R: Rule> Optimizer<R> {
    /// Creates an optimizer for a model's variables, with a rule and its hyper-parameters.
    ///
    /// A custom rule is a [`Formula`](rules::Formula). Each replica applies it to copies of its range of variables and
    /// slots, and the results are written when all replicas are done. If a replica hangs, the others wait until the
    /// strategy's timeout. After an error, nothing has changed. A rule that
    /// [`only_computes`](rules::Formula::only_computes), such as each rule of this crate, is applied in place, which is
    /// faster. Workers compare the `Debug` text of the rule in the first step. This text must contain the
    /// hyper-parameters, and nothing that differs between workers.
    ///
    /// # Errors
    /// - [`Error::Hyperparameter`]: a hyper-parameter is out of range.
    /// - [`Error::InvalidArgument`]: the learning rate is negative, infinite or NaN, or the rule keeps too many slots.
    /// - [`Error::InvalidArgument`]: the rule needs complete rows or variables ([`Rule::unit`]) and may do more than
    ///   compute, or has slots whose shapes do not fit.
    /// - [`Error::InvalidArgument`]: no variable is f32 or f64. If only some variables have a different dtype, the
    ///   first step returns this error, unless they are [frozen](Optimizer::freeze).
    /// - [`Error::NotSupported`]: variables are on parameter servers, and the rule is a custom one.
    /// - [`Error::WrongContext`]: called inside `run`, where each replica would create a separate optimizer.
    pub fn with_rule(rule: R, variables: &Variables, learning_rate: f64) -> Result<Self> {
        let inner = Inner::new(Arc::new(rule), variables, learning_rate)?;
        Ok(Self { inner, rule: PhantomData })
    }

    /// Returns the number of steps that [`NotFinite::Skip`] or a [dynamic loss scale](LossScale::Dynamic) has
    /// skipped since this optimizer was created.
    pub fn skipped_steps(&self) -> u64 {
        self.inner.checks.not_finite.skipped()
    }

    /// Returns the learning rate of the next step, without the factors of individual variables.
    #[doc(alias = "tf.keras.optimizers.Optimizer.learning_rate")]
    pub fn learning_rate(&self) -> f64 {
        self.inner.rate.after(self.finished_steps())
    }

    /// Returns the learning rate of the next step, if it does not follow a schedule.
    #[doc(hidden)]
    pub fn constant_learning_rate(&self) -> Option<f64> {
        self.inner.rate.constant()
    }

    /// Sets the learning rate of the next step. Call this between runs: inside a run, replicas would set it at
    /// different times.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: the rate is negative, infinite or NaN, or the optimizer has a schedule.
    /// - [`Error::WrongContext`]: called inside `run`, but not in `merge_call`.
    pub fn set_learning_rate(&self, learning_rate: f64) -> Result<()> {
        require_outside_of_run(
            "set_learning_rate",
            "all replicas share it: set it between runs, or once for all of them in ctx.merge_call; or give the optimizer a \
             schedule",
        )?;
        self.inner.rate.set(learning_rate)
    }

    /// Returns the number of steps that have been applied, including those before a restored checkpoint.
    /// [Skipped steps](Self::skipped_steps) do not count.
    #[doc(alias = "tf.keras.optimizers.Optimizer.iterations")]
    pub fn finished_steps(&self) -> u64 {
        self.inner.finished_steps()
    }

    /// Returns the names of the trained variables. Frozen variables are not included.
    pub fn variable_names(&self) -> impl Iterator<Item = &str> {
        self.inner.variable_names()
    }

    /// Returns the names of the slots that the rule keeps for each variable, such as `m` and `v` for Adam.
    pub fn slot_names(&self) -> impl Iterator<Item = &'static str> + use<R> {
        self.inner.slot_names().into_iter()
    }

    /// Returns a copy of a variable's slot, such as Adam's `m`. It has the dtype of the variable, and the
    /// [shape](rules::SlotSpec::shape) that the rule gives it: by default, that of the variable.
    ///
    /// If the [state is sharded](Optimizer::shard_state), all workers must make this call together, between runs.
    /// Each gets the complete slot.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: the variable or slot is unknown (the error lists the existing ones), or a step is
    ///   in progress, for example because a closure makes this call during a step.
    /// - [`Error::NotSupported`]: the variable is a table of ids on parameter servers.
    /// - If the variable is on parameter servers: the errors of reading it.
    /// - If the state is sharded: [`Error::Collective`] and [`Error::Worker`] on every worker,
    ///   [`Error::IncompleteState`], and [`Error::WrongContext`] inside `run`.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use candle_nn::linear;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let model = strategy.replicate(|vb| linear(4, 2, vb.pp("fc")))?;
    /// let optimizer = Adam::new(&model.variables, 1e-3)?;
    /// assert!(optimizer.slot_names().eq(["m", "v"]));
    /// assert_eq!(optimizer.slot("fc.weight", "m")?.dims(), [2, 4]);
    /// assert!(optimizer.slot("fc.weight", "momentum").is_err());
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "get_slot")]
    #[track_caller]
    pub fn slot(&self, variable: &str, slot: &str) -> Result<Tensor> {
        self.inner.slot(variable, slot, Location::caller())
    }
}

impl Inner {
    fn new(rule: Arc<dyn Rule>, variables: &Variables, learning_rate: f64) -> Result<Self> {
        require_outside_of_run(
            "Optimizer::new",
            "create it outside run, next to the model, and use it inside: all replicas share one optimizer",
        )?;
        rule.validate()?;
        let (model, strategy) = (variables.clone(), variables.strategy().clone());
        let all = variables.trained().into_iter();
        let all = all.filter_map(|(name, variable)| Some((name, variable.vars().next()?.clone())));
        let (variables, untrainable): (Vec<_>, Vec<_>) =
            all.partition(|(_, variable)| parameters::is_trained(variable));
        if variables.is_empty() {
            return Err(parameters::nothing_to_train(&untrainable));
        }
        let layout = slots::layout("Optimizer::with_rule", &*rule)?;
        rate::require(learning_rate, "Optimizer::with_rule")?;
        let parameters = Parameters::new(strategy.clone(), variables, Vec::new(), untrainable, None)?;
        let backend = update::backend(&parameters)?;
        backend.require_rule("Optimizer::with_rule", &*rule)?;
        let loss_scaling = LossScaling::new(strategy.mixed_precision());
        let number = strategy.next_optimizer();
        let local = LocalTraining::of(&parameters, format!("{} {number}", rule.name()));
        if local.is_some() && parameters.is_any_rounded() {
            return Err(Error::NotSupported {
                operation: "Optimizer::with_rule",
                strategy: strategy.extended().kind(),
                what: "local_steps of tables in RowFormat::Bf16, which outer steps would not round",
                advice: "use RowFormat::Full, or leave out local_steps",
            });
        }
        Ok(Self {
            progress: Progress::new(backend.new_slots(&parameters, &layout)?),
            groups: Groups::new(rule, parameters.variables.len()),
            ema: None,
            number,
            parameters: Arc::new(parameters),
            backend,
            model,
            rate: Rate::Constant(AtomicU64::new(learning_rate.to_bits())),
            before_reduce: Vec::new(),
            after_reduce: Vec::new(),
            missing_gradients: MissingGradients::default(),
            not_finite: NotFinite::default(),
            loss_scaling,
            local,
            settings_compared: AtomicBool::new(false),
            checks: Checks::default(),
        })
    }

    fn finished_steps(&self) -> u64 {
        self.progress.finished()
    }

    fn variable_names(&self) -> impl Iterator<Item = &str> {
        self.parameters.variables.iter().map(|(name, _)| name.as_str())
    }

    fn slot_names(&self) -> Vec<&'static str> {
        self.groups.rule().slots().into_iter().map(|slot| slot.name).collect()
    }

    fn slot(&self, variable: &str, slot: &str, at: &'static Location<'static>) -> Result<Tensor> {
        let number = self.parameters.position("slot", variable)?;
        let names = self.slot_names();
        let Some(index) = names.iter().position(|name| *name == slot) else {
            return Err(Error::invalid("slot", format!("no slot is named {slot:?}; there are {names:?}")));
        };
        self.backend.slot(self, number, index, at)
    }
}
