//! Writes of a variable on servers: all of it, or some rows.

use super::super::links::Ask;
use super::{Shard, Sharded, as_ids};
use distribute_base::{Error, Result};
use distribute_ps_tables::Request;
use distribute_tensor::{HostTensor, IndexedSlices, Write};

impl Sharded {
    /// Writes a value of the variable's shape and dtype.
    pub fn write(&self, how: Write, value: &HostTensor) -> Result<()> {
        let write = |(number, shard): (usize, &Shard)| {
            let (table, value) = (shard.table.clone(), self.part(value, number)?);
            let bytes = self.bytes(shard.rows);
            Ok(Ask { server: shard.server, request: Request::Write { table, how, value }, bytes })
        };
        let asks = self.shards.iter().enumerate().map(write).collect::<Result<_>>()?;
        self.links.ask(how.name(), asks).map(drop)
    }

    /// Writes rows of the variable's row shape and dtype. The rows of each shard are written one after another.
    ///
    /// # Errors
    /// Returns an error if an index is not a row, or if an integer would be divided by 0. Nothing has been written
    /// then.
    pub fn write_rows(&self, how: Write, rows: &IndexedSlices) -> Result<()> {
        let operation = how.name();
        if !self.is_regular() {
            return Err(Error::NotSupported {
                operation,
                strategy: "ParameterServerStrategy",
                what: "writing rows of shards that are not cut as its own are",
                advice: "make the variable in one piece, with a partitioner, or write to the shards",
            });
        }
        let ids: Vec<i64> =
            rows.to_rows().map_err(Error::tensor(operation))?.into_iter().map(|row| row as i64).collect();
        let split = self.cut.split(operation, &ids)?;
        if how == Write::Div {
            // If one server would refuse its rows, no server may write any.
            let mut tried = HostTensor::zeros(rows.values.dtype(), rows.values.dims())?;
            tried.write(how, &rows.values).map_err(Error::tensor(operation))?;
        }
        let mut asks = Vec::new();
        for (number, shard) in
            self.shards.iter().enumerate().filter(|(number, _)| !split.of(*number).is_empty())
        {
            let values = rows.values.take_rows(split.positions(number))?;
            let (table, rows) = (shard.table.clone(), as_ids(split.of(number)));
            let bytes = self.bytes(rows.len());
            asks.push(Ask {
                server: shard.server,
                request: Request::WriteRows { table, how, rows, values },
                bytes,
            });
        }
        self.links.ask(operation, asks).map(drop)
    }

    /// Removes its tables.
    pub fn remove(&self) -> Result<()> {
        let remove = |shard: &Shard| Ask {
            server: shard.server,
            request: Request::Remove { table: shard.table.clone() },
            bytes: 64,
        };
        self.links.ask("removing a variable", self.shards.iter().map(remove).collect()).map(drop)
    }
}
