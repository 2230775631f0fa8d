//! The files that an index of weights lists, such as `model.safetensors.index.json`.

use crate::error::{Error, Result};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::Path;

/// The maximum size of an index in bytes.
const MAX: u64 = 64 << 20;

/// The maximum number of files in an index.
const MAX_FILES: usize = 10_000;

#[derive(Deserialize)]
struct Index {
    /// The name of the file that contains each tensor, by the tensor's name.
    weight_map: BTreeMap<String, String>,
}

/// Reads an index. Returns the names of its files, sorted and without duplicates.
pub(crate) fn files(path: &Path) -> Result<BTreeSet<String>> {
    let malformed = |reason: String| Error::Index { path: path.to_path_buf(), reason };
    let mut bytes = Vec::new();
    let file = distribute_files::open(path).map_err(Error::io("opening", path))?;
    file.take(MAX + 1).read_to_end(&mut bytes).map_err(Error::io("reading", path))?;
    if bytes.len() as u64 > MAX {
        return Err(malformed(format!("it is larger than {MAX} bytes")));
    }
    let index: Index = serde_json::from_slice(&bytes).map_err(|error| malformed(error.to_string()))?;
    let files: BTreeSet<String> = index.weight_map.into_values().collect();
    match files.len() {
        0 => Err(malformed("it lists no file".into())),
        1..=MAX_FILES => Ok(files),
        more => Err(malformed(format!("it lists {more} files, more than {MAX_FILES}"))),
    }
}
