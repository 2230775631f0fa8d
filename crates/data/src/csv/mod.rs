//! A source that reads rows of CSV files.
//!
//! | module | contents |
//! |---|---|
//! | `file` | opens files, and finds their columns |
//! | `source` | reads files in sections of complete rows |
//! | `section`, `plain` | parse a section: any rows; rows of numbers without quotes |
//! | `block`, `missing` | columns of tensors that collect rows; fields without a value |

mod block;
mod file;
mod missing;
mod plain;
mod section;
mod source;

pub use block::ColumnType;

use crate::file_source::threads;
use crate::{Dataset, DefaultValue, Error, Files, Location, Result, SkippedRecords};
use block::Layout;
use distribute_tensor::{HostTensor, Nest};
use file::{Columns, CsvFormat, Dialect};
use missing::MissingFields;
use source::CsvRows;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A reader of CSV files or bytes in memory. They may be compressed with gzip, which is detected from the first
/// bytes.
///
/// One of [`features`](Csv::features), [`labelled`](Csv::labelled) and [`columns`](Csv::columns) selects the form of an
/// element and creates the dataset. Each pass reads the files from the beginning, in sections, as elements are
/// requested. [`Dataset::load`] reads everything into tensors. A dataset of these ([`Dataset::from_slices`]) has fast
/// passes and can be shuffled completely.
///
/// A broken row results in [`Error::Csv`] with the file, the line and the column.
///
/// ```
/// use distribute_data::{Csv, Dataset};
///
/// let digits = Csv::bytes("digits.csv", b"0,7,3\n16,0,8\n").without_header().labelled(2)?;
/// let (images, labels) = digits.load()?;
/// assert_eq!(images.dims(), [2, 2]);
/// assert_eq!(labels.as_slice::<i64>(), Some(&[3i64, 8][..]));
/// let batches = Dataset::from_slices((images, labels))?.shuffle(2, 42).batch(2);
/// # Ok::<(), distribute_data::Error>(())
/// ```
#[doc(alias = "tf.data.experimental.make_csv_dataset")]
#[doc(alias = "tf.data.experimental.CsvDataset")]
#[doc(alias = "CsvDataset")]
#[must_use = "a source reads nothing until a dataset is made of it"]
#[derive(Clone, Debug)]
pub struct Csv {
    files: Files,
    header: bool,
    dialect: Dialect,
    missing: MissingFields,
    threads: usize,
    skipped: Option<SkippedRecords>,
}

/// A column of a file: its index, counted from 0, or its name (in CSV, the name in the header line).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Column {
    /// The index of the column, counted from 0.
    At(usize),
    /// The name of the column.
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
    /// Creates a reader of a single file.
    pub fn file(location: impl Into<Location>) -> Self {
        Self::files(location.into())
    }

    /// Creates a reader of several files, given as a list or as the result of [`Files::glob`]. The files are read one
    /// after the other. If there are header lines, all files must have the same one. Empty files, which Spark may
    /// write, need no header and have no rows.
    pub fn files(files: impl Into<Files>) -> Self {
        let dialect = Dialect { delimiter: b',', quoting: true };
        let (files, missing) = (files.into(), MissingFields::default());
        Self { files, header: true, dialect, missing, threads: threads(), skipped: None }
    }

    /// Creates a reader of bytes in memory, such as those of `include_bytes!`. Errors contain `name`.
    pub fn bytes(name: impl Into<String>, bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        Self::file(Location::bytes(name, bytes))
    }

    /// Treats the first line as a row. By default, it contains the names of the columns.
    pub fn without_header(self) -> Self {
        Self { header: false, ..self }
    }

    /// Sets the byte that separates fields. The default is a comma; use `b'\t'` for TSV.
    #[doc(alias = "field_delim")]
    pub fn delimiter(self, delimiter: u8) -> Self {
        Self { dialect: Dialect { delimiter, ..self.dialect }, ..self }
    }

    /// Treats quotes as ordinary text, as many programs that write TSV intend.
    ///
    /// By default, fields may be quoted, and may then contain delimiters and line endings. A quote that is never closed
    /// results in [`Error::Csv`], with the line on which its row begins.
    #[doc(alias = "use_quote_delim")]
    pub fn without_quoting(self) -> Self {
        Self { dialect: Dialect { quoting: false, ..self.dialect }, ..self }
    }

    /// Sets the value that replaces empty fields of a column. Without it, an empty field is an error, or an empty
    /// string in a text column.
    ///
    /// A value that does not have the column's type results in [`Error::Parameter`] when the dataset is created.
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

    /// Sets the value that replaces empty fields in all columns of a matching type that have no
    /// [`default`](Self::default).
    pub fn default_of_all(mut self, value: impl Into<DefaultValue>) -> Self {
        self.missing.all = Some(value.into());
        self
    }

    /// Adds a text, such as `NA`, that marks a value as missing like an empty field. It applies only to columns
    /// that have a default.
    #[doc(alias = "na_value")]
    pub fn missing(mut self, text: impl Into<Vec<u8>>) -> Self {
        self.missing.texts.push(text.into());
        self
    }

    /// Skips and counts broken rows: rows with fields that do not have their column's type, and rows that have
    /// more or fewer fields than the first row. A quote that is never closed, or a row that is too long, ends the
    /// file.
    #[doc(alias = "ignore_errors")]
    pub fn skip_broken(self, skipped: &SkippedRecords) -> Self {
        Self { skipped: Some(skipped.clone()), ..self }
    }

    /// Sets the number of threads that parse rows. The default is the number of cores, up to 8. With 1, no thread is
    /// started. More than 1024 result in [`Error::Parameter`] in the pass. Rows are always in the order of the files.
    pub fn threads(self, threads: usize) -> Self {
        Self { threads, ..self }
    }

    /// Creates a dataset of rows of numbers, as `float32` of shape `[columns]`.
    ///
    /// # Errors
    ///
    /// [`labelled`](Self::labelled) and [`columns`](Self::columns) return these errors as well.
    /// - [`Error::Io`]: the first row cannot be read.
    /// - [`Error::Feature`]: a file is compressed or at a URL, and the feature for that is not enabled.
    /// - [`Error::Empty`]: the list of files is empty.
    /// - [`Error::Damaged`]: the first row exceeds the [limit for one element](Location::element_limit).
    /// - [`Error::NoColumn`]: a column with a [`default`](Self::default) does not exist.
    /// - [`Error::Csv`]: two columns have the name of a column with a [`default`](Self::default).
    /// - [`Error::Parameter`]: a default does not have its column's type.
    pub fn features(self) -> Result<Dataset<HostTensor>> {
        self.dataset(|_| Ok(Layout::Features))
    }

    /// Creates a dataset of pairs of features and a label: the column `label` as `int64`, and all other columns
    /// as `float32` of shape `[columns - 1]`.
    ///
    /// # Errors
    ///
    /// - [`Error::NoColumn`]: there is no column `label`.
    /// - [`Error::Csv`]: two columns have the name of the label.
    /// - Any error of [`features`](Self::features).
    #[doc(alias = "label_name")]
    pub fn labelled(self, label: impl Into<Column>) -> Result<Dataset<(HostTensor, i64)>> {
        let label = label.into();
        self.dataset(|columns| Ok(Layout::Labelled { label: columns.find(&label)? }))
    }

    /// Creates a dataset of maps from names to scalars, with the given columns and types. Other columns are
    /// skipped. A column that is given by its index has the index as its name in the map, such as `"3"`.
    ///
    /// # Errors
    ///
    /// - [`Error::NoColumn`]: a column does not exist.
    /// - [`Error::Csv`]: two columns of the file have a requested name.
    /// - [`Error::Parameter`]: two requested columns have the same name in the map.
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
            let mut found: Vec<(String, usize, ColumnType)> = Vec::new();
            let mut names = BTreeSet::new();
            for (column, kind) in &wanted {
                let name = match column {
                    Column::At(place) => place.to_string(),
                    Column::Named(name) => name.clone(),
                };
                if !names.insert(name.clone()) {
                    return Err(Error::Parameter {
                        operation: "Csv::columns",
                        parameter: "the name of a column",
                        found: format!("'{name}'"),
                        expected: "a name that no other column has",
                    });
                }
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
