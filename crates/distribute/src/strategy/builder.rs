//! A mirrored strategy with more to say than its devices.

use super::{CommunicationOptions, CrossDeviceOps, MirroredStrategy};
use crate::Result;
use std::time::Duration;

/// What a [`MirroredStrategy`] is made of; see [`MirroredStrategy::builder`].
///
/// ```
/// # use distribute::prelude::*;
/// use distribute::HierarchicalCopyAllReduce;
/// use std::time::Duration;
/// let strategy = MirroredStrategy::builder()
///     .devices(["cpu:0", "cpu:1", "cpu:2"])
///     .timeout(Duration::from_secs(10))
///     .cross_device_ops(HierarchicalCopyAllReduce::default())
///     .build()?;
/// let sums = strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, 10f32.powi(ctx.replica_id_in_sync_group() as i32)))?;
/// assert_eq!(sums.values(), [111., 111., 111.]);
/// # Ok::<(), distribute::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct MirroredBuilder {
    devices: Vec<String>,
    options: CommunicationOptions,
    cross_device_ops: Option<Box<dyn CrossDeviceOps>>,
}

impl MirroredBuilder {
    /// A replica on each of these devices, such as `["cpu:0", "cpu:1"]`.
    pub fn devices<'a>(mut self, devices: impl IntoIterator<Item = &'a str>) -> Self {
        self.devices = devices.into_iter().map(String::from).collect();
        self
    }

    /// How long a replica waits for the others in one call; 60 s if not given.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options.timeout = Some(timeout);
        self
    }

    /// How collectives communicate. What these options leave at its default stays as it was.
    pub fn communication_options(mut self, options: CommunicationOptions) -> Self {
        self.options = options.over(self.options);
        self
    }

    /// How values are combined across devices. If not given, replicas' threads share the sums of `all_reduce`, and
    /// everything else is reduced to one device.
    pub fn cross_device_ops(mut self, ops: impl CrossDeviceOps) -> Self {
        self.cross_device_ops = Some(Box::new(ops));
        self
    }

    /// The strategy.
    ///
    /// # Errors
    /// As [`MirroredStrategy::new`]; and [`Error::InvalidArgument`](crate::Error::InvalidArgument) for a timeout of zero.
    pub fn build(self) -> Result<MirroredStrategy> {
        let devices = self.devices.iter().map(String::as_str);
        MirroredStrategy::from_parts(devices, self.options, self.cross_device_ops)
    }
}
