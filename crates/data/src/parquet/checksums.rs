//! The verification of the checksums of pages.
//!
//! The library compares checksums only with a feature, and its errors contain neither the column nor the page. The
//! checksum of a page is therefore compared here when the library reads it. Pages are identified by the positions and
//! lengths in their headers.

use super::pages::Page;
use crate::{Error, Location};
use ::parquet::errors::ParquetError;
use ::parquet::file::reader::{ChunkReader, Length};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// A page that has a checksum.
#[derive(Clone, Debug, PartialEq)]
struct Checked {
    len: u64,
    checksum: u32,
    column: Arc<str>,
    group: usize,
    /// The index of the page in its column of the row group; `None` for a dictionary page.
    page: Option<usize>,
    /// The range of the page's rows within the row group: all rows for a dictionary, or if the column has lists.
    rows: Range<u64>,
}

/// The pages of a file that have checksums, by the offset of their bytes.
#[derive(Debug, Default)]
pub(super) struct Checksums {
    pages: BTreeMap<u64, Checked>,
    /// The offset of the damaged page that the library tried to read last; `None` if there is none.
    refused: Mutex<Option<u64>>,
}

/// A column of a row group, whose pages are being added.
pub(super) struct Adding<'a> {
    all: &'a mut Checksums,
    column: Arc<str>,
    group: usize,
    /// The number of rows of the row group.
    rows: u64,
    /// Whether each value is one row, that is, the column has no lists.
    flat: bool,
    pages: usize,
    values: u64,
}

impl Checksums {
    pub(super) fn column(&mut self, column: String, group: usize, rows: u64, flat: bool) -> Adding<'_> {
        Adding { all: self, column: column.into(), group, rows, flat, pages: 0, values: 0 }
    }

    fn take_refused(&self) -> Option<u64> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Returns the error for the damaged page that the library tried to read last, and forgets the page; `None` if
    /// there is none.
    pub(super) fn error(&self, location: &Location) -> Option<Error> {
        let at = self.take_refused()?;
        Some(damaged(location, at, self.pages.get(&at)?))
    }

    /// Returns the ranges of rows of a row group that have a damaged page, each with the error.
    pub(super) fn broken_rows(
        &self,
        location: &Location,
        file: &impl ChunkReader,
        group: usize,
    ) -> Vec<(Range<u64>, Error)> {
        let broken = |(at, page): &(&u64, &Checked)| {
            file.get_bytes(**at, page.len as usize).is_ok_and(|bytes| !page.is_complete(&bytes))
        };
        let found = self.pages.iter().filter(|(_, page)| page.group == group).filter(broken);
        found.map(|(at, page)| (page.rows.clone(), damaged(location, *at, page))).collect()
    }
}

impl Adding<'_> {
    /// Adds a page. `at` is the offset of its bytes in the file.
    pub(super) fn add(&mut self, at: u64, page: &Page) {
        let rows = if self.flat && !page.dictionary {
            self.values.min(self.rows)..self.values.saturating_add(page.values).min(self.rows)
        } else {
            0..self.rows
        };
        let number = (!page.dictionary).then_some(self.pages);
        if !page.dictionary {
            self.pages += 1;
            self.values = self.values.saturating_add(page.values);
        }
        if let Some(checksum) = page.checksum {
            let (column, group) = (self.column.clone(), self.group);
            let checked = Checked { len: page.packed, checksum, column, group, page: number, rows };
            self.all.pages.insert(at, checked);
        }
    }
}

impl Checked {
    fn is_complete(&self, bytes: &[u8]) -> bool {
        let mut found = flate2::Crc::new();
        found.update(bytes);
        found.sum() == self.checksum
    }
}

fn damaged(location: &Location, at: u64, page: &Checked) -> Error {
    let (column, group) = (&page.column, page.group);
    let page = page.page.map_or("the dictionary".to_string(), |number| format!("page {number}"));
    let what = format!(
        "{page} of column '{column}' in row group {group} has another checksum than the stored one: the \
         file is damaged; `Parquet::skip_broken` leaves its rows out, `Parquet::skip_checksums` reads it as \
         it is"
    );
    Error::Damaged { path: location.to_string(), offset: at, what }
}

/// A file that the library reads. The checksums of its pages are compared before the library receives the bytes.
pub(super) struct Shared<F> {
    pub(super) file: Arc<F>,
    pub(super) checksums: Arc<Checksums>,
}

impl<F: ChunkReader> Length for Shared<F> {
    fn len(&self) -> u64 {
        self.file.len()
    }
}

impl<F: ChunkReader> ChunkReader for Shared<F> {
    type T = F::T;

    fn get_read(&self, start: u64) -> ::parquet::errors::Result<F::T> {
        self.file.get_read(start)
    }

    fn get_bytes(&self, start: u64, length: usize) -> ::parquet::errors::Result<Bytes> {
        let bytes = self.file.get_bytes(start, length)?;
        match self.checksums.pages.get(&start) {
            Some(page) if page.len == length as u64 && !page.is_complete(&bytes) => {
                *self.checksums.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(start);
                Err(ParquetError::General("a page has another checksum".into()))
            }
            _ => Ok(bytes),
        }
    }
}
