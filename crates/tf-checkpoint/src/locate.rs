//! The files that a path refers to: a checkpoint's prefix, a folder of checkpoints, or a SavedModel.

use crate::bundle::with_suffix;
use crate::damage::io_error;
use distribute_checkpoint::{Error, Result};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Returns the prefix of the files of the checkpoint at `path`.
pub(crate) fn prefix(path: &Path) -> Result<PathBuf> {
    if path.extension() == Some(OsStr::new("index")) && path.is_file() {
        return Ok(path.with_extension(""));
    }
    let prefixes = [path.to_path_buf(), path.join("variables/variables"), path.join("variables")];
    if let Some(prefix) = prefixes.into_iter().find(|prefix| with_suffix(prefix, ".index").is_file()) {
        return Ok(prefix);
    }
    let state = path.join("checkpoint");
    if state.is_file() {
        let text = distribute_files::open(&state).and_then(std::io::read_to_string);
        let text = text.map_err(io_error("reading", &state))?;
        let latest = latest(&text).ok_or_else(|| Error::NoCheckpoint {
            path: state.clone(),
            reason: "the file has no model_checkpoint_path".into(),
        })?;
        // An absolute path is that of the machine that has saved. The files may have been copied.
        let latest = Path::new(&latest);
        let prefixes = [path.join(latest), path.join(latest.file_name().unwrap_or_default())];
        let found = prefixes.into_iter().find(|prefix| with_suffix(prefix, ".index").is_file());
        return found.ok_or_else(|| Error::NoCheckpoint {
            path: state,
            reason: format!("it names {}, and there is no {0}.index", latest.display()),
        });
    }
    let reason = match path.extension().and_then(OsStr::to_str) {
        Some("keras" | "h5") if path.is_file() => {
            "it is a file of Keras; load it there, and write tf.train.Checkpoint(model=model)"
        }
        _ if path.is_dir() => "the folder has no file `checkpoint` and no variables/variables.index",
        _ => "there is no file of this name with .index at its end, and no folder",
    };
    Err(Error::NoCheckpoint { path: path.to_path_buf(), reason: reason.into() })
}

/// Returns the value of `model_checkpoint_path` in the text of a file `checkpoint`.
fn latest(text: &str) -> Option<String> {
    let line = text.lines().find_map(|line| line.trim().strip_prefix("model_checkpoint_path:"))?;
    let quoted = line.trim().strip_prefix('"')?.strip_suffix('"')?;
    let (mut rest, mut bytes) = (quoted.as_bytes(), Vec::new());
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        if *byte != b'\\' {
            bytes.push(*byte);
            continue;
        }
        let octal = rest.get(..3).and_then(|digits| str::from_utf8(digits).ok());
        if let Some(byte) = octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            bytes.push(byte);
            rest = rest.get(3..)?;
        } else {
            let (byte, after) = rest.split_first()?;
            bytes.push(*byte);
            rest = after;
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_checkpoint_is_named_in_text() {
        let of = |path: &str| latest(&format!("model_checkpoint_path: \"{path}\"\nall: \"x\"\n"));
        assert_eq!(of("ckpt-1").as_deref(), Some("ckpt-1"));
        assert_eq!(of(r#"a\"b\\c\303\244"#).as_deref(), Some("a\"b\\cä"));
        assert_eq!(of(r"a\"), None);
        assert_eq!(latest("all_model_checkpoint_paths: \"x\""), None);
        assert_eq!(latest("model_checkpoint_path: \""), None);
    }
}
