//! What code that runs once for each replica can ask and do.

use super::combine::failure;
use super::describe::{describe, describe_for_sum, describe_without};
use super::expected::Expectations;
use super::gradient::attach;
use super::layers::Notes;
use super::{Mode, enter, top};
use crate::context::ContextKind;
use crate::strategy::CommunicationOptions;
use crate::values::{Distributed, PerReplica};
use crate::{Error, Result, Strategy};
use distribute_cluster::{Blame, Fingerprint, Operation};
use distribute_collective::{all_gather, threads::Member};
use distribute_tensor::{Leaf, Nest, ReduceOp};
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// One replica's view of a `run`: which replica it is, and the operations in which all replicas take part.
///
/// Every operation in which all take part has to be called by all replicas, the same number of times and in the same
/// order. Where they don't, or one fails, or one does not come before the strategy's timeout, all replicas get one
/// error that names the replicas, the calls and their lines; none hangs.
///
/// Only `run` makes one:
///
/// ```compile_fail,E0624
/// # use distribute::prelude::*;
/// # let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let context = ReplicaContext::new(strategy.into(), 0, 1, None);
/// # Ok::<(), distribute::Error>(())
/// ```
#[doc(alias = "tf.distribute.ReplicaContext")]
#[derive(Clone)]
pub struct ReplicaContext(Arc<Inner>, Option<Arc<View>>);

/// What one view of a context does otherwise, see [`ReplicaContext::with_options`].
struct View {
    options: CommunicationOptions,
    member: Option<Member>,
}

struct Inner {
    strategy: Strategy,
    local: usize,
    step: u64,
    /// None where this replica is the only one.
    member: Option<Member>,
    /// Counts the collectives of this replica in this run: gradients name the call that they belong to.
    calls: AtomicU64,
    /// The results whose gradient is a collective, too.
    expected: Mutex<Expectations>,
    notes: Notes,
}

pub(crate) fn default_context() -> &'static ReplicaContext {
    static CONTEXT: OnceLock<ReplicaContext> = OnceLock::new();
    CONTEXT.get_or_init(|| ReplicaContext::new(crate::strategy::default_strategy().clone(), 0, 0, None))
}

impl ReplicaContext {
    pub(crate) fn new(strategy: Strategy, local: usize, step: u64, member: Option<Member>) -> Self {
        Self(
            Arc::new(Inner {
                strategy,
                local,
                step,
                member,
                calls: AtomicU64::new(0),
                expected: Mutex::default(),
                notes: Notes::default(),
            }),
            None,
        )
    }

    /// A view of this context whose calls communicate as `options` say; what they leave at its default stays as it was
    /// (CO-2). With a timeout, replicas wait so long for the others in each call, also in the gradients of a collective,
    /// in `merge_call` and in an optimizer's step.
    ///
    /// All replicas have to give the same `bytes_per_pack` to the same call; timeouts may differ, and the first that
    /// passes ends the call for all.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a timeout of zero.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use distribute::CommunicationOptions;
    /// use std::time::Duration;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let sums = strategy.run((), |ctx, ()| {
    ///     let patient = CommunicationOptions { timeout: Some(Duration::from_secs(600)), ..Default::default() };
    ///     ctx.with_options(patient)?.all_reduce(ReduceOp::Sum, 1f32)
    /// })?;
    /// assert_eq!(sums.values(), [2., 2.]);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    pub fn with_options(&self, options: CommunicationOptions) -> Result<Self> {
        options.check("with_options")?;
        Ok(self.view(options.over(self.options())))
    }

    /// A view of this context whose calls communicate as `options` say, and not as this one's.
    pub(super) fn view(&self, options: CommunicationOptions) -> Self {
        let member = self.0.member.as_ref().map(|member| match options.timeout {
            Some(timeout) => member.with_timeout(timeout),
            None => member.clone(),
        });
        Self(self.0.clone(), Some(Arc::new(View { options, member })))
    }

    /// How the calls on this view communicate.
    pub(super) fn options(&self) -> CommunicationOptions {
        match &self.1 {
            Some(view) => view.options,
            None => self.0.strategy.extended().communication_options(),
        }
    }

    pub(super) fn expected(&self) -> MutexGuard<'_, Expectations> {
        lock(&self.0.expected)
    }

    /// Whether this is the context of code outside of all strategies.
    pub(super) fn is_default(&self) -> bool {
        Arc::ptr_eq(&self.0, &default_context().0)
    }

    pub(super) fn notes(&self) -> &Notes {
        &self.0.notes
    }

    /// The number of the next collective of this replica in this run, from 0.
    pub(crate) fn next_call(&self) -> u64 {
        self.0.calls.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn member(&self) -> Option<&Member> {
        match &self.1 {
            Some(view) => view.member.as_ref(),
            None => self.0.member.as_ref(),
        }
    }

    /// The id of this replica among all that are in sync: 0 … `num_replicas_in_sync() - 1`.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let ids = strategy.run((), |ctx, ()| Ok(ctx.replica_id_in_sync_group() as i32))?;
    /// assert_eq!(ids.to_string(), "\
    /// PerReplica:{
    ///   0: <Tensor: shape=(), dtype=int32, data=0>,
    ///   1: <Tensor: shape=(), dtype=int32, data=1>
    /// }");
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "tf.distribute.ReplicaContext.replica_id_in_sync_group")]
    pub fn replica_id_in_sync_group(&self) -> usize {
        self.0.strategy.extended().first_replica_id() + self.0.local
    }

    /// Which of this process's replicas this is.
    pub(crate) fn local_replica(&self) -> usize {
        self.0.local
    }

    /// How many replicas are in sync, those of all workers together.
    #[doc(alias = "tf.distribute.ReplicaContext.num_replicas_in_sync")]
    pub fn num_replicas_in_sync(&self) -> usize {
        self.0.strategy.num_replicas_in_sync()
    }

    /// The strategy that this replica belongs to.
    #[doc(alias = "tf.distribute.ReplicaContext.strategy")]
    pub fn strategy(&self) -> &Strategy {
        &self.0.strategy
    }

    /// The number of this `run` on its strategy, from 1.
    pub fn step(&self) -> u64 {
        self.0.step
    }

    /// The device that this replica runs on: one full name, such as `/job:localhost/replica:0/task:0/device:CPU:1`.
    ///
    /// # Errors
    /// [`Error::StaleContext`] or [`Error::WrongContext`] where this context is not current.
    #[doc(alias = "tf.distribute.ReplicaContext.devices")]
    pub fn devices(&self) -> Result<Vec<String>> {
        self.require_current("devices")?;
        Ok(vec![self.device()])
    }

    /// candle's device for this replica: where to make tensors inside of the closure.
    ///
    /// # Errors
    /// [`Error::Candle`] where candle cannot open the device.
    pub fn device_for_candle(&self) -> Result<candle_core::Device> {
        match self.0.strategy.extended().worker_devices().get(self.0.local) {
            Some(name) => name.to_candle(),
            None => Ok(candle_core::Device::Cpu),
        }
    }

    pub(crate) fn device(&self) -> String {
        let devices = self.0.strategy.extended().worker_devices();
        devices.get(self.0.local).map_or_else(|| "the current device".into(), ToString::to_string)
    }

    /// Reduces `value` over all replicas; every replica gets the result.
    ///
    /// `value` is a nest of tensors (candle's, [`HostTensor`](crate::HostTensor)s, [`IndexedSlices`](crate::IndexedSlices)
    /// or numbers); structure, shapes and dtypes have to be the same on all replicas. Gradients flow through: those of
    /// the results are reduced the same way. Every replica contributes, also where all give the same tensor. Results of
    /// more than 64 KiB are one tensor for all replicas: do not change them in place. Of indexed slices the rows are
    /// merged, see [`IndexedSlices::reduce`](crate::IndexedSlices::reduce).
    ///
    /// # Errors
    /// [`Error::Collective`] on every replica where they differ, one is gone or one is late.
    /// [`Error::Tensor`] where the values cannot be reduced.
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
        let Some(member) = self.member() else {
            return alone(op, value).map_err(Error::tensor("all_reduce"));
        };
        let (leaves, structure) = value.into_tree().flatten();
        let detail = format!("{op} {}", describe(&structure, &leaves, describe_for_sum));
        let inputs = leaves.clone();
        let reduced = self.combine("all_reduce", member, op, detail, leaves, at)?;
        let gradient = move |leaf: usize, upstream: &candle_core::Tensor, context: &ReplicaContext| {
            let detail = format!("{op}, the gradient of call {} leaf {leaf}", call + 1);
            context.all_reduce_gradient(detail, op, upstream, at)
        };
        let outputs = attach(self, (call, at), inputs, reduced, Arc::new(gradient))?;
        N::from_tree(structure.fill(outputs)?).map_err(Error::tensor("all_reduce"))
    }

    /// Concatenates `value` over all replicas along `axis`, in the order of replica ids; every replica gets the result.
    ///
    /// `value` is a nest of dense tensors of rank 1 or more, with the same structure on all replicas; shapes may differ
    /// in dimension `axis` only. Gradients flow through: each replica gets its part of the sum of the upstream ones.
    ///
    /// # Errors
    /// [`Error::Collective`] on every replica where they differ, one is gone or one is late.
    /// [`Error::Tensor`] for scalars, an axis outside of the rank, or [`IndexedSlices`](crate::IndexedSlices).
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
    /// Sizes along the axis that differ between replicas, in a map:
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
        let Some(member) = self.member() else {
            // What fails on two replicas fails on one.
            leaves
                .iter()
                .try_for_each(|leaf| check_gathered(leaf, axis))
                .map_err(Error::tensor("all_gather"))?;
            return N::from_tree(structure.fill(leaves)?).map_err(Error::tensor("all_gather"));
        };
        // Sizes along the axis may differ: they are no part of what has to be equal.
        let detail = describe(&structure, &leaves, |leaf| describe_without(leaf, axis));
        let call_made = Fingerprint::new(Operation::AllGather, format!("axis {axis} of {detail}"), at);
        let inputs = leaves.clone();
        let (gathered, offsets) =
            all_gather(member, call_made, axis, leaves).map_err(failure("all_gather"))?;
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

    /// Pauses all replicas and calls `merge` once, in cross-replica context, with the values that they gave.
    ///
    /// `merge` gets the strategy and the values of all replicas, and its result is given back: of a
    /// [`PerReplica`] each replica gets its own part, of a [`Mirrored`](crate::Mirrored) or a plain value all get the
    /// same. It is replica 0's closure that is called; inside of it [`Strategy::run`] is allowed. The others wait for it
    /// as long as the strategy's timeout.
    ///
    /// # Errors
    /// [`Error::Collective`] on every replica where not all make the call, or `merge` takes longer. Where `merge` fails, `run` returns its error.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let totals = strategy.run((), |ctx, ()| {
    ///     let id = ctx.replica_id_in_sync_group() as i32;
    ///     ctx.merge_call(id, |strategy, ids| strategy.reduce(ReduceOp::Sum, ids, None))
    /// })?;
    /// assert_eq!(totals.values(), [1, 1]);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    ///
    /// Where no strategy has been entered, `merge` is called directly, in the default strategy's cross-replica context:
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// let context = distribute::get_replica_context().unwrap();
    /// let value = context.merge_call(3i32, |strategy, values| {
    ///     assert!(*strategy == distribute::get_strategy() && distribute::in_cross_replica_context());
    ///     Ok(values.values()[0] * 2)
    /// })?;
    /// assert_eq!(value, 6);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "tf.distribute.ReplicaContext.merge_call")]
    #[track_caller]
    pub fn merge_call<T, R>(
        &self,
        value: T,
        merge: impl FnOnce(&Strategy, PerReplica<T>) -> Result<R>,
    ) -> Result<R::Local>
    where
        T: Send + 'static,
        R: Distributed,
        R::Local: Send + 'static,
    {
        let call = Fingerprint::new(Operation::MergeCall, std::any::type_name::<T>(), Location::caller());
        self.merge(call, "merge_call", value, merge)
    }

    /// [`merge_call`](Self::merge_call), as which others of this crate's operations are made, too.
    pub(crate) fn merge<T, R>(
        &self,
        call: Fingerprint,
        operation: &'static str,
        value: T,
        merge: impl FnOnce(&Strategy, PerReplica<T>) -> Result<R>,
    ) -> Result<R::Local>
    where
        T: Send + 'static,
        R: Distributed,
        R::Local: Send + 'static,
    {
        self.require_current(operation)?;
        let merge = |values| -> Result<Vec<R::Local>> {
            let _cross_replica = enter(Mode::CrossReplica(self.0.strategy.clone()));
            merge(&self.0.strategy, PerReplica::from_values(values))?
                .split(self.0.strategy.extended().local_replicas())
        };
        let not_given = || Error::invalid(operation, "the merge function gave no value for this replica");
        let Some(member) = self.member() else { return merge(vec![value])?.pop().ok_or_else(not_given) };

        let failed = Mutex::new(None);
        let parts =
            member.merge(call.clone(), Mutex::new(Some(value)), |offers: Vec<Arc<Mutex<Option<T>>>>| {
                let values = offers.iter().filter_map(|offer| lock(offer).take()).collect();
                match merge(values) {
                    Ok(parts) => parts.into_iter().map(|part| Mutex::new(Some(part))).collect::<Vec<_>>(),
                    Err(error) => {
                        *lock(&failed) = Some(error);
                        Vec::new()
                    }
                }
            });
        // Before the others' error: a merge function may fail after they have given it up.
        if let Some(error) = lock(&failed).take() {
            return Err(error);
        }
        match parts?.get(member.rank()).and_then(|part| lock(part).take()) {
            Some(part) => Ok(part),
            None => Err(Error::Collective(Arc::new(Blame::failed(self.0.step, 0, &call)))),
        }
    }

    /// Fails unless this is the context of the closure that is running on this thread (ERR-2).
    pub(crate) fn require_current(&self, operation: &'static str) -> Result<()> {
        let current = super::get_replica_context_if(|context| Arc::ptr_eq(&context.0, &self.0));
        match current {
            super::Current::This => Ok(()),
            super::Current::None => Err(Error::WrongContext {
                operation,
                required: ContextKind::Replica,
                found: ContextKind::current(),
                advice: "call it inside of the closure given to run, on the context given there",
            }),
            // With no strategy entered there is none to mix: the run is over, or this is a thread of the user's.
            super::Current::Other(other)
                if other.strategy() == self.strategy() || top(|mode| mode.is_none()) =>
            {
                Err(Error::StaleContext {
                    operation,
                    replica: self.replica_id_in_sync_group(),
                    step: self.0.step,
                })
            }
            super::Current::Other(other) => Err(Error::MixedStrategies {
                operation,
                current: other.strategy().to_string(),
                other: self.strategy().to_string(),
            }),
        }
    }

    /// The part of a collective in its own gradient.
    pub(crate) fn all_reduce_gradient(
        &self,
        detail: String,
        op: ReduceOp,
        upstream: &candle_core::Tensor,
        at: &'static Location<'static>,
    ) -> Result<candle_core::Tensor> {
        self.require_current("backward through a collective, which belongs inside of its run")?;
        let Some(member) = self.member() else { return Ok(upstream.clone()) };
        let detail = format!("{detail}: {}", Leaf::Candle(upstream.clone()).describe());
        let leaves = vec![Leaf::Candle(upstream.clone())];
        let mut reduced = self.combine("the gradient of a collective", member, op, detail, leaves, at)?;
        match reduced.leaves.pop() {
            Some(Leaf::Candle(tensor)) => Ok(tensor),
            _ => Err(Error::invalid(
                "the gradient of a collective",
                "a gradient was reduced to another kind of value",
            )),
        }
    }
}

impl std::fmt::Debug for ReplicaContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "ReplicaContext(replica {} of {}, step {}, {})",
            self.replica_id_in_sync_group(),
            self.num_replicas_in_sync(),
            self.0.step,
            self.0.strategy
        )
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The reduction over the only replica: the value itself, with the rows of indexed slices merged, as over several.
fn alone<N: Nest>(op: ReduceOp, value: N) -> distribute_tensor::Result<N> {
    N::from_tree(value.into_tree().try_map(&mut |leaf| match leaf {
        Leaf::Slices(_) => Leaf::reduce(op, &[leaf]),
        dense => Ok(dense),
    })?)
}

/// What [`Leaf::concat`] would refuse, where there is nothing to join.
fn check_gathered(leaf: &Leaf, axis: usize) -> distribute_tensor::Result<()> {
    const OPERATION: &str = "all_gather";
    let (rank, shape) = (leaf.dims().len(), leaf.dims().to_vec());
    match leaf {
        Leaf::Slices(_) => Err(distribute_tensor::Error::LeafKind {
            operation: OPERATION,
            expected: "a dense tensor",
            found: "indexed slices",
        }),
        _ if axis >= rank => {
            Err(distribute_tensor::Error::Axis { operation: OPERATION, axis: axis as i64, rank, shape })
        }
        _ => Ok(()),
    }
}
