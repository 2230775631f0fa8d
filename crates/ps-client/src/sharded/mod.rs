//! [`Sharded`]: a variable on parameter servers, in shards. `create` creates or finds its tables. `read` and `write`
//! access all of it or some rows, and `range` consecutive rows and slots. `row_read` sends reads of several variables
//! together.

mod create;
mod range;
mod read;
mod row_read;
mod write;

pub(super) use create::CreationState;
pub(super) use read::joined;
pub(super) use row_read::{ReadParts, SentReads};
pub use row_read::{RowRead, UniqueRows};

use super::channels::ServerRequest;
use super::{Channels, TablePlacement};
use distribute_base::{Error, Result};
use distribute_ps_tables::{DynamicOptions, Initializer, PartitionStrategy, Request, RowPartition, Version};
use distribute_tensor::{DType, HostTensor};
use std::ops::Range;
use std::sync::Arc;

/// The approximate maximum size, in bytes, of the values and slots in one request.
pub(super) const REQUEST_BYTES: usize = 8 << 20;

/// A variable on parameter servers, which consists of one table, or of one table per shard. Reads and writes of the
/// complete variable are not atomic across tables.
#[derive(Clone, Debug)]
pub struct Sharded {
    channels: Arc<Channels>,
    name: String,
    dims: Vec<usize>,
    dtype: DType,
    /// The partition of the rows.
    pub(super) partition: RowPartition,
    /// Whether the variable is divided into shards, even if there is only one.
    is_partitioned: bool,
    shards: Vec<Shard>,
}

/// A table that contains some of the rows of a variable.
#[derive(Clone, Debug)]
pub struct Shard {
    /// The name of the table on the server.
    pub table: String,
    /// The index of the server.
    pub server: usize,
    rows: usize,
}

impl Shard {
    /// Returns the number of rows in the shard; 1 for a scalar.
    #[doc(hidden)]
    pub fn rows(&self) -> usize {
        self.rows
    }
}

/// The initial values of a new variable.
#[derive(Debug)]
pub enum Initial {
    /// A value that this process sends to the servers.
    Value(HostTensor),
    /// Values that each server computes for its rows, independently of the partition.
    Initialized(Initializer),
    /// Values of a dynamic table, which depend only on the id of a row.
    Ids(Initializer, DynamicOptions),
}

impl Sharded {
    fn placed(
        channels: Arc<Channels>,
        name: &str,
        dims: Vec<usize>,
        dtype: DType,
        place: &TablePlacement,
    ) -> Self {
        let rows = dims.first().copied().unwrap_or(1);
        let partition = place.partition.unwrap_or_else(|| RowPartition::div(rows, 1));
        let shard = |(number, server): (usize, &usize)| Shard {
            table: place.shard(number),
            server: *server,
            rows: partition.len(number),
        };
        let shards = place.servers.iter().enumerate().map(shard).collect();
        Self {
            channels,
            name: name.to_string(),
            dims,
            dtype,
            partition,
            is_partitioned: place.partition.is_some(),
            shards,
        }
    }

    /// Combines several variables into one, whose shards they become.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: `parts` is empty, a part is sharded itself, row shapes or dtypes differ,
    ///   or the parts are on the servers of different strategies.
    pub fn join(name: &str, strategy: PartitionStrategy, parts: &[&Sharded]) -> Result<Self> {
        const OPERATION: &str = "Variable::of_shards";
        let wrong = |reason: String| Err(Error::invalid(OPERATION, format!("{name}: {reason}")));
        let Some(first) = parts.first() else { return wrong("there is no shard; pass at least one".into()) };
        let mut rows = 0usize;
        for (number, part) in parts.iter().enumerate() {
            if part.is_partitioned {
                return wrong(format!(
                    "{} is sharded itself; pass variables that are not sharded",
                    part.name
                ));
            }
            if part.dims.is_empty() || part.dims.get(1..) != first.dims.get(1..) || part.dtype != first.dtype
            {
                let (dtype, dims) = (first.dtype, first.dims.get(1..).unwrap_or_default());
                return wrong(format!(
                    "shard {number} is {}{:?}, and shard 0 has rows of {dtype}{dims:?}; shards may only \
                     differ in their number of rows",
                    part.dtype, part.dims
                ));
            }
            if !Arc::ptr_eq(&part.channels, &first.channels) {
                return wrong(format!("{} is on the servers of another strategy", part.name));
            }
            rows = rows.saturating_add(part.shards[0].rows);
        }
        let partition = RowPartition::new(strategy, rows, parts.len());
        let shards: Vec<Shard> = parts.iter().flat_map(|part| part.shards.iter().cloned()).collect();
        let dims: Vec<usize> =
            std::iter::once(&rows).chain(first.dims.get(1..).unwrap_or_default()).copied().collect();
        let (channels, dtype) = (first.channels.clone(), first.dtype);
        Ok(Self { channels, name: name.to_string(), dims, dtype, partition, is_partitioned: true, shards })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the shape of the complete variable.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// Returns the shards, in the order of their indices.
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// Returns the partition, if the variable is sharded.
    pub fn partition(&self) -> Option<RowPartition> {
        self.is_partitioned.then_some(self.partition)
    }

    /// Returns the range of rows in each shard. See [`RowPartition::ranges`].
    pub fn ranges(&self) -> Vec<Range<usize>> {
        if self.is_regular() {
            return self.partition.ranges().collect();
        }
        let range = |next: &mut usize, shard: &Shard| {
            *next += shard.rows;
            Some(*next - shard.rows..*next)
        };
        self.shards.iter().scan(0, range).collect()
    }

    /// Returns the connections to the servers.
    pub fn channels(&self) -> &Arc<Channels> {
        &self.channels
    }

    /// Returns `true` if each shard has the number of rows that follows from the partition.
    fn is_regular(&self) -> bool {
        self.shards.iter().enumerate().all(|(number, shard)| shard.rows == self.partition.len(number))
            && self.shards.len() == self.partition.shards()
    }

    /// Returns the number of elements in the shards before shard `shard`.
    pub(super) fn elements_before(&self, shard: usize) -> usize {
        let row: usize = self.dims.get(1..).unwrap_or_default().iter().product();
        self.shards.iter().take(shard).map(|shard| shard.rows * row).sum()
    }

    /// Returns the rows of the variable that a shard contains, in the order of the shard. Returns `None` if they are
    /// consecutive and follow those of the previous shards.
    pub(super) fn scattered_rows(&self, shard: usize) -> Option<Vec<usize>> {
        let is_scattered =
            self.shards.len() > 1 && self.is_regular() && self.partition.strategy() == PartitionStrategy::Mod;
        let rows = || (shard..self.partition.rows()).step_by(self.partition.shards()).collect();
        is_scattered.then(rows)
    }

    /// Returns the size of one row in bytes; `None` for a scalar and for strings.
    pub(super) fn row_bytes(&self) -> Option<usize> {
        let row = self.dims.get(1..).filter(|_| !self.dims.is_empty())?;
        Some(row.iter().product::<usize>() * self.dtype.bytes()?)
    }

    /// Returns the size of `rows` rows in bytes. For strings, this is an estimate.
    pub(super) fn bytes(&self, rows: usize) -> usize {
        let row: usize = self.dims.get(1..).unwrap_or_default().iter().product();
        row.saturating_mul(rows).saturating_mul(self.dtype.bytes().unwrap_or(16))
    }

    /// Returns a read request for each shard. A server sends no value if the version of the shard is still that in
    /// `known`. If `may_round` is `true`, the connection may send values in a narrower type.
    pub(crate) fn read_requests(&self, known: &[Option<Version>], may_round: bool) -> Vec<ServerRequest> {
        let read = |(number, shard): (usize, &Shard)| ServerRequest {
            server: shard.server,
            request: Request::Read {
                table: shard.table.clone(),
                known: known.get(number).copied().flatten(),
                may_round,
            },
            bytes: self.bytes(shard.rows),
        };
        self.shards.iter().enumerate().map(read).collect()
    }

    /// Returns the value that a server has sent for a shard, after checking its shape and dtype.
    pub(crate) fn validate(
        &self,
        operation: &'static str,
        shard: &Shard,
        value: HostTensor,
    ) -> Result<HostTensor> {
        let mut dims = self.dims.clone();
        if let Some(rows) = dims.first_mut() {
            *rows = shard.rows;
        }
        if value.dims() == dims && value.dtype() == self.dtype {
            return Ok(value);
        }
        let reason = format!(
            "ps {} has {} as {}, of which {} is {}{dims:?}; is another training using the same servers?",
            shard.server,
            shard.table,
            value.describe(),
            self.name,
            self.dtype
        );
        Err(Error::invalid(operation, reason))
    }

    /// Returns the part of a value that belongs to a shard.
    pub(super) fn shard_value(&self, value: &HostTensor, shard: usize) -> Result<HostTensor> {
        if self.shards.len() == 1 {
            return Ok(value.clone());
        }
        Ok(match self.scattered_rows(shard) {
            Some(rows) => value.take_rows(&rows)?,
            None => {
                let before: usize = self.shards[..shard].iter().map(|shard| shard.rows).sum();
                value.narrow(0, before, self.shards[shard].rows)?
            }
        })
    }

    /// Assembles the value of the variable from the values of its shards.
    fn join_shards(&self, parts: &[HostTensor]) -> Result<HostTensor> {
        let [only] = parts else {
            let all = HostTensor::concat(&parts.iter().collect::<Vec<_>>(), 0)?;
            if !self.is_regular() || self.partition.strategy() == PartitionStrategy::Div {
                return Ok(all);
            }
            let starts: Vec<usize> = self
                .shards
                .iter()
                .scan(0, |next, shard| {
                    *next += shard.rows;
                    Some(*next - shard.rows)
                })
                .collect();
            let row = |row: usize| {
                let place = self.partition.location(row);
                starts[place.shard] + place.row
            };
            return Ok(all.take_rows(&(0..self.partition.rows()).map(row).collect::<Vec<_>>())?);
        };
        Ok(only.clone())
    }
}

pub(super) fn as_ids(rows: &[usize]) -> Vec<i64> {
    rows.iter().map(|row| *row as i64).collect()
}
