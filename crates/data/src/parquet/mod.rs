//! Columns of Parquet files as tensors.
//!
//! | file | what it is |
//! |---|---|
//! | `batches.rs` | an iterator over the rows of a file, several at a time |
//! | `pages.rs` | the sizes of pages, before they are decompressed |
//! | `thrift.rs` | the format of page headers and footers |
//! | `checksums.rs` | the checksums of pages |
//! | `footer.rs` | the check of a file's footer before the library reads it |
//! | `sizes.rs` | the memory that rows take |
//! | `plan.rs` | the number of rows that are read at a time |
//! | `select.rs` | the columns that are read |
//! | `column.rs` | the conversion of a column of some rows to tensors |
//! | `source.rs` | the source of rows for a dataset |

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

/// A reader of Parquet files, which selects the columns to read and the number of rows to read at a time.
///
/// | column | tensor |
/// |---|---|
/// | booleans, integers, floats | the same dtype, `[rows]` |
/// | text, bytes | `string`, `[rows]` |
/// | lists of these, all of the same length | `[rows, length]` |
/// | lists of different lengths | rows `[length]` in a `dataset`, for [`padded_batch`](Dataset::padded_batch) |
/// | categories (dictionaries) | like their values |
/// | structures | a column for each field: `image.bytes`, `image.path` |
///
/// A row without a value (null) is NaN in a column of floats, as in pandas. In other columns it is an error,
/// unless [`default`](Self::default) or [`mask`](Self::mask) is set. Columns of other types, such as dates, are
/// errors; select other columns with [`columns`](Self::columns). Only the selected columns are decompressed.
///
/// A page whose checksum does not match results in an error with the file, the column and the page. Pages that are
/// compressed with brotli require the feature `brotli`.
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
#[must_use = "a source reads nothing until a dataset is made of it"]
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

/// The default limit, in bytes, on the memory of the rows that are read at a time.
const BYTES: u64 = 16 << 20;

impl Parquet {
    /// Creates a reader of one file. Files in memory and behind URLs are read completely before their first row
    /// is returned. Of local files, only the requested parts are read.
    pub fn file(location: impl Into<Location>) -> Self {
        Self::files(location.into())
    }

    /// Creates a reader of several files, for [`dataset`](Self::dataset).
    pub fn files(files: impl Into<Files>) -> Self {
        let (missing, files) = (BTreeMap::new(), files.into());
        Self { files, columns: None, rows: None, bytes: None, missing, checksums: true, skipped: None }
    }

    /// Selects the columns to read, by name or by index in the file, counted from 0. The default is all columns.
    /// The name of a structure's field is its path, such as `image.bytes`. A column that is given by its index
    /// has the index as its name in the result, such as `"3"`.
    ///
    /// If two columns have the same name, selecting that name results in [`Error::Column`]. Both can be selected by
    /// their indices.
    pub fn columns<C: Into<Column>>(self, columns: impl IntoIterator<Item = C>) -> Self {
        Self { columns: Some(columns.into_iter().map(Into::into).collect()), ..self }
    }

    /// Sets the number of rows that are read at a time. The last batch may have fewer. The batches of a row group have
    /// fewer if this number of texts from its dictionaries could exceed the [limit for one
    /// element](Location::element_limit), or if the rows would exceed [`bytes`](Self::bytes).
    ///
    /// The default is up to 1024 rows, which take up to 16 MiB.
    pub fn rows(self, rows: usize) -> Self {
        Self { rows: Some(rows), ..self }
    }

    /// Sets the maximum memory in bytes of the rows that are read at a time, before they become elements. The
    /// default is 16 MiB, or no limit if [`rows`](Self::rows) is set. A row that takes more is read alone. The
    /// memory is estimated from the sizes of the file's pages.
    ///
    /// The number of rows that are read at a time does not affect the elements of a [`dataset`](Self::dataset),
    /// only memory and time.
    pub fn bytes(self, bytes: u64) -> Self {
        Self { bytes: Some(bytes), ..self }
    }

    /// Sets the value that replaces missing values (null) in a column, and in its lists. A missing list becomes
    /// an empty list.
    ///
    /// If the column does not exist, reading returns [`Error::NoColumn`]. If the value has a different type, the first
    /// missing value results in [`Error::Column`].
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

    /// Adds a mask column `name`, `bool` of shape `[rows]`. It is true for rows that have a value in `column`. In
    /// rows without one, `column` is the [`default`](Self::default) if it is set; otherwise NaN for floats, and
    /// zero, `false` or empty for other types.
    pub fn mask(mut self, column: impl Into<String>, name: impl Into<String>) -> Self {
        self.missing.entry(column.into()).or_default().mask = Some(name.into());
        self
    }

    /// Disables the comparison of page checksums. By default they are compared, if the file has any.
    #[doc(alias = "page_checksum_verification")]
    pub fn skip_checksums(self) -> Self {
        Self { checksums: false, ..self }
    }

    /// Skips and counts broken rows: rows in damaged pages, rows that cannot become tensors (such as those that lack a
    /// value without a default), and rows that exceed the [limit for one element](Location::element_limit). If the rest
    /// of a row group cannot be read, but no page is known to be damaged, the remaining rows of the group are skipped.
    pub fn skip_broken(self, skipped: &SkippedRecords) -> Self {
        Self { skipped: Some(skipped.clone()), ..self }
    }

    /// Opens the only file, and returns an iterator over its rows.
    ///
    /// # Errors
    ///
    /// - [`Error::Io`]: the file cannot be read, or is not a Parquet file.
    /// - [`Error::NoColumn`]: a selected column, or one with a default or mask, does not exist.
    /// - [`Error::Feature`]: a column is compressed with brotli, but the feature `brotli` is not enabled; or the
    ///   location is a URL, but the feature `object-store` is not enabled.
    /// - [`Error::Damaged`]: a page exceeds the [limit for one element](Location::element_limit).
    /// - [`Error::Column`]: the average row exceeds that limit, two selected columns have the same name, or a
    ///   column is compressed with LZO.
    /// - [`Error::Parameter`]: the number of rows at a time is 0, a mask has the name of another column, or the
    ///   reader does not have exactly one file.
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

    /// Creates a dataset of the rows of the files, one file after the other. Elements are maps from column names
    /// to tensors, as in [`rows`].
    ///
    /// If the number of rows at a time is 0, or a mask has the name of another column, the pass returns
    /// [`Error::Parameter`].
    ///
    /// ```no_run
    /// use distribute_data::{Files, parquet::Parquet};
    /// let scans = Parquet::files(Files::glob("scans-*.parquet")?).columns(["scan"]).bytes(256 << 20).dataset();
    /// # Ok::<(), distribute_data::Error>(())
    /// ```
    pub fn dataset(self) -> Dataset<BTreeMap<String, HostTensor>> {
        source::dataset(self)
    }

    /// Checks that the parameters of the reader are in range.
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

    /// Opens one of the files, and returns an iterator over its rows.
    fn open_one(&self, file: &Location, broken: Broken) -> Result<Batches> {
        let bytes = self.bytes.unwrap_or(if self.rows.is_some() { u64::MAX } else { BYTES });
        Batches::open(self, file, (self.rows.unwrap_or(ROWS), bytes), broken)
    }
}

/// Creates the error for a mask with the name of another column.
fn mask_taken(mask: &str) -> Error {
    Error::Parameter {
        operation: "Parquet::mask",
        parameter: "the mask's name",
        found: format!("'{mask}'"),
        expected: "a name that no other column has",
    }
}
