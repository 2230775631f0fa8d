//! Variables in and out of safetensors files, and their checksum.

use super::Variables;
use crate::{Error, Result};
use candle_core::{Device, Tensor};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::path::Path;

impl Variables {
    /// Writes all variables to a safetensors file, by name; running statistics as their mean over the replicas.
    ///
    /// The file appears whole or not at all: it is written beside its place and renamed.
    ///
    /// # Errors
    /// [`Error::Candle`] or [`Error::Io`], with the path, where the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let tensors: HashMap<_, _> = self.snapshot()?.into_iter().collect();
        // The whole name stays, so that `model.1` and `model.2` have different parts.
        let mut part = path.as_os_str().to_owned();
        part.push(".part");
        candle_core::safetensors::save(&tensors, &part).map_err(|error| error.with_path(path))?;
        std::fs::rename(&part, path)
            .map_err(|source| Error::Io { operation: format!("writing {}", path.display()), source })
    }

    /// Sets all variables from a safetensors file, by name. Tensors of other names in the file are ignored.
    ///
    /// # Errors
    /// [`Error::Candle`] with the path for a file that cannot be read; [`Error::InvalidArgument`] where the file lacks a variable or
    /// has it in another shape or dtype. Nothing has changed then.
    pub fn load(&self, path: impl AsRef<Path>) -> Result<()> {
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
            let (kind, value) = (self.find("load", name)?, &tensors[name]);
            let variable = kind.any();
            if variable.shape() != value.shape() || variable.dtype() != value.dtype() {
                return Err(Error::invalid(
                    "load",
                    format!(
                        "{}: {name} is {:?}{:?} in the file, and {:?}{:?} in the model",
                        path.display(),
                        value.dtype(),
                        value.dims(),
                        variable.dtype(),
                        variable.dims()
                    ),
                ));
            }
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
