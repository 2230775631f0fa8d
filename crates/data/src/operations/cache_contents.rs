//! [`Contents`]: the identification of the pipeline whose elements are in a cache file.

use crate::file::Stamp;
use crate::pipeline::{self, Look, Pipeline};
use crate::{Cardinality, Error, Location, Result};
use std::sync::Arc;

/// The properties of a dataset that are known without computing its elements. They are the first record of a
/// cache file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Contents {
    /// The checksum of the operations, as in positions.
    operations: u32,
    /// The checksum of the same operations if they did not skip broken records. A cache that was completed without
    /// skipping has the same elements.
    unskipped: u32,
    /// The number of elements and their spec, as text; empty strings if they are not known.
    known: [String; 2],
    /// The stamps of the sources' files, in order.
    files: Arc<[Stamp]>,
}

/// The first bytes of the record, which differ from those of any element. The last byte is the version.
const BEGIN: &[u8] = b"\xd5cache\x02";

/// Returns the current stamps of a pipeline's files. This takes a system call for each file.
pub(super) fn files(pipeline: &Pipeline) -> Arc<[Stamp]> {
    let mut stamps = Vec::new();
    pipeline::visit(pipeline, &mut |operation| {
        stamps.extend(operation.files().into_iter().flatten().map(Stamp::of))
    });
    stamps.into()
}

impl Contents {
    /// Creates the identification of a pipeline. `files` are the stamps of its files.
    pub(super) fn of(pipeline: &Pipeline, files: Arc<[Stamp]>) -> Self {
        let count = match pipeline.cardinality() {
            Cardinality::Unknown => String::new(),
            known => known.to_string(),
        };
        let spec =
            pipeline.spec(Look::Never).map_or(String::new(), |spec| spec.describe(&|leaf| leaf.to_string()));
        let [operations, unskipped] = [true, false].map(|skipping| pipeline::checksum(pipeline, skipping));
        Self { operations, unskipped, known: [count, spec], files }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut record =
            [BEGIN, &self.operations.to_le_bytes(), &(self.files.len() as u64).to_le_bytes()].concat();
        self.files.iter().for_each(|file| file.encode(&mut record));
        record.extend(self.known.join("\n").as_bytes());
        record
    }

    fn decode(record: &[u8]) -> Option<Self> {
        let (operations, rest) = record.strip_prefix(BEGIN)?.split_first_chunk()?;
        let (files, mut known) = rest.split_first_chunk()?;
        let files =
            (0..u64::from_le_bytes(*files)).map(|_| Stamp::decode(&mut known)).collect::<Option<_>>()?;
        let (count, spec) = std::str::from_utf8(known).ok()?.split_once('\n')?;
        let operations = u32::from_le_bytes(*operations);
        Some(Self { operations, unskipped: operations, known: [count.into(), spec.into()], files })
    }

    /// Checks that the first record of a cache file matches this identification. `record` is `None` if there is
    /// no record.
    pub(super) fn check(&self, record: Option<&[u8]>, file: &Location) -> Result<()> {
        let refuse = |why| Err(Error::Cache { path: file.to_string(), why });
        let Some(theirs) = record.and_then(Self::decode) else {
            return refuse("it is not a cache of this version".into());
        };
        // An unknown value on one side is not a difference: a cache in memory knows its length only once it
        // is filled.
        for (mine, theirs) in self.known.iter().zip(&theirs.known) {
            if mine != theirs && !mine.is_empty() && !theirs.is_empty() {
                return refuse(format!("those are {theirs}, these are {mine}"));
            }
        }
        if ![self.operations, self.unskipped].contains(&theirs.operations) {
            return refuse(
                "it was written with other operations, or other parameters of them: seeds, sizes, defaults, the \
                 number of files"
                    .into(),
            );
        }
        if self.files.len() != theirs.files.len() {
            return refuse(format!(
                "those are of {} files, these of {}",
                theirs.files.len(),
                self.files.len()
            ));
        }
        let mut files = self.files.iter().zip(theirs.files.iter());
        files.find_map(|(mine, theirs)| mine.difference(theirs)).map_or(Ok(()), refuse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dataset;

    #[test]
    fn contents_round_trip() {
        let files_too = crate::text_lines(["/nonexistent/a", "b"]).concatenate(&crate::text_lines("c"));
        for pipeline in [
            Dataset::range(3).filter(|_| true).pipeline(),
            Dataset::range(3).batch(2).pipeline(),
            files_too.pipeline(),
        ] {
            let contents = Contents::of(pipeline, files(pipeline));
            assert_eq!(Contents::decode(&contents.encode()), Some(contents));
        }
        assert_eq!(Contents::decode(b"record"), None);
    }
}
