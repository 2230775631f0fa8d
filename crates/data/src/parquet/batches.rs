//! The rows of a file, some at a time.

use super::column::tensor;
use super::pages::{Page, Widest};
use super::plan::{GroupSize, Run, runs};
use crate::guard::panic_message;
use crate::{Error, Location, Result};
use ::parquet::arrow::ProjectionMask;
use ::parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use ::parquet::basic::Type;
use ::parquet::errors::ParquetError;
use ::parquet::file::metadata::RowGroupMetaData;
use ::parquet::file::reader::{ChunkReader, Length};
use arrow_array::RecordBatch;
use bytes::Bytes;
use distribute_tensor::{HostTensor, Leaf, Tree};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The rows of a file in batches: dictionaries of tensors by the names of columns. The first error ends it.
pub struct Batches {
    location: Location,
    /// Starts to read some row groups.
    open: Box<Open>,
    /// The row groups that follow those of the reader.
    runs: VecDeque<Run>,
    reader: Option<ParquetRecordBatchReader>,
    rows: u64,
    /// How many have been read.
    next: u64,
    failed: bool,
}

type Open = dyn Fn(Run) -> ::parquet::errors::Result<ParquetRecordBatchReader> + Send;

impl Batches {
    /// Starts at the first row, to read up to `rows` rows at a time, which take up to `bytes` bytes.
    pub(super) fn open(
        location: &Location,
        columns: Option<&[String]>,
        rows: usize,
        bytes: u64,
    ) -> Result<Self> {
        match location.open_file()? {
            Some(file) => Self::read(location, file, columns, (rows, bytes)),
            // A file's description is at its end, so what has no end yet is read first.
            None => {
                let mut all = Vec::new();
                location.open()?.read_to_end(&mut all).map_err(|e| location.io_error(e))?;
                Self::read(location, Bytes::from(all), columns, (rows, bytes))
            }
        }
    }

    fn read<F: ChunkReader + 'static>(
        location: &Location,
        file: F,
        columns: Option<&[String]>,
        (rows, bytes): (usize, u64),
    ) -> Result<Self> {
        let file = Arc::new(file);
        let loaded =
            guarded(location, || ArrowReaderMetadata::load(&Shared(file.clone()), Default::default()))?;
        let mut mask = ProjectionMask::all();
        if let Some(columns) = columns {
            let places = columns.iter().map(|name| place(location, loaded.schema(), name));
            let places = places.collect::<Result<Vec<_>>>()?;
            mask = ProjectionMask::roots(loaded.parquet_schema(), places);
        }
        let groups = loaded.metadata().row_groups().iter().map(|group| {
            let (size, entry) = sizes(location, file.as_ref(), group, |leaf| mask.leaf_included(leaf))?;
            let most = location
                .limit()
                .bytes()
                .checked_div(entry)
                .map_or(rows, |most| rows.min(usize::try_from(most).unwrap_or(usize::MAX).max(1)));
            Ok(size.at_a_time(most, bytes))
        });
        let runs = runs(groups.collect::<Result<Vec<_>>>()?).into();
        let all = u64::try_from(loaded.metadata().file_metadata().num_rows()).unwrap_or(0);
        let open = Box::new(move |run: Run| {
            ParquetRecordBatchReaderBuilder::new_with_metadata(Shared(file.clone()), loaded.clone())
                .with_projection(mask.clone())
                .with_row_groups(run.groups)
                .with_batch_size(run.rows)
                .build()
        });
        let (location, reader) = (location.clone(), None);
        let mut batches = Self { location, open, runs, reader, rows: all, next: 0, failed: false };
        batches.next_run()?;
        Ok(batches)
    }

    /// Starts to read the next row groups, if there are any.
    fn next_run(&mut self) -> Result<()> {
        self.reader = match self.runs.pop_front() {
            Some(run) => Some(guarded(&self.location, || (self.open)(run))?),
            None => None,
        };
        Ok(())
    }

    /// Returns the number of rows that the file says it has.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    fn pull(&mut self) -> Result<Option<Tree<Leaf>>> {
        while let Some(reader) = &mut self.reader {
            let batch = guarded(&self.location, || reader.next().transpose().map_err(ParquetError::from))?;
            let Some(batch) = batch else {
                self.next_run()?;
                continue;
            };
            let columns = self.columns(&batch)?;
            self.check_rows(&columns)?;
            self.next += batch.num_rows() as u64;
            return Ok(Some(Tree::Dict(
                columns.into_iter().map(|(name, column)| (name, Tree::Leaf(Leaf::Host(column)))).collect(),
            )));
        }
        Ok(None)
    }

    fn columns(&self, batch: &RecordBatch) -> Result<Vec<(String, HostTensor)>> {
        let schema = batch.schema();
        let column = |(field, column): (&arrow_schema::FieldRef, _)| match tensor(column) {
            Ok(tensor) => Ok((field.name().clone(), tensor)),
            Err(refused) => {
                let (path, column) = (self.location.to_string(), field.name().clone());
                Err(Error::Column { path, column, what: refused.describe(self.next) })
            }
        };
        schema.fields().iter().zip(batch.columns()).map(column).collect()
    }

    /// Checks that no row takes more than an element may.
    fn check_rows(&self, columns: &[(String, HostTensor)]) -> Result<()> {
        let limit = self.location.limit();
        let rows = columns.first().map_or(0, |(_, column)| column.dims().first().copied().unwrap_or(0));
        let all: u64 = columns.iter().map(|(_, column)| bytes(column, 0..rows)).sum();
        if all <= limit.bytes() {
            return Ok(());
        }
        for row in 0..rows {
            let sizes: Vec<u64> = columns.iter().map(|(_, column)| bytes(column, row..row + 1)).collect();
            let largest = sizes.iter().enumerate().max_by_key(|(_, size)| **size).map_or(0, |(at, _)| at);
            let name = format!("row {}", self.next + row as u64);
            limit.check(&name, sizes.iter().sum()).map_err(|what| Error::Column {
                path: self.location.to_string(),
                column: columns.get(largest).map_or(String::new(), |(column, _)| column.clone()),
                what,
            })?;
        }
        Ok(())
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

/// The memory that some rows of a column take.
fn bytes(column: &HostTensor, rows: Range<usize>) -> u64 {
    let each: usize = column.dims().iter().skip(1).product();
    let values = rows.start * each..rows.end * each;
    match (column.dtype().bytes(), column.as_slice::<Vec<u8>>()) {
        (Some(bytes), _) => (values.len() * bytes) as u64,
        (None, texts) => {
            let texts = texts.and_then(|texts| texts.get(values)).unwrap_or_default();
            texts.iter().map(|text| (text.len() + size_of::<Vec<u8>>()) as u64).sum()
        }
    }
}

/// Looks at the pages of a row group's columns that are read, none of which may take more than an element may. Returns the
/// sizes of the columns, and what the longest text of a dictionary may take.
fn sizes(
    location: &Location,
    file: &impl ChunkReader,
    group: &RowGroupMetaData,
    read: impl Fn(usize) -> bool,
) -> Result<(GroupSize, u64)> {
    let (mut entry, mut names) = (0, Vec::new());
    let rows = u64::try_from(group.num_rows()).unwrap_or(0);
    let mut size = GroupSize { rows, ..GroupSize::default() };
    for (_, column) in group.columns().iter().enumerate().filter(|(leaf, _)| read(*leaf)) {
        let mut widest = Widest::default();
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
        entry = entry.max(widest.entry);
        names.push(column.column_path().string());
        size.columns.push(widest.size);
    }
    let (row, largest) = size.row();
    location.limit().check("a row", row).map_err(|what| Error::Column {
        path: location.to_string(),
        column: names.into_iter().nth(largest).unwrap_or_default(),
        what,
    })?;
    Ok((size, entry))
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
