//! Runs a closure once for each local replica.

use super::begin::Begun;
use crate::context::{Mode, ReplicaContext, consecutive, enter, merging, raised};
use crate::strategy::{Replicas, Strategy};
use crate::values::{Distributed, PerReplica};
use crate::variables::Cached;
use candle_core::{Tensor, Var};
use distribute_base::internal::{lock, panicked};
use distribute_base::{Error, Result};
use distribute_cluster::Fault;
use distribute_collective::group::Session;
use distribute_ps_client::internal::Step;
use distribute_trace::internal::STEP;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::{Mutex, PoisonError};

impl Strategy {
    /// Calls `body` once for each local replica, at the same time on separate threads, and returns their
    /// results.
    ///
    /// Each replica gets its part of `args`: its component of a [`PerReplica`], and its model of a
    /// [`Replicated`](crate::Replicated). Constants are captured. `body` may borrow from the caller.
    ///
    /// # Errors
    /// - [`Error::Parts`]: an argument was made for another number of replicas.
    /// - [`Error::Replica`]: `body` fails or panics. The error names the replica that caused the others to
    ///   fail, even if `body` has wrapped the error; among several causes, the one with the lowest id.
    ///
    /// The replica's error is [`Error::Collective`] if replicas did not make the same calls, or if one arrived
    /// after the strategy's timeout. In that case `run` returns when the late closure does. The strategy can be
    /// used again.
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
        let untouched = empty
            .map(|(replica, _)| Ok((replica, Snapshot::of(args.own_variables(replica))?)))
            .collect::<Result<Vec<_>>>();
        let args = args.split(replicas).map_err(|error| error.of_argument("run", "args"));
        let given = args.and_then(|args| Ok((args, untouched?)));
        // With several workers, the others need a report that the step cannot begin.
        let given = if self.world().is_multi_worker() { given } else { Ok(given?) };
        let _only = self.one_step_at_a_time()?;
        let fetched =
            self.session().map(|session| session.begin_step(merging(self).is_some())).transpose()?;
        let cached = fetched.as_ref().and_then(|_| Cached::current());
        let (step, begun, before) = self.begin(rows.iter().copied().sum(), at)?;
        let (args, untouched) = given?;
        let pieces = before.and_then(|before| consecutive(before, &rows));
        let cells: Vec<_> = args.into_iter().map(|arg| Mutex::new(Cell::Argument(arg))).collect();
        let whole = tracing::trace_span!(STEP, step, replicas).entered();

        let replica = |member| {
            let context = ReplicaContext::new(self.clone(), member);
            let local = context.local_replica();
            let Some(cell) = cells.get(local) else { return false };
            let Cell::Argument(arg) = std::mem::replace(&mut *lock(cell), Cell::Running) else {
                return false;
            };
            if let Some(piece) = pieces.as_ref().and_then(|pieces| pieces.get(local)) {
                context.set_rows(piece.clone());
            }
            let _forward =
                tracing::trace_span!(parent: &*whole, "forward", replica = context.replica_id_in_sync_group(), strategy = self.number())
                    .entered();
            let _replica = enter(Mode::Replica(context.clone()));
            let _cached = cached.clone().map(Cached::enter);
            let refreshed = self.refresh_copies(local);
            let result = catch_unwind(AssertUnwindSafe(|| refreshed.and_then(|()| body(&context, arg))))
                .unwrap_or_else(|panic| Err(panicked(&*panic)));
            let before = untouched.iter().find(|(replica, _)| *replica == local);
            let result = before.map_or(Ok(()), |(_, before)| before.restore(&context)).and(result);
            let result = result.map_err(|error| explain(error, rows[local], &context));
            let succeeded = result.is_ok();
            *lock(cell) = Cell::Result(result);
            succeeded
        };
        let session = begun.as_ref().map(Begun::session);
        self.extended().call_for_each_replica(&Replicas::new(self, step, session.clone(), &replica))?;
        begun.into_iter().for_each(Begun::hand_over);
        let results = collect(self, step, cells)?;
        if let Some(session) = session {
            conclude(self, step, &session)?;
        }
        fetched.iter().try_for_each(Step::require_values)?;
        self.end_updates();
        Ok(results)
    }
}

/// The values of variables before a replica ran on an empty batch. On such a batch candle's batch-norm sets its
/// running statistics to NaN. Layers that handle empty batches need no snapshot.
struct Snapshot(Vec<(Var, Tensor)>);

impl Snapshot {
    fn of(variables: Vec<Var>) -> Result<Self> {
        let copies =
            variables.into_iter().map(|variable| Ok((variable.clone(), variable.as_tensor().copy()?)));
        Ok(Self(copies.collect::<Result<_>>()?))
    }

    fn restore(&self, context: &ReplicaContext) -> Result<()> {
        let mut touched = self.0.iter().filter(|(variable, _)| !context.keeps(variable));
        Ok(touched.try_for_each(|(variable, before)| variable.set(before))?)
    }
}

/// The argument of a replica, later its result.
enum Cell<A, R> {
    Argument(A),
    Running,
    Result(Result<R>),
}

/// The results of all replicas, or the error that caused the others.
fn collect<A, R>(strategy: &Strategy, step: u64, cells: Vec<Mutex<Cell<A, R>>>) -> Result<PerReplica<R>> {
    let (mut values, mut cause) = (Vec::with_capacity(cells.len()), None::<(Guilt, usize, Error)>);
    for (replica, cell) in strategy.world().local_replicas().zip(cells) {
        let error = match cell.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Cell::Result(Ok(value)) => {
                values.push(value);
                continue;
            }
            Cell::Result(Err(error)) => error,
            _ => Error::invalid("run", "the strategy did not call the closure for this replica"),
        };
        let guilt = guilt(replica, &error);
        if cause.as_ref().is_none_or(|(most, ..)| guilt > *most) {
            cause = Some((guilt, replica, error));
        }
    }
    match cause {
        Some((_, replica, source)) => Err(of_replica(strategy, step, replica, source)),
        None => Ok(PerReplica::from_values(values)),
    }
}

/// Ends a step in which the replicas of this worker have returned. If they have left out a call in which
/// replicas of other workers wait, all workers get the same blame.
fn conclude(strategy: &Strategy, step: u64, session: &Session) -> Result<()> {
    session.await_leave(strategy.extended().timeout()).map_err(|blame| {
        let local = strategy.world().local_replicas();
        let named = blame.culprits.iter().copied().find(|culprit| local.contains(culprit));
        of_replica(strategy, step, named.unwrap_or(local.start), Error::Collective(blame))
    })
}

fn of_replica(strategy: &Strategy, step: u64, replica: usize, source: Error) -> Error {
    let local = strategy.world().local(replica).unwrap_or_default();
    let device = strategy.extended().worker_devices().get(local).map(ToString::to_string).unwrap_or_default();
    Error::Replica { replica, device, step, source: Box::new(source) }
}

/// The relation of a replica's error to the cause.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Guilt {
    /// It failed because another replica did.
    Victim,
    /// It reports that others did not make its call.
    Witness,
    /// It failed for another reason than the others, or reports that this replica did not make the others'
    /// call.
    Culprit,
    /// It explains why a culprit had no choice.
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

/// Adds the information to a closure's error that only `run` has.
fn explain(error: Error, rows: Option<usize>, context: &ReplicaContext) -> Error {
    let error = raised(error);
    let advice = match &error {
        // candle panics on some of them.
        Error::Candle(_) | Error::Panicked { .. }
            if rows == Some(0) && context.device_for_candle().is_ok_and(|device| !device.is_cpu()) =>
        {
            "candle's products, reductions and Tensor::cat refuse 0 rows on a GPU: use layers and losses of distribute::nn, which \
             take them, call optimizer.skip(ctx) when labels.dim(0)? is 0, or give batches of as many rows as there are replicas \
             (Dataset::batch_exact leaves a shorter last one out)"
        }
        Error::Candle(_) | Error::Panicked { .. } if rows == Some(0) => {
            "use a loss of distribute::nn::loss, which takes 0 rows, or call optimizer.skip(ctx) when labels.dim(0)? is 0"
        }
        // candle keeps no graph for tensors without elements, so the gradients in which the others wait are
        // never computed.
        Error::Collective(blame)
            if rows == Some(0) && blame.fault == Fault::Mismatch && context.gradients_expected() > 0 =>
        {
            "it cannot take part in the gradients of all_reduce or all_gather by itself: leave backward to minimize or \
             minimize_each, which do it for an empty piece, or give batches of as many rows as there are replicas \
             (Dataset::batch_exact leaves a shorter last one out)"
        }
        _ => return error,
    };
    Error::EmptyPiece { replica: context.replica_id_in_sync_group(), advice, source: Box::new(error) }
}
