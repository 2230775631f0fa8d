//! A deck of files as a component of a checkpoint.

use crate::checkpoint::{Checkpointed, Reader, Restore, Writer};
use distribute_base::{Error, Result};
use distribute_data::FileDeck;
use distribute_data::distribution::DeckPosition;

/// Saves as metadata which files have been dealt. After a deck is restored, it continues with the next file.
impl Checkpointed for FileDeck {
    fn save(&self, prefix: &str, writer: &mut Writer) -> Result<()> {
        let position = serde_json::to_value(self.position());
        let position = position.map_err(|error| Error::invalid("Checkpoint::save", error.to_string()))?;
        writer.metadata(metadata_key(prefix), position);
        Ok(())
    }

    fn restore<'a>(&'a self, prefix: &str, from: &Reader) -> Result<Restore<'a>> {
        let path = from.path().display();
        let wrong = |reason: String| Error::invalid("Checkpoint::restore", format!("{path} {reason}"));
        let saved = from.metadata(&metadata_key(prefix));
        let saved = saved.ok_or_else(|| wrong(format!("has no deck of files named {prefix:?}")))?;
        let position: DeckPosition = serde_json::from_value(saved.clone())
            .map_err(|error| wrong(format!("has no deck in {:?}: {error}", metadata_key(prefix))))?;
        self.check_position(&position)?;
        Ok(Box::new(move || Ok(self.resume(&position)?)))
    }
}

fn metadata_key(prefix: &str) -> String {
    format!("{prefix}:deck")
}
