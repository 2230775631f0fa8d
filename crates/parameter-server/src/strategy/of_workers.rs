//! The settings that a coordinator's strategy shares with those of its workers.

use super::ParameterServerBuilder;
use distribute_base::Result;
use distribute_ps_tables::{PartitionerSpec, PlacementPolicy};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The settings that all tasks of a job share, in serializable form. All tasks then partition and place
/// variables in the same way, and have the same timeouts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedSettings {
    cut: Cut,
    placement: PlacementPolicy,
    staleness: usize,
    timeout: Option<Duration>,
    join_timeout: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Cut {
    Whole,
    By(PartitionerSpec),
    /// The partitioner cannot be sent, so each task was given it directly.
    ByTheirOwn,
}

impl ParameterServerBuilder {
    /// Returns the settings that the other tasks share.
    pub(crate) fn shared(&self) -> SharedSettings {
        let cut = match &self.partitioner {
            None => Cut::Whole,
            Some(partitioner) => partitioner.spec().map_or(Cut::ByTheirOwn, Cut::By),
        };
        SharedSettings {
            cut,
            placement: self.placement,
            staleness: self.staleness,
            timeout: self.timeout,
            join_timeout: self.join_timeout,
        }
    }

    /// Replaces the shared settings. Timeouts that were set on this task are kept.
    ///
    /// # Errors
    /// - [`Error::Params`](crate::Error::Params): the partitioner does not accept one of its parameters.
    pub(crate) fn sharing(mut self, shared: &SharedSettings) -> Result<Self> {
        match &shared.cut {
            Cut::Whole => self.partitioner = None,
            Cut::By(spec) => self.partitioner = Some(spec.make()?),
            Cut::ByTheirOwn => {}
        }
        (self.placement, self.staleness) = (shared.placement, shared.staleness);
        self.timeout = self.timeout.or(shared.timeout);
        self.join_timeout = self.join_timeout.or(shared.join_timeout);
        Ok(self)
    }
}
