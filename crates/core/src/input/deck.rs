//! A [`FileDeck`] as a component of a checkpoint.

use crate::checkpoint::{Checkpointed, Reader, Restore, Writer, read_state, write_state};
use distribute_base::Result;
use distribute_data::FileDeck;
use distribute_data::distribution::DeckPosition;

/// The name of the state in metadata.
const DECK: &str = "deck";

/// Saves in the metadata which files have been dealt. A restored deck continues with the next file.
impl Checkpointed for FileDeck {
    fn save(&self, prefix: &str, writer: &mut Writer) -> Result<()> {
        write_state(writer, prefix, DECK, &self.position())
    }

    fn restore<'a>(&'a self, prefix: &str, from: &Reader) -> Result<Restore<'a>> {
        let position: DeckPosition = read_state(from, prefix, DECK, "files")?;
        self.check_position(&position)?;
        Ok(Box::new(move || Ok(self.resume(&position)?)))
    }
}
