//! The devices that a program names for its replicas.

use distribute_base::{DeviceName, Error, Result};
use distribute_collective::threads::MOST_THREADS;

/// Checks that a process can have this number of replicas.
pub fn check_count(operation: &'static str, replicas: usize) -> Result<()> {
    if replicas <= MOST_THREADS {
        return Ok(());
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let reason = format!(
        "{replicas} replicas: a process has {MOST_THREADS} at most, and this machine {cores} cores, one for each \
         (MirroredStrategy::all_cores())"
    );
    Err(Error::invalid(operation, reason))
}

/// Parses names of devices. Each device must exist and be named once.
pub fn resolve<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Vec<DeviceName>> {
    let mut devices: Vec<DeviceName> = Vec::new();
    for name in names {
        check_count("MirroredStrategy::new", devices.len() + 1)?;
        let device: DeviceName = name.parse()?;
        if devices.contains(&device) {
            let reason = format!("{device} is named twice; a device holds one replica");
            return Err(Error::Device { name: name.into(), reason });
        }
        device.to_candle().map_err(|error| match error {
            Error::Device { reason, .. } => Error::Device { name: name.into(), reason },
            other => other,
        })?;
        devices.push(device);
    }
    if devices.is_empty() {
        Err(Error::invalid(
            "MirroredStrategy::new",
            "no device was given; name at least one, such as \"cpu:0\", or use MirroredStrategy::all_devices() or all_cores()",
        ))
    } else {
        Ok(devices)
    }
}
