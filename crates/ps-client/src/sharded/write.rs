//! Writing a variable on parameter servers, completely or by row.

use super::super::channels::ServerRequest;
use super::{Shard, Sharded, as_ids};
use distribute_base::{Error, Result};
use distribute_ps_tables::Request;
use distribute_tensor::{HostTensor, IndexedSlices, Write};

impl Sharded {
    /// Writes a value to the complete variable with the operation `how`. The value must have the variable's shape and
    /// dtype.
    ///
    /// # Errors
    /// - [`Error::Server`]: a server did not answer, or rejected the write. Other servers may have executed it.
    pub fn write(&self, how: Write, value: &HostTensor) -> Result<()> {
        let write = |(number, shard): (usize, &Shard)| {
            let (table, value) = (shard.table.clone(), self.shard_value(value, number)?);
            let bytes = self.bytes(shard.rows);
            Ok(ServerRequest { server: shard.server, request: Request::Write { table, how, value }, bytes })
        };
        let requests = self.shards.iter().enumerate().map(write).collect::<Result<_>>()?;
        self.channels.ask(how.name(), requests).map(drop)
    }

    /// Writes rows with the operation `how`. The values must have the shape and dtype of the variable's rows. The rows
    /// of each shard are written one after another.
    ///
    /// # Errors
    /// - [`Error::NotSupported`]: the shards do not have the numbers of rows that follow from the partition.
    /// - [`Error::Params`]: an index is not the number of a row.
    /// - The error of a tensor operation: an integer would be divided by 0.
    /// - [`Error::Server`]: a server did not answer, or rejected the write. Other servers may have executed it.
    ///
    /// If an error other than [`Error::Server`] is returned, nothing was written.
    pub fn write_rows(&self, how: Write, rows: &IndexedSlices) -> Result<()> {
        let operation = how.name();
        if !self.is_regular() {
            return Err(Error::NotSupported {
                operation,
                strategy: "ParameterServerStrategy",
                what: "writing rows of a variable whose shards have other numbers of rows than its partition",
                advice: "create the variable with a partitioner, or write to the shards",
            });
        }
        let ids: Vec<i64> =
            rows.to_rows().map_err(Error::tensor(operation))?.into_iter().map(|row| row as i64).collect();
        let split = self.partition.split(operation, &ids)?;
        if how == Write::Div {
            // If one server would refuse its rows, no server may write any.
            let mut tried = HostTensor::zeros(rows.values.dtype(), rows.values.dims())?;
            tried.write(how, &rows.values).map_err(Error::tensor(operation))?;
        }
        let mut requests = Vec::new();
        for (number, shard) in
            self.shards.iter().enumerate().filter(|(number, _)| !split.of(*number).is_empty())
        {
            let values = rows.values.take_rows(split.positions(number))?;
            let (table, rows) = (shard.table.clone(), as_ids(split.of(number)));
            let bytes = self.bytes(rows.len());
            requests.push(ServerRequest {
                server: shard.server,
                request: Request::WriteRows { table, how, rows, values },
                bytes,
            });
        }
        self.channels.ask(operation, requests).map(drop)
    }

    /// Removes the tables of the variable from the servers. If this fails, some tables may have been removed.
    pub fn remove(&self) -> Result<()> {
        let remove = |shard: &Shard| ServerRequest {
            server: shard.server,
            request: Request::Remove { table: shard.table.clone() },
            bytes: 64,
        };
        self.channels.ask("removing a variable", self.shards.iter().map(remove).collect()).map(drop)
    }
}
