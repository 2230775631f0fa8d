//! Combines values of all replicas of all workers, in code that runs once for each worker.
//!
//! Each function returns `None` if there is only one worker, which has all values itself.

use super::Strategy;
use distribute_base::Result;
use distribute_cluster::Fingerprint;
use distribute_tensor::fold::Alone;
use distribute_tensor::{Leaf, Packing, ReduceOp};

/// The leaves of each local replica.
pub(crate) type Local<'a> = [&'a [Leaf]];

impl Strategy {
    /// Reduces each leaf over all replicas of all workers, bit-equal to one process with all of them. `call` describes what
    /// each local replica contributes.
    ///
    /// # Errors
    /// The same on all workers: those of [`Strategy::among_workers`], and if the values cannot be reduced.
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

    /// The leaves of all replicas of all workers, in the order of their ids. If `local` has a single entry for the whole
    /// worker, so has the result for each worker.
    ///
    /// # Errors
    /// Those of [`Strategy::among_workers`].
    pub(crate) fn gather_over_workers(
        &self,
        operation: &'static str,
        call: impl Fn(usize) -> Fingerprint,
        local: &Local<'_>,
    ) -> Result<Option<Vec<Vec<Leaf>>>> {
        self.among_replicas(operation, call, |calling| Ok(calling.all_gather(local)?.0))
    }

    /// The leaves of worker 0, on all workers.
    ///
    /// # Errors
    /// Those of [`Strategy::among_workers`].
    pub(crate) fn of_first_worker(
        &self,
        operation: &'static str,
        call: impl FnOnce() -> Fingerprint,
        mine: &[Leaf],
    ) -> Result<Option<Vec<Leaf>>> {
        self.among_workers(operation, call, |calling| calling.broadcast(mine))
    }
}
