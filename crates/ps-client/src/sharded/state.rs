//! Reads and writes the slots of a variable on parameter servers.

use super::super::channels::{ServerRequest, unexpected};
use super::{REQUEST_BYTES, Shard, Sharded};
use distribute_base::Result;
use distribute_ps_tables::{Request, Response, State};
use distribute_tensor::HostTensor;
use std::ops::Range;

impl Sharded {
    /// Reads the slots of the update rule, with their names. `count` is the number of slots, from which the size of
    /// requests is computed.
    pub fn slots(&self, operation: &'static str, count: usize) -> Result<Vec<(String, HostTensor)>> {
        let mut of_slots: Vec<(String, Vec<HostTensor>)> = Vec::new();
        for shard in &self.shards {
            let mut of_shard: Vec<(String, Vec<HostTensor>)> = Vec::new();
            for rows in self.row_ranges(shard, count) {
                let (_, slots) = self.state(operation, shard, rows)?;
                of_shard.resize_with(slots.len(), Default::default);
                for ((into, all), (name, slot)) in of_shard.iter_mut().zip(slots) {
                    *into = name;
                    all.push(slot);
                }
            }
            of_slots.resize_with(of_shard.len(), Default::default);
            for ((into, parts), (name, row_ranges)) in of_slots.iter_mut().zip(of_shard) {
                *into = name;
                parts.push(joined(row_ranges)?);
            }
        }
        of_slots.into_iter().map(|(name, parts)| Ok((name, self.join_shards(&parts)?))).collect()
    }

    /// Sets the slots of the update rule. This never changes the values, even if other workers push at the same time.
    /// After an error, the slots of some rows may have been set.
    pub fn set_slots(&self, operation: &'static str, slots: &[(String, HostTensor)]) -> Result<()> {
        for (number, shard) in self.shards.iter().enumerate() {
            let of_shard =
                slots.iter().map(|(name, slot)| Ok((name.clone(), self.shard_value(slot, number)?)));
            let of_shard = of_shard.collect::<Result<Vec<_>>>()?;
            for rows in self.row_ranges(shard, slots.len()) {
                let some = |(name, slot): &(String, HostTensor)| {
                    let slot = if self.dims.is_empty() {
                        slot.clone()
                    } else {
                        slot.narrow(0, rows.start, rows.len())?
                    };
                    Ok((name.clone(), slot))
                };
                let slots = of_shard.iter().map(some).collect::<Result<_>>()?;
                let state = State::Slots { first: rows.start, slots };
                let request = Request::Restore { table: shard.table.clone(), state };
                self.channels.ask(
                    operation,
                    vec![ServerRequest { server: shard.server, request, bytes: REQUEST_BYTES }],
                )?;
            }
        }
        Ok(())
    }

    fn state(
        &self,
        operation: &'static str,
        shard: &Shard,
        rows: Range<usize>,
    ) -> Result<(HostTensor, Vec<(String, HostTensor)>)> {
        let request = Request::StateRows { table: shard.table.clone(), rows };
        let answers = self
            .channels
            .ask(operation, vec![ServerRequest { server: shard.server, request, bytes: REQUEST_BYTES }])?;
        match answers.into_iter().next() {
            Some(Response::State(State::Rows { values, slots, .. })) => Ok((values, slots)),
            other => Err(unexpected(operation, shard.server, &other.unwrap_or(Response::Done))),
        }
    }

    /// Returns ranges of a shard's rows, each of which fits into a request together with its slots. There is
    /// at least one range.
    fn row_ranges(&self, shard: &Shard, slots: usize) -> Vec<Range<usize>> {
        let row = self.bytes(1).saturating_mul(1 + slots).max(1);
        let rows = (REQUEST_BYTES / row).max(1);
        let mut all: Vec<_> =
            (0..shard.rows).step_by(rows).map(|first| first..shard.rows.min(first + rows)).collect();
        if all.is_empty() {
            all.push(0..0);
        }
        all
    }
}

fn joined(parts: Vec<HostTensor>) -> Result<HostTensor> {
    match &parts[..] {
        [only] => Ok(only.clone()),
        parts => Ok(HostTensor::concat(&parts.iter().collect::<Vec<_>>(), 0)?),
    }
}
