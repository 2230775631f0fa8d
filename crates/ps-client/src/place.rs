//! The location of a new variable: its name on the servers, its partition, and the server of each shard.

use super::{CreationPolicy, CreationState, ParameterServers, Placed};
use distribute_base::internal::lock;
use distribute_base::{Error, Result};
use distribute_ps_tables::{PlacementSnapshot, RowPartition, partition, shard_name};
use distribute_tensor::DType;
use std::sync::atomic::Ordering;

/// The requested location of a new variable.
#[derive(Clone, Copy, Debug)]
pub enum PlacementRequest {
    /// The servers that the placement policy chooses, with the number of shards that the partitioner returns.
    Anywhere,
    /// The server with this index, without shards.
    NextTo(usize),
    /// The servers that the placement policy chooses, with the same partition as another variable.
    PartitionedAs(RowPartition),
}

/// The location that was chosen for a new variable.
#[derive(Debug)]
pub(crate) struct TablePlacement {
    /// The name on the servers, which is unique there.
    pub(crate) name: String,
    pub(crate) partition: Option<RowPartition>,
    /// The index of the server for each shard.
    pub(crate) servers: Vec<usize>,
}

impl TablePlacement {
    /// Returns the name of the table for a shard.
    pub(crate) fn shard(&self, shard: usize) -> String {
        match self.partition {
            Some(_) => shard_name(&self.name, shard),
            None => self.name.clone(),
        }
    }

    /// Returns the names of the tables for all shards.
    pub(crate) fn tables(&self) -> impl Iterator<Item = String> + '_ {
        (0..self.partition.map_or(1, |partition| partition.shards())).map(|shard| self.shard(shard))
    }
}

impl ParameterServers {
    // SHARD-1, PLACE-1
    /// Chooses a location for a new variable, and calls `make` to create the variable there. A shared variable that
    /// this process has already placed keeps its location. Variables are created one after another. If `make` fails,
    /// undoes the choice.
    pub(crate) fn place<T>(
        &self,
        variable: (&str, &[usize], DType),
        to: PlacementRequest,
        make: impl FnOnce(&TablePlacement, &mut CreationState) -> Result<T>,
    ) -> Result<T> {
        let mut creation = lock(&self.creation);
        creation.is_shared |= self.channels().lock_step().is_some();
        if let Some(place) = self.find_own(variable, to) {
            return make(&place, &mut creation);
        }
        let before = lock(&self.placed).placement.mark();
        let place = self.choose(variable, to)?;
        let place = self.find_shared(place, variable, before.clone(), &mut creation);
        let made = place.and_then(|place| Ok((make(&place, &mut creation)?, place)));
        let mut placed = lock(&self.placed);
        match made {
            Ok((made, place)) => {
                placed.tables.extend(place.tables());
                Ok(made)
            }
            Err(error) => {
                placed.placement.undo(before);
                Err(error)
            }
        }
    }

    /// Returns the location of a variable that this process has already placed; `None` if it has not, or if variables
    /// are not shared.
    fn find_own(
        &self,
        (name, dims, _): (&str, &[usize], DType),
        to: PlacementRequest,
    ) -> Option<TablePlacement> {
        if !self.is_shared.load(Ordering::Acquire) {
            return None;
        }
        let placed = lock(&self.placed);
        let servers: Vec<_> = placed.placement.of(name)?.iter().map(|shard| shard.server).collect();
        let rows = dims.first().copied().unwrap_or_default();
        let partition = match to {
            PlacementRequest::PartitionedAs(partition) => Some(partition),
            _ => (servers.len() > 1).then(|| RowPartition::div(rows, servers.len())),
        };
        Some(TablePlacement { name: name.to_owned(), partition, servers })
    }

    /// Returns the location of a new variable. If variables are shared, each table that another process has created
    /// stays on its server, and the placement is changed accordingly. With [`CreationPolicy::Wait`], first waits for
    /// all tables, at most for the patience.
    fn find_shared(
        &self,
        place: TablePlacement,
        (_, dims, dtype): (&str, &[usize], DType),
        before: PlacementSnapshot,
        creation: &mut CreationState,
    ) -> Result<TablePlacement> {
        if !self.is_shared.load(Ordering::Acquire) {
            return Ok(place);
        }
        creation.is_shared = true;
        let found = creation.find(
            &place,
            self.channels(),
            (self.creation_policy() == CreationPolicy::Wait).then_some(self.patience),
        )?;
        let all = found.into_iter().zip(&place.servers);
        let servers: Vec<_> = all.map(|(found, chosen)| found.unwrap_or(*chosen)).collect();
        if servers != place.servers {
            let mut placed = lock(&self.placed);
            placed.placement.undo(before);
            placed.placement.record(&place.name, dims, dtype, (place.partition, &servers))?;
        }
        Ok(TablePlacement { servers, ..place })
    }

    fn choose(
        &self,
        (name, dims, dtype): (&str, &[usize], DType),
        to: PlacementRequest,
    ) -> Result<TablePlacement> {
        let partition = match to {
            PlacementRequest::Anywhere => partition(self.partitioner.as_deref(), dims, dtype)?,
            PlacementRequest::NextTo(_) => None,
            PlacementRequest::PartitionedAs(partition) => Some(partition),
        };
        let mut placed = lock(&self.placed);
        let Placed { placement, tables } = &mut *placed;
        // Several variables of a strategy may have the same name, and a name may be that of another variable's shard.
        let names = (0..).map(|count| if count == 0 { name.to_string() } else { format!("{name}_{count}") });
        let is_free = |place: &TablePlacement| {
            placement.of(&place.name).is_none() && place.tables().all(|table| !tables.contains(&table))
        };
        let place = names.map(|name| TablePlacement { name, partition, servers: Vec::new() }).find(is_free);
        let none =
            || Error::invalid("creating a variable", format!("there is no unused name similar to {name}"));
        let place = place.ok_or_else(none)?;
        let servers = match to {
            PlacementRequest::NextTo(server) => vec![placement.place_on(&place.name, dims, dtype, server)?],
            PlacementRequest::Anywhere | PlacementRequest::PartitionedAs(_) => {
                placement.place(&place.name, dims, dtype, partition)?
            }
        };
        Ok(TablePlacement { servers, ..place })
    }
}
