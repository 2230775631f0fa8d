//! Collectives: every replica contributes a value and gets the result.

use super::ReplicaContext;
use super::combine::through_host;
use super::describe::{describe, describe_for_sum, describe_without};
use super::gradient::attach;
use crate::failure::failure;
use distribute_base::{Error, Result};
use distribute_cluster::{Fingerprint, Operation};
use distribute_collective::all_gather;
use distribute_tensor::{Leaf, Nest, ReduceOp};
use std::panic::Location;
use std::sync::Arc;

impl ReplicaContext {
    /// Reduces `value` over all replicas. Every replica gets the result.
    ///
    /// `value` is a nest of numbers, candle tensors, [`HostTensor`](distribute_tensor::HostTensor)s or
    /// [`IndexedSlices`](distribute_tensor::IndexedSlices), with the same structure, shapes and dtypes on all replicas.
    /// The call is differentiable: the gradients of the results are reduced in the same way. Every replica contributes,
    /// even if all pass the same tensor. Do not change results in place: replicas may share one tensor, and the result
    /// of a single replica may be `value` itself. The rows of indexed slices are merged; see
    /// [`IndexedSlices::reduce`](distribute_tensor::IndexedSlices::reduce).
    ///
    /// # Errors
    /// - [`Error::WrongContext`], [`Error::StaleContext`], [`Error::MixedStrategies`]: this is not the context of the
    ///   closure that is running.
    /// - [`Error::Collective`]: the replicas' calls differ, or a replica has failed or timed out. Every replica gets
    ///   this error.
    /// - [`Error::Tensor`]: the values cannot be reduced.
    /// - [`Error::Shared`]: the strategy's cross-device ops failed. Every replica gets this error.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let sums = strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, 1f32))?;
    /// assert_eq!(sums.values(), [2., 2.]);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    ///
    /// Several values in one call:
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let sums = strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, vec![1f32, 2.]))?;
    /// assert_eq!(sums.to_string(), "\
    /// [PerReplica:{
    ///   0: <Tensor: shape=(), dtype=float32, data=2.0>,
    ///   1: <Tensor: shape=(), dtype=float32, data=2.0>
    /// }, PerReplica:{
    ///   0: <Tensor: shape=(), dtype=float32, data=4.0>,
    ///   1: <Tensor: shape=(), dtype=float32, data=4.0>
    /// }]");
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "tf.distribute.ReplicaContext.all_reduce")]
    #[track_caller]
    pub fn all_reduce<N: Nest>(&self, op: ReduceOp, value: N) -> Result<N> {
        let at = Location::caller();
        self.require_current("all_reduce")?;
        let call = self.next_call();
        let (leaves, structure) = value.into_tree().flatten();
        let detail = |leaves: &[Leaf]| format!("{op} {}", describe(&structure, leaves, describe_for_sum));
        let inputs = leaves.clone();
        let reduced = self.combine("all_reduce", op, detail, leaves, at)?;
        let gradient = move |leaf: usize, upstream: &candle_core::Tensor, context: &ReplicaContext| {
            let detail = format!("{op}, the gradient of call {} leaf {leaf}", call + 1);
            context.all_reduce_gradient(detail, op, upstream, at)
        };
        let outputs = attach(self, (call, at), inputs, reduced, Arc::new(gradient))?;
        N::from_tree(structure.fill(outputs)?).map_err(Error::tensor("all_reduce"))
    }

    /// Concatenates `value` over all replicas along `axis`, in the order of replica ids. Every replica gets
    /// the result.
    ///
    /// `value` is a nest of dense tensors of rank 1 or more, with the same structure on all replicas. Shapes
    /// may differ only in dimension `axis`. The call is differentiable: each replica gets its slice of the
    /// summed upstream gradients.
    ///
    /// # Errors
    /// - [`Error::WrongContext`], [`Error::StaleContext`], [`Error::MixedStrategies`]: this is not the context of the
    ///   closure that is running.
    /// - [`Error::Collective`]: the replicas' calls differ, or a replica has failed or timed out. Every replica gets
    ///   this error.
    /// - [`Error::Tensor`]: a value is a scalar or [`IndexedSlices`](distribute_tensor::IndexedSlices), or `axis` is
    ///   not less than the rank.
    ///
    /// One tensor:
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let result = strategy.run((), |ctx, ()| ctx.all_gather(HostTensor::vector(vec![1, 2, 3]), 0))?;
    /// assert_eq!(result.to_string(), "\
    /// PerReplica:{
    ///   0: <Tensor: shape=(6,), dtype=int32, data=[1, 2, 3, 1, 2, 3]>,
    ///   1: <Tensor: shape=(6,), dtype=int32, data=[1, 2, 3, 1, 2, 3]>
    /// }");
    /// assert_eq!(strategy.local_results(result)?[1].to_vec::<i32>()?, [1, 2, 3, 1, 2, 3]);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    ///
    /// A nest, here a list of two:
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let result = strategy.run((), |ctx, ()| {
    ///     let first = HostTensor::vector(vec![1, 2, 3]);
    ///     let second = HostTensor::new(vec![1, 2, 3, 4], [2, 2])?;
    ///     ctx.all_gather(vec![first, second], 0)
    /// })?;
    /// assert_eq!(result.to_string(), "\
    /// [PerReplica:{
    ///   0: <Tensor: shape=(6,), dtype=int32, data=[1, 2, 3, 1, 2, 3]>,
    ///   1: <Tensor: shape=(6,), dtype=int32, data=[1, 2, 3, 1, 2, 3]>
    /// }, PerReplica:{
    ///   0: <Tensor: shape=(4, 2), dtype=int32, data=
    /// [[1, 2],
    ///  [3, 4],
    ///  [1, 2],
    ///  [3, 4]]>,
    ///   1: <Tensor: shape=(4, 2), dtype=int32, data=
    /// [[1, 2],
    ///  [3, 4],
    ///  [1, 2],
    ///  [3, 4]]>
    /// }]");
    /// # Ok::<(), distribute::Error>(())
    /// ```
    ///
    /// A map of tensors whose sizes along the axis differ between replicas:
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use std::collections::BTreeMap;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let result = strategy.run((), |ctx, ()| {
    ///     let (a, b) = match ctx.replica_id_in_sync_group() {
    ///         0 => (vec![0], HostTensor::new(vec![0, 1], [1, 2])?),
    ///         _ => (vec![1], HostTensor::new(vec![2, 3, 4, 5], [2, 2])?),
    ///     };
    ///     ctx.all_gather(BTreeMap::from([("a".to_string(), HostTensor::vector(a)), ("b".to_string(), b)]), 0)
    /// })?;
    /// for map in &result {
    ///     assert_eq!(map["a"].to_vec::<i32>()?, [0, 1]);
    ///     assert_eq!((map["b"].dims(), map["b"].to_vec::<i32>()?), (&[3, 2][..], vec![0, 1, 2, 3, 4, 5]));
    /// }
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "tf.distribute.ReplicaContext.all_gather")]
    #[track_caller]
    pub fn all_gather<N: Nest>(&self, value: N, axis: usize) -> Result<N> {
        let at = Location::caller();
        self.require_current("all_gather")?;
        let call = self.next_call();
        let (leaves, structure) = value.into_tree().flatten();
        // Sizes along the axis may differ, so they are left out of the comparison.
        let detail = describe(&structure, &leaves, |leaf| describe_without(leaf, axis));
        let call_made = Fingerprint::new(Operation::AllGather, format!("axis {axis} of {detail}"), at);
        let inputs = leaves.clone();
        let mut offsets = Vec::new();
        let gathered = through_host(self.member(), leaves, false, |leaves| {
            let gathered =
                all_gather(self.member(), call_made, axis, leaves).map_err(failure("all_gather"))?;
            offsets = gathered.1;
            Ok(gathered.0)
        })?;
        let sizes: Vec<usize> =
            inputs.iter().map(|leaf| leaf.dims().get(axis).copied().unwrap_or(0)).collect();
        let gradient = move |leaf: usize, upstream: &candle_core::Tensor, context: &ReplicaContext| {
            let detail = format!("SUM, the gradient of all_gather call {} leaf {leaf}", call + 1);
            let sum = context.all_reduce_gradient(detail, ReduceOp::Sum, upstream, at)?;
            Ok(sum.narrow(axis, offsets[leaf], sizes[leaf])?.contiguous()?)
        };
        let outputs = attach(self, (call, at), inputs, gathered, Arc::new(gradient))?;
        N::from_tree(structure.fill(outputs)?).map_err(Error::tensor("all_gather"))
    }

    /// Reduces the upstream gradient of a collective over all replicas. `detail` describes the call in its fingerprint.
    ///
    /// # Errors
    /// Returns the errors of [`all_reduce`](Self::all_reduce).
    #[doc(hidden)]
    pub fn all_reduce_gradient(
        &self,
        detail: String,
        op: ReduceOp,
        upstream: &candle_core::Tensor,
        at: &'static Location<'static>,
    ) -> Result<candle_core::Tensor> {
        self.require_current("backward through a collective, which belongs inside its run,")?;
        let detail = |leaves: &[Leaf]| format!("{detail}: {}", leaves[0].describe());
        let leaves = vec![Leaf::Candle(upstream.clone())];
        let mut reduced = self.combine("the gradient of a collective", op, detail, leaves, at)?;
        match reduced.leaves.pop() {
            Some(Leaf::Candle(tensor)) => Ok(tensor),
            _ => Err(Error::invalid(
                "the gradient of a collective",
                "a gradient was reduced to another kind of value",
            )),
        }
    }
}
