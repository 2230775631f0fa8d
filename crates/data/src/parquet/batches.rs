//! The rows of a file, some at a time.

use super::column::tensor;
use super::pages::{Page, Widest};
use crate::guard::panic_message;
use crate::{Error, Location, Result};
use ::parquet::arrow::ProjectionMask;
use ::parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use ::parquet::basic::Type;
use ::parquet::errors::ParquetError;
use ::parquet::file::metadata::ParquetMetaData;
use ::parquet::file::reader::{ChunkReader, Length};
use arrow_array::RecordBatch;
use bytes::Bytes;
use distribute_tensor::{Leaf, Tree};
use std::io::{ErrorKind, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The rows of a file in batches: dictionaries of tensors by the names of columns. The first error ends it.
pub struct Batches {
    location: Location,
    reader: ParquetRecordBatchReader,
    rows: u64,
    /// How many have been read.
    next: u64,
    failed: bool,
}

impl Batches {
    pub(super) fn open(location: &Location, columns: Option<&[String]>, rows: usize) -> Result<Self> {
        match location.open_file()? {
            Some(file) => Self::read(location, file, columns, rows),
            // A file's description is at its end, so what has no end yet is read first.
            None => {
                let mut all = Vec::new();
                location.open()?.read_to_end(&mut all).map_err(|e| location.io_error(e))?;
                Self::read(location, Bytes::from(all), columns, rows)
            }
        }
    }

    fn read<F: ChunkReader + 'static>(
        location: &Location,
        file: F,
        columns: Option<&[String]>,
        rows: usize,
    ) -> Result<Self> {
        let file = Arc::new(file);
        let mut builder =
            guarded(location, || ParquetRecordBatchReaderBuilder::try_new(Shared(file.clone())))?;
        let mut mask = ProjectionMask::all();
        if let Some(columns) = columns {
            let places = columns.iter().map(|name| place(location, builder.schema(), name));
            let places = places.collect::<Result<Vec<_>>>()?;
            mask = ProjectionMask::roots(builder.parquet_schema(), places);
            builder = builder.with_projection(mask.clone());
        }
        let widest = widest(location, file.as_ref(), builder.metadata(), |leaf| mask.leaf_included(leaf))?;
        let rows = match location.limit().bytes().checked_div(widest.entry) {
            Some(most) => rows.min(usize::try_from(most).unwrap_or(usize::MAX).max(1)),
            None => rows,
        };
        let all = u64::try_from(builder.metadata().file_metadata().num_rows()).unwrap_or(0);
        let reader = guarded(location, || builder.with_batch_size(rows).build())?;
        Ok(Self { location: location.clone(), reader, rows: all, next: 0, failed: false })
    }

    /// How many rows the file says it has.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    fn pull(&mut self) -> Result<Option<Tree<Leaf>>> {
        let reader = &mut self.reader;
        let batch = guarded(&self.location, || reader.next().transpose().map_err(ParquetError::from))?;
        let Some(batch) = batch else { return Ok(None) };
        let columns = self.columns(&batch)?;
        self.next += batch.num_rows() as u64;
        Ok(Some(columns))
    }

    fn columns(&self, batch: &RecordBatch) -> Result<Tree<Leaf>> {
        let schema = batch.schema();
        let column = |(field, column): (&arrow_schema::FieldRef, _)| match tensor(column) {
            Ok(tensor) => Ok((field.name().clone(), Tree::Leaf(Leaf::Host(tensor)))),
            Err(refused) => {
                let (path, column) = (self.location.to_string(), field.name().clone());
                Err(Error::Column { path, column, what: refused.describe(self.next) })
            }
        };
        Ok(Tree::Dict(schema.fields().iter().zip(batch.columns()).map(column).collect::<Result<_>>()?))
    }
}

/// A file that the library reads, and whose pages are looked at before.
struct Shared<F>(Arc<F>);

impl<F: ChunkReader> Length for Shared<F> {
    fn len(&self) -> u64 {
        self.0.len()
    }
}

impl<F: ChunkReader> ChunkReader for Shared<F> {
    type T = F::T;

    fn get_read(&self, start: u64) -> ::parquet::errors::Result<F::T> {
        self.0.get_read(start)
    }

    fn get_bytes(&self, start: u64, length: usize) -> ::parquet::errors::Result<Bytes> {
        self.0.get_bytes(start, length)
    }
}

/// Looks at the pages of the columns that are read: none may take more than an element may.
fn widest(
    location: &Location,
    file: &impl ChunkReader,
    metadata: &ParquetMetaData,
    read: impl Fn(usize) -> bool,
) -> Result<Widest> {
    let mut widest = Widest::default();
    for group in metadata.row_groups() {
        for (_, column) in group.columns().iter().enumerate().filter(|(leaf, _)| read(*leaf)) {
            let width = match column.column_type() {
                Type::BOOLEAN => Some(1),
                Type::INT32 | Type::FLOAT => Some(4),
                Type::INT64 | Type::DOUBLE => Some(8),
                Type::INT96 => Some(12),
                Type::BYTE_ARRAY | Type::FIXED_LEN_BYTE_ARRAY => None,
            };
            let (mut at, len) = guarded(location, || Ok(column.byte_range()))?;
            let end = at.saturating_add(len).min(file.len());
            while at < end {
                let Some(page) = page(location, file, at, end)? else { break };
                widest.add(&page, width, location.limit()).map_err(|what| Error::Damaged {
                    path: location.to_string(),
                    offset: at,
                    what,
                })?;
                at = at.saturating_add(page.header).saturating_add(page.packed);
            }
        }
    }
    Ok(widest)
}

/// The header of the page at a place; `None` where there is none, which the library will say better.
fn page(location: &Location, file: &impl ChunkReader, at: u64, end: u64) -> Result<Option<Page>> {
    // Headers are short, but may hold the least and the greatest value.
    let mut len = 256;
    loop {
        let there = len.min(end - at);
        let bytes = guarded(location, || file.get_bytes(at, there as usize))?;
        match Page::read(&bytes) {
            None if there < end - at && there < MOST_HEADER => len *= 8,
            page => return Ok(page),
        }
    }
}

/// No header is longer.
const MOST_HEADER: u64 = 1 << 24;

/// Where a column is among a file's.
fn place(location: &Location, schema: &arrow_schema::Schema, name: &str) -> Result<usize> {
    schema.index_of(name).map_err(|_| {
        let known: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        Error::NoColumn { path: location.to_string(), column: format!("'{name}'"), known: known.join(", ") }
    })
}

/// What the library says or, since it trusts some bytes that may be damaged, panics with.
fn guarded<T>(location: &Location, f: impl FnOnce() -> ::parquet::errors::Result<T>) -> Result<T> {
    let error = match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(error)) => error.to_string(),
        Err(panic) => format!("the file is damaged: {}", panic_message(panic.as_ref())),
    };
    Err(location.io_error(std::io::Error::new(ErrorKind::InvalidData, error)))
}

impl Iterator for Batches {
    type Item = Result<Tree<Leaf>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let batch = self.pull();
        self.failed = batch.is_err();
        batch.transpose()
    }
}

impl std::fmt::Debug for Batches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rows {} to {} of {:?}", self.next, self.rows, self.location)
    }
}
