//! How replicas reduce leaves together.

use super::ReplicaContext;
use crate::strategy::{Reduction, reduce_by};
use crate::{Error, Result};
use distribute_cluster::{Fingerprint, Operation};
use distribute_collective::{Combined, Failure, all_reduce, threads::Member};
use distribute_tensor::{Leaf, Packing, ReduceOp};
use std::panic::Location;
use std::sync::Arc;

impl ReplicaContext {
    /// The one way in which replicas reduce leaves together: shared by their threads, or as the strategy's algorithm
    /// does it.
    pub(super) fn combine(
        &self,
        operation: &'static str,
        member: &Member,
        op: ReduceOp,
        mut detail: String,
        leaves: Vec<Leaf>,
        at: &'static Location<'static>,
    ) -> Result<Combined> {
        let options = self.options();
        if options.bytes_per_pack > 0 {
            detail += &format!(", in packs of {} bytes", options.bytes_per_pack);
        }
        let call = Fingerprint::new(Operation::AllReduce, detail, at);
        let extended = self.strategy().extended();
        let Some(ops) = extended.cross_device_ops() else {
            let packing = Packing::Bytes(options.bytes_per_pack);
            return all_reduce(member, call, op, packing, leaves).map_err(failure(operation));
        };
        let devices = &self.strategy().devices();
        let reduced = member.merge(call, leaves, |all: Vec<Arc<Vec<Leaf>>>| {
            let parts = |leaf: usize| all.iter().map(|leaves| leaves[leaf].clone()).collect::<Vec<_>>();
            let count = all.first().map_or(0, |leaves| leaves.len());
            let values: Vec<_> =
                (0..count).map(|leaf| Reduction { parts: parts(leaf), from: devices, to: devices }).collect();
            let tracked =
                values.iter().map(|value| value.parts.iter().any(Leaf::is_tracked)).collect::<Vec<_>>();
            match reduce_by(ops, operation, op, &values, &options) {
                Ok(copies) => Ok((copies, tracked)),
                Err(error) => Err(Arc::new(error)),
            }
        })?;
        match &*reduced {
            Ok((copies, tracked)) => {
                let mine = copies.iter().filter_map(|copies| copies.get(member.rank()).cloned());
                Ok(Combined { leaves: mine.collect(), tracked: tracked.clone() })
            }
            Err(error) => Err(Error::Shared(error.clone())),
        }
    }
}

pub(super) fn failure(operation: &'static str) -> impl Fn(Failure) -> Error {
    move |failure| match failure {
        Failure::Blame(blame) => Error::Collective(blame),
        Failure::Tensor(source) => Error::Tensor { operation, source },
        Failure::Shared(shared) => match &*shared {
            Failure::Blame(blame) => Error::Collective(blame.clone()),
            other => Error::invalid(operation, other.to_string()),
        },
    }
}
