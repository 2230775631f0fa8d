//! [`Records`]: a block of records that were read together.

use crate::example::Features;
use crate::{Error, Result};
use distribute_tensor::HostTensor;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// A block of consecutive records of one file. They share the bytes that were read, so no record is copied.
///
/// While any record of a block is kept, the bytes of all its records, and of others that were read with them, stay
/// in memory.
#[derive(Clone, Debug)]
pub struct Records {
    pub(super) path: Arc<str>,
    pub(super) first: u64,
    pub(super) bytes: Arc<Vec<u8>>,
    pub(super) ranges: Vec<Range<usize>>,
}

impl Records {
    /// Returns the number of records in the block.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Returns whether the block has no records, as at the end of the file.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Keeps only the first `count` records.
    pub fn truncate(&mut self, count: usize) {
        self.ranges.truncate(count);
    }

    /// Keeps only the records with the given indices in the block.
    pub(crate) fn keep(&mut self, indices: &[usize]) {
        self.ranges = indices.iter().filter_map(|index| self.ranges.get(*index).cloned()).collect();
    }

    /// Returns the record with the given index in the block; `None` if it is out of range.
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        self.ranges.get(index).and_then(|range| self.bytes.get(range.clone()))
    }

    /// Returns an iterator over the records, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> + Clone {
        self.ranges.iter().map(|range| self.bytes.get(range.clone()).unwrap_or_default())
    }

    /// Returns the path of the file, or the name that was given to bytes in memory.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the index of the block's first record in the file, counted from 0.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Copies the records into a vector of strings, of shape `[records]`.
    pub fn to_tensor(&self) -> HostTensor {
        HostTensor::vector(self.iter().map(<[u8]>::to_vec).collect())
    }
}

impl Features {
    /// Parses records that were read from a file, and returns the columns by name. Errors contain the file.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`parse`](Features::parse).
    pub fn parse_records(&self, records: &Records) -> Result<BTreeMap<String, HostTensor>> {
        self.parse(records.iter()).map_err(|error| match error {
            Error::Example { record, feature, what, .. } => {
                let path = Some(records.path().to_string());
                Error::Example { path, record: records.first() + record, feature, what }
            }
            other => other,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example::{Example, FixedLen};

    #[test]
    fn records_of_a_file_are_counted_within_it() {
        let mut file = Vec::new();
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        let mut writer = crate::TfRecordWriter::create(&path, crate::Compression::None).unwrap();
        for example in
            [Example::from([("x", 1.into())]), Example::from([("x", 2.into())]), Example::default()]
        {
            writer.write(&example.encode()).unwrap();
        }
        writer.finish().unwrap();
        std::io::Read::read_to_end(&mut std::fs::File::open(&path).unwrap(), &mut file).unwrap();
        let features = Features::new().with("x", FixedLen::ints([])).unwrap();
        let mut reader = crate::TfRecordReader::new("f", &file[..]);
        let first = features.parse_records(&reader.read(1).unwrap()).unwrap();
        assert_eq!(first["x"], HostTensor::vector(vec![1i64]));
        let error = features.parse_records(&reader.read(9).unwrap()).unwrap_err();
        assert!(error.to_string().starts_with("'f', record 2, feature 'x': missing"), "{error}");
    }
}
