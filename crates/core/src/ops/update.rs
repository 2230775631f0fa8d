//! Updates of variables in a cross-replica context, once per copy, and the placement of variables next to others.

use super::Destinations;
use crate::context::{Mode, UpdateContext, current_kind, current_strategy, enter, has_strategy, mixed};
use crate::strategy::{Strategy, VariablePlacement};
use crate::variables::Variable;
use candle_core::{Tensor, Var};
use distribute_base::{ContextKind, DeviceName, Error, Result};
use distribute_values::{Distributed, Mirrored};
use std::sync::Arc;

const ADVICE: &str = "use merge_call to leave it first, and reduce the replicas' values there with reduce_to";

/// A value that may belong to a variable. See [`Strategy::value_container`].
pub trait Contained: sealed::Sealed {
    /// Returns the variable of `strategy` that the value belongs to, if there is one.
    #[doc(hidden)]
    fn container(&self, strategy: &Strategy) -> Option<Variable>;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for candle_core::Tensor {}
    impl Sealed for candle_core::Var {}
    impl Sealed for crate::variables::variable::Variable {}
    impl<T: Sealed + ?Sized> Sealed for &T {}
}

impl Contained for Tensor {
    fn container(&self, strategy: &Strategy) -> Option<Variable> {
        strategy.container(self.id())
    }
}

impl Contained for Var {
    fn container(&self, strategy: &Strategy) -> Option<Variable> {
        strategy.container(self.id())
    }
}

impl Contained for Variable {
    fn container(&self, strategy: &Strategy) -> Option<Variable> {
        (self.strategy() == strategy).then(|| self.clone())
    }
}

impl<V: Contained + ?Sized> Contained for &V {
    fn container(&self, strategy: &Strategy) -> Option<Variable> {
        (**self).container(strategy)
    }
}

impl Strategy {
    /// Calls `update` once per copy of `variable`, in update context. Inside, reads and writes of `variable`
    /// access only that copy. The same holds for other variables with copies on the same devices. Returns the
    /// results, one per copy.
    ///
    /// Each call gets its part of `args`: the copy of a [`Mirrored`] for its device, and any other value unchanged.
    /// This is the standard way to update a variable with values that the replicas have computed:
    ///
    /// ```
    /// use distribute::prelude::*;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let weight = strategy.scope(|| Variable::new("weight", 1f32))?;
    /// strategy.run((), |ctx, ()| {
    ///     let gradient = 0.1 * (1. + ctx.replica_id_in_sync_group() as f32);
    ///     ctx.merge_call(gradient, |strategy, gradients| {
    ///         let total = strategy.reduce_to(ReduceOp::Sum, gradients, &weight)?;
    ///         strategy.update(&weight, total, |weight, total| weight.assign_sub(total))?;
    ///         Ok(())
    ///     })
    /// })?;
    /// assert_eq!(weight.copies::<f32>()?, [0.7, 0.7]);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns the first error of `update`, after which later copies are not updated. Also:
    /// - [`Error::InvalidArgument`]: the variable belongs to a different strategy, or `args` contains per-replica
    ///   values, which would make the copies drift apart.
    /// - [`Error::Parts`]: `args` contains a [`Mirrored`] with another number of copies.
    /// - [`Error::WrongContext`], [`Error::MixedStrategies`]: called inside `run`, or inside another strategy's scope.
    #[doc(alias = "tf.distribute.StrategyExtended.update")]
    pub fn update<D: Distributed, R>(
        &self,
        variable: &Variable,
        args: D,
        mut update: impl FnMut(&Variable, D::Local) -> Result<R>,
    ) -> Result<Mirrored<R>> {
        let _scope = self.enter("update", ADVICE)?;
        if variable.strategy() != self {
            let reason = format!("variable {} is of {}, not of {self}", variable.name(), variable.strategy());
            return Err(Error::invalid("update", reason));
        }
        let results = self.on_devices("update", &variable.devices(), args, |args| update(variable, args))?;
        if variable.is_mirrored() {
            self.record_write();
        }
        Ok(results)
    }

    /// Calls `update` in update context, once for each of `devices`. These must be devices that
    /// [`non_slot_devices`](Strategy::non_slot_devices) returned. Use this for variables that are not slots of another
    /// variable, such as a step counter.
    ///
    /// ```
    /// use distribute::prelude::*;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let (weight, steps) = strategy.scope(|| Ok((Variable::new("weight", 1f32)?, Variable::new("steps", 0i32)?)))?;
    /// let devices = strategy.non_slot_devices(&[&weight])?;
    /// strategy.update_non_slot(&devices, (), |()| steps.assign_add(1))?;
    /// assert_eq!(steps.copies::<i32>()?, [1, 1]);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`Strategy::update`], and [`Error::InvalidArgument`] if `devices` are not devices that
    /// [`non_slot_devices`](Strategy::non_slot_devices) returns.
    #[doc(alias = "tf.distribute.StrategyExtended.update_non_slot")]
    pub fn update_non_slot<D: Distributed, R>(
        &self,
        devices: &[DeviceName],
        args: D,
        update: impl FnMut(D::Local) -> Result<R>,
    ) -> Result<Mirrored<R>> {
        const OPERATION: &str = "update_non_slot";
        let _scope = self.enter(OPERATION, ADVICE)?;
        let parameters = self.extended().parameter_devices();
        let known = match self.extended().variable_placement() {
            // The devices may be those of a variable that colocation has placed elsewhere.
            VariablePlacement::Central(_) | VariablePlacement::Servers => {
                Destinations::from(devices).resolve(OPERATION, self).is_ok()
            }
            _ => devices == parameters,
        };
        if !known {
            let reason = format!("{devices:?} are not the devices that non_slot_devices returns");
            return Err(Error::invalid(OPERATION, reason));
        }
        let results = self.on_devices(OPERATION, devices, args, update)?;
        self.record_write();
        Ok(results)
    }

    fn on_devices<D: Distributed, R>(
        &self,
        operation: &'static str,
        devices: &[DeviceName],
        args: D,
        mut update: impl FnMut(D::Local) -> Result<R>,
    ) -> Result<Mirrored<R>> {
        if args.is_per_replica() {
            let reason =
                "an argument is per replica, so copies would drift apart; reduce it first, with reduce_to";
            return Err(Error::invalid(operation, reason));
        }
        let parts = args.split(devices.len()).map_err(|error| error.of_argument(operation, "args"))?;
        let devices: Arc<[DeviceName]> = devices.into();
        let results = (0..devices.len()).zip(parts).map(|(copy, part)| {
            let _update = enter(Mode::Update(UpdateContext::new(self, copy, &devices)));
            update(part)
        });
        let results = results.collect::<Result<Vec<_>>>()?;
        Mirrored::from_copies(results).ok_or_else(|| Error::invalid(operation, "there are no copies"))
    }

    /// Returns the devices for variables that are not slots of another variable: normally all devices of the strategy's
    /// variables. If each variable has only a single copy, these are the devices of the given variable whose name sorts
    /// first.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: a variable belongs to a different strategy, or the list is empty
    ///   although a variable is needed.
    #[doc(alias = "tf.distribute.StrategyExtended.non_slot_devices")]
    pub fn non_slot_devices(&self, variables: &[&Variable]) -> Result<Vec<DeviceName>> {
        const OPERATION: &str = "non_slot_devices";
        if let Some(other) = variables.iter().find(|variable| variable.strategy() != self) {
            let reason = format!("variable {} is of {}, not of {self}", other.name(), other.strategy());
            return Err(Error::invalid(OPERATION, reason));
        }
        match self.extended().variable_placement() {
            VariablePlacement::Central(_) | VariablePlacement::Servers => {
                match variables.iter().min_by_key(|variable| variable.name()) {
                    Some(first) => Ok(first.devices()),
                    None => Err(Error::invalid(OPERATION, "no variables were given")),
                }
            }
            _ => Ok(self.extended().parameter_devices()),
        }
    }

    /// Calls `body`. Variables that it creates are placed on the given devices: those of another variable, or those
    /// that [`non_slot_devices`](Strategy::non_slot_devices) returned. This includes the trained variables of a model
    /// that [`replicate`](Strategy::replicate) builds in `body`. On parameter servers these are not split into shards.
    /// Each replica still has its own running statistics.
    ///
    /// ```
    /// use distribute::prelude::*;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let (weight, momentum) = strategy.scope(|| {
    ///     let weight = Variable::new("weight", 1f32)?;
    ///     let momentum = strategy.colocate_vars_with(&weight, || Variable::new("momentum", 0f32))?;
    ///     Ok((weight, momentum))
    /// })?;
    /// strategy.update(&weight, &momentum, |weight, momentum| {
    ///     momentum.assign_add(1f32)?;
    ///     weight.assign_sub(momentum.read::<f32>()?)
    /// })?;
    /// assert_eq!(weight.copies::<f32>()?, [0., 0.]);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::WrongContext`], [`Error::MixedStrategies`]: called outside this strategy's scope, or inside another
    ///   strategy's scope.
    /// - [`Error::InvalidArgument`]: a variable belongs to a different strategy, or `with` is empty or has another
    ///   number of replicas.
    /// - [`Error::Device`]: `with` cannot be parsed, or is neither a device of the strategy nor the host's `cpu:0`.
    /// - The error of `body`.
    ///
    /// Inside `body`, `replicate` returns [`Error::InvalidArgument`] if the strategy stores variables on parameter
    /// servers and `with` is not one of them.
    #[doc(alias = "tf.distribute.StrategyExtended.colocate_vars_with")]
    pub fn colocate_vars_with<T>(
        &self,
        with: impl Into<Destinations>,
        body: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        const OPERATION: &str = "colocate_vars_with";
        if self.is_default() && !has_strategy() {
            // There is only one device.
            with.into().resolve(OPERATION, self)?;
            return body();
        }
        match current_kind() {
            ContextKind::CrossReplica if current_strategy().as_ref() == Some(self) => {}
            ContextKind::CrossReplica => return Err(mixed(OPERATION, None, self)),
            found => {
                let (required, advice) = (ContextKind::CrossReplica, "call it inside this strategy's scope");
                return Err(Error::WrongContext { operation: OPERATION, required, found, advice });
            }
        }
        let devices = with.into().resolve(OPERATION, self)?;
        let _colocated = enter(Mode::Colocated(self.clone(), devices));
        body()
    }

    /// Returns the variable that a value belongs to. For a candle tensor, such as a layer's weight, this is the
    /// variable of which the tensor is a copy. For a [`Variable`], such as one that
    /// [`local_results`](Strategy::local_results) returned, it is the variable itself. Returns `None` for any other
    /// tensor, if the variable has been dropped, or if the variable belongs to a different strategy.
    ///
    /// A variable of host numbers has no candle tensor; pass the variable itself.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use candle_nn::linear;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let model = strategy.replicate(|vb| linear(4, 2, vb.pp("fc")))?;
    /// let weight = strategy.value_container(model.models().values()[1].weight());
    /// assert_eq!(weight.map(|variable| variable.name().to_string()).as_deref(), Some("fc.weight"));
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "tf.distribute.StrategyExtended.value_container")]
    pub fn value_container<V: Contained + ?Sized>(&self, value: &V) -> Option<Variable> {
        value.container(self)
    }

    /// Returns `true` if `variable` was created in this strategy's scope.
    #[doc(alias = "tf.distribute.StrategyExtended.variable_created_in_scope")]
    pub fn variable_created_in_scope(&self, variable: &Variable) -> bool {
        variable.strategy() == self
    }
}
