//! Columns of Parquet files as tensors.
//!
//! | file | what it is |
//! |---|---|
//! | `batches.rs` | the rows of a file, some at a time |
//! | `pages.rs` | how large pages are, before they are unpacked |
//! | `column.rs` | a column of some rows as a tensor |
//! | `source.rs` | rows as elements of a dataset |

mod batches;
mod column;
mod pages;
mod source;

pub use batches::Batches;
pub use source::rows;

use crate::{Error, Location, Result};

/// Reads a Parquet file: which columns, and how many rows at a time.
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
    location: Location,
    columns: Option<Vec<String>>,
    rows: usize,
}

impl Parquet {
    /// A file. From memory and from URLs all of it is read before its first row; from local paths no more than is
    /// asked for.
    pub fn file(location: impl Into<Location>) -> Self {
        Self { location: location.into(), columns: None, rows: 1024 }
    }

    /// Only these columns, by name; all by default.
    pub fn columns<C: Into<String>>(self, columns: impl IntoIterator<Item = C>) -> Self {
        Self { columns: Some(columns.into_iter().map(Into::into).collect()), ..self }
    }

    /// How many rows are read at a time; 1024 by default. The last batch may have fewer, and so has each where so many
    /// texts of a dictionary could take more than [one element may](Location::element_limit).
    pub fn rows(self, rows: usize) -> Self {
        Self { rows, ..self }
    }

    /// Reads the file's description and starts at its first row.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the file cannot be read or is no Parquet file, [`Error::NoColumn`] if there is no such column,
    /// [`Error::Parameter`] if batches shall have 0 rows.
    pub fn open(&self) -> Result<Batches> {
        if self.rows == 0 {
            let (operation, parameter) = ("Parquet::rows", "rows");
            return Err(Error::Parameter { operation, parameter, found: "0".into(), expected: "at least 1" });
        }
        Batches::open(&self.location, self.columns.as_deref(), self.rows)
    }
}
