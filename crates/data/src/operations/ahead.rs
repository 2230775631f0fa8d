//! [`AheadStage`]: a stage that runs on a separate thread, before its elements are requested.

use crate::chunk::Chunk;
use crate::guard::panic_message;
use crate::stage::{Stage, read_over};
use crate::{Error, Result};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

/// A stage that runs its input on a thread. The thread prepares at most `buffer` elements before the consumer
/// requests them.
///
/// No deadline is needed, because a wait on a channel ends when the other end is dropped. The thread drops its
/// end when the input ends, fails or panics. The consumer drops its end with the stage. The thread's next send
/// then fails, and the thread exits. The stage never joins a thread that may still be running a user function.
/// Only the user function itself can take long, as it could without a thread.
pub(crate) struct AheadStage {
    state: State,
    buffer: usize,
    operation: &'static str,
}

enum State {
    /// A stage whose thread is not started before its first element is requested.
    Waiting(Box<dyn Stage>),
    Running(Running),
    Ended,
}

struct Running {
    receiver: Receiver<Delivered>,
    thread: JoinHandle<()>,
    /// The number of passes of the input that were complete after the last returned element.
    passes: usize,
    /// A received chunk that could not be appended to the previous one.
    kept: Option<Delivered>,
}

/// A chunk, and the number of [passes](Stage::passes) of the input that were complete after it.
type Delivered = (Result<Chunk>, usize);

/// The maximum number of slots of a channel. A channel allocates all of them at once, so more would waste memory.
const MAX_PLACES: usize = 4096;

impl Running {
    fn start(mut input: Box<dyn Stage>, buffer: usize, operation: &'static str) -> Result<Self> {
        // The thread holds one more element, waiting for a slot.
        let (sender, receiver) = sync_channel(buffer.saturating_sub(1).min(MAX_PLACES));
        let thread = std::thread::Builder::new()
            .name(format!("data-{operation}"))
            .spawn(move || {
                let mut next = || {
                    let _input = tracing::trace_span!("input").entered();
                    // Batches are assembled here, ahead of the consumer.
                    let chunk = input.next(1)?;
                    Some((chunk.and_then(Chunk::assembled), input.passes()))
                };
                while let Some(made) = next() {
                    let failed = made.0.is_err();
                    if sender.send(made).is_err() || failed {
                        break;
                    }
                }
                // Dropped before the channel's end, so that its memory is free when the consumer sees the
                // end.
                drop(input);
                drop(sender);
            })
            .map_err(|source| Error::Thread { operation, source })?;
        Ok(Self { receiver, thread, passes: 0, kept: None })
    }

    /// Blocks until an element is available, and returns it with others that are ready, up to `max` in total. Returns
    /// `None` at the end.
    fn pull(&mut self, max: usize) -> Option<Result<Chunk>> {
        // This wait ends with the thread, see [`AheadStage`].
        let (first, passes) = match self.kept.take() {
            Some(kept) => kept,
            None => self.receiver.iter().next()?,
        };
        self.passes = passes;
        let mut chunk = match first {
            Ok(chunk) => chunk,
            error => return Some(error),
        };
        while chunk.len() < max && self.kept.is_none() {
            let Ok((next, passes)) = self.receiver.try_recv() else { break };
            self.kept = match next {
                // A chunk ends with its pass, which a batch counts only if it begins with the next one.
                Ok(next) if passes == self.passes => chunk.append(next).map(|next| (Ok(next), passes)),
                next => Some((next, passes)),
            };
        }
        Some(Ok(chunk))
    }

    /// Returns the error of a thread that panicked; `None` if it has ended normally. The thread has nothing left
    /// to do, so this does not block.
    fn end(self, operation: &'static str) -> Option<Result<Chunk>> {
        let panic = self.thread.join().err()?;
        Some(Err(Error::ThreadDied { operation, message: panic_message(panic.as_ref()) }))
    }
}

impl AheadStage {
    /// Creates a stage, without starting its thread. `buffer` must be at least 1. `operation` is part of the thread's
    /// name and of errors.
    pub(crate) fn new(input: Box<dyn Stage>, buffer: usize, operation: &'static str) -> Self {
        Self { state: State::Waiting(input), buffer, operation }
    }

    /// Starts the thread if it has not been started. Without this call, the first request starts it.
    pub(crate) fn begin(&mut self) -> Result<()> {
        self.state = match std::mem::replace(&mut self.state, State::Ended) {
            State::Waiting(input) => State::Running(Running::start(input, self.buffer, self.operation)?),
            other => other,
        };
        Ok(())
    }
}

impl Stage for AheadStage {
    fn next(&mut self, max: usize) -> Option<Result<Chunk>> {
        if let Err(error) = self.begin() {
            return Some(Err(error));
        }
        let State::Running(mut running) = std::mem::replace(&mut self.state, State::Ended) else {
            return None;
        };
        match running.pull(max) {
            None => running.end(self.operation),
            some => {
                self.state = State::Running(running);
                some
            }
        }
    }

    /// Skips elements in the input, without creating them, if the thread has not started. That can be much faster.
    fn skip(&mut self, count: usize) -> Result<usize> {
        if let State::Waiting(input) = &mut self.state {
            let skipped = input.skip(count)?;
            if skipped < count {
                self.state = State::Ended;
            }
            return Ok(skipped);
        }
        read_over(self, count)
    }

    fn passes(&self) -> usize {
        match &self.state {
            State::Waiting(input) => input.passes(),
            State::Running(running) => running.passes,
            State::Ended => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_testing::watched;

    // INV-3
    #[test]
    fn a_thread_that_dies_is_an_error() {
        struct Broken;
        impl Stage for Broken {
            fn next(&mut self, _: usize) -> Option<Result<Chunk>> {
                panic!("a bug of ours")
            }
        }
        watched(|| {
            let mut stage = AheadStage::new(Box::new(Broken), 2, "prefetch");
            let error = stage.next(1).unwrap().err().unwrap();
            assert_eq!(error.to_string(), "a thread of prefetch panicked: a bug of ours");
            assert!(stage.next(1).is_none());
        });
    }
}
