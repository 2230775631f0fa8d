//! Reduces leaves over all replicas.

use super::ReplicaContext;
use crate::failure::failure;
use crate::strategy::{CrossDeviceOps, Reduction, reduce_by};
use candle_core::Device;
use distribute_base::internal::to_device;
use distribute_base::{Error, Result};
use distribute_cluster::{Fingerprint, Operation};
use distribute_collective::threads::Member;
use distribute_collective::{Combined, all_reduce};
use distribute_tensor::{Leaf, Packing, ReduceOp};
use std::panic::Location;
use std::sync::Arc;

impl ReplicaContext {
    /// Reduces leaves over the replicas, either on all of their threads or with the strategy's cross-device ops.
    /// [`all_reduce`](Self::all_reduce) and the gradients of collectives use this function.
    pub(super) fn combine(
        &self,
        operation: &'static str,
        op: ReduceOp,
        detail: impl FnOnce(&[Leaf]) -> String,
        leaves: Vec<Leaf>,
        at: &'static Location<'static>,
    ) -> Result<Combined> {
        let (member, extended) = (self.member(), self.strategy().extended());
        // Cross-device ops combine devices of one process; processes exchange bytes, and a single replica has
        // nothing to combine.
        let ops = extended.cross_device_ops().filter(|_| !member.is_alone() && member.session().is_none());
        let on_device = ops.is_some_and(|ops| ops.takes_device_tensors(extended.worker_devices()));
        through_host(member, leaves, on_device, |leaves| {
            self.combine_with(ops, operation, op, detail, leaves, at)
        })
    }

    fn combine_with(
        &self,
        ops: Option<&dyn CrossDeviceOps>,
        operation: &'static str,
        op: ReduceOp,
        detail: impl FnOnce(&[Leaf]) -> String,
        leaves: Vec<Leaf>,
        at: &'static Location<'static>,
    ) -> Result<Combined> {
        let (member, options) = (self.member(), self.options());
        // A single replica has no other calls to compare with.
        let mut text = if member.is_alone() { String::new() } else { detail(&leaves) };
        if options.bytes_per_pack > 0 {
            text += &format!(", in packs of {} bytes", options.bytes_per_pack);
        }
        let call = Fingerprint::new(Operation::AllReduce, text, at);
        let Some(ops) = ops else {
            let packing = Packing::Bytes(options.bytes_per_pack);
            return all_reduce(member, call, op, packing, leaves).map_err(failure(operation));
        };
        let devices = &self.strategy().devices();
        let reduced = member.reduce_on_leader(call, leaves, |all: Vec<Arc<Vec<Leaf>>>| {
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

/// Makes a call in which all replicas participate. Moves the leaves to CPU memory first, unless `on_device` is `true`.
/// Returns each result on the device of this replica's input leaf. A single replica makes the call directly.
pub(super) fn through_host(
    member: &Member,
    leaves: Vec<Leaf>,
    on_device: bool,
    call: impl FnOnce(Vec<Leaf>) -> Result<Combined>,
) -> Result<Combined> {
    let device = |leaf: &Leaf| match leaf {
        Leaf::Candle(tensor) => Some(tensor.device().clone()),
        _ => None,
    };
    let devices: Vec<Option<Device>> = leaves.iter().map(device).collect();
    let on_host = |device: &Option<Device>| device.as_ref().is_none_or(Device::is_cpu);
    if member.is_alone() || (!on_device && devices.iter().all(on_host)) {
        return call(leaves);
    }
    let moved = |leaf: Leaf, device: &Device| match leaf {
        Leaf::Candle(tensor) => Ok::<_, Error>(Leaf::Candle(to_device(&tensor, device)?)),
        other => Ok(other),
    };
    let leaves = if on_device {
        leaves
    } else {
        leaves.into_iter().map(|leaf| moved(leaf, &Device::Cpu)).collect::<Result<_>>()?
    };
    let Combined { leaves, tracked } = call(leaves)?;
    // This includes the CPU, if only this replica's leaf came from there.
    let back = leaves.into_iter().zip(devices).map(|(leaf, device)| match device {
        Some(device) => moved(leaf, &device),
        None => Ok(leaf),
    });
    Ok(Combined { leaves: back.collect::<Result<_>>()?, tracked })
}
