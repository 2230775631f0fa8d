//! [`ReductionToOneDevice`]: sums on one device.

use super::{CrossDeviceOps, Reduction, on_device, sum};
use crate::CommunicationOptions;
use distribute_base::{DeviceName, Result};
use distribute_tensor::{Leaf, ReduceOp};

/// An algorithm that copies all parts to one device, sums them there, and copies the sum to the destinations.
///
/// It supports all values, devices and destinations. The other algorithms fall back to it.
#[doc(alias = "tf.distribute.ReductionToOneDevice")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReductionToOneDevice {
    /// The device on which to sum. `None` means the first destination.
    pub reduce_to_device: Option<DeviceName>,
}

impl CrossDeviceOps for ReductionToOneDevice {
    fn reduce(&self, op: ReduceOp, value: &Reduction<'_>, _: &CommunicationOptions) -> Result<Vec<Leaf>> {
        let device =
            self.reduce_to_device.or_else(|| value.to.first().copied()).unwrap_or(DeviceName::cpu(0));
        tracing::debug!("reduces to {device}, then copies to {:?}", value.to);
        let parts = value.parts.iter().map(|part| on_device(part, device)).collect::<Result<Vec<_>>>()?;
        self.broadcast(&sum(op, &parts)?, value.to)
    }
}
