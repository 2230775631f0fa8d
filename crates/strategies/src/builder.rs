//! [`MirroredStrategyBuilder`]: the builder of a mirrored strategy.

use crate::kinds::MirroredStrategy;
use distribute_base::{DeviceName, Result};
use distribute_collective::threads::MAX_THREADS;
use distribute_core::{CommunicationOptions, CrossDeviceOps, Strategy, Threads};
use std::time::Duration;

/// A builder of a strategy with a replica on each of several devices. See [`MirroredStrategy::builder`].
///
/// ```
/// # use distribute::prelude::*;
/// use distribute::strategy::HierarchicalCopyAllReduce;
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
#[must_use = "a builder does nothing until `build` is called"]
#[derive(Debug)]
pub struct MirroredStrategyBuilder {
    /// The devices; `None` means all GPUs or, if there are none, the CPU.
    devices: Option<Vec<String>>,
    options: CommunicationOptions,
    cross_device_ops: Option<Box<dyn CrossDeviceOps>>,
    threads_per_replica: usize,
    pin_threads: bool,
}

impl Default for MirroredStrategyBuilder {
    fn default() -> Self {
        Self {
            devices: None,
            options: CommunicationOptions::default(),
            cross_device_ops: None,
            threads_per_replica: 1,
            pin_threads: false,
        }
    }
}

impl MirroredStrategyBuilder {
    /// Puts a replica on each of the given devices, such as `["cpu:0", "cpu:1"]`. By default there is a replica on
    /// each GPU that this build can open or, if there is none, a single replica on the CPU.
    pub fn devices<'a>(mut self, devices: impl IntoIterator<Item = &'a str>) -> Self {
        self.devices = Some(devices.into_iter().map(String::from).collect());
        self
    }

    /// Sets the maximum time that a replica waits for the others in one call; 60 s by default.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options.timeout = Some(timeout);
        self
    }

    /// Sets the options of collectives. Options left at their defaults keep their previous values.
    pub fn communication_options(mut self, options: CommunicationOptions) -> Self {
        self.options = options.over(self.options);
        self
    }

    /// Sets the algorithm that combines values across devices. By default, the replicas' threads divide the work of
    /// `all_reduce` among themselves, and all other values are reduced on one device.
    pub fn cross_device_ops(mut self, ops: impl CrossDeviceOps) -> Self {
        self.cross_device_ops = Some(Box::new(ops));
        self
    }

    /// Sets the number of threads that each replica uses for computation; 1 by default. candle's parallel operations,
    /// mainly matrix products, use all of them; other operations use only one. Use several threads if there are fewer
    /// replicas than cores. More replicas are usually faster than more threads.
    pub fn threads_per_replica(mut self, threads: usize) -> Self {
        self.threads_per_replica = threads;
        self
    }

    /// Pins each replica to separate cores. By default, the operating system schedules them. Use this only on machines
    /// that run nothing else. If another program uses one of these cores, all replicas wait for the replica on that
    /// core. Threads that a closure starts inherit the core of their replica. rayon's global threads do not, because
    /// they start earlier.
    pub fn pin_threads(mut self) -> Self {
        self.pin_threads = true;
        self
    }

    /// Builds the strategy.
    ///
    /// # Errors
    /// - The errors of [`MirroredStrategy::new`] and [`Threads::new`].
    /// - [`Error::InvalidArgument`](distribute_base::Error::InvalidArgument): the timeout is zero, the
    ///   [`CommunicationImplementation`](distribute_core::CommunicationImplementation) is not AUTO, or the
    ///   cross-device ops [do not support](CrossDeviceOps::check) their settings.
    #[track_caller]
    pub fn build(self) -> Result<Strategy> {
        let devices = self.devices.unwrap_or_else(all_devices_or_cpu);
        let devices = devices.iter().map(String::as_str);
        let threads = |replicas| match (self.threads_per_replica, self.pin_threads) {
            (1, false) => Ok(None),
            (per_replica, pinned) => Threads::new(replicas, per_replica, pinned).map(Some),
        };
        MirroredStrategy::from_parts(devices, self.options, self.cross_device_ops, threads)
    }
}

// STR-2
/// Returns the GPUs of this process, or the CPU if it has none.
fn all_devices_or_cpu() -> Vec<String> {
    let opens = |gpu: &DeviceName| gpu.to_candle().is_ok();
    gpus_or_cpu(opens).iter().map(ToString::to_string).collect()
}

/// Returns consecutive GPUs, beginning with `gpu:0`, before the first one for which `opens` returns `false`.
pub(super) fn gpus(opens: impl FnMut(&DeviceName) -> bool) -> Vec<DeviceName> {
    (0..MAX_THREADS).map(DeviceName::gpu).take_while(opens).collect()
}

fn gpus_or_cpu(opens: impl FnMut(&DeviceName) -> bool) -> Vec<DeviceName> {
    let gpus = gpus(opens);
    if gpus.is_empty() { vec![DeviceName::cpu(0)] } else { gpus }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn str_2_without_devices_all_gpus_are_taken_or_else_the_cpu() {
        let of = |gpus: usize| gpus_or_cpu(|gpu| gpu.index < gpus);
        assert_eq!(of(0), [DeviceName::cpu(0)]);
        assert_eq!(of(1), [DeviceName::gpu(0)]);
        assert_eq!(of(3), [0, 1, 2].map(DeviceName::gpu));
        // All devices of this machine.
        let all = MirroredStrategy::all_devices().unwrap();
        assert_eq!(all.extended().worker_devices(), gpus_or_cpu(|gpu| gpu.to_candle().is_ok()));
        assert!(MirroredStrategy::builder().devices([]).build().is_err(), "an empty list is no list of all");
    }
}
