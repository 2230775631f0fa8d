//! Builds a mirrored strategy with settings beyond its devices.

use crate::kinds::MirroredStrategy;
use distribute_base::{DeviceName, Result};
use distribute_collective::threads::MOST_THREADS;
use distribute_core::{CommunicationOptions, CrossDeviceOps, Threads};
use std::time::Duration;

/// The settings of a [`MirroredStrategy`]; see [`MirroredStrategy::builder`].
///
/// ```
/// # use distribute::prelude::*;
/// use distribute::HierarchicalCopyAllReduce;
/// use std::time::Duration;
/// let strategy = MirroredStrategy::builder()
///     .devices(["cpu:0", "cpu:1", "cpu:2"])
///     .timeout(Duration::from_secs(10))
///     .cross_device_ops(HierarchicalCopyAllReduce::default())
///     .threads_per_replica(2)
///     .build()?;
/// let sums = strategy.run((), |ctx, ()| {
///     ctx.all_reduce(ReduceOp::Sum, 10f32.powi(ctx.replica_id_in_sync_group() as i32))
/// })?;
/// assert_eq!(sums.values(), [111., 111., 111.]);
/// # Ok::<(), distribute::Error>(())
/// ```
#[derive(Debug)]
pub struct MirroredBuilder {
    /// `None` for all that there are.
    devices: Option<Vec<String>>,
    options: CommunicationOptions,
    cross_device_ops: Option<Box<dyn CrossDeviceOps>>,
    threads_per_replica: usize,
    pinned: bool,
}

impl Default for MirroredBuilder {
    fn default() -> Self {
        Self {
            devices: None,
            options: CommunicationOptions::default(),
            cross_device_ops: None,
            threads_per_replica: 1,
            pinned: false,
        }
    }
}

impl MirroredBuilder {
    /// A replica on each of these devices, such as `["cpu:0", "cpu:1"]`. Where this is not called, on each GPU that
    /// this build can open, and where there is none, one on the CPU.
    pub fn devices<'a>(mut self, devices: impl IntoIterator<Item = &'a str>) -> Self {
        self.devices = Some(devices.into_iter().map(String::from).collect());
        self
    }

    /// Sets the time that a replica waits for the others in one call; 60 s by default.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options.timeout = Some(timeout);
        self
    }

    /// Sets the options of collectives. Options left at their defaults keep their previous values.
    pub fn communication_options(mut self, options: CommunicationOptions) -> Self {
        self.options = options.over(self.options);
        self
    }

    /// Sets the algorithm that combines values across devices. By default the replicas' threads share the work of
    /// `all_reduce`, and everything else is reduced to one device.
    pub fn cross_device_ops(mut self, ops: impl CrossDeviceOps) -> Self {
        self.cross_device_ops = Some(Box::new(ops));
        self
    }

    /// Sets the number of threads that each replica computes with; 1 by default. candle's parallel operations use
    /// them, most of all matrix products; other operations run on one of them. Use several threads if there are fewer
    /// replicas than cores, although more replicas are mostly faster than more threads.
    pub fn threads_per_replica(mut self, threads: usize) -> Self {
        self.threads_per_replica = threads;
        self
    }

    /// Pins each replica to cores of its own; by default the system schedules them. This is for machines that do
    /// nothing else: if another program takes one of these cores, all replicas wait for it. Threads that a closure
    /// starts inherit its replica's core; rayon's global threads do not, since they are started before.
    pub fn pinned(mut self, pinned: bool) -> Self {
        self.pinned = pinned;
        self
    }

    /// Builds the strategy.
    ///
    /// # Errors
    /// The errors of [`MirroredStrategy::new`] and [`Threads::new`]; and
    /// [`Error::InvalidArgument`](distribute_base::Error::InvalidArgument) for a timeout of zero, a
    /// [`CommunicationImplementation`](distribute_core::CommunicationImplementation) other than AUTO, and settings of
    /// the cross-device ops that they [cannot follow](CrossDeviceOps::check).
    #[track_caller]
    pub fn build(self) -> Result<MirroredStrategy> {
        let devices = self.devices.unwrap_or_else(all_or_the_cpu);
        let devices = devices.iter().map(String::as_str);
        let threads = |replicas| match (self.threads_per_replica, self.pinned) {
            (1, false) => Ok(None),
            (per_replica, pinned) => Threads::new(replicas, per_replica, pinned).map(Some),
        };
        MirroredStrategy::from_parts(devices, self.options, self.cross_device_ops, threads)
    }
}

// STR-2
/// The GPUs of this process, or the CPU if it has none.
fn all_or_the_cpu() -> Vec<String> {
    let opens = |gpu: &DeviceName| gpu.to_candle().is_ok();
    gpus_or_the_cpu(opens).iter().map(ToString::to_string).collect()
}

/// The GPUs from the first to the last before one that does not open.
pub(super) fn gpus(opens: impl FnMut(&DeviceName) -> bool) -> Vec<DeviceName> {
    (0..MOST_THREADS).map(DeviceName::gpu).take_while(opens).collect()
}

fn gpus_or_the_cpu(opens: impl FnMut(&DeviceName) -> bool) -> Vec<DeviceName> {
    let gpus = gpus(opens);
    if gpus.is_empty() { vec![DeviceName::cpu(0)] } else { gpus }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn str_2_without_devices_all_gpus_are_taken_or_else_the_cpu() {
        let of = |gpus: usize| gpus_or_the_cpu(|gpu| gpu.index < gpus);
        assert_eq!(of(0), [DeviceName::cpu(0)]);
        assert_eq!(of(1), [DeviceName::gpu(0)]);
        assert_eq!(of(3), [0, 1, 2].map(DeviceName::gpu));
        // Of this machine, whatever it has.
        let all = MirroredStrategy::all_devices().unwrap();
        assert_eq!(all.extended().worker_devices(), gpus_or_the_cpu(|gpu| gpu.to_candle().is_ok()));
        assert!(MirroredStrategy::builder().devices([]).build().is_err(), "an empty list is no list of all");
    }
}
