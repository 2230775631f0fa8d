//! The variables of an optimizer, and what belongs to each.

use crate::partition::Partition;
use crate::progress::Change;
use candle_core::{DType, Var};
use distribute_base::internal::{DeviceCopies, Pool, Writing};
use distribute_base::{Error, Result};
use distribute_cluster::World;
use distribute_collective::group::Buffers;
use distribute_core::{Strategy, Variable};
use std::sync::Arc;

/// The copies of all local replicas, for each variable that is updated on devices. Empty if no variable is.
pub(crate) type Copies<'a> = Vec<Option<Vec<&'a Var>>>;

/// The variables of an optimizer.
#[derive(Debug)]
pub(crate) struct Parameters {
    pub(crate) strategy: Strategy,
    /// The trained variables, by name.
    pub(crate) variables: Vec<(String, Var)>,
    /// The other variables of the model, by name.
    pub(crate) frozen: Vec<(String, Var)>,
    /// The variables that no optimizer can train, and that have to be frozen before the first step, by name.
    pub(crate) unfit: Vec<(String, Var)>,
    /// The elements that each worker updates, if workers share the state.
    pub(crate) partition: Option<Arc<Partition>>,
    /// The copies of each variable on devices with memory of their own. Empty if no replica has such a device.
    pub(crate) device_copies: Vec<Option<Arc<DeviceCopies>>>,
    /// The variables with several copies, of which a step writes the first.
    followed: Vec<Variable>,
    /// The buckets that layers write gradients into.
    pub(crate) buckets: Arc<Pool>,
}

impl Parameters {
    /// The variables of a strategy. If its workers `share` the state, each updates its range of every variable.
    pub(crate) fn new(
        strategy: Strategy,
        variables: Vec<(String, Var)>,
        frozen: Vec<(String, Var)>,
        unfit: Vec<(String, Var)>,
        share: bool,
    ) -> Result<Self> {
        let copies = |(_, variable): &(String, Var)| {
            strategy.has_device_copies().then(|| strategy.container(variable.id())?.device_copies().cloned())
        };
        let device_copies: Vec<_> = variables.iter().filter_map(copies).collect();
        let world = strategy.world();
        let names = || variables.iter().map(|(name, variable)| (name.as_str(), variable));
        let partition = (share && world.is_multi_worker()).then(|| Arc::new(Partition::new(world, names())));
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
            packs(&strategy),
            partition.as_deref().map(Partition::by_worker),
        );
        let followed = variables.iter().filter_map(|(_, variable)| strategy.container(variable.id()));
        let followed = followed.filter(Variable::has_followers).collect();
        Ok(Self { strategy, variables, frozen, unfit, partition, device_copies, followed, buckets })
    }

    /// The number of the variable of this name.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with the names there are.
    pub(crate) fn position(&self, operation: &'static str, name: &str) -> Result<usize> {
        let unknown = || {
            let all: Vec<_> = self.variables.iter().map(|(name, _)| name).take(20).collect();
            let why = if self.frozen.iter().any(|(frozen, _)| frozen == name) {
                format!("variable {name:?} is frozen; those that are trained")
            } else if let Some((_, unfit)) = self.unfit.iter().find(|(unfit, _)| unfit == name) {
                format!(
                    "variable {name:?} is {:?}, which optimizers don't train; those that are trained",
                    unfit.dtype()
                )
            } else {
                format!("no variable is named {name:?}; there")
            };
            Error::invalid(operation, format!("{why} are {all:?}"))
        };
        self.variables.iter().position(|(all, _)| all == name).ok_or_else(unknown)
    }

    /// The tensors that replicas compute with in place of a variable: the variable itself, and its copies on devices.
    pub(crate) fn computed_with<'a>(
        &'a self,
        number: usize,
        variable: &'a Var,
    ) -> impl Iterator<Item = &'a Var> {
        let copies = self.device_copies.get(number).and_then(Option::as_ref);
        std::iter::once(variable).chain(copies.into_iter().flat_map(|copies| copies.made()))
    }

    /// Brings variables to the host that were updated on devices, and are not `on_devices` in this step.
    ///
    /// # Errors
    /// candle's, of a device.
    pub(crate) fn bring_back(&self, on_devices: &Copies<'_>) -> Result<()> {
        for (number, copies) in self.device_copies.iter().enumerate() {
            let stays = on_devices.get(number).is_some_and(Option::is_some);
            if let (Some(copies), false) = (copies, stays) {
                copies.bring_back()?;
            }
        }
        Ok(())
    }

    /// Brings variables and their slots to the host that were updated on devices, and are not `on_devices` in this
    /// step.
    ///
    /// # Errors
    /// candle's, of a device.
    pub(crate) fn bring_back_with_slots(&self, change: &Change<'_>, on_devices: &Copies<'_>) -> Result<()> {
        if self.device_copies.is_empty() {
            return Ok(());
        }
        for (number, (slots, (_, variable))) in change.slots().iter_mut().zip(&self.variables).enumerate() {
            if on_devices.get(number).is_none_or(Option::is_none) {
                slots.bring_back(variable)?;
            }
        }
        self.bring_back(on_devices)
    }

    /// Marks some variables as being written while what it returns is kept: replicas bring their copies up to date
    /// after it.
    pub(crate) fn writing(&self, variables: impl Iterator<Item = usize>) -> Writing<'_> {
        Writing(variables.filter_map(|variable| self.device_copies.get(variable)?.as_deref()).collect())
    }

    // INV-20
    /// Ends a step after the variables have been written: sets their other copies, and counts the step.
    ///
    /// # Errors
    /// candle's, of a device.
    pub(crate) fn commit(&self, change: &Change<'_>) -> Result<()> {
        self.followed.iter().try_for_each(Variable::follow)?;
        change.commit();
        Ok(())
    }

    /// Refuses a step while there are variables that can't be trained and are not frozen.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with their names.
    pub(crate) fn require_fit(&self, operation: &'static str) -> Result<()> {
        if self.unfit.is_empty() {
            return Ok(());
        }
        let reason = format!(
            "optimizers train f32 and f64, and the model has {}; freeze them, by optimizer.freeze(|name| ..), or make them f32, by \
             vb.to_dtype(DType::F32)",
            described(&self.unfit)
        );
        Err(Error::invalid(operation, reason))
    }
}

/// Returns the buffers of a replica's packs, if packs are sent to other workers without being summed first.
fn packs(strategy: &Strategy) -> Option<Buffers> {
    let group = strategy.extended().group()?;
    (!folds_first(group.world())).then(|| group.buffers().clone())
}

/// Returns whether the replicas of a worker are a branch of the tree of sums, so that their sum can go in their place.
// INV-7
pub(crate) fn folds_first(world: World) -> bool {
    world.replicas() > 1 && world.replicas().is_power_of_two()
}

/// The first of some names, and how many more there are.
pub(crate) fn listed(names: &[&str]) -> String {
    /// The most names that a text lists.
    const NAMES: usize = 10;
    match names.get(..NAMES).filter(|_| names.len() > NAMES) {
        Some(first) => format!("{} and {} more", first.join(", "), names.len() - NAMES),
        None => names.join(", "),
    }
}

/// Returns whether optimizers train variables of this one's dtype.
pub(crate) fn is_trained(variable: &Var) -> bool {
    matches!(variable.dtype(), DType::F32 | DType::F64)
}

/// The error of an optimizer whose model has only these variables.
pub(crate) fn none_to_train(unfit: &[(String, Var)]) -> Error {
    let reason = if unfit.is_empty() {
        "the model has no variables to train; build it with replicate".to_owned()
    } else {
        format!(
            "optimizers train f32 and f64, and the model has only {}; build it with vb.to_dtype(DType::F32)",
            described(unfit)
        )
    };
    Error::invalid("Optimizer::new", reason)
}

fn described(unfit: &[(String, Var)]) -> String {
    let names: Vec<&str> = unfit.iter().map(|(name, _)| name.as_str()).collect();
    let mut dtypes: Vec<String> =
        unfit.iter().map(|(_, variable)| format!("{:?}", variable.dtype())).collect();
    dtypes.sort();
    dtypes.dedup();
    format!("variables of {}: {}", dtypes.join(" and "), listed(&names))
}

#[cfg(test)]
mod tests {
    use crate::Sgd;
    use candle_core::{DType, Device, Module, Tensor};
    use candle_nn::{Init, VarBuilder};
    use distribute_base::internal::deposit;
    use distribute_core::ReplicaContext;
    use distribute_nn::{Linear, linear};
    use distribute_strategies::MirroredStrategy;
    use distribute_testing::watched;

    #[test]
    fn of_frozen_variables_no_gradient_is_used() {
        let strategy = MirroredStrategy::cpus(1).unwrap();
        let build = |vb: VarBuilder| -> candle_core::Result<[Tensor; 2]> {
            Ok([vb.get_with_hints(2, "a", Init::Const(1.))?, vb.get_with_hints(2, "b", Init::Const(1.))?])
        };
        let model = strategy.replicate(build).unwrap();
        let optimizer = Sgd::new(&model.variables, 0.1).unwrap().freeze(|name| name == "a").unwrap();
        let [a, b] = &model.models().values()[0];
        let used = || [a, b, &a.affine(2., 0.).unwrap(), &b.detach()].map(deposit::is_used);
        let mut bucket = Some(optimizer.inner.parameters.buckets.take(0, strategy.generation(), None));
        assert_eq!(deposit::collect(&mut bucket, used), [false, true, true, false]);
        // Elsewhere nothing is known of an optimizer.
        assert_eq!(used(), [true, true, true, false]);
    }

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
            assert_eq!(optimizer.inner.parameters.buckets.counts(), [1; 3]);
            // Nor does a replica that is late in leaving a step hold what another needs in the next.
            strategy.run(&model, |ctx, model| (0..50).try_for_each(|_| step(ctx, model).map(drop))).unwrap();
            assert_eq!(optimizer.inner.parameters.buckets.counts(), [1; 3]);
        });
    }
}
