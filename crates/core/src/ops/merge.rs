//! `merge_call`: all replicas pause while one function runs once for all of them.

use crate::context::{Mode, ReplicaContext, enter};
use crate::strategy::Strategy;
use distribute_base::internal::lock;
use distribute_base::{Error, Result};
use distribute_cluster::{Blame, Fingerprint, Operation};
use distribute_values::{Distributed, PerReplica};
use std::panic::Location;
use std::sync::{Arc, Mutex};

impl ReplicaContext {
    /// Pauses all replicas and calls `merge` once, in cross-replica context, with the values of all replicas.
    ///
    /// Replicas get the result of `merge`: each replica its component of a [`PerReplica`], and all replicas the same
    /// [`Mirrored`](distribute_values::Mirrored) or plain value. Only the closure that replica 0 passes is called; it
    /// may call [`Strategy::run`]. The other replicas wait for this closure, but no longer than the timeout.
    ///
    /// With several workers, each worker calls its merge function with the values of its local replicas. The function
    /// must not call `run`, which returns an error. Reductions in the function include the replicas of all workers.
    ///
    /// # Errors
    /// - [`Error::Collective`]: a replica does not make the call, or `merge` takes longer than the timeout. Every
    ///   replica gets this error.
    /// - [`Error::WrongContext`], [`Error::StaleContext`], [`Error::MixedStrategies`]: this is not the context of the
    ///   closure that is running.
    /// - [`Error::Parts`]: `merge` returned a value for a different number of replicas.
    ///
    /// If `merge` fails, replica 0 gets the error of `merge`, and the other replicas get [`Error::Collective`]. `run`
    /// then returns the error of `merge`.
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
    /// If no strategy has been entered, `merge` is called directly, in the default strategy's cross-replica context:
    ///
    /// ```
    /// use distribute::context::{get_replica_context, get_strategy, in_cross_replica_context};
    /// let context = get_replica_context().unwrap();
    /// let value = context.merge_call(3i32, |strategy, values| {
    ///     assert!(*strategy == get_strategy() && in_cross_replica_context());
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

    /// Implements [`merge_call`](Self::merge_call). Other operations of this crate also use it.
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
            let _merge = tracing::trace_span!("merge").entered();
            let _cross_replica = enter(Mode::Merge(self.clone()));
            merge(self.strategy(), PerReplica::from_values(values))?
                .split(self.strategy().world().replicas())
                .map_err(|error| error.of_argument(operation, "the merge function's result"))
        };
        let no_value = || Error::invalid(operation, "the merge function returned no value for this replica");
        let member = self.member();
        if member.is_alone() {
            let merged = merge(vec![value]);
            let refreshed = self.strategy().refresh_copies(self.local_replica());
            let mine = merged?.pop().ok_or_else(no_value)?;
            return refreshed.map(|()| mine);
        }
        let failed = Mutex::new(None);
        let parts = member.reduce_on_leader(
            call.clone(),
            Mutex::new(Some(value)),
            |payloads: Vec<Arc<Mutex<Option<T>>>>| {
                let values = payloads.iter().filter_map(|payload| lock(payload).take()).collect();
                let aborted = || member.session().map(|session| session.aborted_calls());
                let before = aborted();
                match merge(values) {
                    Ok(parts) => Ok(parts.into_iter().map(|part| Mutex::new(Some(part))).collect::<Vec<_>>()),
                    Err(error) => {
                        // The other workers may wait for this one's next call. They already have the error of a
                        // call and of an aborted one.
                        if error.blame().is_none() && aborted() == before {
                            member.abort();
                        }
                        let blame = match error.root_cause() {
                            Error::Collective(blame) if member.session().is_some() => Some(blame.clone()),
                            _ => None,
                        };
                        *lock(&failed) = Some(error);
                        Err(blame)
                    }
                }
            },
        );
        // Refreshes the copies of all variables that `merge` wrote, even if it failed afterwards.
        let refreshed = self.strategy().refresh_copies(self.local_replica());
        // Before the other replicas' error: `merge` may fail after they have stopped waiting for it.
        if let Some(error) = lock(&failed).take() {
            return Err(error);
        }
        let parts = parts?;
        let part = match &*parts {
            Ok(parts) => parts.get(member.rank()).and_then(|part| lock(part).take()),
            // The error that the replicas of all workers get.
            Err(Some(blame)) => return Err(Error::Collective(blame.clone())),
            Err(None) => None,
        };
        refreshed?;
        part.ok_or_else(|| {
            let first = self.strategy().world().global(0);
            Error::Collective(Arc::new(Blame::failed(self.step(), first, &call)))
        })
    }
}
