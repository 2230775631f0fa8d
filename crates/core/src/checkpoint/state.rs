//! The state of a component as metadata of a checkpoint: a position in the input, for example.

use super::{Reader, SAVE, Writer};
use distribute_base::{Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Adds the state of the component `prefix` to the metadata of a checkpoint. `kind` is the name of the state.
pub(crate) fn write_state(
    writer: &mut Writer,
    prefix: &str,
    kind: &str,
    state: &impl Serialize,
) -> Result<()> {
    let state = serde_json::to_value(state).map_err(|error| Error::invalid(SAVE, error.to_string()))?;
    writer.metadata(key(prefix, kind), state);
    Ok(())
}

/// Reads the state of the component `prefix` from the metadata of a checkpoint. `what` describes the component in
/// errors.
///
/// # Errors
/// - [`Error::InvalidArgument`]: the checkpoint has no such state, or it has a different form.
pub(crate) fn read_state<T: DeserializeOwned>(
    from: &Reader,
    prefix: &str,
    kind: &str,
    what: &str,
) -> Result<T> {
    let (path, key) = (from.path().display(), key(prefix, kind));
    let wrong =
        |reason: String| Error::invalid("Checkpoint::restore", format!("{path} has no {kind} {reason}"));
    let saved = from.metadata(&key).ok_or_else(|| wrong(format!("of {what} named {prefix:?}")))?;
    serde_json::from_value(saved.clone()).map_err(|error| wrong(format!("in {key:?}: {error}")))
}

fn key(prefix: &str, kind: &str) -> String {
    format!("{prefix}:{kind}")
}
