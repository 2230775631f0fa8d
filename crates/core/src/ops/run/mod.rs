//! `run`: calls a closure once for each local replica, in a step that all workers begin.

mod begin;

use crate::context::{Mode, ReplicaContext, enter, merging_member, unwrap_candle_error};
use crate::strategy::{Replicas, Strategy};
use crate::variables::ReadCache;
use candle_core::{Tensor, Var};
use distribute_base::internal::{STEP, lock, panicked};
use distribute_base::{Error, Result};
use distribute_cluster::Fault;
use distribute_collective::group::Session;
use distribute_collective::threads::Member;
use distribute_ps_client::internal::RunningStep;
use distribute_values::{Distributed, PerReplica};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::{Mutex, PoisonError};

impl Strategy {
    /// Calls `body` once per local replica, concurrently on separate threads. Returns the results.
    ///
    /// Each replica gets its part of `args`: its component of a [`PerReplica`], its copy of a
    /// [`Mirrored`](distribute_values::Mirrored), its model of a [`Replicated`](crate::Replicated), and other values
    /// unchanged. `body` may borrow from the caller.
    ///
    /// # Errors
    /// - [`Error::Parts`]: an argument was created for a different number of replicas.
    /// - [`Error::Replica`]: `body` failed or panicked. The error names the replica that caused the others to fail,
    ///   even if `body` wrapped the error. If several replicas are the cause, it names the one with the lowest id.
    /// - [`Error::WrongContext`], [`Error::MixedStrategies`]: called inside `run`, or inside another strategy's scope.
    /// - [`Error::Io`]: a thread cannot be started.
    /// - [`Error::Server`]: a parameter server failed.
    ///
    /// The source of an `Error::Replica` is [`Error::Collective`] if the replicas did not make the same calls, or if a
    /// replica arrived after the strategy's timeout. In the latter case `run` returns only after the closure of that
    /// replica has returned. The strategy can then be used again.
    ///
    /// With several workers, the step may also fail to begin. Within [local
    /// steps](crate::strategy::LocalSteps), workers begin most steps alone, and these errors follow in the next step
    /// that they begin together:
    /// - [`Error::Collective`]: a worker does not call `run`.
    /// - [`Error::Failed`]: the workers have run different numbers of steps.
    /// - [`Error::Drift`]: a variable that must be equal on all workers is not.
    /// - [`Error::InvalidArgument`]: another step of this strategy is running, or this worker has not caught up with
    ///   the others or has left them.
    /// - [`Error::WorkersWaiting`]: new workers are waiting to join.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use candle_core::{Device, Tensor};
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let input = Tensor::new(3f32, &Device::Cpu)?;
    /// let doubled = strategy.run((), |_ctx, ()| Ok((&input * 2.)?))?;
    /// assert_eq!(doubled.to_string(), "\
    /// PerReplica:{
    ///   0: <Tensor: shape=(), dtype=float32, data=6.0>,
    ///   1: <Tensor: shape=(), dtype=float32, data=6.0>
    /// }");
    /// # Ok::<(), distribute::Error>(())
    /// ```
    ///
    /// A value for each replica:
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let counts = strategy.distribute_values_from_function(|ctx| Ok(ctx.num_replicas_in_sync))?;
    /// let doubled = strategy.run(counts, |_ctx, count| Ok(count * 2))?;
    /// assert_eq!(doubled.values(), [4, 4]);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    ///
    /// A reduction in which all replicas participate:
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let ids = strategy.distribute_values_from_function(|ctx| Ok(ctx.replica_id_in_sync_group as i32))?;
    /// let sums = strategy.run(ids, |ctx, id| ctx.all_reduce(ReduceOp::Sum, id))?;
    /// assert_eq!(sums.to_string(), "\
    /// PerReplica:{
    ///   0: <Tensor: shape=(), dtype=int32, data=1>,
    ///   1: <Tensor: shape=(), dtype=int32, data=1>
    /// }");
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "tf.distribute.Strategy.run")]
    #[doc(alias = "experimental_run_v2")]
    #[track_caller]
    pub fn run<A, R>(
        &self,
        args: A,
        body: impl Fn(&ReplicaContext, A::Local) -> Result<R> + Sync,
    ) -> Result<PerReplica<R>>
    where
        A: Distributed,
        R: Send,
    {
        let advice = "use the replica context's merge_call to leave it first";
        let _scope = self.enter("run", advice)?;
        let at = Location::caller();
        let replicas = self.world().replicas();
        let rows: Vec<_> = (0..replicas).map(|replica| args.rows(replica)).collect();
        // In most steps no batch is empty, so there are no snapshots.
        let empty = rows.iter().enumerate().filter(|(_, rows)| **rows == Some(0));
        let snapshots = empty
            .map(|(replica, _)| Ok((replica, Snapshot::of(args.own_variables(replica))?)))
            .collect::<Result<Vec<_>>>();
        let args = args.split(replicas).map_err(|error| error.of_argument("run", "args"));
        let given = args.and_then(|args| Ok((args, snapshots?)));
        // With several workers, the others need a report that the step cannot begin.
        let given = if self.world().is_multi_worker() { given } else { Ok(given?) };
        let _only = self.one_step_at_a_time()?;
        let begin_fetching =
            || self.session().map(|session| session.begin_step(merging_member(self).is_some())).transpose();
        // Values that workers change together are complete when all have begun the step.
        let after_others = self.shares_tables();
        let fetched = if after_others { None } else { begin_fetching()? };
        let (step, started, before) = self.begin(rows.iter().copied().sum(), at)?;
        let fetched = if after_others { begin_fetching()? } else { fetched };
        let cached = fetched.as_ref().and_then(|_| ReadCache::current());
        let (args, snapshots) = given?;
        let batch_rows = before.and_then(|before| consecutive_ranges(before, &rows));
        let slots: Vec<_> = args.into_iter().map(|arg| Mutex::new(ReplicaSlot::Argument(arg))).collect();
        let step_span = tracing::trace_span!(STEP, step, replicas).entered();

        let precision = self.mixed_precision();
        let replica = |member: Member| {
            let local = member.rank();
            let rows_of_replica = batch_rows.as_ref().and_then(|batch_rows| batch_rows.get(local).cloned());
            let context = ReplicaContext::new(self.clone(), member, rows_of_replica);
            let Some(slot) = slots.get(local) else { return false };
            let ReplicaSlot::Argument(arg) = std::mem::replace(&mut *lock(slot), ReplicaSlot::Running) else {
                return false;
            };
            let _forward =
                tracing::trace_span!(parent: &*step_span, "forward", replica = context.replica_id_in_sync_group(), strategy = self.number())
                    .entered();
            let _replica = enter(Mode::Replica(context.clone()));
            let _precision = precision.enter();
            let _cached = cached.clone().map(ReadCache::enter);
            let refreshed = self.refresh_copies(local);
            let result = catch_unwind(AssertUnwindSafe(|| refreshed.and_then(|()| body(&context, arg))))
                .unwrap_or_else(|panic| Err(panicked(&*panic)));
            let before = snapshots.iter().find(|(replica, _)| *replica == local);
            let result = before.map_or(Ok(()), |(_, before)| before.restore(&context)).and(result);
            let result = result.map_err(|error| explain(error, rows[local], &context));
            let succeeded = result.is_ok();
            *lock(slot) = ReplicaSlot::Result(result);
            succeeded
        };
        let session = started.as_ref().map(|step| step.session.clone());
        self.extended().call_for_each_replica(&Replicas::new(self, step, session.clone(), &replica))?;
        started.into_iter().for_each(|step| step.complete(self));
        let results = collect(self, step, slots)?;
        if let Some(session) = session {
            finish_step(self, step, &session)?;
        }
        fetched.iter().try_for_each(RunningStep::require_values)?;
        self.end_updates();
        Ok(results)
    }
}

/// A copy of the replica's own variables, made before the replica runs on an empty batch. They are restored afterwards,
/// because candle's batch norm sets its running statistics to NaN on such a batch. Variables of layers that handle
/// empty batches are not restored.
struct Snapshot(Vec<(Var, Tensor)>);

impl Snapshot {
    fn of(variables: Vec<Var>) -> Result<Self> {
        let copies =
            variables.into_iter().map(|variable| Ok((variable.clone(), variable.as_tensor().copy()?)));
        Ok(Self(copies.collect::<Result<_>>()?))
    }

    fn restore(&self, context: &ReplicaContext) -> Result<()> {
        let mut touched = self.0.iter().filter(|(variable, _)| !context.is_valid_on_empty(variable));
        Ok(touched.try_for_each(|(variable, before)| variable.set(before))?)
    }
}

/// The argument of a replica before the replica runs, and its result afterwards.
enum ReplicaSlot<A, R> {
    Argument(A),
    Running,
    Result(Result<R>),
}

/// Returns the results of all replicas. If any replica failed, returns the error that caused the other failures.
fn collect<A, R>(
    strategy: &Strategy,
    step: u64,
    slots: Vec<Mutex<ReplicaSlot<A, R>>>,
) -> Result<PerReplica<R>> {
    let (mut values, mut cause) = (Vec::with_capacity(slots.len()), None::<(Guilt, usize, Error)>);
    for (replica, slot) in strategy.world().local_replicas().zip(slots) {
        let error = match slot.into_inner().unwrap_or_else(PoisonError::into_inner) {
            ReplicaSlot::Result(Ok(value)) => {
                values.push(value);
                continue;
            }
            ReplicaSlot::Result(Err(error)) => error,
            _ => Error::invalid("run", "the strategy did not call the closure for this replica"),
        };
        let guilt = guilt(replica, &error);
        if cause.as_ref().is_none_or(|(most, ..)| guilt > *most) {
            cause = Some((guilt, replica, error));
        }
    }
    match cause {
        Some((_, replica, source)) => Err(replica_error(strategy, step, replica, source)),
        None => Ok(PerReplica::from_values(values)),
    }
}

/// Ends a step after the replicas of this worker have returned. If they omitted a call in which replicas of other
/// workers are waiting, all workers get the same error.
fn finish_step(strategy: &Strategy, step: u64, session: &Session) -> Result<()> {
    session.await_leave(strategy.extended().timeout()).map_err(|blame| {
        let local = strategy.world().local_replicas();
        let named = blame.culprits.iter().copied().find(|culprit| local.contains(culprit));
        replica_error(strategy, step, named.unwrap_or(local.start), Error::Collective(blame))
    })
}

fn replica_error(strategy: &Strategy, step: u64, replica: usize, source: Error) -> Error {
    let local = strategy.world().local(replica).unwrap_or_default();
    let device = strategy.extended().worker_devices().get(local).map(ToString::to_string).unwrap_or_default();
    Error::Replica { replica, device, step, source: Box::new(source) }
}

/// The relation between a replica's error and the cause of the failure, in ascending order of priority.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Guilt {
    /// The replica failed because another replica failed.
    Victim,
    /// The replica reports that other replicas did not make its call.
    Witness,
    /// The replica failed for a different reason than the others, or the others report that it did not make their call.
    Culprit,
    /// The error explains why a culprit could not make the call.
    Reason,
}

fn guilt(replica: usize, error: &Error) -> Guilt {
    match error.blame() {
        _ if matches!(error, Error::EmptyPiece { .. }) => Guilt::Reason,
        Some(blame) if blame.fault == Fault::Failed && !blame.culprits.contains(&replica) => Guilt::Victim,
        Some(blame) if !blame.culprits.contains(&replica) => Guilt::Witness,
        _ => Guilt::Culprit,
    }
}

/// Adds information to a closure's error that is only available in `run`, for example that the batch was empty.
fn explain(error: Error, rows: Option<usize>, context: &ReplicaContext) -> Error {
    let error = unwrap_candle_error(error);
    let advice = match &error {
        // candle panics on some of them.
        Error::Candle(_) | Error::Panicked { .. }
            if rows == Some(0) && context.device_for_candle().is_ok_and(|device| !device.is_cpu()) =>
        {
            "candle's products, reductions and Tensor::cat refuse 0 rows on a GPU: use layers and losses of \
             distribute::nn, which take them, call optimizer.skip(ctx) when labels.dim(0)? is 0, or use batches with \
             at least one row for each replica (Dataset::batch_exact drops a shorter last batch)"
        }
        Error::Candle(_) | Error::Panicked { .. } if rows == Some(0) => {
            "use a loss of distribute::nn::loss, which takes 0 rows, or call optimizer.skip(ctx) when labels.dim(0)? is 0"
        }
        // candle keeps no graph for tensors without elements, so the gradients in which the others wait are
        // never computed.
        Error::Collective(blame)
            if rows == Some(0) && blame.fault == Fault::Mismatch && context.expected_gradients() > 0 =>
        {
            "it cannot participate in the gradients of all_reduce or all_gather alone: use minimize or minimize_each, \
             which do this for an empty batch, or use batches with at least one row for each replica \
             (Dataset::batch_exact drops a shorter last batch)"
        }
        _ => return error,
    };
    Error::EmptyPiece { replica: context.replica_id_in_sync_group(), advice, source: Box::new(error) }
}

/// Returns the row ranges of consecutive batches with the given sizes; the first begins at row `start`.
/// Returns `None` if a size is `None` or the sum overflows.
fn consecutive_ranges(mut start: usize, sizes: &[Option<usize>]) -> Option<Vec<Range<usize>>> {
    let next = |size: &Option<usize>| {
        let range = start..start.checked_add((*size)?)?;
        start = range.end;
        Some(range)
    };
    sizes.iter().map(next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_follow_each_other() {
        assert_eq!(consecutive_ranges(7, &[Some(2), Some(0), Some(1)]), Some(vec![7..9, 9..9, 9..10]));
        assert_eq!(consecutive_ranges(0, &[Some(2), None]), None);
    }
}
