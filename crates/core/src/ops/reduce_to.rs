//! Reductions of the replicas' values that copy the result to chosen devices, for code that places values itself.

use super::Destinations;
use crate::context::describe::{describe, describe_for_sum};
use crate::strategy::{CrossDeviceOps, DEFAULT, Reduction, Strategy, reduce_by};
use distribute_base::{DeviceName, Error, Result};
use distribute_cluster::{Fingerprint, Operation};
use distribute_tensor::{Leaf, Nest, ReduceOp, Tree};
use distribute_values::internal::parts_of;
use distribute_values::{Components, Mirrored, Reducible};
use std::panic::Location;

const ADVICE: &str = "use the replica context's all_reduce, or merge_call";

/// One leaf of a value that is to be reduced.
pub(super) enum Contribution {
    /// A value that is already the result: the mean of equal values, or the sum over a single replica.
    Same(Leaf),
    /// The values of all local replicas.
    PerReplica(Vec<Leaf>),
    /// A value that is not distributed. Each of several workers has one.
    PerWorker(Leaf),
}

/// A value that is to be reduced, and the devices for the result.
pub(super) struct ReductionInput {
    pub(super) leaves: Vec<Contribution>,
    pub(super) structure: Tree<()>,
    pub(super) to: Vec<DeviceName>,
}

/// The reduction that the program called.
#[derive(Clone, Copy)]
pub(super) struct ReductionCall {
    pub(super) operation: &'static str,
    pub(super) op: ReduceOp,
    pub(super) at: &'static Location<'static>,
}

impl ReductionInput {
    /// Describes the properties of a local replica's contribution that must be equal on all replicas.
    fn describe(&self, local: usize) -> String {
        let leaf = |contribution: &Contribution| match contribution {
            Contribution::Same(leaf) | Contribution::PerWorker(leaf) => leaf.clone(),
            Contribution::PerReplica(parts) => parts[local].clone(),
        };
        let leaves: Vec<Leaf> = self.leaves.iter().map(leaf).collect();
        let what = describe(&self.structure, &leaves, describe_for_sum);
        let mut kinds: Vec<_> = self.leaves.iter().map(Contribution::kind).collect();
        kinds.dedup();
        match kinds.as_slice() {
            [] | [ContributionKind::PerReplica] => what,
            [ContributionKind::Same] => format!("the same {what}"),
            [ContributionKind::PerWorker] => format!("one {what} of each worker"),
            _ => {
                let kinds: Vec<_> = self.leaves.iter().map(|leaf| leaf.kind().name()).collect();
                format!("{what}, which are {}", kinds.join(", "))
            }
        }
    }
}

/// The kind of a contribution.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ContributionKind {
    Same,
    PerReplica,
    PerWorker,
}

impl ContributionKind {
    fn name(self) -> &'static str {
        match self {
            ContributionKind::Same => "the same",
            ContributionKind::PerReplica => "of each replica",
            ContributionKind::PerWorker => "of each worker",
        }
    }
}

impl Contribution {
    fn kind(&self) -> ContributionKind {
        match self {
            Contribution::Same(_) => ContributionKind::Same,
            Contribution::PerReplica(_) => ContributionKind::PerReplica,
            Contribution::PerWorker(_) => ContributionKind::PerWorker,
        }
    }
}

impl ReductionCall {
    /// Returns the fingerprint of a reduction of `what`.
    pub(super) fn fingerprint(&self, what: &str) -> Fingerprint {
        let Self { operation, op, at } = *self;
        Fingerprint::new(Operation::Reduce, format!("{operation} {op} {what}"), at)
    }
}

impl Strategy {
    /// Reduces a value over all replicas and puts a copy of the result on each of `destinations`.
    ///
    /// A [`PerReplica`](distribute_values::PerReplica) has one component per replica. A [`Mirrored`] value counts once
    /// per replica. The MEAN of a value that is not distributed is that value; its SUM over several replicas of one
    /// process is an error. If the destination is the value itself, this is an all-reduce.
    ///
    /// This call is also allowed in merge functions. With several workers, all must make it, and all get the same
    /// result. A value that is not distributed is then reduced over the workers, each of which has one value.
    ///
    /// The result has one copy per destination device. Copies on CPU devices share memory, so don't change
    /// them in place. A copy for a parameter server is in this process's CPU memory until it is written to a
    /// variable.
    ///
    /// # Errors
    /// - [`Error::Tensor`]: shapes or dtypes differ, or the dtype is bool or string.
    /// - [`Error::InvalidArgument`]: SUM over several replicas of one process of a value that is not distributed; the
    ///   value was created for a different number of replicas; the destinations are empty, on another worker, or a
    ///   variable of another strategy; or this worker has not caught up with the others or has left them.
    /// - [`Error::Device`]: a destination cannot be parsed, or is neither a device of the strategy nor the host's
    ///   `cpu:0`.
    /// - [`Error::WrongContext`]: called inside `run`.
    /// - [`Error::MixedStrategies`]: called inside another strategy's scope.
    /// - [`Error::Collective`]: a worker does not make the same call.
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
        let call = ReductionCall { operation: "reduce_to", op, at: Location::caller() };
        let reduced = self.reduce_pairs(call, [(value, destinations.into())])?.pop();
        reduced.ok_or_else(|| Error::invalid("reduce_to", "the reduction returned no result"))
    }

    /// Acts like several calls of [`reduce_to`](Strategy::reduce_to), but exchanges all per-replica values at once. The
    /// results are in the order of the pairs.
    ///
    /// Destinations may differ between pairs, and dense and sparse values may be mixed.
    ///
    /// # Errors
    /// Returns the errors of [`reduce_to`](Strategy::reduce_to), for the first pair that fails.
    ///
    /// ```
    /// # use distribute::{prelude::*, strategy::Destinations};
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
        let call = ReductionCall { operation: "batch_reduce_to", op, at: Location::caller() };
        self.reduce_pairs(call, pairs.into_iter().map(|(value, to)| (value, to.into())))
    }

    /// Copies a value to each of `destinations`.
    ///
    /// # Errors
    /// Returns the errors of [`reduce_to`](Strategy::reduce_to) that concern destinations and contexts.
    ///
    /// ```
    /// # use distribute::{prelude::*, strategy::Destinations};
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
        let to = self.destination_devices(&destinations.into(), OPERATION)?;
        let (leaves, structure) = value.into_tree().flatten();
        mirrored(OPERATION, &structure, &to, self.broadcast(&leaves, &to)?)
    }

    fn reduce_pairs<V: Reducible>(
        &self,
        call: ReductionCall,
        pairs: impl IntoIterator<Item = (V, Destinations)>,
    ) -> Result<Vec<Mirrored<V::Nest>>> {
        self.require_caught_up(call.operation)?;
        let operation = call.operation;
        let _scope = self.enter(operation, ADVICE)?;
        let prepare = |(value, destinations): (V, Destinations)| {
            let to = self.destination_devices(&destinations, operation)?;
            let (leaves, structure) = self.contributions(operation, call.op, value)?;
            Ok(ReductionInput { leaves, structure, to })
        };
        let inputs = self.abort_peers_on_err(pairs.into_iter().map(prepare).collect::<Result<Vec<_>>>())?;
        let reduced = self.reduce_inputs(call, &inputs)?;
        let finish =
            |(input, copies): (&ReductionInput, _)| mirrored(operation, &input.structure, &input.to, copies);
        inputs.iter().zip(reduced).map(finish).collect()
    }

    /// Returns the devices of this process that hold the copies for `destinations`, in the same order.
    fn destination_devices(
        &self,
        destinations: &Destinations,
        operation: &'static str,
    ) -> Result<Vec<DeviceName>> {
        let devices = destinations.resolve(operation, self)?;
        Ok(devices.into_iter().map(DeviceName::in_this_process).collect())
    }

    /// Returns the reduced leaves of each input, with one copy per destination device.
    pub(super) fn reduce_inputs(
        &self,
        call: ReductionCall,
        inputs: &[ReductionInput],
    ) -> Result<Vec<Vec<Vec<Leaf>>>> {
        let what = |local: usize| {
            let all: Vec<_> = inputs.iter().map(|input| input.describe(local)).collect();
            call.fingerprint(&all.join(", "))
        };
        let parts = inputs.iter().flat_map(|input| {
            let each = input.leaves.iter().filter_map(|leaf| match leaf {
                Contribution::PerReplica(parts) => Some(parts.clone()),
                _ => None,
            });
            each.map(|parts| (parts, input.to.as_slice()))
        });
        let sends = |leaf: &Contribution| !matches!(leaf, Contribution::Same(_));
        if self.world().is_multi_worker() && !inputs.iter().flat_map(|input| &input.leaves).any(sends) {
            // This is a call as well: the other workers may have something to reduce.
            let nothing = vec![&[][..]; self.world().replicas()];
            self.reduce_over_workers(call.operation, call.op, what, &nothing)?;
        }
        let mut reduced = self.reduce_parts(call, what, parts)?.into_iter();
        let finish = |input: &ReductionInput| {
            let per_worker = input.leaves.iter().filter_map(|leaf| match leaf {
                Contribution::PerWorker(leaf) => Some(leaf.clone()),
                _ => None,
            });
            let per_worker: Vec<Leaf> = per_worker.collect();
            let mut per_worker = match per_worker.as_slice() {
                [] => Vec::new(),
                leaves => self.reduce_worker_values(call, what, leaves)?,
            }
            .into_iter();
            let missing = || Error::invalid(call.operation, "a leaf that was not reduced");
            let copies = |leaf: &Contribution| match leaf {
                Contribution::PerReplica(_) => reduced.next().ok_or_else(missing),
                Contribution::Same(leaf) => self.ops().broadcast(leaf, &input.to),
                Contribution::PerWorker(_) => {
                    self.ops().broadcast(&per_worker.next().ok_or_else(missing)?, &input.to)
                }
            };
            input.leaves.iter().map(copies).collect()
        };
        inputs.iter().map(finish).collect()
    }

    /// Splits a value into its leaves and its structure, so that it can be reduced over replicas.
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
            Components::PerReplica(parts) => Ok(Contribution::PerReplica(parts)),
            // RED-13
            Components::Plain(leaf) if self.world().is_multi_worker() => Ok(Contribution::PerWorker(leaf)),
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
            Components::Mirrored(leaf) if op == ReduceOp::Sum => {
                Ok(Contribution::PerReplica(vec![leaf; replicas]))
            }
            Components::Plain(leaf) | Components::Mirrored(leaf) => Ok(Contribution::Same(leaf)),
        }
    }

    /// Reduces leaves over all workers or, without other workers, with the strategy's cross-device ops. Each item of
    /// `leaves` is the replicas' parts of one leaf, and the devices for the result. `what` returns the fingerprint of a
    /// local replica's call.
    pub(super) fn reduce_parts<'a>(
        &self,
        call: ReductionCall,
        what: impl Fn(usize) -> Fingerprint,
        leaves: impl IntoIterator<Item = (Vec<Leaf>, &'a [DeviceName])>,
    ) -> Result<Vec<Vec<Leaf>>> {
        let ReductionCall { operation, op, .. } = call;
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

    /// Reduces leaves that exist once per worker. The mean of equal values is that value, even if no mean is defined
    /// for its dtype.
    fn reduce_worker_values(
        &self,
        ReductionCall { operation, op, .. }: ReductionCall,
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

/// Builds one nest per device from the copies of the leaves.
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
