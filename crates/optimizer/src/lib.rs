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
//! A step goes this way: each replica's gradients are checked and changed on its own thread (`contribution.rs`), then all
//! meet and tell each other what they have (`tally.rs`), workers whether they have set the optimizer alike (`agreement.rs`), what becomes of the step is decided for all (`judge.rs`), gradients
//! are exchanged with the other workers of a group (`over_workers.rs`), added up and over the replicas of this process (`reduction.rs`, each replica
//! the range that it owns), and an `Updater` applies them: `in_place.rs` in the same pass, or `on_copies.rs`, where a rule is the user's.
//! What replicas compute with on devices of their own is updated there (`on_devices/`): a single replica's gradients and loss never
//! leave its device, and the losses are read later, many at once (`unread.rs`).
//! Where workers share the state, each applies them to the elements that it owns (`shards.rs`), and gets the others' (`sharded.rs`).
//! What calls code of users is done in parts (`together.rs`), so that nobody waits for such code beyond the deadline.
//!
//! On this way a replica's gradient of a variable is a `LocalGradient`; `Operands` has those of all replicas, open for
//! reading, of which each replica takes `GradientRange`s, and with values and slots beside them `UpdateRange`s.

mod backward;
mod checks;
mod conversion;
mod gradients;
mod groups;
mod header;
mod minimize;
mod progress;
mod rate;
mod reduce;
mod rules_of_step;
mod settings;
mod slots;
mod state;
mod step;
mod sync;
mod transform;
mod unfit;
mod update;

pub use crate::checks::missing::MissingGradients;
pub use crate::checks::not_finite::NotFinite;
pub use gradients::{Gradient, Gradients, Weighting, backward};
pub use transform::Transform;

use crate::step::decide::Seen;
use crate::update::servers::Remote;
use crate::update::sharded::cuts::Shards;
use candle_core::{Tensor, Var};
use distribute_base::internal::{DeviceCopies, Pool};
use distribute_base::{Error, Result};
use distribute_core::internal::require_outside_of_run;
use distribute_core::{Strategy, Variable, Variables};
use distribute_optim::Rule;
use groups::Groups;
use progress::Progress;
use rate::Rate;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

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
    rule: R,
    groups: Groups<R>,
    /// Which of its strategy's optimizers this is, from 1: the same on all workers.
    number: u64,
    trained: Arc<Trained>,
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

/// What is trained.
#[derive(Debug)]
struct Trained {
    strategy: Strategy,
    /// By name.
    variables: Vec<(String, Var)>,
    /// Those of the model's that are not, by name.
    frozen: Vec<(String, Var)>,
    /// The variables that no optimizer can train, and that have to be frozen before the first step, by name.
    unfit: Vec<(String, Var)>,
    /// Which worker updates which elements, where not every one updates all.
    shards: Option<Shards>,
    /// The variables on parameter servers, if they are there.
    remote: Option<Remote>,
    /// For each variable its copies on devices with memory of their own, if there are any; none at all where no replica has such a device.
    device_copies: Vec<Option<Arc<DeviceCopies>>>,
    /// The variables with several copies, of which a step writes the first.
    followed: Vec<Variable>,
    /// Where layers put gradients.
    buckets: Arc<Pool>,
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
    /// A rule of your own is a [`Formula`](rules::Formula). It is applied to copies of variables and slots, each replica its
    /// range, all at once; what it makes is written when all are through, so the others wait for one that hangs as long as
    /// the strategy's timeout, and where it fails nothing has changed. Where it
    /// [`only_computes`](rules::Formula::only_computes), as this crate's rules do, it is applied in place, which is faster. Several workers
    /// compare its `Debug` text in the first step, so that has the hyper-parameters, and nothing that workers have of their own.
    ///
    /// # Errors
    /// - [`Error::Hyperparameter`]: a hyper-parameter is out of range.
    /// - [`Error::InvalidArgument`]: no variable is f32 or f64. If only some are of another dtype, this is the error of the first step,
    ///   unless these are [frozen](Optimizer::freeze).
    /// - [`Error::WrongContext`]: the call is inside `run`, where each replica would make an optimizer of its own.
    pub fn with_rule(rule: R, variables: &Variables, learning_rate: f64) -> Result<Self> {
        require_outside_of_run(
            "Optimizer::new",
            "create it outside of run, beside the model, and use it inside: all replicas share one optimizer",
        )?;
        rule.validate()?;
        let (model, strategy) = (variables.clone(), variables.strategy().clone());
        let all = variables.trained().into_iter();
        let all = all.filter_map(|(name, variable)| Some((name, variable.vars().next()?.clone())));
        let (variables, unfit): (Vec<_>, Vec<_>) = all.partition(|(_, variable)| unfit::is_trained(variable));
        if variables.is_empty() {
            return Err(unfit::none_to_train(&unfit));
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
        let trained = Trained::new(strategy.clone(), variables, Vec::new(), unfit, false)?;
        if trained.remote.is_some() {
            crate::update::servers::require_rule("Optimizer::with_rule", &rule)?;
        }
        let slots = trained.new_slots(&layout)?;
        Ok(Self {
            rule,
            groups: Groups::new(trained.variables.len()),
            number: strategy.next_optimizer(),
            trained: Arc::new(trained),
            model,
            rate: Rate::Set(AtomicU64::new(learning_rate.to_bits())),
            before_reduce: Vec::new(),
            after_reduce: Vec::new(),
            missing_gradients: MissingGradients::default(),
            not_finite: NotFinite::default(),
            progress: Progress::new(slots),
            agreed: AtomicBool::new(false),
            seen: Seen::default(),
        })
    }

    /// How many steps have been left out since this optimizer was made, by [`NotFinite::Skip`].
    pub fn skipped_steps(&self) -> u64 {
        self.seen.not_finite.skipped()
    }

    /// The learning rate of the next step.
    #[doc(alias = "tf.keras.optimizers.Optimizer.learning_rate")]
    pub fn learning_rate(&self) -> f64 {
        self.rate.after(self.finished_steps())
    }

    /// Sets the learning rate of the next step. Between runs: within one, replicas would race for it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a negative number, an infinite one or NaN, and where there is a schedule;
    /// [`Error::WrongContext`] inside of `run`, other than in `merge_call`.
    pub fn set_learning_rate(&self, learning_rate: f64) -> Result<()> {
        require_outside_of_run(
            "set_learning_rate",
            "all replicas share it: set it between runs, or once for all of them in ctx.merge_call; or give the optimizer a \
             schedule",
        )?;
        self.rate.set(learning_rate)
    }

    /// How many steps have been made.
    #[doc(alias = "tf.keras.optimizers.Optimizer.iterations")]
    pub fn finished_steps(&self) -> u64 {
        self.progress.finished()
    }

    /// The names of the variables that are trained.
    pub fn variable_names(&self) -> impl Iterator<Item = &str> {
        self.trained.variables.iter().map(|(name, _)| name.as_str())
    }

    /// The names of what the rule keeps beside each variable: of Adam `m` and `v`.
    pub fn slot_names(&self) -> impl Iterator<Item = &'static str> + use<R> {
        self.rule.slots().into_iter().map(|slot| slot.name)
    }

    /// A copy of what the rule keeps beside a variable, such as Adam's `m` and `v`, of the variable's shape and dtype.
    ///
    /// Where [state is sharded](Optimizer::sharded_state), all workers make this call, between runs, and each gets all of it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an unknown variable or slot: it lists those there are; and while a step is being
    /// made, also from a closure that the step calls. Where state is sharded, also [`Error::Collective`] and [`Error::Worker`] on
    /// every worker, [`Error::IncompleteState`], and [`Error::WrongContext`] inside of `run`.
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
        let position = self.trained.position("slot", variable)?;
        let unknown = || {
            let all: Vec<_> = self.slot_names().collect();
            Error::invalid("slot", format!("no slot is named {slot:?}; there are {all:?}"))
        };
        let index = self.slot_names().position(|name| name == slot).ok_or_else(unknown)?;
        if let Some(shards) = &self.trained.shards {
            return self.slot_of_all(shards, position, index, Location::caller());
        }
        if let Some(remote) = &self.trained.remote {
            if remote.is_dynamic(position) {
                return Err(Error::NotSupported {
                    operation: "slot",
                    strategy: "ParameterServerStrategy",
                    what: "slots of a table of ids as one tensor",
                    advice: "take them from Variable::dynamic_rows",
                });
            }
            let slots = self.slots_on_servers(remote, position)?;
            let value = slots.get(index).ok_or_else(unknown)?;
            return Ok(value.to_candle(&candle_core::Device::Cpu)?);
        }
        self.progress.read("slot")?[position].tensor(index, &self.trained.variables[position].1)
    }
}

#[cfg(test)]
mod tests {
    use crate::Sgd;
    use candle_core::{DType, Device, Module, Tensor};
    use candle_nn::VarBuilder;
    use distribute_core::ReplicaContext;
    use distribute_nn::{Linear, linear};
    use distribute_strategies::MirroredStrategy;
    use distribute_testing::watched;

    #[test]
    fn all_steps_take_one_bucket_for_each_replica() {
        watched(|| {
            let strategy = MirroredStrategy::cpus(3).unwrap();
            let model = strategy.replicate(|vb: VarBuilder| linear(3, 2, vb)).unwrap();
            let optimizer = Sgd::new(&model.variables, 0.1).unwrap();
            let x = Tensor::ones((4, 3), DType::F32, &Device::Cpu).unwrap();
            let step = |ctx: &ReplicaContext, model: &Linear| {
                optimizer.minimize(ctx, model.forward(&x)?.mean_all()?, 4)
            };
            for _ in 0..4 {
                strategy.run(&model, step).unwrap();
            }
            assert_eq!(optimizer.trained.buckets.counts(), [1; 3]);
            // Nor does a replica that is late in leaving a step hold what another needs in the next.
            strategy.run(&model, |ctx, model| (0..50).try_for_each(|_| step(ctx, model).map(drop))).unwrap();
            assert_eq!(optimizer.trained.buckets.counts(), [1; 3]);
        });
    }
}
