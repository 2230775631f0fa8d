//! [`Hand`]: the files that a worker is dealt during a pass.

use crate::Result;
use distribute_tensor::{Leaf, Tree};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};

/// The files that a worker has been dealt and has not begun to read. The hand belongs to the source of the worker's
/// pipeline.
///
/// A source that needs another file sends [`Output::NeedsFile`] on the channel of the pass, after all elements that
/// precede the request, and waits for one answer. No deadline is needed: the wait ends with the pass, which drops its
/// end of the channel.
pub(crate) struct Hand {
    files: VecDeque<usize>,
    /// Whether more files may be dealt.
    more: bool,
    output: SyncSender<Output>,
    answers: Receiver<NewFiles>,
}

/// A message of the thread that runs a worker's pipeline.
pub(crate) enum Output {
    /// The next per-replica batch, or the error that ends the pass.
    Piece(Result<Tree<Leaf>>),
    /// A request for files. The thread waits for [`NewFiles`].
    NeedsFile,
}

/// The answer to [`Output::NeedsFile`]: the indices of files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NewFiles {
    pub(crate) files: Vec<usize>,
    /// Whether more files may be dealt later. There is at least one file, or `more` is `false`.
    pub(crate) more: bool,
}

impl Hand {
    /// Creates a hand with the files `first`. `output` and `answers` are the channels on which it requests and
    /// receives more.
    pub(crate) fn new(first: NewFiles, output: SyncSender<Output>, answers: Receiver<NewFiles>) -> Self {
        Self { files: first.files.into(), more: first.more, output, answers }
    }

    /// Removes and returns the next file. If there is none and `may_wait` is `true`, waits until one has been dealt.
    /// Returns `None` after the last file, or if a file would have to be awaited although `may_wait` is `false`.
    fn next(&mut self, may_wait: bool) -> Option<usize> {
        while self.files.is_empty() && self.more && may_wait {
            let asked = self.output.send(Output::NeedsFile);
            let NewFiles { files, more } =
                asked.ok().and_then(|()| self.answers.iter().next()).unwrap_or_default();
            self.files.extend(files);
            self.more = more;
        }
        self.files.pop_front()
    }
}

/// A slot in the source of a pipeline. It contains the [`Hand`] of a pass until the pass starts and takes the hand.
#[derive(Clone)]
pub(crate) struct HandSlot(Arc<Mutex<Option<Hand>>>);

impl HandSlot {
    pub(crate) fn new(hand: Hand) -> Self {
        Self(Arc::new(Mutex::new(Some(hand))))
    }

    fn take(&self) -> Option<Hand> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The order in which a source reads its files, by their indices.
pub(crate) enum FileOrder {
    /// All files, in order: the index of the next one, and their number.
    All { next: usize, count: usize },
    /// The files that are dealt.
    Dealt(Hand),
}

impl FileOrder {
    /// Begins a pass over `count` files or, if there is a slot, over those that are dealt. Returns `None` if another
    /// pass has taken the hand.
    pub(crate) fn new(count: usize, dealt: Option<&HandSlot>) -> Option<Self> {
        match dealt {
            None => Some(FileOrder::All { next: 0, count }),
            Some(slot) => slot.take().map(FileOrder::Dealt),
        }
    }

    /// Creates an order without files.
    pub(crate) fn none() -> Self {
        FileOrder::All { next: 0, count: 0 }
    }

    /// Returns the next file; `None` after the last one. If `may_wait` is `false`, also returns `None` if the next file
    /// has not been dealt yet.
    pub(crate) fn next(&mut self, may_wait: bool) -> Option<usize> {
        match self {
            FileOrder::All { next, count } => {
                let file = *next;
                *next += 1;
                (file < *count).then_some(file)
            }
            FileOrder::Dealt(hand) => hand.next(may_wait),
        }
    }
}
