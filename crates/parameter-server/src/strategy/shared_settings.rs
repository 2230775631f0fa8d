//! Settings that a coordinator's strategy shares with the strategies of its workers.

use super::ParameterServerStrategyBuilder;
use distribute_base::Result;
use distribute_ps_client::RowCacheOptions;
use distribute_ps_tables::{PartitionerSpec, PlacementPolicy};
use distribute_tensor::Wire;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The settings that all tasks of a job share, in serializable form. They ensure that all tasks partition and place
/// variables in the same way and, by default, use the same timeouts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedSettings {
    partitioning: Partitioning,
    placement: PlacementPolicy,
    staleness: usize,
    row_cache: Option<RowCacheOptions>,
    #[serde(with = "wire_name")]
    wire: Wire,
    timeout: Option<Duration>,
    join_timeout: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Partitioning {
    None,
    By(PartitionerSpec),
    /// A partitioner that cannot be sent. The program must set it on each task.
    Local,
}

impl ParameterServerStrategyBuilder {
    /// Returns the settings that are shared with the other tasks.
    pub(crate) fn shared(&self) -> SharedSettings {
        let partitioning = match &self.partitioner {
            None => Partitioning::None,
            Some(partitioner) => partitioner.spec().map_or(Partitioning::Local, Partitioning::By),
        };
        SharedSettings {
            partitioning,
            placement: self.placement,
            staleness: self.staleness,
            row_cache: self.row_cache,
            wire: self.wire,
            timeout: self.timeout,
            join_timeout: self.join_timeout,
        }
    }

    /// Replaces the shared settings by those of the coordinator. Timeouts that were set on this task remain, and so
    /// does the partitioner if the coordinator's cannot be sent.
    ///
    /// # Errors
    /// - [`Error::Params`](distribute_base::Error::Params): a parameter of the partitioner is invalid.
    pub(crate) fn with_shared(mut self, shared: &SharedSettings) -> Result<Self> {
        match &shared.partitioning {
            Partitioning::None => self.partitioner = None,
            Partitioning::By(spec) => self.partitioner = Some(spec.make()?),
            Partitioning::Local => {}
        }
        (self.placement, self.staleness, self.wire) = (shared.placement, shared.staleness, shared.wire);
        self.row_cache = shared.row_cache;
        self.timeout = self.timeout.or(shared.timeout);
        self.join_timeout = self.join_timeout.or(shared.join_timeout);
        Ok(self)
    }
}

/// The serialization of the type in which numbers are sent, as its name.
mod wire_name {
    use super::Wire;
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(wire: &Wire, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(wire)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Wire, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}
