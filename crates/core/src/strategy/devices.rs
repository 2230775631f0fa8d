//! Devices that a program names for its replicas.

use distribute_base::{DeviceName, Error, Result};
use distribute_collective::threads::MAX_THREADS;

/// Returns an error if `replicas` replicas are too many for one process.
pub fn check_count(operation: &'static str, replicas: usize) -> Result<()> {
    if replicas <= MAX_THREADS {
        return Ok(());
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let reason = format!(
        "{replicas} replicas: a process has {MAX_THREADS} at most, and this machine {cores} cores, one for each \
         (MirroredStrategy::all_cores())"
    );
    Err(Error::invalid(operation, reason))
}

/// Parses the names of devices, and checks that the devices can be opened.
///
/// # Errors
/// - [`Error::InvalidArgument`]: there is no name, or there are more than the replicas that a process can have. The
///   error names `operation`.
/// - [`Error::Device`]: a name cannot be parsed, a device cannot be opened, or a device is named twice.
pub fn resolve<'a>(
    operation: &'static str,
    names: impl IntoIterator<Item = &'a str>,
) -> Result<Vec<DeviceName>> {
    let mut devices: Vec<DeviceName> = Vec::new();
    for name in names {
        check_count(operation, devices.len() + 1)?;
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
            operation,
            "no device was given; name at least one, such as \"cpu:0\", or use MirroredStrategy::all_devices() or all_cores()",
        ))
    } else {
        Ok(devices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_function_that_was_given_the_devices() {
        let many: Vec<_> = (0..=MAX_THREADS).map(|n| format!("cpu:{n}")).collect();
        for names in [&many[..], &[]] {
            let error = resolve("CentralStorageStrategy::new", names.iter().map(String::as_str)).unwrap_err();
            assert!(error.to_string().starts_with("CentralStorageStrategy::new: "), "{error}");
        }
    }
}
