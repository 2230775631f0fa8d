//! [`DealtPieces`]: the per-replica batches of a worker whose files are dealt during the pass.

use crate::guard::panic_message;
use crate::hand::{Hand, NewFiles, Output};
use crate::stage::{Stage, one};
use crate::{Error, Result};
use distribute_tensor::{Leaf, Tree};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

/// The name of the thread in errors.
const OPERATION: &str = "dealt files";

/// The maximum number of slots of a channel, which allocates all of them at once.
const MAX_PLACES: usize = 4096;

/// A stage that yields the batches of a worker's replicas in turn, on a thread.
///
/// When the source needs a file that has not been dealt, the thread reports this between two batches, and waits. The
/// position of this report depends only on the files, not on timing. The workers exchange their reports when they
/// decide about a step, and then send the new files to their threads.
///
/// No wait needs a deadline. The thread waits only on channels whose other ends are dropped with this value, and this
/// value waits only for a thread that reads. A thread that may be running a user function is never joined.
pub(super) struct DealtPieces {
    state: State,
    /// The number of batches that the thread skips before the first one that it sends.
    skipped: usize,
    replicas: usize,
    /// The number of batches that are received before they are needed, so that a file can be dealt early.
    early: usize,
    ready: VecDeque<Tree<Leaf>>,
    /// Whether the thread is waiting for a file.
    needs_file: bool,
    /// The error to return after the batches in `ready`.
    failed: Option<Error>,
    ended: bool,
}

enum State {
    /// A stage whose thread has not been started, with the thread's ends of the channels. A pass that is never read
    /// needs no thread.
    Waiting {
        stage: Box<dyn Stage>,
        sender: SyncSender<Output>,
        links: Links,
    },
    Running(Links, JoinHandle<()>),
    Ended,
}

/// The ends of the channels to and from the thread.
struct Links {
    answers: Sender<NewFiles>,
    output: Receiver<Output>,
}

impl DealtPieces {
    /// Creates the batches of a worker that has been dealt the files `first`. `start` creates the stage that reads
    /// from a hand. The thread is not started yet. It will prepare batches of `prefetch` steps, and at least one
    /// batch.
    pub(super) fn new(
        first: NewFiles,
        replicas: usize,
        prefetch: usize,
        start: impl FnOnce(Hand) -> Box<dyn Stage>,
    ) -> Self {
        let places = prefetch.saturating_mul(replicas).saturating_sub(1).min(MAX_PLACES);
        let (sender, output) = sync_channel(places);
        let (answers, answered) = channel();
        let stage = start(Hand::new(first, sender.clone(), answered));
        Self {
            state: State::Waiting { stage, sender, links: Links { answers, output } },
            skipped: 0,
            replicas,
            early: if prefetch > 0 { replicas } else { 0 },
            ready: VecDeque::new(),
            needs_file: false,
            failed: None,
            ended: false,
        }
    }

    pub(super) fn replicas(&self) -> usize {
        self.replicas
    }

    /// Skips the batches of `steps` steps. The thread skips them when it starts, because it may need files for that.
    ///
    /// # Errors
    /// - [`Error::NotDealt`]: the thread has already been started.
    pub(super) fn skip(&mut self, steps: usize) -> Result<()> {
        if !matches!(self.state, State::Waiting { .. }) {
            let why = "steps can be skipped only before the first one is prepared";
            return Err(Error::NotDealt { why: why.into() });
        }
        self.skipped = self.skipped.saturating_add(steps.saturating_mul(self.replicas));
        Ok(())
    }

    /// Receives the batches of the next step, and some early ones. Stops when the thread needs a file or has ended.
    /// An error of an early batch is returned when the batch is needed.
    pub(super) fn fetch(&mut self) -> Result<()> {
        let wanted = self.replicas.saturating_add(self.early);
        while self.ready.len() < wanted && !self.needs_file && !self.ended {
            self.begin()?;
            let State::Running(links, _) = &self.state else { break };
            // This wait ends with the thread, see [`DealtPieces`].
            match links.output.iter().next() {
                Some(Output::Piece(Ok(piece))) => self.ready.push_back(piece),
                Some(Output::Piece(Err(error))) => (self.failed, self.ended) = (Some(error), true),
                Some(Output::NeedsFile) => self.needs_file = true,
                None => self.end(),
            }
        }
        match self.failed.take_if(|_| self.ready.len() < self.replicas) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Starts the thread if it has not been started.
    fn begin(&mut self) -> Result<()> {
        self.state = match std::mem::replace(&mut self.state, State::Ended) {
            State::Waiting { stage, sender, links } => {
                let skipped = self.skipped;
                let thread = std::thread::Builder::new()
                    .name("data-dealt".into())
                    .spawn(move || run(stage, skipped, &sender))
                    .map_err(|source| Error::Thread { operation: OPERATION, source })?;
                State::Running(links, thread)
            }
            other => other,
        };
        Ok(())
    }

    /// Records the end of the thread, and its panic as an error.
    fn end(&mut self) {
        self.ended = true;
        if let State::Running(_, thread) = std::mem::replace(&mut self.state, State::Ended) {
            // The thread has nothing left to do, so this does not block.
            let panic = thread.join().err();
            self.failed = panic.map(|panic| Error::ThreadDied {
                operation: OPERATION,
                message: panic_message(panic.as_ref()),
            });
        }
    }

    /// Returns whether the thread waits for a file. The batches that it has prepared may be enough for the next step.
    pub(super) fn needs_file(&self) -> bool {
        self.needs_file
    }

    /// Returns whether the next step cannot be decided before the worker gets a file.
    pub(super) fn lacks_file(&self) -> bool {
        self.needs_file && self.ready.len() < self.replicas
    }

    /// Sends new files to the thread, if it is waiting for files.
    pub(super) fn give(&mut self, files: NewFiles) {
        if let State::Running(links, _) = &self.state
            && self.needs_file
        {
            // The end of the thread is noticed when its next batch is awaited.
            let _ = links.answers.send(files);
            self.needs_file = false;
        }
    }

    /// Removes and returns the next batch that has been [fetched](Self::fetch); `None` at the end.
    pub(super) fn next(&mut self) -> Option<Tree<Leaf>> {
        self.ready.pop_front()
    }
}

/// Sends the batches of a stage, after the first `skipped` ones, until the stage ends or the receiver is dropped.
fn run(mut stage: Box<dyn Stage>, skipped: usize, sender: &SyncSender<Output>) {
    let begun = if skipped == 0 { Ok(0) } else { stage.skip(skipped) };
    match begun {
        Ok(begun) if begun == skipped => {}
        Ok(_) => return,
        Err(error) => {
            // No thread needs the error if the receiver is dropped.
            let _ = sender.send(Output::Piece(Err(error)));
            return;
        }
    }
    loop {
        let _input = tracing::trace_span!("input").entered();
        let Some(piece) = one(&mut stage).transpose() else { break };
        let failed = piece.is_err();
        if sender.send(Output::Piece(piece)).is_err() || failed {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::Chunk;
    use distribute_testing::watched;

    struct Broken;

    impl Stage for Broken {
        fn next(&mut self, _max: usize) -> Option<Result<Chunk>> {
            panic!("{}", std::thread::current().name().unwrap_or_default())
        }
    }

    #[test]
    fn a_thread_that_panics_is_named_by_what_it_does() {
        watched(|| {
            let mut pieces = DealtPieces::new(NewFiles::default(), 1, 0, |_| Box::new(Broken));
            let error = pieces.fetch().unwrap_err();
            assert_eq!(error.to_string(), "a thread of dealt files panicked: data-dealt");
        });
    }
}
