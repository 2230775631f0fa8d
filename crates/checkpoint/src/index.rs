//! The file `index.json`, which contains the location of each tensor.

use crate::{Error, Result};
use distribute_tensor::DType;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// The name of the index file in the checkpoint's folder.
pub(crate) const NAME: &str = "index.json";
const FORMAT: &str = "distribute.checkpoint";
/// The version of a checkpoint in which all slices are consecutive rows.
const CONSECUTIVE: u64 = 1;
/// The version of a checkpoint that has slices of every nth row.
const INTERLEAVED: u64 = 2;

/// The parsed index of a checkpoint.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Index {
    format: String,
    version: u64,
    pub(crate) metadata: BTreeMap<String, Value>,
    pub(crate) files: Vec<FileEntry>,
    pub(crate) entries: BTreeMap<String, Entry>,
}

/// The index entry of a safetensors file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FileEntry {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// The CRC-32 checksum of each block of the file, in order.
    pub(crate) crc32: Vec<u32>,
}

/// The index entry of a tensor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    #[serde(with = "dtype_name")]
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    pub(crate) slices: Vec<SliceEntry>,
}

/// The location of some rows of a tensor: consecutive ones, or every `step`th one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SliceEntry {
    /// The index of the file in `files`.
    pub(crate) file: usize,
    pub(crate) key: String,
    /// The key of the tensor that contains the end offset of each string; `None` for other dtypes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ends: Option<String>,
    pub(crate) offset: Vec<usize>,
    pub(crate) shape: Vec<usize>,
    /// The distance between two rows of the slice in the tensor.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub(crate) step: usize,
}

fn one() -> usize {
    1
}

fn is_one(step: &usize) -> bool {
    *step == 1
}

#[derive(Deserialize)]
struct Envelope<T> {
    index: T,
}

#[derive(Deserialize)]
struct Format {
    format: String,
    version: u64,
}

const BEFORE_SUM: &str = "{\"crc32\":\"";
const AFTER_SUM: &str = "\",\"index\":\n";

impl Index {
    pub(crate) fn new(
        metadata: BTreeMap<String, Value>,
        files: Vec<FileEntry>,
        entries: BTreeMap<String, Entry>,
    ) -> Self {
        let mut slices = entries.values().flat_map(|entry| &entry.slices);
        let version = if slices.all(|slice| slice.step == 1) { CONSECUTIVE } else { INTERLEAVED };
        Self { format: FORMAT.into(), version, metadata, files, entries }
    }

    /// Returns the text of `index.json`, including the checksum in its first line.
    pub(crate) fn to_text(&self) -> Result<String, serde_json::Error> {
        let body = serde_json::to_string_pretty(self)? + "\n}\n";
        Ok(format!("{BEFORE_SUM}{:08x}{AFTER_SUM}{body}", crc32fast::hash(body.as_bytes())))
    }

    /// Parses `bytes`, the contents of the index file, and verifies their checksum. The entries are not checked
    /// yet. Errors contain `path`.
    pub(crate) fn from_bytes(path: &Path, bytes: &[u8]) -> Result<Self> {
        let damaged = |offset: usize, reason: String| Error::Damaged {
            path: path.to_path_buf(),
            offset: offset as u64,
            reason,
        };
        let sealed = bytes.strip_prefix(BEFORE_SUM.as_bytes()).and_then(|rest| rest.split_at_checked(8));
        let sealed = sealed.and_then(|(sum, rest)| {
            let sum = u32::from_str_radix(std::str::from_utf8(sum).ok()?, 16).ok()?;
            Some((sum, rest.strip_prefix(AFTER_SUM.as_bytes())?))
        });
        let Some((sum, body)) = sealed else {
            return Err(damaged(
                0,
                format!("expected {BEFORE_SUM}xxxxxxxx{}, as checkpoints begin", AFTER_SUM.trim_end()),
            ));
        };
        let found = crc32fast::hash(body);
        if found != sum {
            let reason =
                format!("the checksum of the rest of the file is {found:08x}, but {sum:08x} was written");
            return Err(damaged(bytes.len() - body.len(), reason));
        }
        // Another version may have other fields, so the version is checked first.
        let Format { format, version } = parse(path, bytes)?;
        if format != FORMAT || !(CONSECUTIVE..=INTERLEAVED).contains(&version) {
            return Err(Error::Version {
                path: path.to_path_buf(),
                found: format!("{format:?} version {version}"),
                expected: format!("{FORMAT:?} version {CONSECUTIVE} or {INTERLEAVED}"),
            });
        }
        parse(path, bytes)
    }
}

fn parse<T: DeserializeOwned>(path: &Path, bytes: &[u8]) -> Result<T> {
    match serde_json::from_slice::<Envelope<T>>(bytes) {
        Ok(envelope) => Ok(envelope.index),
        Err(error) => Err(Error::Index {
            path: path.to_path_buf(),
            at: format!("line {} column {}", error.line(), error.column()),
            reason: error.to_string(),
        }),
    }
}

/// The serialization of dtypes by name, for serde.
mod dtype_name {
    use distribute_tensor::DType;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(dtype: &DType, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(dtype.name())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<DType, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}
