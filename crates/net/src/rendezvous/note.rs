//! The messages that the leader sends to workers that have joined.

use super::{Missing, Progress};
use crate::handshake::fields::{Malformed, Reader, Writer};
use crate::handshake::{Reason, Refusal};
use bytes::Bytes;
use distribute_cluster::{Address, Job};
use std::time::Duration;

/// The generation of a world, the id of its table, and the position and address of each of its workers.
type World = (u64, u64, Vec<(usize, Address)>);

/// The maximum length of an address in a note, in bytes.
const LONGEST: usize = 255;

/// The maximum length of a reason in a note, in bytes.
const MAX_REASON: usize = 1024;

/// A message that the leader sends to workers that have joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// The world is not complete yet.
    Waiting(Progress),
    /// The world is complete. The fields are its generation, the id of this table, and the position and address of each
    /// of its workers.
    Table(u64, u64, Vec<(usize, Address)>),
    /// No world will be formed, because a worker was rejected. The fields are that worker's position, the address from
    /// which it has connected, and the refusal.
    Refused(usize, String, Refusal),
    /// A world is complete without the receiver, which is its spare from now on and waits for another note. The fields
    /// are the generation of that world, the id of its table and, if leaders are elected, the position and address of
    /// each of its workers.
    Spare(u64, u64, Vec<(usize, Address)>),
    /// The sender was elected, and has accepted the receiver. The field is the generation of the last world of which
    /// the sender was a member; 0 if there was none.
    Leads(u64),
}

impl Note {
    /// Encodes the note.
    pub fn encode(&self) -> Bytes {
        let mut fields = Writer::default();
        match self {
            Note::Waiting(progress) => {
                fields.fixed(&[0]);
                fields.u64(progress.workers as u64);
                fields.u64(progress.waited.as_millis() as u64);
                fields.u64(progress.missing.len() as u64);
                for missing in &progress.missing {
                    fields.u64(missing.worker as u64);
                    fields.text(&missing.address);
                }
                progress.refused.iter().for_each(|refused| fields.text(cut(refused)));
            }
            Note::Table(generation, table, members) => {
                fields.fixed(&[1]);
                write_world(&mut fields, *generation, *table, members);
            }
            Note::Refused(worker, address, refusal) => {
                fields.fixed(&[2, refusal.reason.code()]);
                fields.u64(*worker as u64);
                fields.text(address);
                fields.text(cut(&refusal.text));
            }
            Note::Spare(generation, table, members) => {
                fields.fixed(&[3]);
                write_world(&mut fields, *generation, *table, members);
            }
            Note::Leads(generation) => {
                fields.fixed(&[4]);
                fields.u64(*generation);
            }
        }
        fields.0.into()
    }

    /// Decodes a note.
    ///
    /// # Errors
    /// Returns [`Malformed`] if the bytes are not a valid note.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut fields = Reader(bytes);
        match fields.fixed()? {
            [0] => {
                let (workers, waited) = (fields.count()?, Duration::from_millis(fields.u64()?));
                let (mut missing, mut refused) = (Vec::new(), Vec::new());
                for _ in 0..fields.count()? {
                    let (worker, address) = (fields.count()?, fields.text(LONGEST)?.to_owned());
                    // The receiver replaces this by the name of the worker.
                    missing.push(Missing { worker, task: Job::Worker.task(worker), address, last: None });
                }
                while !fields.0.is_empty() {
                    refused.push(fields.text(MAX_REASON)?.to_owned());
                }
                Ok(Note::Waiting(Progress { workers, waited, missing, refused }))
            }
            [1] => {
                let (generation, table, members) = read_world(fields)?;
                Ok(Note::Table(generation, table, members))
            }
            [2] => {
                let [code] = fields.fixed()?;
                let (worker, address) = (fields.count()?, fields.text(LONGEST)?.to_owned());
                let refusal = Refusal::new(Reason::from_code(code), fields.text(MAX_REASON)?);
                fields.end()?;
                Ok(Note::Refused(worker, address, refusal))
            }
            [3] => {
                let (generation, table, members) = read_world(fields)?;
                Ok(Note::Spare(generation, table, members))
            }
            [4] => {
                let generation = fields.u64()?;
                fields.end()?;
                Ok(Note::Leads(generation))
            }
            _ => Err(Malformed),
        }
    }
}

/// Writes the generation of a world, the id of its table, and the position and address of each of its workers.
fn write_world(fields: &mut Writer, generation: u64, table: u64, members: &[(usize, Address)]) {
    fields.u64(generation);
    fields.u64(table);
    for (place, address) in members {
        fields.u64(*place as u64);
        fields.text(&address.to_string());
    }
}

/// Reads what [`write_world`] has written, up to the end of the note.
fn read_world(mut fields: Reader<'_>) -> Result<World, Malformed> {
    let (generation, table, mut members) = (fields.u64()?, fields.u64()?, Vec::new());
    while !fields.0.is_empty() {
        members.push((fields.count()?, fields.text(LONGEST)?.parse().map_err(|_| Malformed)?));
    }
    Ok((generation, table, members))
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_REASON)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn notes_come_back_from_their_bytes() {
        let task = Job::Worker.task(2);
        let missing = vec![Missing { worker: 2, task, address: "10.0.0.7:2222".into(), last: None }];
        let (waited, refused) = (Duration::from_millis(1500), vec!["10.0.0.9:7 (another secret)".to_owned()]);
        let waiting = Progress { workers: 4, waited, missing, refused };
        for note in [
            Note::Waiting(waiting),
            Note::Table(7, 1, vec![(0, "a:1".parse().unwrap()), (3, "b:2".parse().unwrap())]),
            Note::Refused(3, "10.0.0.9:7".to_owned(), Refusal::new(Reason::Cluster, "of another program")),
            Note::Leads(4),
            Note::Spare(5, 2, vec![]),
            Note::Spare(6, 3, vec![(1, "a:1".parse().unwrap()), (2, "b:2".parse().unwrap())]),
        ] {
            assert_eq!(Note::decode(&note.encode()), Ok(note));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_note_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Note::decode(&bytes);
        }
    }
}
