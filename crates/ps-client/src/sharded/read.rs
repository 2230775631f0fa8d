//! Reads of a variable on servers: all of it, or some rows.

use super::super::links::{Ask, unexpected};
use super::{Shard, Sharded, as_ids};
use distribute_base::{Error, Result};
use distribute_ps_tables::{Request, Response, RowPartition, UniqueIds};
use distribute_tensor::HostTensor;

/// The rows that were requested, each once, possibly with others.
#[derive(Debug)]
pub struct EachOnce {
    /// The rows.
    pub rows: HostTensor,
    /// The position in `rows` of each requested id.
    pub places: Vec<usize>,
}

impl EachOnce {
    /// Returns the row of each id, in the order of the ids.
    pub fn in_order(&self) -> Result<HostTensor> {
        Ok(self.rows.take_rows(&self.places)?)
    }
}

/// Joins the rows of several shards. The rows of a single shard are not copied.
pub(crate) fn joined(
    mut parts: Vec<HostTensor>,
    none: impl FnOnce() -> Result<HostTensor>,
) -> Result<HostTensor> {
    match (parts.pop(), parts.is_empty()) {
        (None, _) => none(),
        (Some(only), true) => Ok(only),
        (Some(last), false) => {
            parts.push(last);
            Ok(HostTensor::concat(&parts.iter().collect::<Vec<_>>(), 0)?)
        }
    }
}

impl Sharded {
    /// Reads the complete variable.
    pub fn read(&self) -> Result<HostTensor> {
        const OPERATION: &str = "read";
        let answers = self.links.ask(OPERATION, self.reads(&[]))?;
        let value = |(shard, answer): (&Shard, Response)| match answer {
            Response::Value(value) => self.fits(OPERATION, shard, value.value),
            other => Err(unexpected(OPERATION, shard.server, &other)),
        };
        let parts = self.shards.iter().zip(answers).map(value).collect::<Result<Vec<_>>>()?;
        self.whole(&parts)
    }

    /// Reads rows, in the order of their ids. An id that occurs twice is requested once.
    pub fn read_rows(&self, operation: &'static str, ids: &[i64]) -> Result<HostTensor> {
        self.read_each(operation, ids)?.in_order()
    }

    /// Reads rows, each once.
    pub fn read_each(&self, operation: &'static str, ids: &[i64]) -> Result<EachOnce> {
        if self.dims.is_empty() {
            return Err(Error::invalid(
                operation,
                format!("variable {} is a scalar, which has no rows", self.name),
            ));
        }
        if !self.is_regular() {
            // Only counting tells which shard has a row.
            let places = self.ids_are_rows(operation, ids)?;
            return Ok(EachOnce { rows: self.read()?, places });
        }
        let unique = UniqueIds::new(ids);
        let split = self.cut.split(operation, unique.ids())?;
        let asked: Vec<usize> = (0..split.shards()).filter(|shard| !split.of(*shard).is_empty()).collect();
        let ask = |number: &usize| {
            let shard = &self.shards[*number];
            let rows = as_ids(split.of(*number));
            let bytes = self.bytes(rows.len());
            Ask {
                server: shard.server,
                request: Request::ReadRows { table: shard.table.clone(), rows },
                bytes,
            }
        };
        let answers = self.links.ask(operation, asked.iter().map(ask).collect())?;
        let mut order = Vec::with_capacity(unique.ids().len());
        let mut parts = Vec::with_capacity(asked.len());
        for (number, answer) in asked.iter().zip(answers) {
            let (shard, count) = (&self.shards[*number], split.of(*number).len());
            let Response::Rows(rows) = answer else {
                return Err(unexpected(operation, shard.server, &answer));
            };
            parts.push(self.fits(operation, &Shard { rows: count, ..shard.clone() }, rows)?);
            order.extend_from_slice(split.positions(*number));
        }
        let mut places = vec![0; order.len()];
        order.iter().enumerate().for_each(|(place, position)| places[*position] = place);
        Ok(EachOnce { rows: joined(parts, || self.no_rows())?, places: unique.spread(&places, 1) })
    }

    fn no_rows(&self) -> Result<HostTensor> {
        let mut dims = self.dims.clone();
        if let Some(rows) = dims.first_mut() {
            *rows = 0;
        }
        Ok(HostTensor::zeros(self.dtype, dims)?)
    }

    fn ids_are_rows(&self, operation: &'static str, ids: &[i64]) -> Result<Vec<usize>> {
        // A partition into one shard checks which ids are rows.
        Ok(RowPartition::div(self.cut.rows(), 1).split(operation, ids)?.of(0).to_vec())
    }
}
