//! What a coordinator's strategy has to say to those of its workers.

use super::ParameterServerBuilder;
use distribute_base::Result;
use distribute_params::{PartitionerSpec, PlacementPolicy};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The settings that all tasks of a job share, as data: they cut and place variables alike, and wait as long for servers.
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
    /// By a partitioner that cannot be sent: each task has been given it.
    ByTheirOwn,
}

impl ParameterServerBuilder {
    /// What the other tasks are to share of these.
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

    /// With what is shared. A task that was given timeouts of its own keeps them.
    ///
    /// # Errors
    /// [`Error::Params`](crate::Error::Params) for a partitioner's number that it cannot take.
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
