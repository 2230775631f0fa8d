//! Reads and writes of the slots of a variable on servers.

use super::super::links::{Ask, unexpected};
use super::{Shard, Sharded};
use distribute_base::Result;
use distribute_ps_tables::{Request, Response, State};
use distribute_tensor::HostTensor;
use std::ops::Range;

/// The approximate number of bytes of values and slots that one request reads or writes.
const STRETCH: usize = 8 << 20;

impl Sharded {
    /// Reads the slots of the rule, `count` in number, by name.
    pub fn slots(&self, operation: &'static str, count: usize) -> Result<Vec<(String, HostTensor)>> {
        let mut of_slots: Vec<(String, Vec<HostTensor>)> = Vec::new();
        for shard in &self.shards {
            let mut of_shard: Vec<(String, Vec<HostTensor>)> = Vec::new();
            for rows in self.stretches(shard, count) {
                let (_, slots) = self.state(operation, shard, rows)?;
                of_shard.resize_with(slots.len(), Default::default);
                for ((into, all), (name, slot)) in of_shard.iter_mut().zip(slots) {
                    *into = name;
                    all.push(slot);
                }
            }
            of_slots.resize_with(of_shard.len(), Default::default);
            for ((into, parts), (name, stretches)) in of_slots.iter_mut().zip(of_shard) {
                *into = name;
                parts.push(joined(stretches)?);
            }
        }
        of_slots.into_iter().map(|(name, parts)| Ok((name, self.whole(&parts)?))).collect()
    }

    /// Sets the slots of the rule. The values do not change, even if other workers push at the same time.
    pub fn set_slots(&self, operation: &'static str, slots: &[(String, HostTensor)]) -> Result<()> {
        for (number, shard) in self.shards.iter().enumerate() {
            let of_shard = slots.iter().map(|(name, slot)| Ok((name.clone(), self.part(slot, number)?)));
            let of_shard = of_shard.collect::<Result<Vec<_>>>()?;
            for rows in self.stretches(shard, slots.len()) {
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
                self.links.ask(operation, vec![Ask { server: shard.server, request, bytes: STRETCH }])?;
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
        let answers =
            self.links.ask(operation, vec![Ask { server: shard.server, request, bytes: STRETCH }])?;
        match answers.into_iter().next() {
            Some(Response::State(State::Rows { values, slots, .. })) => Ok((values, slots)),
            other => Err(unexpected(operation, shard.server, &other.unwrap_or(Response::Done))),
        }
    }

    /// Returns ranges of rows of a shard that can be sent with their slots. There is at least one.
    fn stretches(&self, shard: &Shard, slots: usize) -> Vec<Range<usize>> {
        let row = self.bytes(1).saturating_mul(1 + slots).max(1);
        let rows = (STRETCH / row).max(1);
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
