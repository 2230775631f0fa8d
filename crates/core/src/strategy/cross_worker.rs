//! Combines values of all replicas of all workers, in code that runs once for each worker.
//!
//! Each function returns `None` if there is only one worker, which already has all values.

use super::Strategy;
use distribute_base::Result;
use distribute_cluster::Fingerprint;
use distribute_tensor::fold::Alone;
use distribute_tensor::{Leaf, Packing, ReduceOp};

/// The leaves of each local replica.
pub(crate) type Local<'a> = [&'a [Leaf]];

impl Strategy {
    /// Reduces each leaf over all replicas of all workers, bit-identical to one process with all of them.
    /// `call` describes the contribution of each local replica.
    ///
    /// # Errors
    /// The same on all workers: the errors of [`Strategy::among_workers`], and one if the values cannot be
    /// reduced.
    pub(crate) fn reduce_over_workers(
        &self,
        operation: &'static str,
        op: ReduceOp,
        call: impl Fn(usize) -> Fingerprint,
        local: &Local<'_>,
    ) -> Result<Option<Vec<Leaf>>> {
        let packing = Packing::Bytes(self.extended().communication_options().bytes_per_pack);
        self.among_replicas(operation, call, |calling| {
            Ok(calling.all_reduce(op, packing, local, &Alone)?.leaves)
        })
    }

    /// Returns the leaves of all replicas of all workers, in the order of their ids. If `local` has a single
    /// entry for the whole worker, the result has one for each worker.
    ///
    /// # Errors
    /// The errors of [`Strategy::among_workers`].
    pub(crate) fn gather_over_workers(
        &self,
        operation: &'static str,
        call: impl Fn(usize) -> Fingerprint,
        local: &Local<'_>,
    ) -> Result<Option<Vec<Vec<Leaf>>>> {
        self.among_replicas(operation, call, |calling| Ok(calling.all_gather(local)?.0))
    }

    /// Returns the leaves of worker 0, on all workers.
    ///
    /// # Errors
    /// The errors of [`Strategy::among_workers`].
    pub(crate) fn of_first_worker(
        &self,
        operation: &'static str,
        call: impl FnOnce() -> Fingerprint,
        mine: &[Leaf],
    ) -> Result<Option<Vec<Leaf>>> {
        self.among_workers(operation, call, |calling| calling.broadcast(mine))
    }
}
