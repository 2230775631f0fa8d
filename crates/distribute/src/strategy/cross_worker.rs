//! Values of all replicas of all workers, combined by code that runs once for each worker.
//!
//! All of it gives `None` where there is one worker: it then has all values there are.

use super::Strategy;
use crate::Result;
use distribute_cluster::Fingerprint;
use distribute_tensor::fold::Alone;
use distribute_tensor::{Leaf, Packing, ReduceOp};

/// The leaves of each local replica.
pub(crate) type Local<'a> = [&'a [Leaf]];

impl Strategy {
    /// Reduces each leaf over all replicas of all workers, which have the bits of one process with all of them. `call` says
    /// what each local replica brings.
    ///
    /// # Errors
    /// The same on all workers, as of [`Strategy::among_workers`]; and where the values cannot be reduced.
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

    /// The leaves of all replicas of all workers, in the order of their ids. `local` may hold one part for the whole worker:
    /// then there is one for each worker.
    ///
    /// # Errors
    /// As of [`Strategy::among_workers`].
    pub(crate) fn gather_over_workers(
        &self,
        operation: &'static str,
        call: impl Fn(usize) -> Fingerprint,
        local: &Local<'_>,
    ) -> Result<Option<Vec<Vec<Leaf>>>> {
        self.among_replicas(operation, call, |calling| Ok(calling.all_gather(local)?.0))
    }

    /// The leaves that worker 0 has, on all workers.
    ///
    /// # Errors
    /// As of [`Strategy::among_workers`].
    pub(crate) fn of_first_worker(
        &self,
        operation: &'static str,
        call: impl FnOnce() -> Fingerprint,
        mine: &[Leaf],
    ) -> Result<Option<Vec<Leaf>>> {
        self.among_workers(operation, call, |calling| calling.of_first(mine))
    }
}
