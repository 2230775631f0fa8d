//! Columns of Parquet files as tensors.
//!
//! | file | what it is |
//! |---|---|
//! | `batches.rs` | the rows of a file, some at a time |
//! | `pages.rs` | how large pages are, before they are unpacked |
//! | `thrift.rs` | the format of their headers |
//! | `checksums.rs` | pages whose bytes are damaged |
//! | `footer.rs` | the description of a file, looked at before the library reads it |
//! | `sizes.rs` | the memory that rows take |
//! | `plan.rs` | how many rows are read at a time |
//! | `select.rs` | which columns are read |
//! | `column.rs` | a column of some rows as tensors |
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

/// A reader of Parquet files: which columns, and how many rows at a time.
///
/// | column | tensor |
/// |---|---|
/// | booleans, integers, floats | of their dtype, `[rows]` |
/// | text, bytes | `string`, `[rows]` |
/// | lists of these, all of one length | `[rows, length]` |
/// | lists of different lengths | in a [`dataset`](Self::dataset), for [`padded_batch`](Dataset::padded_batch): each row `[length]` |
/// | categories (dictionaries) | as what they stand for |
/// | structures | a column for each field: `image.bytes`, `image.path` |
///
/// A row without a value (null) is NaN in a column of floats, as in pandas, and an error in others unless
/// [`default`](Self::default) or [`mask`](Self::mask) say what it is. Columns of other types, such as dates,
/// are errors: leave them out with [`columns`](Self::columns). Nothing is unpacked but the columns that are
/// read.
///
/// A page with another checksum than was stored with it is an error that names file, column and page. Pages
/// that are compressed with brotli need the feature `brotli`.
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

/// The number of rows that are read at a time by default.
const ROWS: usize = 1024;

/// The most bytes that these take.
const BYTES: u64 = 16 << 20;

impl Parquet {
    /// Creates a file. From memory and from URLs all of it is read before its first row; from local paths no
    /// more than is asked for.
    pub fn file(location: impl Into<Location>) -> Self {
        Self::files(location.into())
    }

    /// Several files, for [`dataset`](Self::dataset).
    pub fn files(files: impl Into<Files>) -> Self {
        let (missing, files) = (BTreeMap::new(), files.into());
        Self { files, columns: None, rows: None, bytes: None, missing, checksums: true, skipped: None }
    }

    /// Selects columns, by name or by their place in the file, from 0 on; all by default. A field of a
    /// structure has its path as a name: `image.bytes`. A column that is given by its place is named so in
    /// the result: `"3"`.
    ///
    /// Two columns of one name give [`Error::Column`] if that name is read; by their places both are.
    pub fn columns<C: Into<Column>>(self, columns: impl IntoIterator<Item = C>) -> Self {
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

    /// Sets how many bytes of memory the rows that are read at a time may take, before they are elements: 16
    /// MiB unless this or [`rows`](Self::rows) is set. A row that takes more is read alone. How much rows
    /// take is estimated from the sizes of the file's pages.
    ///
    /// How many rows are read at a time changes no element of a [`dataset`](Self::dataset), only memory and
    /// time.
    pub fn bytes(self, bytes: u64) -> Self {
        Self { bytes: Some(bytes), ..self }
    }

    /// Sets the value that stands in for missing ones (null) in a column, and in its lists. A list that is
    /// missing is an empty one.
    ///
    /// A column that isn't there gives [`Error::NoColumn`], a value of another type [`Error::Column`].
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

    /// Adds a column of this name, `bool` of shape `[rows]`, that says which rows of a column have a value.
    /// The others are zero, `false` or empty, NaN among floats, or the [`default`](Self::default).
    pub fn mask(mut self, column: impl Into<String>, name: impl Into<String>) -> Self {
        self.missing.entry(column.into()).or_default().mask = Some(name.into());
        self
    }

    /// Sets whether the checksums of pages are compared, if the file has any; they are by default.
    #[doc(alias = "page_checksum_verification")]
    pub fn checksums(self, checksums: bool) -> Self {
        Self { checksums, ..self }
    }

    /// Skips and counts broken rows: those of damaged pages, those without a value for which there is no
    /// default, and those that take more than [one element may](Location::element_limit). If no page is known
    /// to be damaged but a row group cannot be read on, the rest of its rows are skipped.
    pub fn skip_broken(self, skipped: &SkippedRecords) -> Self {
        Self { skipped: Some(skipped.clone()), ..self }
    }

    /// Reads the description of the only file and starts at its first row.
    ///
    /// # Errors
    ///
    /// - [`Error::Io`]: the file cannot be read or is no Parquet file.
    /// - [`Error::NoColumn`]: there is no such column.
    /// - [`Error::Feature`]: a column is compressed with brotli, and the feature `brotli` is not enabled.
    /// - [`Error::Damaged`], [`Error::Column`]: a page or the average row takes more than
    ///   [one element may](Location::element_limit); [`Error::Column`]: two columns have one name.
    /// - [`Error::Parameter`]: batches shall have 0 rows, or there is not exactly one file.
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

    /// Returns the rows of the files as elements, one file after the other: maps from column to tensor, as
    /// [`rows`] reads them.
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

/// Returns the error for a mask that has another column's name.
fn mask_taken(mask: &str) -> Error {
    Error::Parameter {
        operation: "Parquet::mask",
        parameter: "the mask's name",
        found: format!("'{mask}'"),
        expected: "a name that no other column has",
    }
}
