//! [`Batches`]: an iterator over the rows of a file, several at a time.

use super::checksums::{Checksums, Shared};
use super::column::{Missing, Refused, Tensors, column};
use super::footer;
use super::plan::{Run, runs};
use super::select::Selected;
use super::sizes::{bytes, sizes};
use super::{Parquet, mask_taken};
use crate::broken::Broken;
use crate::guard::panic_message;
use crate::{Error, Location, Result};
use ::parquet::arrow::ProjectionMask;
use ::parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder, RowSelection,
    RowSelectionPolicy, RowSelector,
};
use ::parquet::errors::ParquetError;
use ::parquet::file::reader::ChunkReader;
use arrow_array::RecordBatch;
use bytes::Bytes;
use distribute_tensor::{HostTensor, Leaf, Tree};
use std::collections::{BTreeMap, VecDeque};
use std::io::{ErrorKind, Read};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// An iterator over the rows of a file, in batches: dictionaries of tensors by column name. The first error ends
/// the iterator.
pub struct Batches {
    location: Location,
    source: Box<dyn Source>,
    selected: Selected,
    missing: BTreeMap<String, Missing>,
    broken: Broken,
    checksums: Arc<Checksums>,
    /// The parts to read after the current one.
    parts: VecDeque<Part>,
    reader: Option<ParquetRecordBatchReader>,
    rows: u64,
    /// The index in the file of the reader's next row.
    next: u64,
    /// The index in the file after the reader's last row.
    end: u64,
    /// Batches of rows that have been read but not converted yet, each with the index of its first row.
    read: VecDeque<(u64, RecordBatch)>,
    failed: bool,
}

/// A range of rows that one reader reads.
struct Part {
    run: Run,
    /// The index in the file of the part's first row.
    first: u64,
    rows: u64,
    /// The range of rows within the run; `None` means all of them.
    within: Option<Range<u64>>,
}

/// The columns of rows that were read together, by name.
pub(super) type Columns = Vec<(String, Tensors)>;

/// An open file whose rows can be read.
trait Source: Send {
    /// Creates a reader of the rows of a part.
    fn open(&self, part: &Part) -> ::parquet::errors::Result<ParquetRecordBatchReader>;

    /// Returns the ranges of rows of a row group that have damaged pages, each with the error.
    fn broken_rows(&self, group: usize) -> Vec<(Range<u64>, Error)>;
}

struct OpenFile<F> {
    location: Location,
    file: Arc<F>,
    checksums: Arc<Checksums>,
    loaded: ArrowReaderMetadata,
    mask: ProjectionMask,
}

impl<F: ChunkReader + 'static> Source for OpenFile<F> {
    fn open(&self, part: &Part) -> ::parquet::errors::Result<ParquetRecordBatchReader> {
        let shared = Shared { file: self.file.clone(), checksums: self.checksums.clone() };
        let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(shared, self.loaded.clone())
            .with_projection(self.mask.clone())
            .with_row_groups(part.run.groups.clone())
            .with_batch_size(part.run.rows);
        match &part.within {
            None => builder.build(),
            Some(rows) => {
                let count = |rows: u64| usize::try_from(rows).unwrap_or(usize::MAX);
                let selection =
                    [RowSelector::skip(count(rows.start)), RowSelector::select(count(rows.end - rows.start))];
                // Skipped pages are not read.
                builder
                    .with_row_selection(RowSelection::from(selection.to_vec()))
                    .with_row_selection_policy(RowSelectionPolicy::Selectors)
                    .build()
            }
        }
    }

    fn broken_rows(&self, group: usize) -> Vec<(Range<u64>, Error)> {
        self.checksums.broken_rows(&self.location, self.file.as_ref(), group)
    }
}

impl Batches {
    /// Opens a file at its first row. Reads up to `rows` rows at a time, or fewer so that they take about `bytes`
    /// bytes.
    pub(super) fn open(
        parquet: &Parquet,
        location: &Location,
        (rows, bytes): (usize, u64),
        broken: Broken,
    ) -> Result<Self> {
        match location.open_file()? {
            Some(file) => Self::read(parquet, location, file, (rows, bytes), broken),
            // The footer of a file is at its end, so other locations are read completely first.
            None => {
                let mut all = Vec::new();
                location.open()?.read_to_end(&mut all).map_err(|e| location.io_error(e))?;
                Self::read(parquet, location, Bytes::from(all), (rows, bytes), broken)
            }
        }
    }

    fn read<F: ChunkReader + 'static>(
        parquet: &Parquet,
        location: &Location,
        file: F,
        (rows, bytes): (usize, u64),
        broken: Broken,
    ) -> Result<Self> {
        catch_panics(location, || Ok(footer::check(&file)))?
            .map_err(|what| location.io_error(std::io::Error::new(ErrorKind::InvalidData, what)))?;
        let file = Arc::new(file);
        let unchecked = || Shared { file: file.clone(), checksums: Arc::default() };
        let loaded = catch_panics(location, || ArrowReaderMetadata::load(&unchecked(), Default::default()))?;
        let selected = Selected::find(location, loaded.schema().fields(), parquet.columns.as_deref())?;
        for (name, missing) in &parquet.missing {
            selected.check(location, name)?;
            if let Some(mask) = missing.mask.as_ref().filter(|mask| selected.check(location, mask).is_ok()) {
                return Err(mask_taken(mask));
            }
        }
        let mask = ProjectionMask::leaves(loaded.parquet_schema(), selected.leaves());
        let (mut checksums, mut groups) = (Checksums::default(), Vec::new());
        for (number, group) in loaded.metadata().row_groups().iter().enumerate() {
            let (size, entry) = sizes(
                location,
                file.as_ref(),
                group,
                number,
                |leaf| mask.leaf_included(leaf),
                &mut checksums,
            )?;
            let most = location
                .limit()
                .bytes()
                .checked_div(entry)
                .map_or(rows, |most| rows.min(usize::try_from(most).unwrap_or(usize::MAX).max(1)));
            groups.push((size.rows, size.at_a_time(most, bytes)));
        }
        let checksums = Arc::new(if parquet.checksums { checksums } else { Checksums::default() });
        let all = u64::try_from(loaded.metadata().file_metadata().num_rows()).unwrap_or(0);
        let source = Box::new(OpenFile {
            location: location.clone(),
            file,
            checksums: checksums.clone(),
            loaded,
            mask,
        });
        let mut batches = Self {
            location: location.clone(),
            source,
            selected,
            missing: parquet.missing.clone(),
            parts: parts(&groups, broken.skips()).into(),
            broken,
            checksums,
            reader: None,
            rows: all,
            next: 0,
            end: 0,
            read: VecDeque::new(),
            failed: false,
        };
        batches.next_part()?;
        Ok(batches)
    }

    /// Starts reading the next part, if there is one. If broken rows are skipped, a row group with damaged pages is
    /// first divided into parts without the rows of these pages.
    fn next_part(&mut self) -> Result<()> {
        self.reader = None;
        while self.reader.is_none()
            && let Some(part) = self.parts.pop_front()
        {
            (self.next, self.end) = (part.first, part.first.saturating_add(part.rows));
            let broken = match part.run.groups.as_slice() {
                [group] if self.broken.skips() && part.within.is_none() => self.source.broken_rows(*group),
                _ => Vec::new(),
            };
            if broken.is_empty() {
                self.reader = Some(catch_panics(&self.location, || self.source.open(&part))?);
            } else {
                self.leave_out(&part, broken)?;
            }
        }
        Ok(())
    }

    /// Skips and counts the rows of a row group that are in damaged pages. Inserts its other rows as parts before the
    /// remaining ones.
    fn leave_out(&mut self, part: &Part, mut broken: Vec<(Range<u64>, Error)>) -> Result<()> {
        broken.sort_by_key(|(rows, _)| rows.start);
        let (mut whole, mut from) = (Vec::new(), 0);
        for (rows, error) in broken {
            if rows.start > from {
                whole.push(from..rows.start);
            }
            // Rows in damaged pages of two columns are counted once.
            let lost = rows.end.saturating_sub(rows.start.max(from));
            self.broken.skip_many(lost, error)?;
            from = from.max(rows.end);
        }
        if part.rows > from {
            whole.push(from..part.rows);
        }
        for rows in whole.into_iter().rev() {
            let (first, count) = (part.first + rows.start, rows.end - rows.start);
            self.parts.push_front(Part { run: part.run.clone(), first, rows: count, within: Some(rows) });
        }
        Ok(())
    }

    /// Returns the number of rows in the file, according to its footer.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Reads the next rows, and returns their columns; `None` at the end.
    pub(super) fn pull(&mut self) -> Result<Option<Columns>> {
        loop {
            while let Some((first, batch)) = self.read.pop_front() {
                match self.columns(&batch, first) {
                    Ok(columns) => return Ok(Some(columns)),
                    Err((Some(row), error)) if self.broken.skips() => {
                        self.broken.skip(error)?;
                        let after = batch.num_rows().saturating_sub(row + 1);
                        let parts = [(row + 1, after), (0, row)];
                        for (start, len) in parts.into_iter().filter(|(_, len)| *len > 0) {
                            self.read.push_front((first + start as u64, batch.slice(start, len)));
                        }
                    }
                    Err((_, error)) => return Err(error),
                }
            }
            let Some(reader) = &mut self.reader else { return Ok(None) };
            match catch_panics(&self.location, || reader.next().transpose().map_err(ParquetError::from)) {
                Ok(Some(batch)) => {
                    let first = self.next;
                    self.next += batch.num_rows() as u64;
                    self.read.push_back((first, batch));
                }
                Ok(None) => self.next_part()?,
                Err(error) => {
                    let error = self.checksums.error(&self.location).unwrap_or(error);
                    if !self.broken.skips() {
                        return Err(error);
                    }
                    self.broken.skip_many(self.end.saturating_sub(self.next), error)?;
                    self.next_part()?;
                }
            }
        }
    }

    /// Converts rows to columns of tensors. `first` is the index in the file of the first row. An error comes with
    /// the index in the batch of the row that caused it, if a single row did.
    fn columns(&self, batch: &RecordBatch, first: u64) -> Result<Columns, (Option<usize>, Error)> {
        let none = Missing::default();
        let mut columns = Vec::new();
        for found in self.selected.of(batch) {
            let missing = self.missing.get(&found.name).unwrap_or(&none);
            let refused = |refused: Refused| {
                let (path, column) = (self.location.to_string(), found.name.clone());
                (refused.row(), Error::Column { path, column, what: refused.describe(first) })
            };
            let (values, mask) = column(&found, missing).map_err(refused)?;
            columns.extend(missing.mask.clone().zip(mask.map(Tensors::Whole)));
            columns.push((found.name, values));
        }
        self.check_rows(&columns, batch.num_rows(), first).map_err(|(row, error)| (Some(row), error))?;
        Ok(columns)
    }

    /// Checks that no row exceeds the limit for one element.
    fn check_rows(
        &self,
        columns: &[(String, Tensors)],
        rows: usize,
        first: u64,
    ) -> Result<(), (usize, Error)> {
        let limit = self.location.limit();
        let all: u64 = columns.iter().map(|(_, column)| bytes(column, 0..rows)).sum();
        if all <= limit.bytes() {
            return Ok(());
        }
        for row in 0..rows {
            let sizes: Vec<u64> = columns.iter().map(|(_, column)| bytes(column, row..row + 1)).collect();
            let largest = sizes.iter().enumerate().max_by_key(|(_, size)| **size).map_or(0, |(at, _)| at);
            let name = format!("row {}", first + row as u64);
            limit.check(&name, sizes.iter().sum()).map_err(|what| {
                let path = self.location.to_string();
                let column = columns.get(largest).map_or(String::new(), |(column, _)| column.clone());
                (row, Error::Column { path, column, what })
            })?;
        }
        Ok(())
    }

    /// Converts columns to one batch: a dictionary of tensors, each with an axis of rows.
    fn batch_of(&self, columns: Columns) -> Result<Tree<Leaf>> {
        let whole = |(name, column)| match column {
            Tensors::Whole(tensor) => Ok((name, Tree::Leaf(Leaf::Host(tensor)))),
            Tensors::Ragged(rows) => {
                let dims = |row: &HostTensor| row.dims().to_vec();
                let first = rows.first().map(dims).unwrap_or_default();
                let other = rows.iter().map(dims).find(|other| *other != first).unwrap_or_default();
                let what = format!(
                    "rows have the shapes {first:?} and {other:?}, and a batch needs one: \
                     `Parquet::dataset` has each row as an element, for `padded_batch`"
                );
                Err(Error::Column { path: self.location.to_string(), column: name, what })
            }
        };
        Ok(Tree::Dict(columns.into_iter().map(whole).collect::<Result<_>>()?))
    }
}

/// Divides row groups into parts. `groups` contains, for each row group, its number of rows and the number of rows to
/// read at a time. If `alone` is `true`, each row group is a separate part, so that a damaged one does not affect the
/// others.
fn parts(groups: &[(u64, usize)], alone: bool) -> Vec<Part> {
    let mut first = 0;
    let all = if alone {
        groups.iter().enumerate().map(|(group, (_, rows))| Run { groups: vec![group], rows: *rows }).collect()
    } else {
        runs(groups.iter().map(|(_, rows)| *rows))
    };
    let part = |run: Run| {
        let rows = run.groups.iter().filter_map(|group| groups.get(*group)).map(|(rows, _)| *rows).sum();
        let part = Part { run, first, rows, within: None };
        first += rows;
        part
    };
    all.into_iter().map(part).collect()
}

/// Calls `f`, and converts an error of the library. A panic also becomes an error, because the library panics on
/// some damaged bytes.
pub(super) fn catch_panics<T>(
    location: &Location,
    f: impl FnOnce() -> ::parquet::errors::Result<T>,
) -> Result<T> {
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
        let batch = self.pull().and_then(|columns| columns.map(|columns| self.batch_of(columns)).transpose());
        self.failed = batch.is_err();
        batch.transpose()
    }
}

impl std::fmt::Debug for Batches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rows {} to {} of {:?}", self.next, self.rows, self.location)
    }
}
