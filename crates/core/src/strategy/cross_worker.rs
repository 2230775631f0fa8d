//! Reductions and gathers over the replicas of all workers, for code that runs once per worker.
//!
//! Each function returns `None` if this worker makes no calls with others: because there are none, or because this
//! process is catching up with them or has left them.

use super::Strategy;
use distribute_base::Result;
use distribute_cluster::Fingerprint;
use distribute_tensor::fold::Alone;
use distribute_tensor::{Leaf, Packing, ReduceOp};

/// The leaves of each local replica.
pub(crate) type Local<'a> = [&'a [Leaf]];

impl Strategy {
    /// Reduces each leaf over the replicas of all workers. The result is bit-identical to the result of a single
    /// process with the same replicas. `call` describes the contribution of each local replica.
    ///
    /// # Errors
    /// All workers get the same error: an error of [`Strategy::worker_call`], or an error that the values cannot be
    /// reduced.
    pub(crate) fn reduce_over_workers(
        &self,
        operation: &'static str,
        op: ReduceOp,
        call: impl Fn(usize) -> Fingerprint,
        local: &Local<'_>,
    ) -> Result<Option<Vec<Leaf>>> {
        let packing = Packing::Bytes(self.extended().communication_options().bytes_per_pack);
        self.replica_call(operation, call, |calling| {
            Ok(calling.all_reduce(op, packing, local, &Alone)?.leaves)
        })
    }

    /// Gathers the leaves of the replicas of all workers, in the order of replica ids. If `local` has a single entry
    /// for all replicas of the worker, the result has one entry per worker.
    ///
    /// # Errors
    /// Returns the errors of [`Strategy::worker_call`].
    pub(crate) fn gather_over_workers(
        &self,
        operation: &'static str,
        call: impl Fn(usize) -> Fingerprint,
        local: &Local<'_>,
    ) -> Result<Option<Vec<Vec<Leaf>>>> {
        self.replica_call(operation, call, |calling| Ok(calling.all_gather(local)?.0))
    }

    /// Sends the leaves of worker 0 to all workers. Returns these leaves on every worker.
    ///
    /// # Errors
    /// Returns the errors of [`Strategy::worker_call`].
    pub(crate) fn broadcast_from_first(
        &self,
        operation: &'static str,
        call: impl FnOnce() -> Fingerprint,
        mine: &[Leaf],
    ) -> Result<Option<Vec<Leaf>>> {
        self.worker_call(operation, call, |calling| calling.broadcast(mine))
    }
}
