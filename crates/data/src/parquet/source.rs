//! The source that reads rows of Parquet files.

use super::Parquet;
use super::batches::{Batches, Columns};
use super::column::Tensors;
use crate::broken::{Broken, SkippedRecords};
use crate::chunk::Chunk;
use crate::file_source::{Format, Reading};
use crate::stage::Stage;
use crate::{Dataset, DefaultValue, ElementSpec, Error, Files, Location, Result};
use distribute_tensor::{HostTensor, Leaf, Tree};
use std::collections::BTreeMap;

/// Creates a dataset of the rows of Parquet files, one file after the other. Elements are maps from column names
/// to tensors. Only the given `columns` are read, or all if the list is empty. See [`Parquet`] for the types of
/// columns, and for the number of rows that are read at a time.
///
/// A column that does not exist results in [`Error::NoColumn`](crate::Error::NoColumn) in the pass.
///
/// ```no_run
/// use distribute_data::{Files, parquet};
/// let batches = parquet::rows(Files::glob("train-*.parquet")?, ["image", "label"]).shuffle(10_000, 42).batch(256);
/// for batch in &batches {
///     println!("{:?}", batch?["image"].dims());
/// }
/// # Ok::<(), distribute_data::Error>(())
/// ```
pub fn rows<C: Into<super::Column>>(
    files: impl Into<Files>,
    columns: impl IntoIterator<Item = C>,
) -> Dataset<BTreeMap<String, HostTensor>> {
    let columns: Vec<super::Column> = columns.into_iter().map(Into::into).collect();
    let parquet = Parquet::files(files);
    if columns.is_empty() { parquet.dataset() } else { parquet.columns(columns).dataset() }
}

/// Creates a dataset of the rows of a reader's files.
pub(super) fn dataset(mut parquet: Parquet) -> Dataset<BTreeMap<String, HostTensor>> {
    let files = std::mem::take(&mut parquet.files);
    Dataset::of_files(files, ParquetRows { parquet })
}

struct ParquetRows {
    /// The reader that is used for each file.
    parquet: Parquet,
}

impl Format for ParquetRows {
    fn describe(&self) -> String {
        match &self.parquet.columns {
            None => "Parquet, all columns,".into(),
            Some(columns) => {
                let names: Vec<String> = columns.iter().map(super::Column::to_string).collect();
                format!("Parquet, columns {},", names.join(", "))
            }
        }
    }

    /// Returns everything that determines the elements: the columns, as index or name, and the values that replace
    /// missing ones. The number of rows that are read at a time is not part of it.
    fn identity(&self) -> String {
        use super::Column::{At, Named};
        let columns = self.parquet.columns.as_ref().map_or("all".into(), |columns| {
            let column = |column: &super::Column| match column {
                At(place) => format!("{place}"),
                Named(name) => format!("{name:?}"),
            };
            columns.iter().map(column).collect::<Vec<_>>().join(" ")
        });
        let mut text = format!("Parquet, columns {columns}");
        for (name, missing) in &self.parquet.missing {
            let default = missing.default.as_ref().map_or("none".into(), DefaultValue::identity);
            text += &format!(", {name:?} default {default} mask {:?}", missing.mask);
        }
        text
    }

    fn strictness(&self) -> String {
        if self.parquet.checksums { String::new() } else { ", without checksums".into() }
    }

    fn check(&self) -> Result<()> {
        self.parquet.check()
    }

    fn skipped(&self) -> Option<&SkippedRecords> {
        self.parquet.skipped.as_ref()
    }

    /// Returns `None`, because the types of columns are only known from the files.
    fn spec(&self) -> Option<ElementSpec> {
        None
    }

    fn open(&self, file: &Location, broken: &Broken) -> Result<Reading> {
        let batches = self.parquet.open_one(file, broken.clone())?;
        Ok(Reading::Elements(Box::new(RowsStage { batches, read: None })))
    }
}

struct RowsStage {
    batches: Batches,
    /// The rows that were read together last, and the number of them that have been returned.
    read: Option<(Chunk, usize)>,
}

impl RowsStage {
    fn read(&mut self, max: usize) -> Result<Option<Chunk>> {
        loop {
            if let Some((chunk, next)) = &mut self.read
                && *next < chunk.len()
            {
                let start = *next;
                *next = chunk.len().min(start.saturating_add(max));
                return Ok(Some(chunk.slice(start..*next)));
            }
            let Some(columns) = self.batches.pull()? else { return Ok(None) };
            self.read = Some((chunk(columns)?, 0));
        }
    }
}

/// Converts rows that were read together to elements: views if all rows of each column have the same shape,
/// otherwise single elements.
fn chunk(columns: Columns) -> Result<Chunk> {
    let len = columns.first().map_or(0, |(_, column)| match column {
        Tensors::Whole(tensor) => tensor.dims().first().copied().unwrap_or(0),
        Tensors::Ragged(rows) => rows.len(),
    });
    let host = |tensor| Tree::Leaf(Leaf::Host(tensor));
    let mut whole = BTreeMap::new();
    for (name, column) in &columns {
        match column {
            Tensors::Whole(tensor) => drop(whole.insert(name.clone(), host(tensor.clone()))),
            Tensors::Ragged(_) => break,
        }
    }
    if whole.len() == columns.len() {
        return Ok(Chunk::rows(Tree::Dict(whole), len));
    }
    let row = |row: usize| -> Result<Tree<Leaf>> {
        let value = |(name, column): &(String, Tensors)| -> Result<(String, Tree<Leaf>)> {
            let value = match column {
                Tensors::Whole(tensor) => tensor.row(row)?,
                Tensors::Ragged(rows) => {
                    rows.get(row).cloned().ok_or(Error::Empty { operation: "a row of Parquet" })?
                }
            };
            Ok((name.clone(), host(value)))
        };
        Ok(Tree::Dict(columns.iter().map(value).collect::<Result<_>>()?))
    };
    Ok(Chunk::Values((0..len).map(row).collect::<Result<_>>()?))
}

impl Stage for RowsStage {
    fn next(&mut self, max: usize) -> Option<Result<Chunk>> {
        self.read(max).transpose()
    }
}
