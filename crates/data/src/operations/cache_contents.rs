//! Of which pipeline the elements in a cache's file are.

use crate::pipeline::{self, Pipeline};
use crate::{Cardinality, Error, Location, Result};

/// What is known of elements without making them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Contents {
    /// The checksum of the operations that positions have, too.
    operations: u32,
    /// The number of elements, and what they are, in words: empty where it isn't known.
    known: [String; 2],
}

/// With what the record begins: no element does. The last byte is the version.
const BEGIN: &[u8] = b"\xd5cache\x01";

impl Contents {
    /// Those of a pipeline.
    pub(super) fn of(pipeline: &Pipeline) -> Self {
        let count = match pipeline.cardinality() {
            Cardinality::Unknown => String::new(),
            known => known.to_string(),
        };
        let spec = pipeline.spec().map_or(String::new(), |spec| spec.describe(&|leaf| leaf.to_string()));
        Self { operations: pipeline::identity(pipeline), known: [count, spec] }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let known = self.known.join("\n");
        [BEGIN, &self.operations.to_le_bytes(), known.as_bytes()].concat()
    }

    fn decode(record: &[u8]) -> Option<Self> {
        let (operations, known) = record.strip_prefix(BEGIN)?.split_first_chunk::<4>()?;
        let (count, spec) = std::str::from_utf8(known).ok()?.split_once('\n')?;
        Some(Self { operations: u32::from_le_bytes(*operations), known: [count.into(), spec.into()] })
    }

    /// Whether the first record of a file says the same.
    pub(super) fn check(&self, record: Option<&[u8]>, file: &Location) -> Result<()> {
        let refuse = |why| Err(Error::Cache { path: file.to_string(), why });
        let Some(theirs) = record.and_then(Self::decode) else {
            return refuse("it is no cache of this version".into());
        };
        // What one knows and the other doesn't is no difference: a cache in memory knows its length once it is filled.
        for (mine, theirs) in self.known.iter().zip(&theirs.known) {
            if mine != theirs && !mine.is_empty() && !theirs.is_empty() {
                return refuse(format!("those are {theirs}, these are {mine}"));
            }
        }
        match self.operations == theirs.operations {
            true => Ok(()),
            false => refuse(
                "it was written with other operations, or other parameters of them: seeds, sizes, the number of files"
                    .into(),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dataset;

    #[test]
    fn what_is_written_is_read() {
        for pipeline in [Dataset::range(3).filter(|_| true).pipeline(), Dataset::range(3).batch(2).pipeline()]
        {
            let contents = Contents::of(pipeline);
            assert_eq!(Contents::decode(&contents.encode()), Some(contents));
        }
        assert_eq!(Contents::decode(b"record"), None);
    }
}
