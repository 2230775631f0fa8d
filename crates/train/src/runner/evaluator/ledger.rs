//! The list of evaluations, as a file of JSON lines. The file is replaced atomically, so it never contains an
//! incomplete line.

use distribute_base::{Error, Result};
use distribute_checkpoint::{Metadata, Value};
use distribute_files::WholeFile;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The evaluation of one checkpoint. It is one line in the results file of an [`Evaluator`](super::Evaluator).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Evaluated {
    /// The name of the checkpoint within its folder.
    pub checkpoint: String,
    /// The checksum of the checkpoint. It distinguishes checkpoints of different training runs with the same name.
    pub checksum: u32,
    /// The number of training steps that were made before the checkpoint.
    pub step: u64,
    /// Whether this is the last checkpoint of its training run.
    pub last: bool,
    /// The names and values of the metrics, sorted by name.
    pub metrics: Vec<(String, f64)>,
}

impl Evaluated {
    fn to_value(&self) -> Value {
        let metrics = self.metrics.iter().map(|(name, value)| (name.clone(), (*value).into_value()));
        serde_json::json!({
            "checkpoint": self.checkpoint,
            "checksum": self.checksum,
            "step": self.step,
            "last": self.last,
            "metrics": metrics.collect::<serde_json::Map<_, _>>(),
        })
    }

    fn from_value(value: &Value) -> Option<Self> {
        let number = |value: &Value| match value {
            // Values for which JSON has no number.
            Value::String(text) => text.parse().ok(),
            value => value.as_f64(),
        };
        let metrics = value.get("metrics")?.as_object()?.iter();
        Some(Self {
            checkpoint: value.get("checkpoint")?.as_str()?.into(),
            checksum: value.get("checksum")?.as_u64()?.try_into().ok()?,
            step: value.get("step")?.as_u64()?,
            last: value.get("last")?.as_bool()?,
            metrics: metrics
                .map(|(name, value)| Some((name.clone(), number(value)?)))
                .collect::<Option<_>>()?,
        })
    }
}

/// The list of all evaluations, oldest first.
pub(super) struct Ledger {
    path: PathBuf,
    pub entries: Vec<Evaluated>,
}

impl Ledger {
    /// Opens the results file. If the file does not exist, the list is empty.
    ///
    /// # Errors
    /// - [`Error::Io`]: the file cannot be read.
    /// - [`Error::InvalidArgument`]: a line was not written by an evaluator.
    pub fn open(path: &Path) -> Result<Self> {
        let text = match distribute_files::open(path).and_then(io::read_to_string) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(source) => return Err(io_error("reading", path)(source)),
        };
        let mut entries = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let entry = serde_json::from_str(line).ok().and_then(|value| Evaluated::from_value(&value));
            entries.push(entry.ok_or_else(|| {
                let (path, line) = (path.display(), number + 1);
                let reason =
                    format!("line {line} of {path} is not a result of an evaluator; name another file");
                Error::invalid("Evaluator::run", reason)
            })?);
        }
        Ok(Self { path: path.to_path_buf(), entries })
    }

    pub fn has(&self, checkpoint: &str, checksum: u32) -> bool {
        self.entries.iter().any(|entry| entry.checkpoint == checkpoint && entry.checksum == checksum)
    }

    /// Adds an evaluation to the list, and writes the complete file.
    ///
    /// # Errors
    /// - [`Error::Io`]: the file cannot be written. The file then keeps its previous contents, but the list contains
    ///   the evaluation.
    pub fn add(&mut self, mut entry: Evaluated) -> Result<()> {
        entry.metrics.sort_by(|a, b| a.0.cmp(&b.0));
        self.entries.push(entry);
        let written = WholeFile::create(&self.path).and_then(|mut file| {
            self.entries.iter().try_for_each(|entry| writeln!(file, "{}", entry.to_value()))?;
            file.finish()
        });
        written.map_err(io_error("writing", &self.path))
    }
}

fn io_error(doing: &str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let operation = format!("{doing} {}", path.display());
    move |source| Error::Io { operation, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_round_trip_with_numbers_that_json_lacks() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.jsonl");
        let entry = |name: &str, value| Evaluated {
            checkpoint: name.into(),
            checksum: u32::MAX,
            step: 7,
            last: false,
            metrics: vec![("accuracy".into(), 0.1 + 0.2), ("loss".into(), value)],
        };
        let mut ledger = Ledger::open(&path).unwrap();
        ledger.add(entry("ckpt-000001", f64::INFINITY)).unwrap();
        ledger.add(entry("ckpt-000002", 1.5)).unwrap();
        let again = Ledger::open(&path).unwrap();
        assert_eq!(again.entries, ledger.entries);
        assert!(again.has("ckpt-000001", u32::MAX) && !again.has("ckpt-000001", 1));
        std::fs::write(&path, "{\"checkpoint\": 1}\n").unwrap();
        let error = Ledger::open(&path).err().unwrap().to_string();
        assert!(error.contains("line 1 of") && error.contains("results.jsonl"), "{error}");
    }
}
