//! Elements made ahead of time, on a thread of their own.

use crate::guard::panic_message;
use crate::pipeline::{Operation, Pipeline, Sharding};
use crate::run::Run;
use crate::stage::Stage;
use crate::{Cardinality, Dataset, Error, Result};
use distribute_tensor::Nest;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

impl<T: Nest> Dataset<T> {
    /// Makes up to `buffer` elements ahead of time, on a thread that starts with the first element asked for and
    /// ends with the pass: at the end, at an error, or when the iterator is dropped (a user's function that is
    /// running then is finished first). 0 changes nothing.
    ///
    /// A thread that cannot be started gives [`Error::Thread`].
    #[doc(alias = "tf.data.Dataset.prefetch")]
    pub fn prefetch(&self, buffer: usize) -> Self {
        Self::of(Prefetch { input: self.pipeline().clone(), buffer })
    }
}

struct Prefetch {
    input: Pipeline,
    buffer: usize,
}

impl Operation for Prefetch {
    fn inputs(&self) -> &[Pipeline] {
        std::slice::from_ref(&self.input)
    }

    fn over(&self, f: &mut dyn FnMut(&Pipeline) -> Pipeline) -> Option<Pipeline> {
        Some(Arc::new(Prefetch { input: f(&self.input), buffer: self.buffer }))
    }

    fn describe(&self) -> String {
        format!("prefetch {}", self.buffer)
    }

    fn cardinality(&self) -> Cardinality {
        self.input.cardinality()
    }

    fn sharding(&self) -> Sharding {
        Sharding::Through
    }

    fn costly(&self) -> bool {
        self.buffer == 0 && self.input.costly()
    }

    fn start(&self, epoch: u64) -> Box<dyn Stage> {
        match self.buffer {
            0 => self.input.start(epoch),
            buffer => Box::new(PrefetchStage::new(self.input.start(epoch), buffer)),
        }
    }
}

/// Runs its input on a thread that stays at most `buffer` elements ahead of the consumer.
///
/// Neither side waits for longer than the other lives, and neither needs a deadline for that: a channel's wait ends
/// when its other end is dropped. The thread drops its end when the input ends, fails or panics; the consumer drops
/// its end together with the stage, upon which the thread's next hand-over fails and the thread ends. Nobody joins
/// a thread that may still be in a user's function. What can take long is the user's function itself, just as long
/// as it would without prefetch.
pub(crate) struct PrefetchStage {
    state: State,
    buffer: usize,
}

enum State {
    /// Not started: a pass that nobody pulls from costs no thread.
    Waiting(Box<dyn Stage>),
    Running(Running),
    Ended,
}

struct Running {
    receiver: Receiver<Result<Run>>,
    thread: JoinHandle<()>,
    /// What was received but didn't fit into the run before it.
    kept: Option<Result<Run>>,
}

/// A channel sets all its places aside at once: more than these would only cost memory.
const MOST_PLACES: usize = 4096;

impl Running {
    fn start(mut input: Box<dyn Stage>, buffer: usize) -> Result<Self> {
        // One element more is in the thread's hands, waiting for a place.
        let (sender, receiver) = sync_channel(buffer.saturating_sub(1).min(MOST_PLACES));
        let thread = std::thread::Builder::new()
            .name("data-prefetch".into())
            .spawn(move || {
                let mut next = || {
                    let _input = tracing::trace_span!("input").entered();
                    input.next(1)
                };
                while let Some(run) = next() {
                    let failed = run.is_err();
                    if sender.send(run).is_err() || failed {
                        break;
                    }
                }
                // The input goes first: when the consumer sees the end, what the input held is free.
                drop(input);
                drop(sender);
            })
            .map_err(|source| Error::Thread { source })?;
        Ok(Self { receiver, thread, kept: None })
    }

    /// Waits for one element and takes what else is there already, up to `max` elements.
    fn pull(&mut self, max: usize) -> Option<Result<Run>> {
        // This wait ends with the thread, see above.
        let mut run = match self.kept.take().or_else(|| self.receiver.iter().next())? {
            Ok(run) => run,
            error => return Some(error),
        };
        while run.len() < max {
            self.kept = match self.receiver.try_recv() {
                Ok(Ok(next)) => run.append(next).map(Ok),
                Ok(error) => Some(error),
                Err(_) => break,
            };
            if self.kept.is_some() {
                break;
            }
        }
        Some(Ok(run))
    }

    /// Why nothing more comes: the thread has nothing left to do but to end, so this join doesn't wait.
    fn end(self) -> Option<Result<Run>> {
        let panic = self.thread.join().err()?;
        Some(Err(Error::ThreadDied { message: panic_message(panic.as_ref()) }))
    }
}

impl Stage for PrefetchStage {
    fn next(&mut self, max: usize) -> Option<Result<Run>> {
        let mut running = match std::mem::replace(&mut self.state, State::Ended) {
            State::Ended => return None,
            State::Running(running) => running,
            State::Waiting(input) => match Running::start(input, self.buffer) {
                Ok(running) => running,
                Err(error) => return Some(Err(error)),
            },
        };
        match running.pull(max) {
            None => running.end(),
            some => {
                self.state = State::Running(running);
                some
            }
        }
    }

    /// Before the thread has started the input itself skips, which can be much faster than making elements.
    fn skip(&mut self, count: usize) -> Result<usize> {
        if let State::Waiting(input) = &mut self.state {
            let skipped = input.skip(count)?;
            if skipped < count {
                self.state = State::Ended;
            }
            return Ok(skipped);
        }
        let mut left = count;
        while left > 0 {
            match self.next(left) {
                Some(run) => left -= run?.len(),
                None => break,
            }
        }
        Ok(count - left)
    }
}

impl PrefetchStage {
    pub(crate) fn new(input: Box<dyn Stage>, buffer: usize) -> Self {
        Self { state: State::Waiting(input), buffer }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dataset;
    use crate::testing::{ids, values, watchdog};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, mpsc};
    use std::time::Duration;

    #[test]
    fn prefetch_changes_nothing_but_the_time() {
        watchdog(|| {
            for buffer in [0, 1, 2, 7, usize::MAX] {
                assert_eq!(values(&Dataset::range(20).prefetch(buffer)), (0..20).collect::<Vec<_>>());
                let batched = Dataset::range(20).shuffle(20, 1).batch(6);
                assert_eq!(ids(&batched.prefetch(buffer)), ids(&batched));
                let inner = Dataset::range(20).shuffle(20, 1).prefetch(buffer).batch(6).repeat(2);
                assert_eq!(ids(&inner).concat(), ids(&batched.repeat(2)).concat());
            }
        });
    }

    // INV-3
    #[test]
    fn an_error_comes_where_it_would_have_come_and_the_thread_ends() {
        watchdog(|| {
            let data = Dataset::range(9).try_map(|x| if x == 4 { Err("four") } else { Ok(x) }).prefetch(3);
            let mut iter = data.iter();
            assert_eq!(iter.by_ref().take(4).map(Result::unwrap).collect::<Vec<_>>(), [0, 1, 2, 3]);
            assert_eq!(iter.next().unwrap().unwrap_err().to_string(), "map failed at element 4: four");
            assert!(iter.next().is_none());
            let panics = Dataset::range(9).map(|x| if x == 4 { panic!("at four") } else { x }).prefetch(3);
            assert!(panics.iter().last().unwrap().unwrap_err().to_string().contains("at four"));
        });
    }

    /// Counts how far a source was run and says when it is dropped.
    struct Watched(Arc<AtomicUsize>, mpsc::Sender<()>, i64);

    impl Iterator for Watched {
        type Item = Result<i64, String>;
        fn next(&mut self) -> Option<Self::Item> {
            self.0.fetch_add(1, Ordering::SeqCst);
            self.2 += 1;
            Some(Ok(self.2))
        }
    }
    impl Drop for Watched {
        fn drop(&mut self) {
            let _ = self.1.send(());
        }
    }

    // INV-3
    #[test]
    fn dropping_the_consumer_ends_the_thread_and_it_never_ran_far_ahead() {
        watchdog(|| {
            let count = Arc::new(AtomicUsize::new(0));
            let (sender, dropped) = mpsc::channel();
            let seen = count.clone();
            let data = Dataset::from_generator(move || Watched(count.clone(), sender.clone(), 0)).prefetch(4);
            let mut iter = data.iter();
            assert_eq!(seen.load(Ordering::SeqCst), 0, "nothing runs before it is asked for");
            for expected in 1..=10 {
                assert_eq!(iter.next().unwrap().unwrap(), expected);
            }
            drop(iter);
            dropped.recv_timeout(Duration::from_secs(20)).expect("the thread has not let go of its source");
            assert!((10..=15).contains(&seen.load(Ordering::SeqCst)), "ran ahead: {seen:?}");
        });
    }

    #[test]
    fn a_thread_that_dies_is_an_error() {
        struct Broken;
        impl Stage for Broken {
            fn next(&mut self, _: usize) -> Option<Result<Run>> {
                panic!("a bug of ours")
            }
        }
        watchdog(|| {
            let mut stage = PrefetchStage::new(Box::new(Broken), 2);
            let error = stage.next(1).unwrap().err().unwrap();
            assert_eq!(error.to_string(), "the thread of prefetch died: a bug of ours");
            assert!(stage.next(1).is_none());
        });
    }
}
