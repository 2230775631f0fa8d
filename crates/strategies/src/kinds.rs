//! Strategies of one process: on one device, or with a replica on each of several devices.

use crate::builder::MirroredStrategyBuilder;
use distribute_base::{DeviceName, Error, Result};
use distribute_core::internal::{check_count, prepare, resolve, warn_single};
use distribute_core::{
    CommunicationOptions, CrossDeviceOps, Strategy, StrategyExtended, Threads, VariablePlacement,
};

/// The implementation of the strategies that run in one process.
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

/// The constructor of a [`Strategy`] with a single replica on one device. Reductions return the value of this replica.
#[doc(alias = "tf.distribute.OneDeviceStrategy")]
#[derive(Debug)]
pub enum OneDeviceStrategy {}

impl OneDeviceStrategy {
    /// Creates a strategy with one replica on `device`, such as `cpu:0`.
    ///
    /// # Errors
    /// - [`Error::Device`]: the name cannot be parsed, or the device cannot be opened.
    #[track_caller]
    #[expect(clippy::new_ret_no_self, reason = "the type is a namespace of constructors")]
    pub fn new(device: &str) -> Result<Strategy> {
        let devices = resolve("OneDeviceStrategy::new", [device])?;
        let (options, placement) = (CommunicationOptions::default(), VariablePlacement::Ordinary);
        let kind = "OneDeviceStrategy";
        let local = Local { kind, devices, placement, options, cross_device_ops: None, threads: None };
        Strategy::new(local)
    }
}

/// Constructors of a [`Strategy`] with a replica on each of several devices of this process. The replicas train
/// synchronously.
///
/// ```
/// # use distribute::prelude::*;
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let ids = strategy.run((), |ctx, ()| Ok(ctx.replica_id_in_sync_group()))?;
/// assert_eq!(ids.values(), [0, 1]);
/// # Ok::<(), distribute::Error>(())
/// ```
#[doc(alias = "tf.distribute.MirroredStrategy")]
#[derive(Debug)]
pub enum MirroredStrategy {}

impl MirroredStrategy {
    /// Creates a strategy with a replica on each of the given devices, such as `["cpu:0", "cpu:1"]`. A replica waits
    /// for the others for at most 60 s in each call.
    ///
    /// # Errors
    /// - [`Error::Device`]: a name cannot be parsed, a device is named twice, or a device cannot be opened.
    /// - [`Error::InvalidArgument`]: `devices` is empty or has more than 4096 entries, the limit for one process.
    #[track_caller]
    #[expect(clippy::new_ret_no_self, reason = "the type is a namespace of constructors")]
    pub fn new<'a>(devices: impl IntoIterator<Item = &'a str>) -> Result<Strategy> {
        Self::builder().devices(devices).build()
    }

    /// Returns a builder with more settings: the timeout, the cross-device ops, the options of collectives, and the
    /// threads.
    pub fn builder() -> MirroredStrategyBuilder {
        MirroredStrategyBuilder::default()
    }

    #[track_caller]
    pub(super) fn from_parts<'a>(
        devices: impl IntoIterator<Item = &'a str>,
        options: CommunicationOptions,
        cross_device_ops: Option<Box<dyn CrossDeviceOps>>,
        threads: impl FnOnce(usize) -> Result<Option<Threads>>,
    ) -> Result<Strategy> {
        options.check("MirroredStrategy::builder")?;
        warn_single::warn("MirroredStrategy");
        let devices = resolve("MirroredStrategy::new", devices)?;
        // Before threads are started.
        prepare(devices.len());
        let (kind, placement) = ("MirroredStrategy", VariablePlacement::Mirrored);
        let threads = threads(devices.len())?;
        Strategy::new(Local { kind, devices, placement, options, cross_device_ops, threads })
    }

    /// Creates a strategy with a replica on each of `replicas` logical CPU devices.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: `replicas` is 0 or greater than 4096, the limit for one process.
    #[track_caller]
    pub fn cpus(replicas: usize) -> Result<Strategy> {
        const OPERATION: &str = "MirroredStrategy::cpus";
        if replicas == 0 {
            return Err(Error::invalid(OPERATION, "a strategy has at least one replica"));
        }
        check_count(OPERATION, replicas)?;
        let names: Vec<_> = (0..replicas).map(|i| format!("cpu:{i}")).collect();
        Self::new(names.iter().map(String::as_str))
    }

    /// Creates a strategy with a replica on each GPU that this build can open or, if there is none, a single
    /// replica on the CPU. For a replica on each CPU core, use [`all_cores`](Self::all_cores).
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// let strategy = MirroredStrategy::all_devices()?;
    /// assert!(strategy.num_replicas_in_sync() >= 1);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`MirroredStrategy::new`].
    #[track_caller]
    pub fn all_devices() -> Result<Strategy> {
        Self::builder().build()
    }

    /// Creates a strategy with a replica on each GPU that this build can open.
    ///
    /// # Errors
    /// - [`Error::Device`]: there is no GPU. The error contains the reason why the first GPU cannot be opened.
    #[track_caller]
    pub fn all_gpus() -> Result<Strategy> {
        DeviceName::gpu(0).to_candle()?;
        let gpus = crate::builder::gpus(|gpu| gpu.to_candle().is_ok());
        let names: Vec<String> = gpus.iter().map(ToString::to_string).collect();
        Self::new(names.iter().map(String::as_str))
    }

    /// Creates a strategy with one CPU replica for each core that this process may use.
    ///
    /// # Errors
    /// Returns the errors of [`MirroredStrategy::new`].
    #[track_caller]
    pub fn all_cores() -> Result<Strategy> {
        Self::cpus(std::thread::available_parallelism().map_or(1, usize::from))
    }
}

/// The constructor of a [`Strategy`] with a replica on each of several devices of this process, which share one copy of
/// every variable.
///
/// Values that replicas write to a variable are aggregated and then written once. ON_READ variables also have a single
/// copy, so writes to them are aggregated like writes to ON_WRITE variables.
///
/// ```
/// use distribute::{CentralStorageStrategy, prelude::*, variables::VariableAggregation};
/// let strategy = CentralStorageStrategy::new(["cpu:0", "cpu:1"], "cpu:0")?;
/// let total = strategy.scope(|| Variable::builder("total", 10f32).aggregation(VariableAggregation::Sum).create())?;
/// strategy.run((), |ctx, ()| total.assign_add(ctx.replica_id_in_sync_group() as f32 + 1.))?;
/// assert_eq!((total.read::<f32>()?, total.devices().len()), (13., 1));
/// # Ok::<(), distribute::Error>(())
/// ```
#[doc(alias = "tf.distribute.experimental.CentralStorageStrategy")]
#[derive(Debug)]
pub enum CentralStorageStrategy {}

impl CentralStorageStrategy {
    /// Creates a strategy with a replica on each of `compute_devices` and all variables on `parameter_device`.
    ///
    /// # Errors
    /// Returns the errors of [`MirroredStrategy::new`].
    #[track_caller]
    #[expect(clippy::new_ret_no_self, reason = "the type is a namespace of constructors")]
    pub fn new<'a>(
        compute_devices: impl IntoIterator<Item = &'a str>,
        parameter_device: &'a str,
    ) -> Result<Strategy> {
        let devices = resolve("CentralStorageStrategy::new", compute_devices)?;
        let [parameters] = resolve("CentralStorageStrategy::new", [parameter_device])?[..] else {
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
    }
}
