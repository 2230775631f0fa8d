//! Optimizers for candle models: backward, reduce, update, in one call.
//!
//! | what | how |
//! |---|---|
//! | train by a loss | [`Optimizer::minimize`], [`minimize_each`](Optimizer::minimize_each), [`skip`](Optimizer::skip) |
//! | by gradients of one's own, dense or by row | [`Gradients`], [`Optimizer::apply_gradients`], [`Weighting`] |
//! | change gradients | [`Transform`], [`Optimizer::before_reduce`], [`Optimizer::after_reduce`] |
//! | change the learning rate | [`Optimizer::with_schedule`], [`schedules`], [`Optimizer::set_learning_rate`] |
//! | leave variables out, train some otherwise | [`Optimizer::freeze`], [`rate_factor`](Optimizer::rate_factor), [`with_rule_for`](Optimizer::with_rule_for) |
//! | be told of NaN, and of variables without gradient | [`Optimizer::on_not_finite`], [`Optimizer::on_missing_gradients`] |
//! | look at slots | [`Optimizer::slot`] |
//! | divide slots among workers | [`Optimizer::sharded_state`] |
//! | update a table of one's own | [`rules`] |
//!
//! # Where things are
//!
//! | module | what it is |
//! |---|---|
//! | `minimize` | the calls that make a step |
//! | `step` | the step: backward, headers, decision, exchange, update |
//! | `reduce` | sums of gradients, over the replicas of this process and over workers |
//! | `update` | what applies them: in memory, on devices, in ranges shared by workers, on parameter servers |
//! | `checks` | what a step is warned of or refused for |
//! | `parameters`, `groups`, `settings`, `transform`, `rate` | what is trained, by what rules, and how it is asked for |
//! | `progress`, `slots`, `state` | steps and slots, also in checkpoints |
//! | `gradients`, `backward` | gradients as users see them, and how they are found in candle's graph |
//!
//! A gradient is one enum on its way, [`ReplicaGradient`](distribute_base::internal::ReplicaGradient): dense or by row,
//! on the host, in a bucket, in packs or on a device. What reads it borrows a `GradientRange` of it.

mod backward;
mod checks;
mod gradients;
mod groups;
mod header;
mod minimize;
mod parameters;
mod partition;
mod progress;
mod rate;
mod reduce;
mod settings;
mod slots;
mod state;
mod step;
mod sync;
mod transform;
mod update;

pub use checks::missing::MissingGradients;
pub use checks::not_finite::NotFinite;
pub use gradients::{Gradient, Gradients, Weighting, backward};
pub use transform::Transform;

use candle_core::Tensor;
use checks::Seen;
use distribute_base::{Error, Result};
use distribute_core::Variables;
use distribute_core::internal::require_outside_of_run;
use distribute_optim::Rule;
use groups::Groups;
use parameters::Parameters;
use progress::Progress;
use rate::Rate;
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use update::Backend;

/// The update rules behind the optimizers, with their hyper-parameters, and what it takes to apply one to a table of
/// one's own: dense ([`RuleExt::update`](rules::RuleExt::update)) or by row, from
/// [`IndexedSlices`](distribute_tensor::IndexedSlices) ([`merge_rows`](rules::merge_rows), then
/// [`RuleExt::update_rows`](rules::RuleExt::update_rows)).
pub mod rules {
    pub use distribute_optim::{
        Adagrad, Adam, AdamW, Float, Formula, Ftrl, InvalidHyperparameter, Momentum, RmsProp, Rule, RuleExt,
        Sgd, SlotSpec, Step, UpdateError, merge_rows,
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
    inner: Inner,
    rule: PhantomData<fn() -> R>,
}

/// An optimizer, whatever its rule: a step is compiled once for all rules.
#[derive(Debug)]
struct Inner {
    groups: Groups,
    /// The number of this optimizer among those of its strategy, from 1: the same on all workers.
    number: u64,
    parameters: Arc<Parameters>,
    /// The backend that updates them.
    backend: Box<dyn Backend>,
    /// All variables of the model.
    model: Variables,
    rate: Rate,
    before_reduce: Vec<Transform>,
    after_reduce: Vec<Transform>,
    missing_gradients: MissingGradients,
    not_finite: NotFinite,
    progress: Progress,
    /// Whether the workers have compared these settings in a step.
    agreed: AtomicBool,
    seen: Seen,
}

impl<R: Rule + Default> Optimizer<R> {
    /// Binds to a model's variables, with the rule's default hyper-parameters.
    ///
    /// # Errors
    /// The errors of [`Optimizer::with_rule`].
    pub fn new(variables: &Variables, learning_rate: f64) -> Result<Self> {
        Self::with_rule(R::default(), variables, learning_rate)
    }
}

impl<R: Rule> Optimizer<R> {
    /// Binds to a model's variables, with a rule of chosen hyper-parameters.
    ///
    /// A rule of your own is a [`Formula`](rules::Formula). It is applied to copies of variables and slots, each
    /// replica its range, all at once; what it makes is written when all are through, so the others wait for one that
    /// hangs as long as the strategy's timeout, and where it fails nothing has changed. Where it
    /// [`only_computes`](rules::Formula::only_computes), as this crate's rules do, it is applied in place, which is
    /// faster. Several workers compare its `Debug` text in the first step, so that has the hyper-parameters, and
    /// nothing that workers have of their own.
    ///
    /// # Errors
    /// - [`Error::Hyperparameter`]: a hyper-parameter is out of range.
    /// - [`Error::InvalidArgument`]: no variable is f32 or f64. If only some are of another dtype, this is the error of
    ///   the first step, unless these are [frozen](Optimizer::freeze).
    /// - [`Error::WrongContext`]: the call is inside `run`, where each replica would make an optimizer of its own.
    pub fn with_rule(rule: R, variables: &Variables, learning_rate: f64) -> Result<Self> {
        let inner = Inner::new(Box::new(rule), variables, learning_rate)?;
        Ok(Self { inner, rule: PhantomData })
    }

    /// Returns the number of steps that [`NotFinite::Skip`] has skipped since this optimizer was created.
    pub fn skipped_steps(&self) -> u64 {
        self.inner.seen.not_finite.skipped()
    }

    /// The learning rate of the next step.
    #[doc(alias = "tf.keras.optimizers.Optimizer.learning_rate")]
    pub fn learning_rate(&self) -> f64 {
        self.inner.rate.after(self.finished_steps())
    }

    /// Sets the learning rate of the next step. Between runs: within one, replicas would race for it.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: the number is negative, infinite or NaN, or the optimizer has a schedule.
    /// - [`Error::WrongContext`]: the call is inside `run`, other than in `merge_call`.
    pub fn set_learning_rate(&self, learning_rate: f64) -> Result<()> {
        require_outside_of_run(
            "set_learning_rate",
            "all replicas share it: set it between runs, or once for all of them in ctx.merge_call; or give the optimizer a \
             schedule",
        )?;
        self.inner.rate.set(learning_rate)
    }

    /// Returns the number of applied steps.
    #[doc(alias = "tf.keras.optimizers.Optimizer.iterations")]
    pub fn finished_steps(&self) -> u64 {
        self.inner.finished_steps()
    }

    /// The names of the variables that are trained.
    pub fn variable_names(&self) -> impl Iterator<Item = &str> {
        self.inner.variable_names()
    }

    /// Returns the names of the slots that the rule keeps for each variable: `m` and `v` for Adam.
    pub fn slot_names(&self) -> impl Iterator<Item = &'static str> + use<R> {
        self.inner.slot_names().into_iter()
    }

    /// Returns a copy of a slot of a variable, such as Adam's `m`, of the variable's shape and dtype.
    ///
    /// Where [state is sharded](Optimizer::sharded_state), all workers make this call, between runs, and each gets all
    /// of it.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: the variable or slot is unknown, and the error lists the known ones; or a step
    ///   is in progress, also if a closure that the step calls asks.
    /// - With sharded state also [`Error::Collective`] and [`Error::Worker`] on every worker,
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
    fn new(rule: Box<dyn Rule>, variables: &Variables, learning_rate: f64) -> Result<Self> {
        require_outside_of_run(
            "Optimizer::new",
            "create it outside of run, beside the model, and use it inside: all replicas share one optimizer",
        )?;
        rule.validate()?;
        let (model, strategy) = (variables.clone(), variables.strategy().clone());
        let all = variables.trained().into_iter();
        let all = all.filter_map(|(name, variable)| Some((name, variable.vars().next()?.clone())));
        let (variables, unfit): (Vec<_>, Vec<_>) =
            all.partition(|(_, variable)| parameters::is_trained(variable));
        if variables.is_empty() {
            return Err(parameters::none_to_train(&unfit));
        }
        let layout = rule.slots();
        if layout.len() > slots::MOST_SLOTS {
            let reason = format!(
                "rule {} keeps {} slots, of {} at most",
                rule.name(),
                layout.len(),
                slots::MOST_SLOTS
            );
            return Err(Error::invalid("Optimizer::with_rule", reason));
        }
        rate::require(learning_rate, "Optimizer::with_rule")?;
        let parameters = Parameters::new(strategy.clone(), variables, Vec::new(), unfit, false)?;
        let backend = update::backend(&parameters)?;
        backend.require_rule("Optimizer::with_rule", &*rule)?;
        Ok(Self {
            progress: Progress::new(backend.new_slots(&parameters, &layout)?),
            groups: Groups::new(rule, parameters.variables.len()),
            number: strategy.next_optimizer(),
            parameters: Arc::new(parameters),
            backend,
            model,
            rate: Rate::Set(AtomicU64::new(learning_rate.to_bits())),
            before_reduce: Vec::new(),
            after_reduce: Vec::new(),
            missing_gradients: MissingGradients::default(),
            not_finite: NotFinite::default(),
            agreed: AtomicBool::new(false),
            seen: Seen::default(),
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
