//! NVIDIA's library for GPUs.

use super::{CrossDeviceOps, Reduction, ReductionToOneDevice};
use crate::strategy::CommunicationOptions;
use crate::{Error, Result};
use distribute_tensor::{Leaf, ReduceOp};

/// Uses NVIDIA's NCCL between GPUs, once there is an engine for it. Until then, and on CPUs, for sparse values and for other
/// destinations, it reduces to one device. Programs that name it run everywhere, with the same results.
#[doc(alias = "tf.distribute.NcclAllReduce")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NcclAllReduce {
    /// The number of packs in which the engine would reduce the values of a batch. Without the engine nothing is packed, so
    /// a strategy with more than 1 is refused with [`Error::InvalidArgument`];
    /// [`HierarchicalCopyAllReduce`](super::HierarchicalCopyAllReduce) supports packs.
    pub num_packs: usize,
}

/// One pack.
impl Default for NcclAllReduce {
    fn default() -> Self {
        Self { num_packs: 1 }
    }
}

impl CrossDeviceOps for NcclAllReduce {
    fn reduce(
        &self,
        op: ReduceOp,
        value: &Reduction<'_>,
        options: &CommunicationOptions,
    ) -> Result<Vec<Leaf>> {
        self.check()?;
        ReductionToOneDevice::default().reduce(op, value, options)
    }

    fn check(&self) -> Result<()> {
        if self.num_packs <= 1 {
            return Ok(());
        }
        let reason = format!(
            "num_packs is {}, but without an engine for NVIDIA's library nothing is packed; leave it at 1, or use \
             HierarchicalCopyAllReduce",
            self.num_packs
        );
        Err(Error::invalid("NcclAllReduce", reason))
    }
}
