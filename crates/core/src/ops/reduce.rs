//! Combines the replicas' values, outside `run`.

use super::reduce_to::{ReductionCall, ReductionInput};
use crate::context::describe::{describe, describe_without};
use crate::strategy::Strategy;
use distribute_base::{DeviceName, Error, Result};
use distribute_cluster::{Fingerprint, Operation};
use distribute_tensor::{DType, HostTensor, Leaf, Nest, ReduceOp, Tree};
use distribute_values::internal::parts_of;
use distribute_values::{Axes, Components, Reducible};
use std::panic::Location;

const ADVICE: &str = "use the replica context's all_reduce, or merge_call";
const GATHER_ADVICE: &str = "use the replica context's all_gather";

impl Strategy {
    /// Reduces a value over all replicas. If `axis` is given, first reduces over that axis (or axes) within
    /// each replica.
    ///
    /// With `axis`, MEAN divides by the total number of elements along the axis on all replicas. Smaller
    /// batches therefore have less weight, and an empty batch has none.
    ///
    /// A value that is not distributed counts once per replica if an axis is given; without an axis, MEAN returns it
    /// unchanged. If this process has several replicas, the result is on `cpu:0`; otherwise it is on the device of the
    /// only replica.
    ///
    /// With several workers, all must make this call, and they get the same result. Without an axis, a value
    /// that is not distributed is then reduced over the workers, each of which has one value.
    ///
    /// # Errors
    /// - [`Error::Tensor`]: shapes or dtypes differ, an axis is outside the rank, or the dtype is bool or string.
    /// - [`Error::InvalidArgument`]: SUM without an axis of a value that is not distributed, if the strategy has
    ///   several replicas, all in one process; the value was created for a different number of replicas; or this worker
    ///   has not caught up with the others or has left them.
    /// - [`Error::WrongContext`]: called inside `run`.
    /// - [`Error::MixedStrategies`]: called inside another strategy's scope.
    /// - [`Error::Collective`]: a worker does not make the same call.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// # use candle_core::{Device, Tensor};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let losses = [vec![0f32, 1., 2., 3.], vec![4., 5.]];
    /// let losses = strategy.distribute_values_from_function(|ctx| {
    ///     Ok(Tensor::new(&losses[ctx.replica_id_in_sync_group][..], &Device::Cpu)?)
    /// })?;
    /// let mean = strategy.reduce(ReduceOp::Mean, &losses, 0)?;
    /// assert_eq!(mean.to_scalar::<f32>()?, 15. / 6.);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    ///
    /// The result of a `run`:
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let ids = strategy.run((), |ctx, ()| Ok(HostTensor::scalar(ctx.replica_id_in_sync_group() as i32)))?;
    /// let total = strategy.reduce("SUM".parse()?, ids, None)?;
    /// assert_eq!(total.to_string(), "<Tensor: shape=(), dtype=int32, data=1>");
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "tf.distribute.Strategy.reduce")]
    #[track_caller]
    pub fn reduce<V: Reducible>(&self, op: ReduceOp, value: V, axis: impl Into<Axes>) -> Result<V::Nest> {
        let call = ReductionCall { operation: "reduce", op, at: Location::caller() };
        let _scope = self.enter(call.operation, ADVICE)?;
        self.require_caught_up(call.operation)?;
        // RED-2; the value of a single replica stays on its device.
        let here = match self.devices()[..] {
            [one] => vec![one],
            _ => vec![DeviceName::cpu(0)],
        };
        let (leaves, structure): (Vec<Leaf>, _) = match axis.into().into_list() {
            None => {
                let (leaves, structure) =
                    self.abort_peers_on_err(self.contributions(call.operation, op, value))?;
                let inputs = [ReductionInput { leaves, structure, to: here }];
                let reduced = self.reduce_inputs(call, &inputs)?;
                let [ReductionInput { structure, .. }] = inputs;
                (reduced.into_iter().flatten().flatten().collect(), structure)
            }
            Some(axes) => {
                let (sums, structure) = self.abort_peers_on_err(self.sums(op, value, &axes))?;
                (self.reduce_sums(call, sums, &axes, &here)?, structure)
            }
        };
        structure.fill(leaves).and_then(V::Nest::from_tree).map_err(Error::tensor("reduce"))
    }

    /// Reduces the sums of all replicas, and divides by the number of elements if the reduction is MEAN.
    fn reduce_sums(
        &self,
        call: ReductionCall,
        sums: Vec<Sums>,
        axes: &[i64],
        to: &[DeviceName],
    ) -> Result<Vec<Leaf>> {
        let sum = ReductionCall { op: ReduceOp::Sum, ..call };
        let what = |local: usize| {
            let all: Vec<_> = sums.iter().map(|sums| sums.parts[local].describe()).collect();
            call.fingerprint(&format!("{} over axes {axes:?}", all.join(", ")))
        };
        let parts = sums.iter().map(|sums| (sums.parts.clone(), to));
        let counts = if self.world().is_multi_worker() {
            Some((counts(&sums, self.world().replicas()), to))
        } else {
            None
        };
        let mut reduced = self.reduce_parts(sum, what, parts.chain(counts))?;
        let counts = if reduced.len() > sums.len() { reduced.pop().unwrap_or_default() } else { Vec::new() };
        let finish = || -> distribute_tensor::Result<Vec<Leaf>> {
            let of_all = match counts.first() {
                Some(counts) => counts.to_host()?.to_vec::<u64>()?,
                None => sums.iter().map(|sums| sums.counts.iter().sum::<usize>() as u64).collect(),
            };
            let made = reduced.into_iter().flatten().zip(&sums).zip(of_all);
            made.map(|((sum, Sums { dtype, .. }), count)| sum.reduction(call.op, count as usize, *dtype))
                .collect()
        };
        finish().map_err(Error::tensor(call.operation))
    }

    /// Concatenates the replicas' values along `axis`, in the order of replica ids.
    ///
    /// Shapes may differ only in dimension `axis`. A [`Mirrored`](distribute_values::Mirrored) value counts once per
    /// replica; a value that is not distributed is returned unchanged.
    ///
    /// With several workers, all must make this call. The result is the same on all workers and contains the
    /// values of all replicas on all workers. A value that is not distributed counts once per worker.
    ///
    /// # Errors
    /// - [`Error::Tensor`]: the value is a scalar or [`IndexedSlices`](distribute_tensor::IndexedSlices), the axis is
    ///   outside `[0, rank)`, shapes differ in another dimension, or dtypes differ.
    /// - [`Error::InvalidArgument`]: the value was created for a different number of replicas; or this worker has not
    ///   caught up with the others or has left them.
    /// - [`Error::WrongContext`]: called inside `run`.
    /// - [`Error::MixedStrategies`]: called inside another strategy's scope.
    /// - [`Error::Collective`]: a worker does not make the same call.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let values = strategy.distribute_values_from_function(|_| Ok(HostTensor::new(vec![1, 2], [2, 1])?))?;
    /// assert_eq!(strategy.gather(&values, 0)?.to_string(), "\
    /// <Tensor: shape=(4, 1), dtype=int32, data=
    /// [[1],
    ///  [2],
    ///  [1],
    ///  [2]]>");
    /// # Ok::<(), distribute::Error>(())
    /// ```
    ///
    /// On four replicas, along each axis:
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1", "cpu:2", "cpu:3"])?;
    /// let single = HostTensor::new((0..6).collect::<Vec<i32>>(), [1, 2, 3])?;
    /// let values = strategy.distribute_values_from_function(|_| Ok(single.clone()))?;
    /// assert_eq!(strategy.gather(&values, 0)?.to_string(), "\
    /// <Tensor: shape=(4, 2, 3), dtype=int32, data=
    /// [[[0, 1, 2],
    ///   [3, 4, 5]],
    ///
    ///  [[0, 1, 2],
    ///   [3, 4, 5]],
    ///
    ///  [[0, 1, 2],
    ///   [3, 4, 5]],
    ///
    ///  [[0, 1, 2],
    ///   [3, 4, 5]]]>");
    /// assert_eq!(strategy.gather(&values, 1)?.to_string(), "\
    /// <Tensor: shape=(1, 8, 3), dtype=int32, data=
    /// [[[0, 1, 2],
    ///   [3, 4, 5],
    ///   [0, 1, 2],
    ///   [3, 4, 5],
    ///   [0, 1, 2],
    ///   [3, 4, 5],
    ///   [0, 1, 2],
    ///   [3, 4, 5]]]>");
    /// assert_eq!(strategy.gather(&values, 2)?.to_string(), "\
    /// <Tensor: shape=(1, 2, 12), dtype=int32, data=
    /// [[[0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2],
    ///   [3, 4, 5, 3, 4, 5, 3, 4, 5, 3, 4, 5]]]>");
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "tf.distribute.Strategy.gather")]
    #[track_caller]
    pub fn gather<V: Reducible>(&self, value: V, axis: usize) -> Result<V::Nest> {
        const OPERATION: &str = "gather";
        let at = Location::caller();
        let _scope = self.enter(OPERATION, GATHER_ADVICE)?;
        self.require_caught_up(OPERATION)?;
        let replicas = self.world().replicas();
        let parts = self.abort_peers_on_err(parts_of(OPERATION, value, replicas))?;
        let multi_worker = self.world().is_multi_worker();
        let parts = parts.map(&mut |parts| match parts {
            Components::PerReplica(parts) => (parts, true),
            // GA-6
            Components::Plain(leaf) => (vec![leaf], false),
            Components::Mirrored(leaf) => (vec![leaf; replicas], true),
        });
        let parts = if multi_worker {
            self.gather_parts(parts, axis, at)?
        } else {
            parts.map(&mut |(parts, _)| parts)
        };
        let gathered = parts.try_map(&mut |parts| Leaf::concat(&parts, axis));
        gathered.and_then(V::Nest::from_tree).map_err(Error::tensor(OPERATION))
    }

    /// Gathers the parts of each leaf over all workers. Each leaf has one part per local replica, if its flag is
    /// `true`, and gets the parts of all replicas. Otherwise it has a single part, and gets one part per worker.
    fn gather_parts(
        &self,
        parts: Tree<(Vec<Leaf>, bool)>,
        axis: usize,
        at: &'static Location<'static>,
    ) -> Result<Tree<Vec<Leaf>>> {
        const OPERATION: &str = "gather";
        let replicas = self.world().replicas();
        let (leaves, structure) = parts.flatten();
        // If each worker has one replica, a value of each worker is one of each replica.
        let one_each = self.world().replicas_of_each() == Some(1);
        let is_per_replica = |(_, is_each): &(Vec<Leaf>, bool)| *is_each || one_each;
        let what = |replica: usize| {
            let of =
                |parts: &(Vec<Leaf>, bool)| parts.0[if is_per_replica(parts) { replica } else { 0 }].clone();
            let first: Vec<Leaf> = leaves.iter().map(of).collect();
            let detail = describe(&structure, &first, |leaf| describe_without(leaf, axis));
            let plain: Vec<_> = (0..leaves.len())
                .filter(|leaf| !is_per_replica(&leaves[*leaf]))
                .map(|leaf| leaf.to_string())
                .collect();
            let suffix = match plain.len() {
                0 => String::new(),
                all if all == leaves.len() => " of each worker".into(),
                _ => format!(", of each worker those of number {}", plain.join(", ")),
            };
            Fingerprint::new(Operation::Gather, format!("axis {axis} of {detail}{suffix}"), at)
        };
        let mut joined = vec![Vec::new(); leaves.len()];
        for each in [true, false] {
            let selected: Vec<usize> =
                (0..leaves.len()).filter(|leaf| is_per_replica(&leaves[*leaf]) == each).collect();
            // A value without leaves is a call as well: the other workers may have some.
            if selected.is_empty() && !(each && leaves.is_empty()) {
                continue;
            }
            let count = if each { replicas } else { 1 };
            let of_part =
                |part: usize| selected.iter().map(|leaf| leaves[*leaf].0[part].clone()).collect::<Vec<_>>();
            let local: Vec<Vec<Leaf>> = (0..count).map(of_part).collect();
            let local: Vec<&[Leaf]> = local.iter().map(Vec::as_slice).collect();
            let all = self.gather_over_workers(OPERATION, what, &local)?.unwrap_or_default();
            for part in all {
                selected.iter().zip(part).for_each(|(leaf, part)| joined[*leaf].push(part));
            }
        }
        structure.fill(joined).map_err(Error::tensor(OPERATION))
    }

    // RED-7
    /// Returns the sums that each local replica contributes. A plain value counts once per replica.
    fn sums<V: Reducible>(&self, op: ReduceOp, value: V, axes: &[i64]) -> Result<(Vec<Sums>, Tree<()>)> {
        let replicas = self.world().replicas();
        let parts = parts_of("reduce", value, replicas)?.map(&mut |parts| match parts {
            Components::PerReplica(parts) => parts,
            Components::Plain(leaf) | Components::Mirrored(leaf) => vec![leaf; replicas],
        });
        let (leaves, structure) = parts.flatten();
        let sums = leaves.iter().map(|parts| Sums::over(op, parts, axes));
        Ok((sums.collect::<distribute_tensor::Result<_>>().map_err(Error::tensor("reduce"))?, structure))
    }
}

/// The sums over some axes within each local replica.
struct Sums {
    parts: Vec<Leaf>,
    /// The number of elements that each local replica adds for one element of its sum.
    counts: Vec<usize>,
    /// The dtype of the elements before summation.
    dtype: DType,
}

impl Sums {
    fn over(op: ReduceOp, parts: &[Leaf], axes: &[i64]) -> distribute_tensor::Result<Self> {
        let dtype = parts.first().map_or(Ok(DType::F32), Leaf::dtype)?;
        let (mut sums, mut counts) = (Vec::with_capacity(parts.len()), Vec::with_capacity(parts.len()));
        for part in Leaf::summands(op, parts)? {
            let axes = normalise(&part, axes)?;
            counts.push(axes.iter().map(|axis| part.dims()[*axis]).product::<usize>());
            sums.push(part.sum_axes(&axes)?);
        }
        Ok(Self { parts: sums, counts, dtype })
    }
}

/// Returns one vector per local replica. It contains, for each leaf, the number of elements that are added for one
/// element of the replica's sum.
fn counts(sums: &[Sums], replicas: usize) -> Vec<Leaf> {
    let of = |local: usize| sums.iter().map(|sums| sums.counts[local] as u64).collect::<Vec<_>>();
    (0..replicas).map(|local| Leaf::Host(HostTensor::vector(of(local)))).collect()
}

fn normalise(leaf: &Leaf, axes: &[i64]) -> distribute_tensor::Result<Vec<usize>> {
    let rank = leaf.dims().len();
    let one = |axis: &i64| {
        let from_front = if *axis < 0 { axis + rank as i64 } else { *axis };
        match usize::try_from(from_front) {
            Ok(axis) if axis < rank => Ok(axis),
            _ => Err(distribute_tensor::Error::Axis {
                operation: "reduce",
                axis: *axis,
                rank,
                shape: leaf.dims().to_vec(),
            }),
        }
    };
    axes.iter().map(one).collect()
}
