//! Temporary files of ids, and datasets that read them.

use super::case::{Inputs, Stop};
use distribute::data::{Compression, Dataset, Interleave, TfRecord, TfRecordWriter, text_lines};
use std::path::PathBuf;

/// Returns a dataset of ids, and the folder of its files, which must outlive the dataset. A range has no folder.
pub fn source(inputs: &Inputs<'_>) -> Result<(Option<tempfile::TempDir>, Dataset<i64>), Stop> {
    let kind = inputs.text("source")?;
    if kind == "range" {
        return Ok((None, Dataset::range(inputs.int("n")?)));
    }
    let failed = |error: std::io::Error| Stop::Runner(error.to_string());
    let folder = tempfile::tempdir().map_err(failed)?;
    let mut paths: Vec<PathBuf> = Vec::new();
    for (i, file) in inputs.list("files")?.iter().enumerate() {
        let ids: Vec<i64> = serde_json::from_value(file.clone()).map_err(|e| e.to_string())?;
        let path = folder.path().join(format!("{i:02}"));
        match kind {
            "tfrecord" => {
                let mut writer = TfRecordWriter::create(&path, Compression::None)?;
                ids.iter().try_for_each(|id| writer.write(id.to_string().as_bytes()))?;
                writer.finish()?;
            }
            _ => {
                let text: String = ids.iter().map(|id| format!("{id}\n")).collect();
                std::fs::write(&path, text).map_err(failed)?;
            }
        }
        paths.push(path);
    }
    let lines: Dataset<String> = match kind {
        "text" => text_lines(paths),
        "tfrecord" => TfRecord::new(paths).records().typed(),
        "list_files_interleave" => {
            let one_by_one = Interleave { cycle_length: 1, ..Default::default() };
            Dataset::list_files(paths).interleave(text_lines, one_by_one)
        }
        other => return Err(format!("unknown source {other:?}").into()),
    };
    Ok((Some(folder), lines.try_map(|line: String| line.parse::<i64>())))
}
