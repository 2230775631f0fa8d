//! The strategies of one process: one device, and a replica on each of several devices.

use crate::builder::MirroredBuilder;
use distribute_base::{DeviceName, Error, Result};
use distribute_core::internal::{alone, check_count, prepare, resolve};
use distribute_core::{
    CommunicationOptions, CrossDeviceOps, Strategy, StrategyExtended, Threads, VariablePlacement, handle,
};
use std::time::Duration;

/// The implementation of the strategies of one process.
#[derive(Debug)]
struct Local {
    kind: &'static str,
    devices: Vec<DeviceName>,
    placement: VariablePlacement,
    options: CommunicationOptions,
    cross_device_ops: Option<Box<dyn CrossDeviceOps>>,
    threads: Option<Threads>,
}

impl StrategyExtended for Local {
    fn kind(&self) -> &'static str {
        self.kind
    }
    fn worker_devices(&self) -> &[DeviceName] {
        &self.devices
    }
    fn variable_placement(&self) -> VariablePlacement {
        self.placement
    }
    fn communication_options(&self) -> CommunicationOptions {
        self.options
    }
    fn cross_device_ops(&self) -> Option<&dyn CrossDeviceOps> {
        self.cross_device_ops.as_deref()
    }
    fn threads(&self) -> Option<&Threads> {
        self.threads.as_ref()
    }
}

/// One replica on one device, with nothing to reduce.
#[doc(alias = "tf.distribute.OneDeviceStrategy")]
#[derive(Clone, Debug)]
pub struct OneDeviceStrategy(Strategy);
handle!(OneDeviceStrategy);

impl OneDeviceStrategy {
    /// One replica on `device`, such as `cpu:0`.
    ///
    /// # Errors
    /// [`Error::Device`] if the name cannot be parsed or this build does not support the device.
    #[track_caller]
    pub fn new(device: &str) -> Result<Self> {
        let devices = resolve([device])?;
        let (options, placement) = (CommunicationOptions::default(), VariablePlacement::Ordinary);
        let kind = "OneDeviceStrategy";
        let local = Local { kind, devices, placement, options, cross_device_ops: None, threads: None };
        Strategy::new(local).map(Self)
    }
}

/// A replica on each of several devices of this process, training in lock step.
///
/// ```
/// # use distribute::prelude::*;
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let ids = strategy.run((), |ctx, ()| Ok(ctx.replica_id_in_sync_group()))?;
/// assert_eq!(ids.values(), [0, 1]);
/// # Ok::<(), distribute::Error>(())
/// ```
#[doc(alias = "tf.distribute.MirroredStrategy")]
#[derive(Clone, Debug)]
pub struct MirroredStrategy(Strategy);
handle!(MirroredStrategy);

impl MirroredStrategy {
    /// Creates a strategy with a replica on each device, such as `["cpu:0", "cpu:1"]`. A replica waits 60 s for the
    /// others in one call.
    ///
    /// # Errors
    /// - [`Error::Device`]: a name cannot be parsed, a device is named twice, or this build does not support it.
    /// - [`Error::InvalidArgument`]: there is no device.
    #[track_caller]
    pub fn new<'a>(devices: impl IntoIterator<Item = &'a str>) -> Result<Self> {
        Self::builder().devices(devices).build()
    }

    /// Creates a strategy with a replica on each device, which waits at most `timeout` for the others in one call.
    ///
    /// # Errors
    /// The errors of [`MirroredStrategy::new`]; and [`Error::InvalidArgument`] for a timeout of zero.
    #[track_caller]
    pub fn with_timeout<'a>(devices: impl IntoIterator<Item = &'a str>, timeout: Duration) -> Result<Self> {
        Self::builder().devices(devices).timeout(timeout).build()
    }

    /// A builder for a strategy with more settings: timeout, cross-device ops, how collectives communicate.
    pub fn builder() -> MirroredBuilder {
        MirroredBuilder::default()
    }

    #[track_caller]
    pub(super) fn from_parts<'a>(
        devices: impl IntoIterator<Item = &'a str>,
        options: CommunicationOptions,
        cross_device_ops: Option<Box<dyn CrossDeviceOps>>,
        threads: impl FnOnce(usize) -> Result<Option<Threads>>,
    ) -> Result<Self> {
        options.check("MirroredStrategy::builder")?;
        alone::warn("MirroredStrategy");
        let devices = resolve(devices)?;
        // Before threads are started.
        prepare(devices.len());
        let (kind, placement) = ("MirroredStrategy", VariablePlacement::Mirrored);
        let threads = threads(devices.len())?;
        Strategy::new(Local { kind, devices, placement, options, cross_device_ops, threads }).map(Self)
    }

    /// A replica on each of `replicas` logical CPU devices.
    ///
    /// # Errors
    /// The errors of [`MirroredStrategy::new`]; [`Error::InvalidArgument`] for more than 4096, the most that a process
    /// may have.
    #[track_caller]
    pub fn cpus(replicas: usize) -> Result<Self> {
        check_count("MirroredStrategy::cpus", replicas)?;
        let names: Vec<_> = (0..replicas).map(|i| format!("cpu:{i}")).collect();
        Self::new(names.iter().map(String::as_str))
    }

    /// A replica on each GPU that this build can open; where there is none, one on the CPU. For a replica on each core
    /// there is [`all_cores`](Self::all_cores).
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// let strategy = MirroredStrategy::all_devices()?;
    /// assert!(strategy.num_replicas_in_sync() >= 1);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`MirroredStrategy::new`].
    #[track_caller]
    pub fn all_devices() -> Result<Self> {
        Self::builder().build()
    }

    /// A replica on each GPU that this build can open.
    ///
    /// # Errors
    /// [`Error::Device`] where there is none: it says why the first cannot be opened.
    #[track_caller]
    pub fn all_gpus() -> Result<Self> {
        DeviceName::gpu(0).to_candle()?;
        let gpus = crate::builder::gpus(|gpu| gpu.to_candle().is_ok());
        let names: Vec<String> = gpus.iter().map(ToString::to_string).collect();
        Self::new(names.iter().map(String::as_str))
    }

    /// A replica on every core of this machine.
    ///
    /// # Errors
    /// The errors of [`MirroredStrategy::new`].
    #[track_caller]
    pub fn all_cores() -> Result<Self> {
        Self::cpus(std::thread::available_parallelism().map_or(1, usize::from))
    }
}

/// A replica on each of several devices of this process, which share one copy of every variable.
///
/// Values that replicas write to a variable are aggregated and then written once. ON_READ variables also have a
/// single copy, so their writes are aggregated like those of ON_WRITE variables.
///
/// ```
/// use distribute::{CentralStorageStrategy, Variable, VariableAggregation, prelude::*};
/// let strategy = CentralStorageStrategy::new(["cpu:0", "cpu:1"], "cpu:0")?;
/// let total = strategy.scope(|| Variable::builder("total", 10f32).aggregation(VariableAggregation::Sum).create())?;
/// strategy.run((), |ctx, ()| total.assign_add(ctx.replica_id_in_sync_group() as f32 + 1.))?;
/// assert_eq!((total.read::<f32>()?, total.devices().len()), (13., 1));
/// # Ok::<(), distribute::Error>(())
/// ```
#[doc(alias = "tf.distribute.experimental.CentralStorageStrategy")]
#[derive(Clone, Debug)]
pub struct CentralStorageStrategy(Strategy);
handle!(CentralStorageStrategy);

impl CentralStorageStrategy {
    /// A replica on each of `compute_devices`, and the variables on `parameter_device`.
    ///
    /// # Errors
    /// The errors of [`MirroredStrategy::new`].
    #[track_caller]
    pub fn new<'a>(
        compute_devices: impl IntoIterator<Item = &'a str>,
        parameter_device: &'a str,
    ) -> Result<Self> {
        let devices = resolve(compute_devices)?;
        let [parameters] = resolve([parameter_device])?[..] else {
            return Err(Error::invalid("CentralStorageStrategy::new", "there is one parameter device"));
        };
        Strategy::new(Local {
            kind: "CentralStorageStrategy",
            devices,
            placement: VariablePlacement::Central(parameters),
            options: CommunicationOptions::default(),
            cross_device_ops: None,
            threads: None,
        })
        .map(Self)
    }
}
