//! Reading a variable on parameter servers, completely or by row.

use super::super::channels::{ServerRequest, unexpected};
use super::row_read::{RowRead, UniqueRows};
use super::{Shard, Sharded, as_ids};
use distribute_base::{Error, Result};
use distribute_ps_tables::{Request, Response, RowPartition, UniqueIds};
use distribute_tensor::HostTensor;
use std::borrow::Cow;

/// Concatenates the rows of several shards. The rows of a single shard are not copied. Without shards, returns the
/// result of `none`.
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
    /// Reads the complete value.
    ///
    /// # Errors
    /// - [`Error::Server`]: a server did not answer.
    /// - [`Error::InvalidArgument`]: the value on a server has a different shape or dtype.
    pub fn read(&self) -> Result<HostTensor> {
        const OPERATION: &str = "read";
        self.whole(OPERATION, self.channels.ask(OPERATION, self.read_requests(&[], false))?)
    }

    /// Assembles the complete value from the responses to [`read_requests`](Self::read_requests).
    fn whole(&self, operation: &'static str, answers: Vec<Response>) -> Result<HostTensor> {
        let value = |(shard, answer): (&Shard, Response)| match answer {
            Response::Value(value) => self.validate(operation, shard, value.value),
            other => Err(unexpected(operation, shard.server, &other)),
        };
        let parts = self.shards.iter().zip(answers).map(value).collect::<Result<Vec<_>>>()?;
        self.join_shards(&parts)
    }

    /// Reads rows in the order of `ids`. A row whose id is repeated is requested once.
    ///
    /// # Errors
    /// Returns the errors of [`row_read`](Self::row_read) and [`read`](Self::read).
    pub fn read_rows(&self, operation: &'static str, ids: &[i64]) -> Result<HostTensor> {
        self.read_unique(operation, ids)?.in_order()
    }

    /// Reads the rows of `ids`. A row whose id is repeated is read once.
    ///
    /// # Errors
    /// Returns the errors of [`row_read`](Self::row_read) and [`read`](Self::read).
    pub fn read_unique(&self, operation: &'static str, ids: &[i64]) -> Result<UniqueRows> {
        self.row_read(operation, ids)?.send(operation)
    }

    /// Prepares a read of the rows of `ids`, without sending it. A row whose id is repeated is read once. If the shards
    /// do not have the numbers of rows that follow from the partition, the complete variable is read.
    ///
    /// # Errors
    /// - [`Error::Params`]: an id is out of range.
    /// - [`Error::InvalidArgument`]: the variable is a scalar.
    pub fn row_read(&self, operation: &'static str, ids: &[i64]) -> Result<RowRead<'_>> {
        Self::row_read_of(Cow::Borrowed(self), operation, ids)
    }

    /// Equivalent to [`row_read`](Self::row_read), except that the read may own the variable.
    pub(crate) fn row_read_of<'a>(
        of: Cow<'a, Self>,
        operation: &'static str,
        ids: &[i64],
    ) -> Result<RowRead<'a>> {
        if of.dims.is_empty() {
            return Err(Error::invalid(
                operation,
                format!("variable {} is a scalar, which has no rows", of.name),
            ));
        }
        let channels = of.channels.clone();
        if !of.is_regular() {
            // The shard of a row is only found by counting.
            let (places, requests) = (of.ids_are_rows(operation, ids)?, of.read_requests(&[], true));
            let finish = move |answers| Ok(UniqueRows { rows: of.whole(operation, answers)?, places });
            return Ok(RowRead::new(&channels, requests, finish));
        }
        let unique = UniqueIds::new(ids);
        let split = of.partition.split(operation, unique.ids())?;
        let asked: Vec<usize> = (0..split.shards()).filter(|shard| !split.of(*shard).is_empty()).collect();
        let ask = |number: &usize| {
            let shard = &of.shards[*number];
            let rows = as_ids(split.of(*number));
            let bytes = of.bytes(rows.len());
            ServerRequest {
                server: shard.server,
                request: Request::ReadRows { table: shard.table.clone(), rows },
                bytes,
            }
        };
        let requests = asked.iter().map(ask).collect();
        Ok(RowRead::new(&channels, requests, move |answers| {
            let mut order = Vec::with_capacity(unique.ids().len());
            let mut parts = Vec::with_capacity(asked.len());
            for (number, answer) in asked.iter().zip(answers) {
                let (shard, count) = (&of.shards[*number], split.of(*number).len());
                let Response::Rows(rows) = answer else {
                    return Err(unexpected(operation, shard.server, &answer));
                };
                parts.push(of.validate(operation, &Shard { rows: count, ..shard.clone() }, rows)?);
                order.extend_from_slice(split.positions(*number));
            }
            let mut places = vec![0; order.len()];
            order.iter().enumerate().for_each(|(place, position)| places[*position] = place);
            Ok(UniqueRows { rows: joined(parts, || of.no_rows())?, places: unique.spread(&places, 1) })
        }))
    }

    pub(super) fn no_rows(&self) -> Result<HostTensor> {
        let mut dims = self.dims.clone();
        if let Some(rows) = dims.first_mut() {
            *rows = 0;
        }
        Ok(HostTensor::zeros(self.dtype, dims)?)
    }

    fn ids_are_rows(&self, operation: &'static str, ids: &[i64]) -> Result<Vec<usize>> {
        // A partition into one shard checks which ids are rows.
        Ok(RowPartition::div(self.partition.rows(), 1).split(operation, ids)?.of(0).to_vec())
    }
}
