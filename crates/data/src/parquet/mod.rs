//! Columns of Parquet files as tensors.
//!
//! | file | what it is |
//! |---|---|
//! | `batches.rs` | the rows of a file, some at a time |
//! | `pages.rs` | how large pages are, before they are unpacked |
//! | `plan.rs` | how many rows are read at a time |
//! | `column.rs` | a column of some rows as a tensor |
//! | `source.rs` | rows as elements of a dataset |

mod batches;
mod column;
mod pages;
mod plan;
mod source;

pub use batches::Batches;
pub use source::rows;

use crate::{Dataset, Error, Files, Location, Result};
use distribute_tensor::HostTensor;
use std::collections::BTreeMap;

/// A reader of Parquet files: which columns, and how many rows at a time.
///
/// | column | tensor |
/// |---|---|
/// | booleans, integers, floats | of their dtype, `[rows]` |
/// | text, bytes | `string`, `[rows]` |
/// | lists of these, all of one length | `[rows, length]` |
/// | categories (dictionaries) | as what they stand for |
///
/// A row without a value (null) is NaN in a column of floats, as in pandas, and an error in others. Columns of other
/// types, such as dates, are errors: leave them out with [`columns`](Self::columns). Nothing is unpacked but the
/// columns that are read.
///
/// ```no_run
/// use distribute_data::parquet::Parquet;
/// use distribute_tensor::Tree;
///
/// for batch in Parquet::file("train.parquet").columns(["image", "label"]).rows(256).open()? {
///     let Tree::Dict(columns) = batch? else { unreachable!() };
///     println!("{:?}", columns["label"]);
/// }
/// # Ok::<(), distribute_data::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Parquet {
    files: Files,
    columns: Option<Vec<String>>,
    rows: Option<usize>,
    bytes: Option<u64>,
}

/// The number of rows that are read at a time by default.
const ROWS: usize = 1024;

/// The most bytes that these take.
const BYTES: u64 = 16 << 20;

impl Parquet {
    /// A file. From memory and from URLs all of it is read before its first row; from local paths no more than is
    /// asked for.
    pub fn file(location: impl Into<Location>) -> Self {
        Self::files(location.into())
    }

    /// Several files, for [`dataset`](Self::dataset).
    pub fn files(files: impl Into<Files>) -> Self {
        Self { files: files.into(), columns: None, rows: None, bytes: None }
    }

    /// Only these columns, by name; all by default.
    pub fn columns<C: Into<String>>(self, columns: impl IntoIterator<Item = C>) -> Self {
        Self { columns: Some(columns.into_iter().map(Into::into).collect()), ..self }
    }

    /// Sets how many rows are read at a time. The last batch may have fewer, and so has each if so many texts of a
    /// dictionary could take more than [one element may](Location::element_limit), or more than [`bytes`](Self::bytes)
    /// where these are set.
    ///
    /// By default up to 1024, as many as take 16 MiB.
    pub fn rows(self, rows: usize) -> Self {
        Self { rows: Some(rows), ..self }
    }

    /// Sets how many bytes of memory the rows that are read at a time may take, before they are elements: 16 MiB unless
    /// this or [`rows`](Self::rows) is set. A row that takes more is read alone. How much rows take is estimated from the
    /// sizes of the file's pages.
    ///
    /// How many rows are read at a time changes no element of a [`dataset`](Self::dataset), only memory and time.
    pub fn bytes(self, bytes: u64) -> Self {
        Self { bytes: Some(bytes), ..self }
    }

    /// Reads the description of the only file and starts at its first row.
    ///
    /// # Errors
    ///
    /// - [`Error::Io`]: the file cannot be read or is no Parquet file.
    /// - [`Error::NoColumn`]: there is no such column.
    /// - [`Error::Damaged`], [`Error::Column`]: a page or the average row takes more than
    ///   [one element may](Location::element_limit).
    /// - [`Error::Parameter`]: batches shall have 0 rows, or there is not exactly one file.
    pub fn open(&self) -> Result<Batches> {
        self.check()?;
        match self.files.iter().as_slice() {
            [file] => self.open_one(file),
            files => Err(Error::Parameter {
                operation: "Parquet::open",
                parameter: "the number of files",
                found: files.len().to_string(),
                expected: "1; `Parquet::dataset` reads several",
            }),
        }
    }

    /// The rows of the files as elements, one file after the other: maps from column to tensor, as [`rows`] reads them.
    ///
    /// 0 rows at a time give [`Error::Parameter`] in the pass.
    ///
    /// ```no_run
    /// use distribute_data::{Files, parquet::Parquet};
    /// let scans = Parquet::files(Files::glob("scans-*.parquet")?).columns(["scan"]).bytes(256 << 20).dataset();
    /// # Ok::<(), distribute_data::Error>(())
    /// ```
    pub fn dataset(self) -> Dataset<BTreeMap<String, HostTensor>> {
        source::dataset(self)
    }

    /// Checks that its parameters are in their ranges.
    fn check(&self) -> Result<()> {
        if self.rows == Some(0) {
            let (operation, parameter) = ("Parquet::rows", "rows");
            return Err(Error::Parameter { operation, parameter, found: "0".into(), expected: "at least 1" });
        }
        Ok(())
    }

    /// Starts to read one of the files.
    fn open_one(&self, file: &Location) -> Result<Batches> {
        let bytes = self.bytes.unwrap_or(if self.rows.is_some() { u64::MAX } else { BYTES });
        Batches::open(file, self.columns.as_deref(), self.rows.unwrap_or(ROWS), bytes)
    }
}
