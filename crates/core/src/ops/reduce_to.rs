//! Combines the replicas' values onto chosen devices, for algorithms that depend on replicas.

use super::Destinations;
use crate::context::describe::{describe, describe_for_sum};
use crate::strategy::{CrossDeviceOps, DEFAULT, Reduction, Strategy, reduce_by};
use crate::values::{Components, Mirrored, Reducible, parts_of};
use distribute_base::{DeviceName, Error, Result};
use distribute_cluster::{Fingerprint, Operation};
use distribute_tensor::{Leaf, Nest, ReduceOp, Tree};
use std::panic::Location;

const ADVICE: &str = "use the replica context's all_reduce, or merge_call";

/// A leaf of a value to reduce.
pub(super) enum Contribution {
    /// A value that is already the result: the mean of equal values.
    Same(Leaf),
    /// The parts of all local replicas.
    Each(Vec<Leaf>),
    /// A value that is not distributed, on each of several workers.
    OfWorkers(Leaf),
}

/// A value to reduce, and the devices for its result.
pub(super) struct Given {
    pub(super) leaves: Vec<Contribution>,
    pub(super) structure: Tree<()>,
    pub(super) to: Vec<DeviceName>,
}

/// The caller's reduction.
#[derive(Clone, Copy)]
pub(super) struct Call {
    pub(super) operation: &'static str,
    pub(super) op: ReduceOp,
    pub(super) at: &'static Location<'static>,
}

impl Given {
    /// Describes the contribution of a local replica, as far as it has to be equal on all.
    fn describe(&self, local: usize) -> String {
        let leaf = |contribution: &Contribution| match contribution {
            Contribution::Same(leaf) | Contribution::OfWorkers(leaf) => leaf.clone(),
            Contribution::Each(parts) => parts[local].clone(),
        };
        let leaves: Vec<Leaf> = self.leaves.iter().map(leaf).collect();
        let what = describe(&self.structure, &leaves, describe_for_sum);
        let mut kinds: Vec<_> = self.leaves.iter().map(Contribution::kind).collect();
        kinds.dedup();
        match kinds.as_slice() {
            [] | [Kind::Each] => what,
            [Kind::Same] => format!("the same {what}"),
            [Kind::OfWorkers] => format!("one {what} of each worker"),
            _ => {
                let kinds: Vec<_> = self.leaves.iter().map(|leaf| leaf.kind().name()).collect();
                format!("{what}, which are {}", kinds.join(", "))
            }
        }
    }
}

/// The kind of a contribution.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Same,
    Each,
    OfWorkers,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Same => "the same",
            Kind::Each => "of each replica",
            Kind::OfWorkers => "of each worker",
        }
    }
}

impl Contribution {
    fn kind(&self) -> Kind {
        match self {
            Contribution::Same(_) => Kind::Same,
            Contribution::Each(_) => Kind::Each,
            Contribution::OfWorkers(_) => Kind::OfWorkers,
        }
    }
}

impl Call {
    /// Returns the fingerprint of a reduction of `what`.
    pub(super) fn fingerprint(&self, what: &str) -> Fingerprint {
        let Self { operation, op, at } = *self;
        Fingerprint::new(Operation::Reduce, format!("{operation} {op} {what}"), at)
    }
}

impl Strategy {
    /// Reduces a value over all replicas and puts a copy of the result on each of `destinations`.
    ///
    /// A [`PerReplica`](crate::PerReplica) has a part for each replica. A [`Mirrored`] value counts once for
    /// each replica. The MEAN of a value that is not distributed is that value; its SUM over several replicas
    /// is refused. With the value itself as destinations, this is an all-reduce.
    ///
    /// With several workers, all of them make this call, which merge functions may also do, and get the same
    /// result. A value that is not distributed is then reduced over the workers, which have one value each.
    ///
    /// The result has one copy for each destination device. Copies on CPU devices share memory, so don't change
    /// them in place. A copy for a parameter server is in the memory of this process's CPU until it is written
    /// to a variable.
    ///
    /// # Errors
    /// - [`Error::Tensor`]: shapes or dtypes differ, or the dtype is bool or string.
    /// - [`Error::InvalidArgument`]: SUM of a value that is not distributed over several replicas, a value that
    ///   was made for another number of replicas, or empty destinations.
    /// - [`Error::Device`]: a destination cannot be parsed, or is neither a device of the strategy nor the
    ///   host's `cpu:0`.
    /// - [`Error::WrongContext`]: called inside `run`.
    /// - [`Error::Collective`]: workers don't make the same call.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let ids = strategy.run((), |ctx, ()| Ok(ctx.replica_id_in_sync_group() as f32))?;
    /// let total = strategy.reduce_to(ReduceOp::Sum, &ids, "cpu:1")?;
    /// assert_eq!((*total.get(), total.copies().len()), (1., 1));
    /// let everywhere = strategy.reduce_to(ReduceOp::Sum, &ids, &ids)?;
    /// assert_eq!(everywhere.copies(), [&1., &1.]);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "tf.distribute.StrategyExtended.reduce_to")]
    #[track_caller]
    pub fn reduce_to<V: Reducible>(
        &self,
        op: ReduceOp,
        value: V,
        destinations: impl Into<Destinations>,
    ) -> Result<Mirrored<V::Nest>> {
        let call = Call { operation: "reduce_to", op, at: Location::caller() };
        let reduced = self.reduce_pairs(call, [(value, destinations.into())])?.pop();
        reduced.ok_or_else(|| Error::invalid("reduce_to", "one value gave no result"))
    }

    /// Makes several calls of [`reduce_to`](Strategy::reduce_to) in one. The results are in the order of the
    /// pairs.
    ///
    /// Destinations may differ from pair to pair, and dense and sparse values may be mixed.
    ///
    /// # Errors
    /// The errors of [`reduce_to`](Strategy::reduce_to), for the first pair that fails.
    ///
    /// ```
    /// # use distribute::{prelude::*, Destinations};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let ids = strategy.run((), |ctx, ()| Ok(ctx.replica_id_in_sync_group() as f32))?;
    /// let pairs = [(&ids, Destinations::from("cpu:0")), (&ids, Destinations::from(&ids))];
    /// let means = strategy.batch_reduce_to(ReduceOp::Mean, pairs)?;
    /// assert_eq!((means[0].copies(), means[1].copies()), (vec![&0.5], vec![&0.5, &0.5]));
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "tf.distribute.StrategyExtended.batch_reduce_to")]
    #[track_caller]
    pub fn batch_reduce_to<V: Reducible, D: Into<Destinations>>(
        &self,
        op: ReduceOp,
        pairs: impl IntoIterator<Item = (V, D)>,
    ) -> Result<Vec<Mirrored<V::Nest>>> {
        let call = Call { operation: "batch_reduce_to", op, at: Location::caller() };
        self.reduce_pairs(call, pairs.into_iter().map(|(value, to)| (value, to.into())))
    }

    /// Puts a copy of one value on each of `destinations`.
    ///
    /// # Errors
    /// The errors of [`reduce_to`](Strategy::reduce_to) about destinations and contexts.
    ///
    /// ```
    /// # use distribute::{prelude::*, Destinations};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let copies = strategy.broadcast_to(HostTensor::vector(vec![1, 2]), Destinations::replicas())?;
    /// let doubled = strategy.run(&copies, |_, copy| Ok(copy.to_vec::<i32>()?))?;
    /// assert_eq!(doubled.values(), [[1, 2], [1, 2]]);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "tf.distribute.StrategyExtended.broadcast_to")]
    pub fn broadcast_to<N: Nest>(
        &self,
        value: N,
        destinations: impl Into<Destinations>,
    ) -> Result<Mirrored<N>> {
        const OPERATION: &str = "broadcast_to";
        let _scope = self.enter(OPERATION, "in a replica, use the value as it is")?;
        let to = self.places(&destinations.into(), OPERATION)?;
        let (leaves, structure) = value.into_tree().flatten();
        mirrored(OPERATION, &structure, &to, self.broadcast(&leaves, &to)?)
    }

    fn reduce_pairs<V: Reducible>(
        &self,
        call: Call,
        pairs: impl IntoIterator<Item = (V, Destinations)>,
    ) -> Result<Vec<Mirrored<V::Nest>>> {
        self.require_settled(call.operation)?;
        let operation = call.operation;
        let _scope = self.enter(operation, ADVICE)?;
        let prepare = |(value, destinations): (V, Destinations)| {
            let to = self.places(&destinations, operation)?;
            let (leaves, structure) = self.contributions(operation, call.op, value)?;
            Ok(Given { leaves, structure, to })
        };
        let given = self.or_tell_workers(pairs.into_iter().map(prepare).collect::<Result<Vec<_>>>())?;
        let reduced = self.reduce_given(call, &given)?;
        let finish = |(given, copies): (&Given, _)| mirrored(operation, &given.structure, &given.to, copies);
        given.iter().zip(reduced).map(finish).collect()
    }

    /// Returns the devices of this process with the copies for `destinations`: one for each destination.
    fn places(&self, destinations: &Destinations, operation: &'static str) -> Result<Vec<DeviceName>> {
        let devices = destinations.resolve(operation, self)?;
        Ok(devices.into_iter().map(DeviceName::in_this_process).collect())
    }

    /// Returns the copies of each leaf's reduction, for each value.
    pub(super) fn reduce_given(&self, call: Call, given: &[Given]) -> Result<Vec<Vec<Vec<Leaf>>>> {
        let what = |local: usize| {
            let all: Vec<_> = given.iter().map(|given| given.describe(local)).collect();
            call.fingerprint(&all.join(", "))
        };
        let parts = given.iter().flat_map(|given| {
            let each = given.leaves.iter().filter_map(|leaf| match leaf {
                Contribution::Each(parts) => Some(parts.clone()),
                _ => None,
            });
            each.map(|parts| (parts, given.to.as_slice()))
        });
        let mut reduced = self.reduce_parts(call, what, parts)?.into_iter();
        let finish = |given: &Given| {
            let of_workers = given.leaves.iter().filter_map(|leaf| match leaf {
                Contribution::OfWorkers(leaf) => Some(leaf.clone()),
                _ => None,
            });
            let of_workers: Vec<Leaf> = of_workers.collect();
            let mut of_workers = match of_workers.as_slice() {
                [] => Vec::new(),
                leaves => self.reduce_of_workers(call, what, leaves)?,
            }
            .into_iter();
            let missing = || Error::invalid(call.operation, "a leaf that was not reduced");
            let copies = |leaf: &Contribution| match leaf {
                Contribution::Each(_) => reduced.next().ok_or_else(missing),
                Contribution::Same(leaf) => self.ops().broadcast(leaf, &given.to),
                Contribution::OfWorkers(_) => {
                    self.ops().broadcast(&of_workers.next().ok_or_else(missing)?, &given.to)
                }
            };
            given.leaves.iter().map(copies).collect()
        };
        given.iter().map(finish).collect()
    }

    /// Returns the leaves of a value to reduce over replicas, and its structure.
    pub(super) fn contributions<V: Reducible>(
        &self,
        operation: &'static str,
        op: ReduceOp,
        value: V,
    ) -> Result<(Vec<Contribution>, Tree<()>)> {
        let (parts, structure) = parts_of(operation, value, self.world().replicas())?.flatten();
        let leaves = parts.into_iter().map(|parts| self.contribution(operation, op, parts));
        Ok((leaves.collect::<Result<_>>()?, structure))
    }

    fn contribution(&self, operation: &'static str, op: ReduceOp, parts: Components) -> Result<Contribution> {
        let replicas = self.world().replicas();
        match parts {
            Components::PerReplica(parts) => Ok(Contribution::Each(parts)),
            // RED-13
            Components::Plain(leaf) if self.world().is_multi_worker() => Ok(Contribution::OfWorkers(leaf)),
            Components::Plain(_) if replicas > 1 && op == ReduceOp::Sum => Err(Error::invalid(
                operation,
                format!(
                    "SUM over {replicas} replicas of a value that is not distributed; \
                     give a PerReplica, such as run returns, or reduce with MEAN"
                ),
            )),
            // Refused even for a single replica, so that programs don't break on several.
            Components::Plain(leaf) if op == ReduceOp::Sum => {
                Leaf::summands(op, std::slice::from_ref(&leaf)).map_err(Error::tensor(operation))?;
                Ok(Contribution::Same(leaf))
            }
            Components::Mirrored(leaf) if op == ReduceOp::Sum => Ok(Contribution::Each(vec![leaf; replicas])),
            Components::Plain(leaf) | Components::Mirrored(leaf) => Ok(Contribution::Same(leaf)),
        }
    }

    /// Reduces leaves over all workers or by the strategy's cross-device ops. Each leaf is given by its
    /// replicas' parts and the devices for the result. `what` describes the contribution of a local replica.
    pub(super) fn reduce_parts<'a>(
        &self,
        call: Call,
        what: impl Fn(usize) -> Fingerprint,
        leaves: impl IntoIterator<Item = (Vec<Leaf>, &'a [DeviceName])>,
    ) -> Result<Vec<Vec<Leaf>>> {
        let Call { operation, op, .. } = call;
        let from = &self.devices();
        let values: Vec<_> = leaves.into_iter().map(|(parts, to)| Reduction { parts, from, to }).collect();
        if !self.world().is_multi_worker() || values.is_empty() {
            return reduce_by(self.ops(), operation, op, &values, &self.extended().communication_options());
        }
        let of_replica = |local: usize| values.iter().map(|value| value.parts[local].clone()).collect();
        let local: Vec<Vec<Leaf>> = (0..self.world().replicas()).map(of_replica).collect();
        let local: Vec<&[Leaf]> = local.iter().map(Vec::as_slice).collect();
        let reduced = self.reduce_over_workers(operation, op, what, &local)?.unwrap_or_default();
        reduced.iter().zip(&values).map(|(leaf, value)| self.ops().broadcast(leaf, value.to)).collect()
    }

    /// Reduces one value of each worker. The mean of equal values is the value itself, even if its dtype has no
    /// mean.
    fn reduce_of_workers(
        &self,
        Call { operation, op, .. }: Call,
        what: impl Fn(usize) -> Fingerprint,
        leaves: &[Leaf],
    ) -> Result<Vec<Leaf>> {
        let all = self.gather_over_workers(operation, what, &[leaves])?.unwrap_or_default();
        let reduce = |leaf: usize| {
            let parts: Vec<Leaf> = all.iter().map(|leaves| leaves[leaf].clone()).collect();
            if op == ReduceOp::Mean {
                let host = parts.iter().map(Leaf::to_host).collect::<distribute_tensor::Result<Vec<_>>>()?;
                if host.windows(2).all(|pair| pair[0].same_bits(&pair[1])) {
                    return Ok(parts[0].clone());
                }
            }
            Leaf::reduce(op, &parts)
        };
        (0..leaves.len())
            .map(reduce)
            .collect::<distribute_tensor::Result<_>>()
            .map_err(Error::tensor(operation))
    }

    fn ops(&self) -> &dyn CrossDeviceOps {
        self.extended().cross_device_ops().unwrap_or(DEFAULT)
    }

    fn broadcast(&self, leaves: &[Leaf], to: &[DeviceName]) -> Result<Vec<Vec<Leaf>>> {
        leaves.iter().map(|leaf| self.ops().broadcast(leaf, to)).collect()
    }
}

/// Builds one structure for each device from the copies of the leaves.
fn mirrored<N: Nest>(
    operation: &'static str,
    structure: &Tree<()>,
    to: &[DeviceName],
    leaves: Vec<Vec<Leaf>>,
) -> Result<Mirrored<N>> {
    let copy = |device: usize| {
        let leaves = leaves.iter().filter_map(|copies| copies.get(device).cloned());
        structure.fill(leaves).and_then(N::from_tree).map_err(Error::tensor(operation))
    };
    let copies = (0..to.len()).map(copy).collect::<Result<Vec<_>>>()?;
    Mirrored::from_copies(copies).ok_or_else(|| Error::invalid(operation, "there is no destination"))
}
