//! How replicas reduce leaves together.

use super::ReplicaContext;
use crate::strategy::{Reduction, reduce_by};
use crate::{Error, Result};
use distribute_cluster::{Fingerprint, Operation};
use distribute_collective::{Combined, Failure, all_reduce};
use distribute_tensor::{Leaf, Packing, ReduceOp};
use std::panic::Location;
use std::sync::Arc;

impl ReplicaContext {
    /// Reduces leaves over replicas: on all of their threads, or by the strategy's cross-device ops. All reductions inside
    /// of `run` go through here.
    pub(super) fn combine(
        &self,
        operation: &'static str,
        op: ReduceOp,
        detail: impl FnOnce(&[Leaf]) -> String,
        leaves: Vec<Leaf>,
        at: &'static Location<'static>,
    ) -> Result<Combined> {
        let (member, options) = (self.member(), self.options());
        // A lone replica is compared with nobody.
        let mut text = if member.is_alone() { String::new() } else { detail(&leaves) };
        if options.bytes_per_pack > 0 {
            text += &format!(", in packs of {} bytes", options.bytes_per_pack);
        }
        let call = Fingerprint::new(Operation::AllReduce, text, at);
        let extended = self.strategy().extended();
        // Cross-device ops combine devices of one process; processes exchange bytes, and a lone replica has nothing to
        // combine.
        let ops = extended.cross_device_ops().filter(|_| !member.is_alone() && member.session().is_none());
        let Some(ops) = ops else {
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

pub(crate) fn failure(operation: &'static str) -> impl Fn(Failure) -> Error {
    move |failure| match failure {
        Failure::Blame(blame) => Error::Collective(blame),
        Failure::Tensor(source) => Error::Tensor { operation, source },
        other @ (Failure::Record(_) | Failure::Native { .. }) => Error::invalid(operation, other.to_string()),
        Failure::Shared(shared) => match &*shared {
            Failure::Blame(blame) => Error::Collective(blame.clone()),
            other => Error::invalid(operation, other.to_string()),
        },
    }
}
