//! Variables that are trained otherwise than the others, or not at all: chosen by name.

use crate::progress::{Change, Progress};
use crate::reduce::workers;
use crate::rules_of_step::Rules;
use crate::slots::Slots;
use crate::update::servers::{self, Remote};
use crate::update::sharded::cuts::Shards;
use crate::update::sharded::settings;
use crate::{Optimizer, Trained};
use candle_core::{DType, Var};
use distribute_base::internal::{Pool, Writing};
use distribute_base::{Error, Result};
use distribute_core::Variable;
use distribute_optim::{Rule, SlotSpec, Step};
use std::sync::Arc;

/// Rules of groups of variables, and which variable has what of its own.
#[derive(Debug)]
pub(crate) struct Groups<R> {
    /// Besides that of the optimizer.
    rules: Vec<R>,
    of_variables: Vec<Of>,
    /// No variable's factor is larger.
    largest_factor: f64,
}

/// What a variable has of its own.
#[derive(Clone, Copy, Debug)]
struct Of {
    /// Which of the rules of groups; none where it is that of the optimizer.
    rule: Option<usize>,
    rate_factor: f64,
}

impl<R: Rule> Groups<R> {
    pub(crate) fn new(variables: usize) -> Self {
        let of_variables = vec![Of { rule: None, rate_factor: 1. }; variables];
        Self { rules: Vec::new(), of_variables, largest_factor: 1. }
    }

    /// Returns the factor of a variable's rate, and its rule, if that is not the optimizer's.
    pub(crate) fn of(&self, variable: usize) -> (f64, Option<&R>) {
        let Of { rule, rate_factor } = self.of_variables[variable];
        (rate_factor, rule.and_then(|at| self.rules.get(at)))
    }

    /// Whether all rules of groups only compute.
    pub(crate) fn only_compute(&self) -> bool {
        self.all().all(Rule::only_computes)
    }

    /// All rules of groups.
    pub(crate) fn all(&self) -> impl Iterator<Item = &R> {
        self.rules.iter()
    }

    /// Of each variable, whether its rule can be told as a program for devices.
    pub(crate) fn have_programs(&self, rule: &R) -> impl Iterator<Item = bool> {
        let has = |rule: &R| matches!(rule.program(Step::after(0, 1.)), Ok(Some(_)));
        let (own, others) = (has(rule), self.rules.iter().map(has).collect::<Vec<_>>());
        self.of_variables.iter().map(move |of| of.rule.map_or(own, |at| others[at]))
    }

    /// Refuses a step in which a variable's rate is more than numbers of its dtype can be: the update would be infinite.
    pub(crate) fn require_rates(
        &self,
        operation: &'static str,
        trained: &Trained,
        learning_rate: f64,
    ) -> Result<()> {
        // One comparison in each step, unless a rate is out of all proportion.
        if learning_rate * self.largest_factor <= f64::from(f32::MAX) {
            return Ok(());
        }
        for (Of { rate_factor, .. }, (name, variable)) in self.of_variables.iter().zip(&trained.variables) {
            let (dtype, rate) = (variable.dtype(), learning_rate * rate_factor);
            let most = if dtype == DType::F64 { f64::MAX } else { f64::from(f32::MAX) };
            if rate > most {
                let reason = format!(
                    "variable {name} cannot be updated with the learning rate {learning_rate:e} times its rate_factor \
                     {rate_factor:e}: a {dtype:?} is {most:.2e} at most; lower the rate or the factor"
                );
                return Err(Error::invalid(operation, reason));
            }
        }
        Ok(())
    }

    /// What each variable is updated with in the step after `finished` others.
    pub(crate) fn rules<'r>(&'r self, rule: &'r R, finished: u64, learning_rate: f64) -> Rules<'r> {
        let of = |of: &Of| {
            let rule: &dyn Rule = of.rule.and_then(|at| self.rules.get(at)).unwrap_or(rule);
            (rule, Step::after(finished, learning_rate * of.rate_factor))
        };
        Rules::new(self.of_variables.iter().map(of).collect())
    }
}

impl<R: Rule> Optimizer<R> {
    /// Trains the variables of some names no more: they stay as they are, are neither reduced nor counted in norms, and have
    /// no slots, also not in checkpoints. In `minimize`, layers of [`nn`](distribute_nn) don't even compute their gradients.
    ///
    /// Variables that are neither f32 nor f64, such as bf16 weights below an adapter, have to be frozen before the first step.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: no variable has such a name that is not frozen already, or no other is left to train.
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
        let (chosen_unfit, unfit): (Vec<_>, Vec<_>) =
            self.trained.unfit.iter().cloned().partition(|(name, _)| names(name));
        let chosen = match self.choose("freeze", names) {
            Err(_) if !chosen_unfit.is_empty() => Vec::new(),
            chosen => chosen?,
        };
        let stays = |index: usize| chosen.binary_search(&index).is_err();
        if chosen.len() == self.trained.variables.len() {
            let reason = "these are all variables, and none is left to train";
            return Err(Error::invalid("freeze", reason));
        }
        let (mut variables, mut frozen) = (Vec::new(), self.trained.frozen.clone());
        frozen.extend(chosen_unfit);
        for (index, (name, variable)) in self.trained.variables.iter().enumerate() {
            if stays(index) {
                variables.push((name.clone(), variable.clone()))
            } else {
                frozen.push((name.clone(), variable.clone()))
            }
        }
        self.progress.keep(stays);
        let mut index = 0..;
        self.groups.of_variables.retain(|_| index.next().is_some_and(stays));
        let (strategy, sharded) = (self.trained.strategy.clone(), self.trained.shards.is_some());
        self.trained = Arc::new(Trained::new(strategy, variables, frozen, unfit, sharded)?);
        self.compare_again();
        Ok(self)
    }

    /// Multiplies the learning rate of the variables of some names, in each step, whatever sets or schedules it. Factors
    /// of several calls multiply. A step in which the product is more than the variable's dtype can hold is refused.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where no variable that is trained has such a name, with the names there are, and for a
    /// factor that is not finite and positive, by itself or times earlier ones: with 0, [`freeze`](Optimizer::freeze) is
    /// meant.
    #[doc(alias = "param_groups")]
    pub fn rate_factor(mut self, names: impl Fn(&str) -> bool, factor: f64) -> Result<Self> {
        if !(factor.is_finite() && factor > 0.) {
            let reason = format!(
                "the factor must be finite and positive, not {factor}; to leave variables as they are, freeze them"
            );
            return Err(Error::invalid("rate_factor", reason));
        }
        for index in self.choose("rate_factor", names)? {
            let of_variable = &mut self.groups.of_variables[index].rate_factor;
            let (before, product) = (*of_variable, *of_variable * factor);
            if !(product.is_finite() && product > 0.) {
                let reason = format!(
                    "the factors of variable {} multiply to {product}, with {factor:e} after {before:e}; they must stay \
                     finite and positive",
                    self.trained.variables[index].0
                );
                return Err(Error::invalid("rate_factor", reason));
            }
            *of_variable = product;
            self.groups.largest_factor = self.groups.largest_factor.max(product);
        }
        self.compare_again();
        Ok(self)
    }

    /// Updates the variables of some names by other hyper-parameters: without weight decay, say. Of several calls the last
    /// one counts that names a variable.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where no variable that is trained has such a name, with the names there are, or the rule
    /// keeps other slots, or may do more than compute where [state is sharded](Optimizer::sharded_state); [`Error::Hyperparameter`] for one out of range.
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
        rule.validate()?;
        if self.trained.shards.is_some() {
            settings::require_rule("with_rule_for", &rule)?;
        }
        if self.trained.remote.is_some() {
            servers::require_rule("with_rule_for", &rule)?;
        }
        if rule.slots() != self.rule.slots() {
            let reason = format!("{rule:?} keeps other slots than the optimizer's {:?}", self.rule);
            return Err(Error::invalid("with_rule_for", reason));
        }
        let number = self.groups.rules.len();
        for index in self.choose("with_rule_for", names)? {
            self.groups.of_variables[index].rule = Some(number);
        }
        self.groups.rules.push(rule);
        self.compare_again();
        Ok(self)
    }

    /// Which variables have such names, ascending: one at least.
    fn choose(&self, operation: &'static str, names: impl Fn(&str) -> bool) -> Result<Vec<usize>> {
        let all = self.trained.variables.iter().enumerate();
        let chosen: Vec<usize> = all.filter(|(_, (name, _))| names(name)).map(|(index, _)| index).collect();
        if !chosen.is_empty() {
            return Ok(chosen);
        }
        let of = |all: &[(String, Var)]| -> Vec<String> {
            all.iter().map(|(name, _)| name).filter(|name| names(name)).take(20).cloned().collect()
        };
        let (frozen, unfit) = (of(&self.trained.frozen), of(&self.trained.unfit));
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
            (self.trained.variables.len(), self.variable_names().take(20).collect::<Vec<_>>());
        Err(Error::invalid(operation, format!("{why}; the {count} that are trained: {there:?}")))
    }
}

impl Trained {
    pub(crate) fn new(
        strategy: distribute_core::Strategy,
        variables: Vec<(String, Var)>,
        frozen: Vec<(String, Var)>,
        unfit: Vec<(String, Var)>,
        sharded: bool,
    ) -> Result<Self> {
        let world = strategy.world();
        let names = || variables.iter().map(|(name, variable)| (name.as_str(), variable));
        let shards = (sharded && world.is_multi_worker()).then(|| Shards::new(world, names()));
        let copies = |(_, variable): &(String, Var)| {
            strategy.has_device_copies().then(|| strategy.container(variable.id())?.device_copies().cloned())
        };
        let device_copies: Vec<_> = variables.iter().filter_map(copies).collect();
        let on_devices = device_copies.iter().enumerate();
        let on_devices = on_devices.flat_map(|(number, copies)| {
            copies.iter().flat_map(move |copies| copies.made().map(move |copy| (number, copy)))
        });
        let frozen_copies: Vec<_> = frozen.iter().filter_map(copies).flatten().collect();
        let frozen_copies = frozen_copies.iter().flat_map(|copies| copies.made());
        let buckets = Pool::new(
            variables.iter().map(|(_, variable)| variable),
            on_devices,
            frozen.iter().map(|(_, variable)| variable).chain(frozen_copies),
            workers::packs(&strategy),
            shards.as_ref().map(Shards::by_worker),
        );
        let remote = Remote::new(&strategy, &variables)?;
        let followed = variables.iter().filter_map(|(_, variable)| strategy.container(variable.id()));
        let followed = followed.filter(Variable::has_followers).collect();
        Ok(Self { strategy, variables, frozen, unfit, shards, remote, device_copies, followed, buckets })
    }

    // INV-20
    /// Ends a step after the variables have been written: sets their other copies, and counts the step.
    ///
    /// # Errors
    /// candle's, of a device.
    pub(crate) fn end_step(&self, change: &Change<'_>) -> Result<()> {
        self.followed.iter().try_for_each(Variable::follow)?;
        change.step_made();
        Ok(())
    }

    /// Brings variables to the host that were updated on devices, and are not `on_devices` in this step.
    ///
    /// # Errors
    /// candle's, of a device.
    pub(crate) fn bring_back(&self, on_devices: &[Option<Vec<&Var>>]) -> Result<()> {
        for (number, copies) in self.device_copies.iter().enumerate() {
            let stays = on_devices.get(number).is_some_and(Option::is_some);
            if let (Some(copies), false) = (copies, stays) {
                copies.bring_back()?;
            }
        }
        Ok(())
    }

    /// To be kept while some variables are written: replicas bring their copies up to date behind it.
    pub(crate) fn writing(&self, variables: impl Iterator<Item = usize>) -> Writing<'_> {
        Writing(variables.filter_map(|variable| self.device_copies.get(variable)?.as_deref()).collect())
    }

    /// The slots of each variable before the first step, as far as this process keeps them: where workers share them, those of the
    /// elements that it owns; of variables on servers none.
    pub(crate) fn new_slots(&self, layout: &[SlotSpec]) -> Result<Vec<Slots>> {
        let of = |(number, (name, variable)): (usize, &(String, Var))| {
            let kept = match (&self.remote, &self.shards) {
                (Some(_), _) => 0,
                (None, Some(shards)) => shards.mine(number).len(),
                (None, None) => variable.elem_count(),
            };
            Slots::new(name, variable, layout, kept)
        };
        self.variables.iter().enumerate().map(of).collect()
    }
}

impl Progress {
    /// Forgets the slots of all variables but some.
    fn keep(&mut self, stays: impl Fn(usize) -> bool) {
        let slots: &mut Vec<Slots> = self.slots_mut();
        let mut index = 0..;
        slots.retain(|_| index.next().is_some_and(&stays));
    }
}
