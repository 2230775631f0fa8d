//! The variables of an optimizer, including frozen ones, with their copies on devices and their buckets.

use crate::feedback::Feedback;
use crate::progress::Change;
use crate::row_owners::RowOwners;
use candle_core::{DType, Var};
use distribute_base::internal::{BucketPool, DeviceCopies, MarkWritten, PackCoding};
use distribute_base::{Error, Result};
use distribute_cluster::World;
use distribute_core::strategy::{Compression, Wire};
use distribute_core::{Strategy, Variable};
use distribute_decisions::internal::{Partition, Sharding, variable_names};
use distribute_optim::StochasticRounding;
use distribute_tensor::compression::Codec;
use std::sync::Arc;

/// The copies of all local replicas, for each variable that is updated on devices; `None` for other variables. The list
/// is empty if no variable is updated on devices.
pub(crate) type Copies<'a> = Vec<Option<Vec<&'a Var>>>;

/// The variables of an optimizer, grouped by whether and how they are trained.
#[derive(Debug)]
pub(crate) struct Parameters {
    pub(crate) strategy: Strategy,
    /// The trained variables, with their names.
    pub(crate) variables: Vec<(String, Var)>,
    /// The number of rows of each trained variable. It is `usize::MAX` if rows are identified by ids.
    pub(crate) heights: Vec<usize>,
    /// The workers that store the rows of each trained variable; `None` if each worker stores all of it.
    pub(crate) owners: Vec<Option<RowOwners>>,
    /// The frozen variables of the model, with their names.
    pub(crate) frozen: Vec<(String, Var)>,
    /// The variables that no optimizer can train, with their names. They must be frozen before the first step.
    pub(crate) untrainable: Vec<(String, Var)>,
    /// The partition of elements by the worker that updates them; `None` if workers do not shard the state.
    pub(crate) partition: Option<Arc<Partition>>,
    /// The copies of each variable on devices with separate memory. It is empty if no replica uses such a device.
    pub(crate) device_copies: Vec<Option<Arc<DeviceCopies>>>,
    /// The variables that have several copies. A step writes the first copy, whose value is then copied to the others.
    with_followers: Vec<Variable>,
    /// The rounding of each trained variable that is stored in bf16 in the memory of this process.
    pub(crate) rounding: Vec<Option<StochasticRounding>>,
    /// The buckets into which layers write gradients.
    pub(crate) buckets: Arc<BucketPool>,
    /// The codec of each trained variable that is sent with error feedback.
    pub(crate) codecs: Vec<Option<Codec>>,
    /// The residuals of what is sent with error feedback.
    pub(crate) feedback: Feedback,
}

impl Parameters {
    /// Returns `true` if a trained table is stored in bf16, in this process or elsewhere.
    pub(crate) fn is_any_rounded(&self) -> bool {
        let is_hosted =
            |number: usize| self.owners[number].is_some() && self.variables[number].1.dtype() == DType::F32;
        let format = self.strategy.extended().row_format(usize::MAX);
        let all = self.rounding.iter().enumerate();
        all.into_iter().any(|(number, rounding)| {
            rounding.is_some() || is_hosted(number) && format.rounding("").is_some()
        })
    }

    /// Creates the parameters of an optimizer. `sharding` is `None` if workers do not shard the state. If they do, each
    /// worker updates its range of every variable or, if the unit of the rules is larger than an element, some of the
    /// variables.
    pub(crate) fn new(
        strategy: Strategy,
        variables: Vec<(String, Var)>,
        frozen: Vec<(String, Var)>,
        untrainable: Vec<(String, Var)>,
        sharding: Option<Sharding>,
    ) -> Result<Self> {
        let copies = |(_, variable): &(String, Var)| {
            strategy.has_device_copies().then(|| strategy.container(variable.id())?.device_copies().cloned())
        };
        let device_copies: Vec<_> = variables.iter().filter_map(copies).collect();
        let world = strategy.world();
        let sizes = || variables.iter().map(|(name, variable)| (name.as_str(), variable.elem_count()));
        let partition = sharding.filter(|_| world.is_multi_worker());
        let partition = partition.map(|sharding| Arc::new(Partition::new(world, sharding, sizes())));
        let on_devices = device_copies.iter().enumerate();
        let on_devices = on_devices.flat_map(|(number, copies)| {
            copies.iter().flat_map(move |copies| copies.existing_copies().map(move |copy| (number, copy)))
        });
        let frozen_copies: Vec<_> = frozen.iter().filter_map(copies).flatten().collect();
        let frozen_copies = frozen_copies.iter().flat_map(|copies| copies.existing_copies());
        let buckets = BucketPool::new(
            variables.iter().map(|(_, variable)| variable),
            on_devices,
            frozen.iter().map(|(_, variable)| variable).chain(frozen_copies),
            packs(&strategy),
            partition.as_deref().map(Partition::by_worker),
        );
        let height = |(_, variable): &(String, Var)| match strategy.container(variable.id()) {
            Some(container) if container.is_dynamic() => usize::MAX,
            _ => variable.dims().first().copied().unwrap_or(0),
        };
        let heights = variables.iter().map(height).collect();
        let owners: Vec<_> =
            variables.iter().map(|(_, variable)| RowOwners::of(&strategy, variable)).collect();
        let compression = strategy.extended().compression();
        let codec = |((_, variable), owners): (&(String, Var), &Option<RowOwners>)| {
            let is_compressed = variable.dtype() == DType::F32 && owners.is_none();
            compression.codec(variable.dims()).filter(|_| is_compressed)
        };
        let codecs = variables.iter().zip(&owners).map(codec).collect();
        let rounding = |(_, variable): &(String, Var)| strategy.container(variable.id())?.rounding();
        let rounding = variables.iter().map(rounding).collect();
        let with_followers = variables.iter().filter_map(|(_, variable)| strategy.container(variable.id()));
        let with_followers = with_followers.filter(Variable::has_followers).collect();
        Ok(Self {
            strategy,
            variables,
            heights,
            owners,
            frozen,
            untrainable,
            partition,
            device_copies,
            with_followers,
            rounding,
            buckets,
            codecs,
            feedback: Feedback::default(),
        })
    }

    /// Returns the form in which gradients of `f32`, or what workers have changed in local steps, are sent to other
    /// workers.
    pub(crate) fn compression(&self) -> Compression {
        self.strategy.extended().compression()
    }

    /// Returns the form in which gradients of `f32` are sent to other workers. With local steps, none are sent.
    pub(crate) fn compression_of_gradients(&self) -> Compression {
        self.strategy.local_steps().map_or_else(|| self.compression(), |_| Compression::None)
    }

    /// Returns the type in which gradients of `f32` that have no error feedback are sent to other workers.
    pub(crate) fn wire(&self) -> Wire {
        self.compression_of_gradients().wire()
    }

    /// Returns the variables that are sent with error feedback, in ascending order.
    pub(crate) fn with_feedback(&self) -> impl Iterator<Item = usize> {
        self.codecs.iter().enumerate().filter(|(_, codec)| codec.is_some()).map(|(number, _)| number)
    }

    /// Returns the world of the replicas that have residuals. With local steps, each worker counts as one replica.
    pub(crate) fn senders(&self) -> World {
        let world = self.strategy.world();
        let of_workers = || World::new(world.workers(), world.worker(), 1).ok();
        self.strategy.local_steps().and_then(|_| of_workers()).unwrap_or(world)
    }

    /// Returns the index of the trained variable with the given name.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: no trained variable has this name. The error lists the names.
    pub(crate) fn position(&self, operation: &'static str, name: &str) -> Result<usize> {
        let unknown = || {
            let all: Vec<_> = self.variables.iter().map(|(name, _)| name).take(20).collect();
            let why = if self.frozen.iter().any(|(frozen, _)| frozen == name) {
                format!("variable {name:?} is frozen; trained variables")
            } else if let Some((_, untrainable)) =
                self.untrainable.iter().find(|(untrainable, _)| untrainable == name)
            {
                format!(
                    "variable {name:?} is {:?}, which optimizers don't train; trained variables",
                    untrainable.dtype()
                )
            } else {
                format!("no variable is named {name:?}; there")
            };
            Error::invalid(operation, format!("{why} are {all:?}"))
        };
        self.variables.iter().position(|(all, _)| all == name).ok_or_else(unknown)
    }

    /// Returns the tensors of a variable that replicas use in computations: the variable itself, and its copies on
    /// devices.
    pub(crate) fn replica_tensors<'a>(
        &'a self,
        number: usize,
        variable: &'a Var,
    ) -> impl Iterator<Item = &'a Var> {
        let copies = self.device_copies.get(number).and_then(Option::as_ref);
        std::iter::once(variable).chain(copies.into_iter().flat_map(|copies| copies.existing_copies()))
    }

    /// Copies variables that were updated on devices to the host. Those in `on_devices` are skipped, because they stay
    /// on devices in this step.
    ///
    /// # Errors
    /// Returns candle's error if a copy fails.
    pub(crate) fn sync_to_host(&self, on_devices: &Copies<'_>) -> Result<()> {
        for (number, copies) in self.device_copies.iter().enumerate() {
            let stays = on_devices.get(number).is_some_and(Option::is_some);
            if let (Some(copies), false) = (copies, stays) {
                copies.sync_to_host()?;
            }
        }
        Ok(())
    }

    /// Copies variables that were updated on devices to the host, with their slots. Those in `on_devices` are skipped,
    /// because they stay on devices in this step.
    ///
    /// # Errors
    /// Returns candle's error if a copy fails.
    pub(crate) fn sync_to_host_with_slots(&self, change: &Change<'_>, on_devices: &Copies<'_>) -> Result<()> {
        if self.device_copies.is_empty() {
            return Ok(());
        }
        for (number, (slots, (_, variable))) in change.slots().iter_mut().zip(&self.variables).enumerate() {
            if on_devices.get(number).is_none_or(Option::is_none) {
                slots.sync_to_host(variable)?;
            }
        }
        self.sync_to_host(on_devices)
    }

    /// Returns a guard that marks the given variables as written when it is dropped. Replicas then refresh their
    /// copies.
    pub(crate) fn mark_written(&self, variables: impl Iterator<Item = usize>) -> MarkWritten<'_> {
        MarkWritten(variables.filter_map(|variable| self.device_copies.get(variable)?.as_deref()).collect())
    }

    /// Copies the value of variables that have been written to their other copies.
    pub(crate) fn copy_to_followers(&self) -> Result<()> {
        self.with_followers.iter().try_for_each(Variable::copy_to_followers)
    }

    // INV-20
    /// Completes a step whose variables have been written: updates their other copies and the residuals, and counts
    /// the step.
    ///
    /// # Errors
    /// Returns candle's error if a copy cannot be updated. The step is then not counted.
    pub(crate) fn commit(&self, change: &Change<'_>) -> Result<()> {
        self.copy_to_followers()?;
        if self.compression_of_gradients().has_feedback() {
            self.feedback.commit(change.number());
        }
        change.commit();
        Ok(())
    }

    /// Returns an error if some variables can neither be trained nor are frozen.
    pub(crate) fn require_fit(&self, operation: &'static str) -> Result<()> {
        if self.untrainable.is_empty() {
            return Ok(());
        }
        let reason = format!(
            "optimizers train f32 and f64, and the model has {}; freeze them, by optimizer.freeze(|name| ..), or make \
             them f32, by \
             vb.to_dtype(DType::F32)",
            describe_untrainable(&self.untrainable)
        );
        Err(Error::invalid(operation, reason))
    }
}

/// Returns the encoding of packs. Returns `None` if gradients are not sent early: there are no other workers, the
/// workers make local steps, gradients are always summed over the replicas of a worker first, or they are compressed
/// together with a residual. In elastic training with logical replicas, a later world may sum differently, so packs are
/// used.
fn packs(strategy: &Strategy) -> Option<PackCoding> {
    if strategy.local_steps().is_some() {
        return None;
    }
    let (group, compression) = (strategy.extended().group()?, strategy.extended().compression());
    let coding = || PackCoding::new(compression.wire(), group.buffers());
    let world = group.world();
    ((strategy.changes_shares() || !sums_locally_first(world)) && !compression.has_feedback()).then(coding)
}

/// Returns `true` if the sum over each worker's replicas is a complete branch of the tree of sums. The workers can then
/// send this sum instead of each replica's gradients. The result is the same on all workers.
// INV-7
pub(crate) fn sums_locally_first(world: World) -> bool {
    world.replicas_of_each().is_some_and(|each| each > 1 && each.is_power_of_two())
}

/// Returns `true` if optimizers can train the variable, by its dtype.
pub(crate) fn is_trained(variable: &Var) -> bool {
    matches!(variable.dtype(), DType::F32 | DType::F64)
}

/// Returns the error for a model that has no variable that can be trained.
pub(crate) fn nothing_to_train(untrainable: &[(String, Var)]) -> Error {
    let reason = if untrainable.is_empty() {
        "the model has no variables to train; build it with replicate".to_owned()
    } else {
        format!(
            "optimizers train f32 and f64, and the model has only {}; build it with vb.to_dtype(DType::F32)",
            describe_untrainable(untrainable)
        )
    };
    Error::invalid("Optimizer::new", reason)
}

fn describe_untrainable(untrainable: &[(String, Var)]) -> String {
    let names: Vec<&str> = untrainable.iter().map(|(name, _)| name.as_str()).collect();
    let mut dtypes: Vec<String> =
        untrainable.iter().map(|(_, variable)| format!("{:?}", variable.dtype())).collect();
    dtypes.sort();
    dtypes.dedup();
    format!("variables of {}: {}", dtypes.join(" and "), variable_names(&names))
}

#[cfg(test)]
mod tests {
    use crate::Sgd;
    use candle_core::{DType, Device, Module, Tensor};
    use candle_nn::{Init, VarBuilder};
    use distribute_base::internal::gradients;
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
        let used = || [a, b, &a.affine(2., 0.).unwrap(), &b.detach()].map(gradients::is_used);
        let mut bucket = Some(optimizer.inner.parameters.buckets.take(0, strategy.generation(), None));
        assert_eq!(gradients::collect(&mut bucket, used), [false, true, true, false]);
        // In another context, no optimizer is known.
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
            // Nor does a replica that leaves a step late hold a bucket that another one needs in the next step.
            strategy.run(&model, |ctx, model| (0..50).try_for_each(|_| step(ctx, model).map(drop))).unwrap();
            assert_eq!(optimizer.inner.parameters.buckets.counts(), [1; 3]);
        });
    }
}
