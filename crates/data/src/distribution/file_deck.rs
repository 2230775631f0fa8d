//! [`FileDeck`]: files that are dealt one by one, each file once in every epoch.

use super::FileList;
use crate::random::EpochRng;
use crate::{Error, Files, Location, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Files that are dealt one by one to workers as they become free, each file once in every epoch.
///
/// A coordinator deals files, and schedules a function for each of them. A worker that has finished a file gets the
/// next one, so workers with slow machines or large files read fewer files. The function gets a [`DealtFile`], which
/// can be sent to a worker, and finds this file in the worker's list with [`Files::dealt`].
///
/// The deck is a component of checkpoints. Save it when all functions have ended, so that every file that was dealt
/// belongs to the saved variables.
///
/// ```
/// use distribute_data::{FileDeck, Files};
///
/// let files = Files::from(["a.csv", "b.csv", "c.csv"]);
/// let deck = FileDeck::new(files.clone()).shuffle(42);
/// for epoch in 0..2 {
///     let mut dealt = Vec::new();
///     while let Some(file) = deck.deal() {
///         assert_eq!(file.epoch, epoch);
///         dealt.push(files.dealt(&file)?.to_string());
///     }
///     dealt.sort();
///     assert_eq!(dealt, ["a.csv", "b.csv", "c.csv"]);
/// }
/// # Ok::<(), distribute_data::Error>(())
/// ```
#[derive(Clone)]
pub struct FileDeck {
    files: Arc<Files>,
    seed: Option<u64>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    epoch: u64,
    /// The number of files that have been dealt in the epoch.
    dealt: usize,
    /// The indices of the files in the order of the epoch; empty until the first is dealt.
    order: Vec<usize>,
}

/// A file of a [`FileDeck`], by its index. It can be sent to a worker whose files are in another folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DealtFile {
    /// The number of the epoch, from 0.
    pub epoch: u64,
    /// The index of the file among the files of the deck.
    pub index: usize,
    /// The number of files of the deck.
    pub count: usize,
    /// The name of the file, without its folder.
    pub name: String,
}

/// The position of a [`FileDeck`]: the files that have been dealt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeckPosition {
    /// The number of the epoch, from 0.
    pub epoch: u64,
    /// The number of files that have been dealt in the epoch.
    pub dealt: usize,
    /// The seed of the order; `None` for the order of the files.
    pub seed: Option<u64>,
    /// The files of the deck; `None` if there are none.
    pub files: Option<FileList>,
}

impl fmt::Display for DeckPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {}, {} files dealt", self.epoch, self.dealt)
    }
}

impl fmt::Debug for FileDeck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileDeck")
            .field("files", &self.files.len())
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}

impl FileDeck {
    /// Creates a deck that deals files in their order. Clones are handles to the same deck.
    pub fn new(files: Files) -> Self {
        Self { files: Arc::new(files), seed: None, state: Arc::default() }
    }

    /// Returns a deck of the same files, in an order that depends only on `seed` and the epoch. The new deck begins
    /// with the first file of epoch 0, even if files have been dealt from this one.
    pub fn shuffle(self, seed: u64) -> Self {
        Self { seed: Some(seed), ..Self::new(Arc::unwrap_or_clone(self.files)) }
    }

    /// Returns the next file of the epoch. Returns `None` at the end of the epoch; the call after that returns the
    /// first file of the next epoch. A deck without files always returns `None`.
    pub fn deal(&self) -> Option<DealtFile> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let count = self.files.len();
        if state.order.len() != count {
            state.order = self.order(state.epoch);
        }
        let dealt =
            state.order.get(state.dealt).and_then(|index| Some((*index, self.files.iter().nth(*index)?)));
        let Some((index, file)) = dealt else {
            *state = State { epoch: state.epoch.saturating_add(1), ..State::default() };
            return None;
        };
        state.dealt += 1;
        Some(DealtFile { epoch: state.epoch, index, count, name: name(file) })
    }

    /// Returns the indices of the files in the order of an epoch.
    fn order(&self, epoch: u64) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.files.len()).collect();
        if let Some(seed) = self.seed {
            let mut rng = EpochRng::new(seed, epoch);
            for i in (1..order.len()).rev() {
                order.swap(i, rng.below(i + 1));
            }
        }
        order
    }

    /// Returns the position after the file that was dealt last. To detect changes, the first and last bytes of up to
    /// 1024 files are read.
    pub fn position(&self) -> DeckPosition {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (epoch, dealt) = (state.epoch, state.dealt);
        drop(state);
        DeckPosition { epoch, dealt, seed: self.seed, files: FileList::of_files(&self.files) }
    }

    /// Checks that the deck can continue at a position.
    ///
    /// # Errors
    /// - [`Error::Position`]: the position has another seed; or it is within an epoch, and the files differ or are
    ///   fewer than have been dealt.
    pub fn check_position(&self, position: &DeckPosition) -> Result<()> {
        let refuse = |why: String| Err(Error::Position { position: position.to_string(), why });
        if position.seed != self.seed {
            let seed = |seed: Option<u64>| seed.map_or("none".into(), |seed| seed.to_string());
            return refuse(format!("the seed is {} here, but was {}", seed(self.seed), seed(position.seed)));
        }
        if position.dealt == 0 {
            return Ok(());
        }
        match (FileList::of_files(&self.files), &position.files) {
            (Some(mine), Some(theirs)) => match mine.difference(theirs) {
                None if position.dealt <= self.files.len() => Ok(()),
                None => refuse(format!("there are {} files", self.files.len())),
                Some(differs) => {
                    refuse(format!("{} is {} here, but was {}", differs.what, differs.here, differs.there))
                }
            },
            _ => refuse("there are no files".into()),
        }
    }

    /// Continues at a position, with the file after the one that was dealt last.
    ///
    /// # Errors
    /// - [`Error::Position`]: the deck cannot continue at the position; see [`check_position`](Self::check_position).
    pub fn resume(&self, position: &DeckPosition) -> Result<()> {
        self.check_position(position)?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = State { epoch: position.epoch, dealt: position.dealt, order: Vec::new() };
        Ok(())
    }
}

/// Returns the name of a file without its folder.
fn name(file: &Location) -> String {
    let shown = file.to_string();
    let begin = shown.rfind(|c| c == '/' || std::path::is_separator(c)).map_or(0, |at| at + 1);
    shown.get(begin..).unwrap_or_default().into()
}

impl Files {
    /// Returns the file of this list that a [`FileDeck`] has dealt.
    ///
    /// # Errors
    /// - [`Error::Parameter`]: this list has another number of files than the deck, or a file with another name at this
    ///   index.
    pub fn dealt(&self, file: &DealtFile) -> Result<Location> {
        let mine = self.iter().nth(file.index).filter(|_| self.len() == file.count);
        match mine.filter(|mine| name(mine) == file.name) {
            Some(mine) => Ok(mine.clone()),
            None => Err(Error::Parameter {
                operation: "Files::dealt",
                parameter: "the file",
                found: format!("file {} of {}, '{}'", file.index, file.count, file.name),
                expected: "the file of that name in a list of that length: use the same files on all tasks",
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn four() -> Files {
        ["a", "b", "c", "d"].map(|name| Location::bytes(name, name)).into_iter().collect()
    }

    /// Deals the remaining files of the epoch. Returns the epoch and the name of each file.
    fn rest(deck: &FileDeck) -> Vec<(u64, String)> {
        std::iter::from_fn(|| deck.deal()).map(|file| (file.epoch, file.name)).collect()
    }

    #[test]
    fn each_epoch_has_each_file_once_in_an_order_of_its_own() {
        let plain = FileDeck::new(four());
        let names = |epoch| ["a", "b", "c", "d"].map(|name: &str| (epoch, name.to_string()));
        assert_eq!([rest(&plain), rest(&plain)], [names(0), names(1)]);
        let shuffled = FileDeck::new(four()).shuffle(3);
        let epochs: Vec<_> = (0..8).map(|_| rest(&shuffled)).collect();
        let again = FileDeck::new(four()).shuffle(3);
        assert_eq!((0..8).map(|_| rest(&again)).collect::<Vec<_>>(), epochs);
        for (epoch, mut files) in (0..).zip(epochs.clone()) {
            files.sort();
            assert_eq!(files, names(epoch));
        }
        assert!(
            epochs
                .iter()
                .any(|epoch| epoch.iter().map(|(_, name)| name).ne(epochs[0].iter().map(|(_, name)| name)))
        );
        assert_eq!(rest(&FileDeck::new(Files::default())), []);
    }

    #[test]
    fn a_deck_continues_at_its_position() {
        for dealt in 0..=5 {
            let first = FileDeck::new(four()).shuffle(3);
            let mut all = Vec::new();
            for _ in 0..dealt {
                all.extend(first.deal());
            }
            let saved = first.position();
            let second = FileDeck::new(four()).shuffle(3);
            second.resume(&saved).unwrap();
            assert_eq!((rest(&second), rest(&second)), (rest(&first), rest(&first)));
        }
    }

    #[test]
    fn other_files_and_seeds_are_refused() {
        let deck = FileDeck::new(four()).shuffle(3);
        deck.deal();
        let position = deck.position();
        let error = FileDeck::new(four()).resume(&position).unwrap_err().to_string();
        assert_eq!(
            error,
            "the position (epoch 0, 1 files dealt) cannot be restored: the seed is none here, but was 3"
        );
        let other: Files = ["a", "b", "x", "d"].map(|name| Location::bytes(name, name)).into_iter().collect();
        let error = FileDeck::new(other.clone()).shuffle(3).resume(&position).unwrap_err();
        assert!(matches!(error, Error::Position { .. }), "{error}");
        assert!(FileDeck::new(Files::default()).shuffle(3).resume(&position).is_err());
        assert!(deck.resume(&DeckPosition { dealt: 9, ..position.clone() }).is_err());
        // Between epochs files may change.
        FileDeck::new(other.clone()).shuffle(3).resume(&DeckPosition { dealt: 0, ..position }).unwrap();
        let file = DealtFile { epoch: 0, index: 2, count: 4, name: "c".into() };
        assert_eq!(four().dealt(&file).unwrap().to_string(), "c");
        for wrong in [other, four().shard(2, 0).unwrap()] {
            let error = wrong.dealt(&file).unwrap_err().to_string();
            assert!(
                error.starts_with("Files::dealt: the file is file 2 of 4, 'c', but must be the file of that"),
                "{error}"
            );
        }
    }
}
