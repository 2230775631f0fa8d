//! Values and slots of variables, saved and restored.

use crate::calls::{Calls, unexpected};
use crate::errors::{Error, Result};
use crate::tables::{Rows, Shards, list};
use distribute_ps_tables::{DynamicState, Request, Response, RowLocation, RowPartition, State, TableInfo};
use distribute_tensor::HostTensor;

/// The values and slots of a variable, by name. The name of the values is "values". A dynamic variable also has "ids"
/// and "used", which come first.
pub type SavedState = Vec<(String, HostTensor)>;

impl Shards {
    /// Reads the values and slots from the servers.
    pub fn state(&self, calls: &Calls) -> Result<SavedState> {
        match self.rows {
            Rows::Dense(partition) => self.dense_state(calls, partition),
            Rows::Dynamic(_) => self.dynamic_state(calls),
        }
    }

    fn dense_state(&self, calls: &Calls, partition: RowPartition) -> Result<SavedState> {
        let read = |shard, table| Ok(Some(Request::StateRows { table, rows: 0..partition.len(shard) }));
        let mut parts: Vec<(String, Vec<HostTensor>)> = vec![("values".to_owned(), Vec::new())];
        for (_, answer) in self.each(calls, read)? {
            let Response::State(State::Rows { values, slots, .. }) = answer else {
                return Err(unexpected(&answer));
            };
            parts[0].1.push(values);
            for (name, slot) in slots {
                match parts.iter_mut().find(|(found, _)| *found == name) {
                    Some((_, all)) => all.push(slot),
                    None => parts.push((name, vec![slot])),
                }
            }
        }
        parts.into_iter().map(|(name, parts)| Ok((name, self.whole(parts)?))).collect()
    }

    fn dynamic_state(&self, calls: &Calls) -> Result<SavedState> {
        let (mut ids, mut used, mut rest) = (Vec::new(), Vec::new(), Vec::<(String, Vec<HostTensor>)>::new());
        let counts = list(calls)?;
        let mut requests = Vec::new();
        for (server, table) in &self.tables {
            let is_it = |(at, info): &&(usize, TableInfo)| at == server && info.name == *table;
            let parts = counts.iter().find(is_it).map_or(0, |(_, info)| info.parts);
            requests
                .extend((0..parts).map(|part| (*server, Request::StatePart { table: table.clone(), part })));
        }
        for answer in calls.all(requests)? {
            let Response::State(State::Ids(state)) = answer else { return Err(unexpected(&answer)) };
            let DynamicState { ids: more, used: uses, values, slots } = state;
            ids.extend(more);
            used.extend(uses);
            for (name, tensor) in std::iter::once(("values".to_owned(), values)).chain(slots) {
                match rest.iter_mut().find(|(found, _)| *found == name) {
                    Some((_, all)) => all.push(tensor),
                    None => rest.push((name, vec![tensor])),
                }
            }
        }
        let whole = |(name, parts): (String, Vec<HostTensor>)| {
            Ok((name, HostTensor::concat(&parts.iter().collect::<Vec<_>>(), 0)?))
        };
        let first =
            [("ids".to_owned(), HostTensor::vector(ids)), ("used".to_owned(), HostTensor::vector(used))];
        first.into_iter().map(Ok).chain(rest.into_iter().map(whole)).collect()
    }

    /// Restores values and slots, as [`state`](Self::state) returns them. A dynamic variable loses the rows whose ids
    /// are not in `state`. Returns the number of rows for which a server had no space.
    pub fn restore(&self, calls: &Calls, state: &SavedState) -> Result<usize> {
        let of = |name: &str| {
            let found = state.iter().find(|(found, _)| found == name).map(|(_, tensor)| tensor);
            found.ok_or_else(|| Error::Argument(format!("restore: {} has no {name} there", self.name)))
        };
        let is_slot = |name: &&(String, HostTensor)| !matches!(name.0.as_str(), "ids" | "used" | "values");
        let slots: Vec<_> = state.iter().filter(is_slot).collect();
        let values = of("values")?;
        if matches!(self.rows, Rows::Dynamic(_)) {
            let (ids, used): (Vec<i64>, Vec<u64>) = (of("ids")?.to_vec()?, of("used")?.to_vec()?);
            if ids.len() != used.len() {
                let text = format!("restore: {} has {} ids, but {} uses", self.name, ids.len(), used.len());
                return Err(Error::Argument(text));
            }
            let split = self.split("restore", &ids)?;
            // Rows that were created later, before the others take their places.
            let keep = |shard: usize, table| {
                let mut ids: Vec<i64> = split[shard].0.clone();
                ids.sort_unstable();
                Ok(Some(Request::Keep { table, between: (i64::MIN, i64::MAX), ids }))
            };
            self.each(calls, keep)?;
        }
        let restore = |shard: usize, table: String| {
            let state = match self.rows {
                Rows::Dense(partition) => {
                    let rows: Vec<usize> = (0..partition.len(shard))
                        .map(|row| partition.row(RowLocation { shard, row }))
                        .collect();
                    let part = |tensor: &HostTensor| {
                        if self.tables.len() == 1 { Ok(tensor.clone()) } else { tensor.take_rows(&rows) }
                    };
                    let slots = slots.iter().map(|(name, slot)| Ok((name.clone(), part(slot)?)));
                    State::Rows { first: 0, values: part(values)?, slots: slots.collect::<Result<_>>()? }
                }
                Rows::Dynamic(_) => {
                    let (ids, used): (Vec<i64>, Vec<u64>) = (of("ids")?.to_vec()?, of("used")?.to_vec()?);
                    let (ids, positions) = self.split("restore", &ids)?.swap_remove(shard);
                    let used = positions.iter().map(|at| used[*at]).collect();
                    let slots =
                        slots.iter().map(|(name, slot)| Ok((name.clone(), slot.take_rows(&positions)?)));
                    let (values, slots) = (values.take_rows(&positions)?, slots.collect::<Result<_>>()?);
                    State::Ids(DynamicState { ids, used, values, slots })
                }
            };
            Ok(Some(Request::Restore { table, state }))
        };
        let left_out = self.each(calls, restore)?.into_iter().map(|(_, answer)| match answer {
            Response::Restored { left_out } => Ok(left_out),
            other => Err(unexpected(&other)),
        });
        left_out.sum()
    }
}
