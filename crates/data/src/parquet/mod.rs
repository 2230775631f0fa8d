//! Columns of Parquet files as tensors.
//!
//! | file | what it is |
//! |---|---|
//! | `batches.rs` | the rows of a file, several at a time |
//! | `pages.rs` | the sizes of pages, before they are decompressed |
//! | `thrift.rs` | the format of page headers and footers |
//! | `checksums.rs` | the checksums of pages |
//! | `footer.rs` | checks the footer of a file before the library reads it |
//! | `sizes.rs` | the memory that rows take |
//! | `plan.rs` | the number of rows that are read at a time |
//! | `select.rs` | the columns that are read |
//! | `column.rs` | converts a column of some rows to tensors |
//! | `source.rs` | rows as elements of a dataset |

mod batches;
mod checksums;
mod column;
mod footer;
mod pages;
mod plan;
mod select;
mod sizes;
mod source;
mod thrift;

pub use crate::csv::Column;
pub use batches::Batches;
pub use source::rows;

use crate::broken::Broken;
use crate::{Dataset, DefaultValue, Error, Files, Location, Result, SkippedRecords};
use column::Missing;
use distribute_tensor::HostTensor;
use std::collections::BTreeMap;

/// A reader of Parquet files, with the columns to read and the number of rows at a time.
///
/// | column | tensor |
/// |---|---|
/// | booleans, integers, floats | of their dtype, `[rows]` |
/// | text, bytes | `string`, `[rows]` |
/// | lists of these, all of one length | `[rows, length]` |
/// | lists of different lengths | rows `[length]` in a `dataset`, for [`padded_batch`](Dataset::padded_batch) |
/// | categories (dictionaries) | as their values |
/// | structures | a column for each field: `image.bytes`, `image.path` |
///
/// A row without a value (null) is NaN in a column of floats, as in pandas. In other columns it is an error,
/// unless [`default`](Self::default) or [`mask`](Self::mask) is set. Columns of other types, such as dates,
/// are errors: leave them out with [`columns`](Self::columns). Only the selected columns are decompressed.
///
/// A page whose checksum doesn't match gives an error that names file, column and page. Pages that are
/// compressed with brotli need the feature `brotli`.
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
    columns: Option<Vec<Column>>,
    rows: Option<usize>,
    bytes: Option<u64>,
    missing: BTreeMap<String, Missing>,
    checksums: bool,
    skipped: Option<SkippedRecords>,
}

/// The default number of rows that are read at a time.
const ROWS: usize = 1024;

/// The most bytes that these rows take.
const BYTES: u64 = 16 << 20;

impl Parquet {
    /// Creates a reader of one file. Files in memory and behind URLs are read completely before their first
    /// row. Of local files only the requested parts are read.
    pub fn file(location: impl Into<Location>) -> Self {
        Self::files(location.into())
    }

    /// Creates a reader of several files, for [`dataset`](Self::dataset).
    pub fn files(files: impl Into<Files>) -> Self {
        let (missing, files) = (BTreeMap::new(), files.into());
        Self { files, columns: None, rows: None, bytes: None, missing, checksums: true, skipped: None }
    }

    /// Selects columns, by name or by their position in the file, counted from 0. The default is all columns.
    /// A field of a structure has its path as a name: `image.bytes`. A column given by its position has that
    /// as its name in the result: `"3"`.
    ///
    /// Two columns of one name give [`Error::Column`] if that name is read. By their positions both can be
    /// read.
    pub fn columns<C: Into<Column>>(self, columns: impl IntoIterator<Item = C>) -> Self {
        Self { columns: Some(columns.into_iter().map(Into::into).collect()), ..self }
    }

    /// Sets the number of rows that are read at a time. The last batch may have fewer. Every batch has fewer
    /// if this many texts of a dictionary could exceed the [limit for one element](Location::element_limit),
    /// or if the rows exceed [`bytes`](Self::bytes).
    ///
    /// The default is up to 1024 rows that take up to 16 MiB.
    pub fn rows(self, rows: usize) -> Self {
        Self { rows: Some(rows), ..self }
    }

    /// Sets the bytes of memory that the rows read at a time may take, before they are elements. The default
    /// is 16 MiB, or no limit if [`rows`](Self::rows) is set. A row that takes more is read alone. The memory
    /// is estimated from the sizes of the file's pages.
    ///
    /// The number of rows that are read at a time changes no element of a [`dataset`](Self::dataset), only
    /// memory and time.
    pub fn bytes(self, bytes: u64) -> Self {
        Self { bytes: Some(bytes), ..self }
    }

    /// Sets the value that replaces missing ones (null) in a column, and in its lists. A missing list becomes
    /// an empty one.
    ///
    /// A missing column gives [`Error::NoColumn`], a value of another type [`Error::Column`].
    ///
    /// ```no_run
    /// use distribute_data::parquet::Parquet;
    /// let visits = Parquet::file("visits.parquet").default("age", -1).mask("income", "has_income");
    /// # let _ = visits;
    /// ```
    #[doc(alias = "default_value")]
    pub fn default(mut self, column: impl Into<String>, value: impl Into<DefaultValue>) -> Self {
        self.missing.entry(column.into()).or_default().default = Some(value.into());
        self
    }

    /// Adds a column `name`, `bool` of shape `[rows]`, that is true for the rows of `column` with a value.
    /// Rows without one are zero, `false` or empty, NaN among floats, or the [`default`](Self::default).
    pub fn mask(mut self, column: impl Into<String>, name: impl Into<String>) -> Self {
        self.missing.entry(column.into()).or_default().mask = Some(name.into());
        self
    }

    /// Sets whether the checksums of pages are compared, if the file has any. The default is `true`.
    #[doc(alias = "page_checksum_verification")]
    pub fn checksums(self, checksums: bool) -> Self {
        Self { checksums, ..self }
    }

    /// Skips and counts broken rows: those of damaged pages, those that lack a value without a default, and
    /// those that exceed the [limit for one element](Location::element_limit). If a row group cannot be read
    /// further, but no page is known to be damaged, the rest of its rows are skipped.
    pub fn skip_broken(self, skipped: &SkippedRecords) -> Self {
        Self { skipped: Some(skipped.clone()), ..self }
    }

    /// Reads the footer of the only file and starts at its first row.
    ///
    /// # Errors
    ///
    /// - [`Error::Io`]: the file cannot be read or is no Parquet file.
    /// - [`Error::NoColumn`]: a selected column, or one with a default or mask, doesn't exist.
    /// - [`Error::Feature`]: a column is compressed with brotli, and the feature `brotli` is not enabled.
    /// - [`Error::Damaged`]: a page exceeds the [limit for one element](Location::element_limit).
    /// - [`Error::Column`]: the average row exceeds that limit, two columns have one name, or a column is
    ///   compressed with LZO.
    /// - [`Error::Parameter`]: the number of rows at a time is 0, a mask has the name of another column, or
    ///   there is not exactly one file.
    pub fn open(&self) -> Result<Batches> {
        self.check()?;
        match self.files.iter().as_slice() {
            [file] => self.open_one(file, Broken::of_pass(self.skipped.as_ref())),
            files => Err(Error::Parameter {
                operation: "Parquet::open",
                parameter: "the number of files",
                found: files.len().to_string(),
                expected: "1; `Parquet::dataset` reads several",
            }),
        }
    }

    /// Returns the rows of the files as elements, one file after the other: maps from column to tensor, like
    /// [`rows`].
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

    /// Checks that the parameters are in range.
    fn check(&self) -> Result<()> {
        if self.rows == Some(0) {
            let (operation, parameter) = ("Parquet::rows", "rows");
            return Err(Error::Parameter { operation, parameter, found: "0".into(), expected: "at least 1" });
        }
        let masks: Vec<&String> = self.missing.values().filter_map(|missing| missing.mask.as_ref()).collect();
        match masks
            .iter()
            .enumerate()
            .find(|(at, mask)| masks.iter().skip(at + 1).any(|other| other == *mask))
        {
            None => Ok(()),
            Some((_, mask)) => Err(mask_taken(mask)),
        }
    }

    /// Starts to read one of the files.
    fn open_one(&self, file: &Location, broken: Broken) -> Result<Batches> {
        let bytes = self.bytes.unwrap_or(if self.rows.is_some() { u64::MAX } else { BYTES });
        Batches::open(self, file, (self.rows.unwrap_or(ROWS), bytes), broken)
    }
}

/// Returns the error for a mask with the name of another column.
fn mask_taken(mask: &str) -> Error {
    Error::Parameter {
        operation: "Parquet::mask",
        parameter: "the mask's name",
        found: format!("'{mask}'"),
        expected: "a name that no other column has",
    }
}
