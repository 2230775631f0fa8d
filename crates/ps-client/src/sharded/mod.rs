//! One variable on parameter servers.

mod create;
mod read;
mod state;
mod write;

pub(super) use create::Making;
pub use read::EachOnce;
pub(super) use read::joined;

use super::links::Ask;
use super::{Links, Place};
use distribute_base::{Error, Result};
use distribute_ps_tables::{DynamicOptions, Initializer, PartitionStrategy, Request, RowPartition, Version};
use distribute_tensor::{DType, HostTensor};
use std::ops::Range;
use std::sync::Arc;

/// A variable on parameter servers: one table, or one for each shard. Reads and writes of the complete variable take
/// one table at a time.
#[derive(Clone, Debug)]
pub struct Sharded {
    links: Arc<Links>,
    name: String,
    dims: Vec<usize>,
    dtype: DType,
    /// The partition of the rows.
    pub(super) cut: RowPartition,
    /// Whether it has shards, possibly a single one.
    is_cut: bool,
    shards: Vec<Shard>,
}

/// A table that has some rows of a variable.
#[derive(Clone, Debug)]
pub struct Shard {
    /// The name of its table on the server.
    pub table: String,
    /// The index of the server.
    pub server: usize,
    rows: usize,
}

impl Shard {
    /// Returns the number of rows, which is 1 for a scalar.
    #[doc(hidden)]
    pub fn rows(&self) -> usize {
        self.rows
    }
}

/// The initial values.
#[derive(Debug)]
pub enum Initial {
    /// A value of this process.
    Value(HostTensor),
    /// Values that each server initializes for its rows. They do not depend on the partition.
    Drawn(Initializer),
    /// Values of a table of ids, which are initialized when an id gets its row.
    Ids(Initializer, DynamicOptions),
}

impl Sharded {
    fn placed(links: Arc<Links>, name: &str, dims: Vec<usize>, dtype: DType, place: &Place) -> Self {
        let rows = dims.first().copied().unwrap_or(1);
        let cut = place.cut.unwrap_or_else(|| RowPartition::div(rows, 1));
        let shard = |(number, server): (usize, &usize)| Shard {
            table: place.shard(number),
            server: *server,
            rows: cut.len(number),
        };
        let shards = place.servers.iter().enumerate().map(shard).collect();
        Self { links, name: name.to_string(), dims, dtype, cut, is_cut: place.cut.is_some(), shards }
    }

    /// Joins several variables, which become the shards of one.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: there is no part, a part is sharded itself, their row shapes or dtypes differ, or
    ///   they are on the servers of different strategies.
    pub fn joined(name: &str, strategy: PartitionStrategy, parts: &[&Sharded]) -> Result<Self> {
        const OPERATION: &str = "Variable::of_shards";
        let wrong = |reason: String| Err(Error::invalid(OPERATION, format!("{name}: {reason}")));
        let Some(first) = parts.first() else { return wrong("there is no shard; give one at least".into()) };
        let mut rows = 0usize;
        for (number, part) in parts.iter().enumerate() {
            if part.is_cut {
                return wrong(format!("{} is in shards itself; give variables that are whole", part.name));
            }
            if part.dims.is_empty() || part.dims.get(1..) != first.dims.get(1..) || part.dtype != first.dtype
            {
                let (dtype, dims) = (first.dtype, first.dims.get(1..).unwrap_or_default());
                return wrong(format!(
                    "shard {number} is {}{:?}, and shard 0 has rows of {dtype}{dims:?}; shards differ in their number of rows alone",
                    part.dtype, part.dims
                ));
            }
            if !Arc::ptr_eq(&part.links, &first.links) {
                return wrong(format!("{} is on the servers of another strategy", part.name));
            }
            rows = rows.saturating_add(part.shards[0].rows);
        }
        let cut = RowPartition::new(strategy, rows, parts.len());
        let shards: Vec<Shard> = parts.iter().flat_map(|part| part.shards.iter().cloned()).collect();
        let dims: Vec<usize> =
            std::iter::once(&rows).chain(first.dims.get(1..).unwrap_or_default()).copied().collect();
        let (links, dtype) = (first.links.clone(), first.dtype);
        Ok(Self { links, name: name.to_string(), dims, dtype, cut, is_cut: true, shards })
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

    /// Returns the shards, in the order of their rows.
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// Returns the partition, if the variable is sharded.
    pub fn cut(&self) -> Option<RowPartition> {
        self.is_cut.then_some(self.cut)
    }

    /// Returns the range of rows of each shard. See [`RowPartition::ranges`].
    pub fn ranges(&self) -> Vec<Range<usize>> {
        if self.is_regular() {
            return self.cut.ranges().collect();
        }
        let range = |next: &mut usize, shard: &Shard| {
            *next += shard.rows;
            Some(*next - shard.rows..*next)
        };
        self.shards.iter().scan(0, range).collect()
    }

    /// Returns the connections to the servers.
    pub fn links(&self) -> &Arc<Links> {
        &self.links
    }

    /// Whether each shard has the number of rows that the partition gives it.
    fn is_regular(&self) -> bool {
        self.shards.iter().enumerate().all(|(number, shard)| shard.rows == self.cut.len(number))
            && self.shards.len() == self.cut.shards()
    }

    /// Returns the number of elements of a shard.
    pub(super) fn elements_of(&self, shard: usize) -> usize {
        let row: usize = self.dims.get(1..).unwrap_or_default().iter().product();
        self.shards.get(shard).map_or(0, |shard| shard.rows * row)
    }

    /// Returns the number of bytes of this number of rows.
    pub(super) fn bytes(&self, rows: usize) -> usize {
        let row: usize = self.dims.get(1..).unwrap_or_default().iter().product();
        row.saturating_mul(rows).saturating_mul(self.dtype.bytes().unwrap_or(16))
    }

    /// Returns a read request for each shard. A server answers without values if the shard still has its known
    /// version.
    pub(crate) fn reads(&self, known: &[Option<Version>]) -> Vec<Ask> {
        let read = |(number, shard): (usize, &Shard)| Ask {
            server: shard.server,
            request: Request::Read {
                table: shard.table.clone(),
                known: known.get(number).copied().flatten(),
            },
            bytes: self.bytes(shard.rows),
        };
        self.shards.iter().enumerate().map(read).collect()
    }

    /// Returns the value that a server sent for a shard, if it has the shard's shape and dtype.
    pub(crate) fn fits(
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

    /// Returns the rows of a value that belong to a shard.
    pub(super) fn part(&self, value: &HostTensor, shard: usize) -> Result<HostTensor> {
        if self.shards.len() == 1 {
            return Ok(value.clone());
        }
        Ok(match (self.is_regular(), self.cut.strategy()) {
            (true, PartitionStrategy::Mod) => {
                let rows: Vec<usize> = (shard..self.cut.rows()).step_by(self.cut.shards()).collect();
                value.take_rows(&rows)?
            }
            _ => {
                let before: usize = self.shards[..shard].iter().map(|shard| shard.rows).sum();
                value.narrow(0, before, self.shards[shard].rows)?
            }
        })
    }

    /// Joins the values of all shards.
    fn whole(&self, parts: &[HostTensor]) -> Result<HostTensor> {
        let [only] = parts else {
            let all = HostTensor::concat(&parts.iter().collect::<Vec<_>>(), 0)?;
            if !self.is_regular() || self.cut.strategy() == PartitionStrategy::Div {
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
                let place = self.cut.place(row);
                starts[place.shard] + place.row
            };
            return Ok(all.take_rows(&(0..self.cut.rows()).map(row).collect::<Vec<_>>())?);
        };
        Ok(only.clone())
    }
}

pub(super) fn as_ids(rows: &[usize]) -> Vec<i64> {
    rows.iter().map(|row| *row as i64).collect()
}
