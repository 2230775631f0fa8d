//! Detection of batch-norm layers whose running statistics no replica has changed.

use super::{ModelVariable, Variables};
use crate::strategy::VariablePlacement;
use distribute_base::Result;
use std::collections::BTreeMap;

/// A layer whose running statistics have not changed on any replica of this process.
#[derive(Debug, PartialEq, Eq)]
pub struct UnchangedNorm {
    /// The path of the layer: the names of its variables without their last component. It is empty if the complete
    /// model is a single layer.
    pub path: String,
    /// Whether the statistics still have their initial values: mean 0 and variance 1.
    pub is_new: bool,
}

impl Variables {
    /// Returns the layers whose running statistics no replica of this process has changed since they were last set.
    /// Returns an empty list if variables are on parameter servers.
    ///
    /// # Errors
    /// Returns candle's error if a statistic cannot be read from a device.
    #[doc(hidden)]
    pub fn unchanged_norms(&self) -> Result<Vec<UnchangedNorm>> {
        if self.strategy().extended().variable_placement() == VariablePlacement::Servers {
            return Ok(Vec::new());
        }
        let mut layers: BTreeMap<String, (bool, bool)> = BTreeMap::new();
        for (name, kind) in self.kinds() {
            let ModelVariable::Running(running) = kind else { continue };
            let (path, statistic) = name.rsplit_once('.').unwrap_or(("", &name));
            let initial = if statistic == "running_var" { 1. } else { 0. };
            let (moved, is_new) = layers.entry(path.to_owned()).or_insert((false, true));
            *moved = *moved || running.has_changed()?;
            *is_new = *is_new && running.is_filled_with(initial)?;
        }
        let stayed = layers.into_iter().filter(|(_, (moved, _))| !moved);
        Ok(stayed.map(|(path, (_, is_new))| UnchangedNorm { path, is_new }).collect())
    }
}
