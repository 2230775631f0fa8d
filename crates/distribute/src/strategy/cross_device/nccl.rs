//! What NVIDIA's library does between GPUs.

use super::{CrossDeviceOps, Reduction, ReductionToOneDevice};
use crate::strategy::CommunicationOptions;
use crate::{Error, Result};
use distribute_tensor::{Leaf, ReduceOp};

/// Asks for NVIDIA's NCCL between GPUs, and reduces to one device wherever that cannot be used: on CPUs, for
/// sparse values and other destinations; and on GPUs too, as long as there is no NCCL engine here. Programs that name it
/// run everywhere, with the same results.
#[doc(alias = "tf.distribute.NcclAllReduce")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NcclAllReduce {
    /// Into how many packs the engine would put the values of a batch. Without it nothing is packed: more than 1 is
    /// [`Error::InvalidArgument`] where a strategy is made with it. [`HierarchicalCopyAllReduce`](super::HierarchicalCopyAllReduce)
    /// has packs.
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
