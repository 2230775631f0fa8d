//! Reads and alters the index of a checkpoint.

use std::path::Path;

/// Returns the index as JSON, without its checksum.
pub fn index(path: &Path) -> serde_json::Value {
    let text = std::fs::read(path.join("index.json")).unwrap();
    serde_json::from_slice::<serde_json::Value>(&text).unwrap()["index"].take()
}

/// Writes an index with a matching checksum.
pub fn set_index(path: &Path, body: &str) {
    let body = format!("{body}\n}}\n");
    let text = format!("{{\"crc32\":\"{:08x}\",\"index\":\n{body}", crc32fast::hash(body.as_bytes()));
    std::fs::write(path.join("index.json"), text).unwrap();
}
