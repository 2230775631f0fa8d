//! Whether the libraries are there, before a call that needs them would end the program.

use crate::Error;
use std::error::Error as _;

/// The earliest release with communicators on which no call waits for another worker, and its number.
pub(crate) const LEAST: (&str, i32) = ("2.14", 21400);

/// By which names cudarc loads them.
const NCCL: &[&str] = &["libnccl.so"];
const DRIVER: &[&str] = &["libcuda.so", "libcuda.so.1"];

/// Whether NCCL and CUDA's driver can be loaded.
///
/// # Errors
/// [`Error::Nccl`] and [`Error::Driver`], which say what to install.
pub(crate) fn check() -> Result<(), Error> {
    check_by(|name| {
        // SAFETY: what these libraries do when they are loaded is safe; it is what any program that is linked to them does.
        let library = unsafe { libloading::Library::new(name) };
        // What the system's loader said is its source.
        library
            .map(drop)
            .map_err(|error| error.source().map_or_else(|| error.to_string(), ToString::to_string))
    })
}

fn check_by(load: impl Fn(&str) -> Result<(), String>) -> Result<(), Error> {
    let any = |names: &[&str]| {
        let mut reasons = Vec::new();
        for name in names {
            match load(name) {
                Ok(()) => return Ok(()),
                Err(reason) => reasons.push(reason),
            }
        }
        Err(reasons.join("; "))
    };
    any(NCCL).map_err(|reason| Error::Nccl { reason, least: LEAST.0 })?;
    any(DRIVER).map_err(|reason| Error::Driver { reason })
}

/// Whether this release will do, by the number that NCCL gives itself.
///
/// # Errors
/// [`Error::TooOld`].
pub(crate) fn check_release(release: i32) -> Result<(), Error> {
    if release < LEAST.1 {
        return Err(Error::TooOld { found: text(release), least: LEAST.0 });
    }
    Ok(())
}

/// A release as NVIDIA writes it: 2.14.3, of 21403; releases before 2.9 have a digit less.
pub(crate) fn text(release: i32) -> String {
    let (major, minor) = if release < 10_000 {
        (release / 1000, release / 100 % 10)
    } else {
        (release / 10_000, release / 100 % 100)
    };
    format!("{major}.{minor}.{}", release % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_with_what_to_install() {
        let without = |missing: &'static str| {
            check_by(
                move |name| {
                    if name.starts_with(missing) { Err(format!("{name}: not found")) } else { Ok(()) }
                },
            )
        };
        let nccl = without("libnccl").unwrap_err();
        assert!(matches!(nccl, Error::Nccl { .. }), "{nccl}");
        for part in
            ["libnccl.so: not found", "apt-get install libnccl2 libnccl-dev", "LD_LIBRARY_PATH", "2.14"]
        {
            assert!(nccl.to_string().contains(part), "{part}: {nccl}");
        }
        let driver = without("libcuda").unwrap_err();
        assert!(matches!(driver, Error::Driver { .. }), "{driver}");
        for part in ["libcuda.so: not found; libcuda.so.1: not found", "NVIDIA's driver", "--gpus all"] {
            assert!(driver.to_string().contains(part), "{part}: {driver}");
        }
        without("none").unwrap();
        // Either name will do.
        check_by(|name| if name == "libcuda.so" { Err("no".into()) } else { Ok(()) }).unwrap();
    }

    #[test]
    fn a_release_that_is_too_old_is_refused_by_both() {
        let old = check_release(21300).unwrap_err().to_string();
        assert!(old.contains("NCCL 2.13.0 is installed, and 2.14 or later is needed"), "{old}");
        assert!(check_release(2708).unwrap_err().to_string().contains("2.7.8"));
        for release in [21400, 21805, 22703, 23000] {
            check_release(release).unwrap();
        }
    }
}
