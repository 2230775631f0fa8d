//! Variables in and out of safetensors files, and their checksum.

use super::Variables;
use crate::context::require_outside_of_run;
use crate::{Error, Result};
use candle_core::{Device, Tensor};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

impl Variables {
    /// Writes all variables to a safetensors file, by name; running statistics as their mean over the replicas.
    ///
    /// The file appears whole or not at all: it is written beside its place and renamed.
    ///
    /// # Errors
    /// [`Error::Candle`] or [`Error::Io`], with the path, where the file cannot be written; [`Error::WrongContext`] inside of
    /// `run`, other than in `merge_call`.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        require_outside_of_run(
            "Variables::save",
            "each replica would save, while others train: save between runs, or once for all of them in ctx.merge_call",
        )?;
        let path = path.as_ref();
        let tensors: HashMap<_, _> = self.snapshot()?.into_iter().collect();
        // Another process, or another thread of this one, may be saving to the same place.
        static PARTS: AtomicU64 = AtomicU64::new(0);
        let mut part = path.as_os_str().to_owned();
        part.push(format!(".{}-{}.part", std::process::id(), PARTS.fetch_add(1, Ordering::Relaxed)));
        let part = Path::new(&part);
        let io = |source| Error::Io { operation: format!("writing {}", path.display()), source };
        let written = candle_core::safetensors::save(&tensors, part)
            .map_err(|error| Error::Candle(error.with_path(path)))
            // On the disk before it has its name: after a crash the name stands for the whole file or for the old one.
            .and_then(|()| std::fs::File::open(part).and_then(|file| file.sync_all()).map_err(io))
            .and_then(|()| std::fs::rename(part, path).map_err(io));
        if written.is_err() {
            // There may be nothing to remove.
            let _ = std::fs::remove_file(part);
        }
        written
    }

    /// Sets all variables from a safetensors file, by name. Tensors of other names in the file are ignored.
    ///
    /// # Errors
    /// [`Error::Candle`] with the path for a file that cannot be read; [`Error::InvalidArgument`] where the file lacks a variable or
    /// has it in another shape or dtype; [`Error::WrongContext`] inside of `run`, other than in `merge_call`. Nothing has
    /// changed then.
    pub fn load(&self, path: impl AsRef<Path>) -> Result<()> {
        require_outside_of_run("Variables::load", super::WRITE)?;
        let path = path.as_ref();
        let tensors =
            candle_core::safetensors::load(path, &Device::Cpu).map_err(|error| error.with_path(path))?;
        let names = self.names();
        let missing: Vec<_> = names.iter().filter(|name| !tensors.contains_key(*name)).collect();
        if !missing.is_empty() {
            return Err(Error::invalid(
                "load",
                format!("{} lacks the variables {missing:?}", path.display()),
            ));
        }
        for name in &names {
            let file = format!("in {} it is", path.display());
            self.find("load", name)?.require_fit("load", name, &tensors[name], &file)?;
        }
        names.iter().try_for_each(|name| self.set(name, &tensors[name]))
    }

    /// SHA-256 over names, dtypes, shapes and bytes of all variables: equal for equal bits, in hexadecimal digits.
    ///
    /// # Errors
    /// Those of reading the variables.
    pub fn sha256(&self) -> Result<String> {
        let mut hasher = Sha256::new();
        for (name, value) in self.snapshot()? {
            hasher.update(format!("{name} {:?} {:?}\n", value.dtype(), value.dims()));
            hasher.update(bytes(&value)?);
        }
        Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

fn bytes(value: &Tensor) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    value.write_bytes(&mut bytes)?;
    Ok(bytes)
}
