//! A check whether CUDA's driver is installed, because a call to CUDA without it would abort the program.

use crate::Error;
use std::error::Error as _;

/// The file names by which cudarc loads the driver.
const DRIVER: &[&str] = &["libcuda.so", "libcuda.so.1"];

/// Checks that CUDA's driver can be loaded.
///
/// # Errors
/// - [`Error::Driver`]: the driver cannot be loaded. The message explains what to install.
pub(crate) fn check_driver() -> Result<(), Error> {
    check_by(|name| {
        // SAFETY: the driver's initialisation on loading is safe: it is the same as in any program that is
        // linked to it.
        let library = unsafe { libloading::Library::new(name) };
        // The message of the system's loader is the error's source.
        library
            .map(drop)
            .map_err(|error| error.source().map_or_else(|| error.to_string(), ToString::to_string))
    })
}

fn check_by(load: impl Fn(&str) -> Result<(), String>) -> Result<(), Error> {
    let mut reasons = Vec::new();
    for name in DRIVER {
        match load(name) {
            Ok(()) => return Ok(()),
            Err(reason) => reasons.push(reason),
        }
    }
    Err(Error::Driver { reason: reasons.join("; ") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_nccl_library::{LoadError, Nccl};

    #[test]
    fn a_missing_library_is_named_with_its_package() {
        let missing =
            LoadError::Missing { reason: "libnccl.so.2: not found".into(), searched: "not set".into() };
        let nccl = Error::from(missing);
        assert!(matches!(nccl, Error::Nccl { .. }), "{nccl}");
        for part in ["libnccl.so.2: not found", "apt-get install libnccl2", "LD_LIBRARY_PATH", "2.14"] {
            assert!(nccl.to_string().contains(part), "{part}: {nccl}");
        }
        let another = Error::from(Nccl::load("libc.so.6").err().unwrap());
        assert!(matches!(another, Error::Nccl { .. }), "{another}");
        let driver = check_by(|name| Err(format!("{name}: not found"))).unwrap_err();
        assert!(matches!(driver, Error::Driver { .. }), "{driver}");
        for part in ["libcuda.so: not found; libcuda.so.1: not found", "NVIDIA's driver", "--gpus all"] {
            assert!(driver.to_string().contains(part), "{part}: {driver}");
        }
        check_by(|_| Ok(())).unwrap();
        // Either name is sufficient.
        check_by(|name| if name == "libcuda.so" { Err("no".into()) } else { Ok(()) }).unwrap();
    }

    #[test]
    fn a_release_that_is_too_old_is_refused_by_both() {
        let old = |found: &str| Error::from(LoadError::TooOld { found: found.into() }).to_string();
        let text = old("2.13.0");
        assert!(text.contains("NCCL 2.13.0 is installed, but 2.14 or later is needed"), "{text}");
        assert!(old("2.7.8").contains("2.7.8"));
    }
}
