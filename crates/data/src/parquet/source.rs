//! Rows of Parquet files as elements.

use super::{Batches, Parquet};
use crate::chunk::{Chunk, Picks};
use crate::operations::file_stage::Reading;
use crate::operations::files::Format;
use crate::rows::Rows;
use crate::stage::Stage;
use crate::{Dataset, ElementSpec, Files, Location, Result};
use distribute_tensor::HostTensor;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The rows of Parquet files, one file after the other: maps from column to tensor. `columns` are read, all where there
/// are none. See [`Parquet`] for what becomes of which column, and for how many rows are read at a time.
///
/// [`Error::NoColumn`](crate::Error::NoColumn) in the pass if a file has no such column.
///
/// ```no_run
/// use distribute_data::{Files, parquet};
/// let batches = parquet::rows(Files::glob("train-*.parquet")?, ["image", "label"]).shuffle(10_000, 42).batch(256);
/// for batch in &batches {
///     println!("{:?}", batch?["image"].dims());
/// }
/// # Ok::<(), distribute_data::Error>(())
/// ```
pub fn rows<C: Into<String>>(
    files: impl Into<Files>,
    columns: impl IntoIterator<Item = C>,
) -> Dataset<BTreeMap<String, HostTensor>> {
    let columns: Vec<String> = columns.into_iter().map(Into::into).collect();
    let parquet = Parquet::files(files);
    if columns.is_empty() { parquet.dataset() } else { parquet.columns(columns).dataset() }
}

/// The rows of the files of a reader.
pub(super) fn dataset(mut parquet: Parquet) -> Dataset<BTreeMap<String, HostTensor>> {
    let files = std::mem::take(&mut parquet.files);
    Dataset::of_files(files, ParquetRows { parquet })
}

struct ParquetRows {
    /// The reader of each file.
    parquet: Parquet,
}

impl Format for ParquetRows {
    fn describe(&self) -> String {
        match &self.parquet.columns {
            None => "Parquet, all columns,".into(),
            Some(columns) => format!("Parquet, columns {},", columns.join(", ")),
        }
    }

    fn check(&self) -> Result<()> {
        self.parquet.check()
    }

    /// Files say themselves what their columns are.
    fn spec(&self) -> Option<ElementSpec> {
        None
    }

    fn open(&self, file: &Location) -> Result<Reading> {
        let batches = self.parquet.open_one(file)?;
        Ok(Reading::Elements(Box::new(RowsStage { batches, rest: None })))
    }
}

struct RowsStage {
    batches: Batches,
    /// What is left of the rows that were read together.
    rest: Option<(Arc<Rows>, usize)>,
}

impl RowsStage {
    fn read(&mut self, max: usize) -> Result<Option<Chunk>> {
        loop {
            if let Some((rows, next)) = &mut self.rest
                && *next < rows.len()
            {
                let start = *next;
                *next = rows.len().min(start.saturating_add(max));
                return Ok(Some(Chunk::Rows(rows.clone(), Picks::Range(start..*next))));
            }
            let Some(tree) = self.batches.next().transpose()? else { return Ok(None) };
            let len = tree.rows()?;
            self.rest = Some((Arc::new(Rows::Section { tree, len }), 0));
        }
    }
}

impl Stage for RowsStage {
    fn next(&mut self, max: usize) -> Option<Result<Chunk>> {
        self.read(max).transpose()
    }
}
