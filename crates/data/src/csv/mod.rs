//! Rows of CSV files as elements.

mod block;
mod file;
mod missing;
mod plain;
mod section;
mod source;

pub use block::ColumnType;

use crate::file_source::threads;
use crate::{Dataset, DefaultValue, Files, Location, Result, SkippedRecords};
use block::Layout;
use distribute_tensor::{HostTensor, Nest};
use file::{Columns, CsvFormat, Dialect};
use missing::MissingFields;
use source::CsvRows;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A reader of CSV: files or bytes in memory, plain or compressed with gzip (which is detected from the first
/// bytes).
///
/// One of [`features`](Csv::features), [`labelled`](Csv::labelled) and [`columns`](Csv::columns) chooses the
/// form of an element and makes the dataset. Each pass reads the files from the beginning, as far as elements
/// are requested. [`Dataset::load`] reads all of it into tensors, of which [`Dataset::from_slices`] makes
/// fast passes with full shuffles.
///
/// A broken row gives [`Error::Csv`](crate::Error::Csv), with file, line and column.
///
/// ```
/// use distribute_data::{Csv, Dataset};
///
/// let digits = Csv::bytes("digits.csv", b"0,7,3\n16,0,8\n").header(false).labelled(2)?;
/// let (images, labels) = digits.load()?;
/// assert_eq!(images.dims(), [2, 2]);
/// assert_eq!(labels.as_slice::<i64>(), Some(&[3i64, 8][..]));
/// let batches = Dataset::from_slices((images, labels))?.shuffle(2, 42).batch(2);
/// # Ok::<(), distribute_data::Error>(())
/// ```
#[doc(alias = "tf.data.experimental.make_csv_dataset")]
#[doc(alias = "tf.data.experimental.CsvDataset")]
#[doc(alias = "CsvDataset")]
#[derive(Clone, Debug)]
pub struct Csv {
    files: Files,
    header: bool,
    dialect: Dialect,
    missing: MissingFields,
    threads: usize,
    skipped: Option<SkippedRecords>,
}

/// A column of a file: its position, counted from 0, or its name (in CSV, the name in the header line).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Column {
    /// The position, counted from 0.
    At(usize),
    /// The name.
    Named(String),
}

impl std::fmt::Display for Column {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Column::At(place) => write!(f, "{place}"),
            Column::Named(name) => f.write_str(name),
        }
    }
}

impl From<usize> for Column {
    fn from(place: usize) -> Self {
        Column::At(place)
    }
}
impl From<&str> for Column {
    fn from(name: &str) -> Self {
        Column::Named(name.into())
    }
}
impl From<String> for Column {
    fn from(name: String) -> Self {
        Column::Named(name)
    }
}

impl Csv {
    /// Reads a file.
    pub fn file(location: impl Into<Location>) -> Self {
        Self::files(location.into())
    }

    /// Reads files one after the other: a list, or the result of [`Files::glob`]. If there are header lines,
    /// all files must have the same one. Files of 0 bytes, such as Spark writes, have neither header nor
    /// rows.
    pub fn files(files: impl Into<Files>) -> Self {
        let dialect = Dialect { delimiter: b',', quoting: true };
        let (files, missing) = (files.into(), MissingFields::default());
        Self { files, header: true, dialect, missing, threads: threads(), skipped: None }
    }

    /// Reads bytes in memory, such as those of `include_bytes!`. `name` is used in errors.
    pub fn bytes(name: impl Into<String>, bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        Self::file(Location::bytes(name, bytes))
    }

    /// Sets whether the first line names the columns. The default is `true`.
    pub fn header(self, header: bool) -> Self {
        Self { header, ..self }
    }

    /// Sets the byte between fields: a comma by default, `b'\t'` for TSV.
    #[doc(alias = "field_delim")]
    pub fn delimiter(self, delimiter: u8) -> Self {
        Self { dialect: Dialect { delimiter, ..self.dialect }, ..self }
    }

    /// Sets whether fields may be quoted, and then contain delimiters and line endings. The default is
    /// `true`. With `false` a quote is text, as many writers of TSV intend.
    ///
    /// A quote that is never closed gives [`Error::Csv`](crate::Error::Csv), with the line on which its row
    /// begins.
    #[doc(alias = "use_quote_delim")]
    pub fn quoting(self, quoting: bool) -> Self {
        Self { dialect: Dialect { quoting, ..self.dialect }, ..self }
    }

    /// Sets the value of empty fields of a column. Without it, such a field is an error, or text of no bytes.
    ///
    /// A value that is not of the column's type gives [`Error::Parameter`](crate::Error::Parameter) when the
    /// dataset is made.
    ///
    /// ```
    /// use distribute_data::Csv;
    ///
    /// let rows = Csv::bytes("a.csv", "x,y\n1,\n,NA\n").default("x", 0.5).default("y", -1).missing("NA");
    /// let (x, y) = rows.labelled("y")?.load()?;
    /// assert_eq!(x.as_slice::<f32>(), Some(&[1.0, 0.5][..]));
    /// assert_eq!(y.as_slice::<i64>(), Some(&[-1, -1][..]));
    /// # Ok::<(), distribute_data::Error>(())
    /// ```
    #[doc(alias = "record_defaults")]
    #[doc(alias = "column_defaults")]
    pub fn default(mut self, column: impl Into<Column>, value: impl Into<DefaultValue>) -> Self {
        self.missing.columns.push((column.into(), value.into()));
        self
    }

    /// Sets the value of empty fields of all columns of a matching type that have no
    /// [`default`](Self::default).
    pub fn default_of_all(mut self, value: impl Into<DefaultValue>) -> Self {
        self.missing.all = Some(value.into());
        self
    }

    /// Adds a text that marks a missing value, like an empty field: `NA`. It applies to columns that have a
    /// default.
    #[doc(alias = "na_value")]
    pub fn missing(mut self, text: impl Into<Vec<u8>>) -> Self {
        self.missing.texts.push(text.into());
        self
    }

    /// Skips and counts broken rows: those with fields that are not of their column's type, and those that
    /// are wider or narrower than the first row. A quote that is never closed, or a row that is too long,
    /// ends the file.
    #[doc(alias = "ignore_errors")]
    pub fn skip_broken(self, skipped: &SkippedRecords) -> Self {
        Self { skipped: Some(skipped.clone()), ..self }
    }

    /// Sets the number of threads that parse rows: by default the number of cores, up to 8. 1 starts no
    /// thread. The order of rows is always that in the files.
    pub fn threads(self, threads: usize) -> Self {
        Self { threads, ..self }
    }

    /// Makes a dataset of rows of numbers: `float32` of shape `[columns]`.
    ///
    /// # Errors
    ///
    /// [`labelled`](Self::labelled) and [`columns`](Self::columns) return these errors as well.
    /// - [`Error::Io`](crate::Error::Io): the first line of the first file cannot be read.
    /// - [`Error::Empty`](crate::Error::Empty): there is no file.
    /// - [`Error::Damaged`](crate::Error::Damaged): the first row exceeds the [limit for one
    ///   element](Location::element_limit).
    /// - [`Error::NoColumn`](crate::Error::NoColumn): a column with a [`default`](Self::default) doesn't
    ///   exist.
    /// - [`Error::Parameter`](crate::Error::Parameter): a default is not of its column's type.
    pub fn features(self) -> Result<Dataset<HostTensor>> {
        self.dataset(|_| Ok(Layout::Features))
    }

    /// Makes a dataset of (features, label): all other columns as `float32` of shape `[columns - 1]`, and the
    /// column `label` as `int64`.
    ///
    /// # Errors
    ///
    /// - [`Error::NoColumn`](crate::Error::NoColumn): there is no column `label`.
    /// - [`Error::Csv`](crate::Error::Csv): two columns have the name `label`.
    /// - Any error of [`features`](Self::features).
    #[doc(alias = "label_name")]
    pub fn labelled(self, label: impl Into<Column>) -> Result<Dataset<(HostTensor, i64)>> {
        let label = label.into();
        self.dataset(|columns| Ok(Layout::Labelled { label: columns.find(&label)? }))
    }

    /// Makes a dataset of maps from name to scalar, with the given columns and types. Other columns are left
    /// out. A column given by its position has that as its name in the map: `"3"`.
    ///
    /// # Errors
    ///
    /// - [`Error::NoColumn`](crate::Error::NoColumn): a column doesn't exist.
    /// - [`Error::Csv`](crate::Error::Csv): two columns have the requested name.
    /// - Any error of [`features`](Self::features).
    ///
    /// ```
    /// use distribute_data::csv::{ColumnType, Csv};
    ///
    /// let rows = Csv::bytes("packages.tsv", b"package\tsize\tsection\n0ad\t20\tgames\n").delimiter(b'\t');
    /// let rows = rows.columns([("package", ColumnType::Text), ("size", ColumnType::F32)])?;
    /// let row = rows.iter().next().unwrap()?;
    /// assert_eq!(row["package"].as_slice::<Vec<u8>>(), Some(&[b"0ad".to_vec()][..]));
    /// assert_eq!(row["size"].as_slice::<f32>(), Some(&[20f32][..]));
    /// # Ok::<(), distribute_data::Error>(())
    /// ```
    #[doc(alias = "select_columns")]
    pub fn columns<C: Into<Column>>(
        self,
        columns: impl IntoIterator<Item = (C, ColumnType)>,
    ) -> Result<Dataset<BTreeMap<String, HostTensor>>> {
        let wanted: Vec<(Column, ColumnType)> = columns.into_iter().map(|(c, t)| (c.into(), t)).collect();
        self.dataset(|columns| {
            let mut found = Vec::new();
            for (column, kind) in &wanted {
                let name = match column {
                    Column::At(place) => place.to_string(),
                    Column::Named(name) => name.clone(),
                };
                found.push((name, columns.find(column)?, *kind));
            }
            Ok(Layout::Columns(found))
        })
    }

    fn dataset<T: Nest>(self, layout: impl FnOnce(&Columns) -> Result<Layout>) -> Result<Dataset<T>> {
        let Self { files, header, dialect, missing, threads, skipped } = self;
        let format = Arc::new(CsvFormat::look(&files, header, dialect, &missing, layout)?);
        Ok(Dataset::of_files(files, CsvRows { format, threads, skipped }))
    }
}
