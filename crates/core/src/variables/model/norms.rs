//! Layers of batch-norm that no replica trains.

use super::{Kind, Variables};
use distribute_base::Result;
use std::collections::BTreeMap;

/// A layer whose running statistics have not changed on any replica of this process.
#[derive(Debug, PartialEq, Eq)]
pub struct Evaluated {
    /// The names of its variables without their last parts: empty for a model that is one layer.
    pub path: String,
    /// Whether its statistics are those of a new layer: mean 0 and variance 1.
    pub is_new: bool,
}

impl Variables {
    /// Returns the layers whose running statistics have not changed on any replica of this process since they
    /// were last set. Returns none if variables are on parameter servers.
    ///
    /// # Errors
    /// candle's error, if a device fails.
    #[doc(hidden)]
    pub fn evaluated(&self) -> Result<Vec<Evaluated>> {
        if self.strategy().extended().parameter_servers().is_some() {
            return Ok(Vec::new());
        }
        let mut layers: BTreeMap<String, (bool, bool)> = BTreeMap::new();
        for (name, kind) in self.kinds() {
            let Kind::Running(running) = kind else { continue };
            let (path, statistic) = name.rsplit_once('.').unwrap_or(("", &name));
            let initial = if statistic == "running_var" { 1. } else { 0. };
            let (moved, is_new) = layers.entry(path.to_owned()).or_insert((false, true));
            *moved = *moved || running.has_moved()?;
            *is_new = *is_new && running.began_with(initial)?;
        }
        let stayed = layers.into_iter().filter(|(_, (moved, _))| !moved);
        Ok(stayed.map(|(path, (_, is_new))| Evaluated { path, is_new }).collect())
    }
}
