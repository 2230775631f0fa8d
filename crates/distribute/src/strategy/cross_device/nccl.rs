//! What NVIDIA's library does between GPUs.

use super::{CrossDeviceOps, Reduction, ReductionToOneDevice};
use crate::Result;
use crate::strategy::CommunicationOptions;
use distribute_tensor::{Leaf, ReduceOp};

/// Asks for NVIDIA's NCCL between GPUs, and reduces to one device wherever that cannot be used: on CPUs, for
/// sparse values and other destinations; and on GPUs too, as long as there is no NCCL engine here. Programs that name it
/// run everywhere, with the same results.
#[doc(alias = "tf.distribute.NcclAllReduce")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NcclAllReduce {
    /// The values of a batch are put together and cut into so many packs; without the engine, each is by itself.
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
        ReductionToOneDevice::default().reduce(op, value, options)
    }
}
