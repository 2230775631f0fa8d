//! The saves of a manager and its clones, of which one at a time is made.

use crate::background::{STALLED, Save, SaveHandle, lock};
use crate::{Error, Progress, Result, Writer};
use distribute_cluster::Deadline;
use distribute_log::warn_or_stderr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// The saves of a manager, of which at most one is under way.
#[derive(Debug, Default)]
pub(crate) struct Saves {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Whether a thread has the turn to begin a save.
    is_taken: bool,
    /// The last save in the background.
    last: Option<Arc<Save>>,
    /// The save that a thread makes while its program waits.
    current: Option<Arc<Save>>,
}

impl State {
    /// Returns a save that is under way.
    fn unfinished(&self) -> Option<Arc<Save>> {
        let mut all = self.current.iter().chain(&self.last);
        all.find(|save| !save.is_finished()).cloned()
    }
}

impl Saves {
    /// Waits for the saves that are under way.
    ///
    /// # Errors
    /// - [`Error::Unfinished`]: a save has made no progress for five minutes.
    /// - [`Error::Interrupted`]: `progress` returned an error.
    pub(crate) fn finish(&self, progress: &mut Progress<'_>) -> Result<()> {
        loop {
            let unfinished = lock(&self.state).unfinished();
            let Some(save) = unfinished else { return Ok(()) };
            save.wait(Deadline::after(Duration::MAX), progress)?;
        }
    }

    /// Waits until no save is under way, and no other thread begins one in this `folder`. Until the turn ends, no other
    /// thread gets one.
    ///
    /// # Errors
    /// - [`Error::Unfinished`]: a save has made no progress for five minutes.
    /// - [`Error::Interrupted`]: `progress` returned an error.
    pub(crate) fn turn(self: &Arc<Self>, folder: &Path, progress: &mut Progress<'_>) -> Result<Turn> {
        loop {
            let mut deadline = Deadline::after(STALLED);
            let mut state = lock(&self.state);
            while state.is_taken {
                let slice = deadline.look();
                if slice.is_zero() {
                    return Err(Error::Unfinished { path: folder.to_path_buf(), after: STALLED });
                }
                state = self.changed.wait_timeout(state, slice).unwrap_or_else(PoisonError::into_inner).0;
            }
            let Some(save) = state.unfinished() else {
                state.is_taken = true;
                return Ok(Turn { saves: self.clone() });
            };
            drop(state);
            save.wait(Deadline::after(Duration::MAX), progress)?;
        }
    }

    fn record(&self, change: impl FnOnce(&mut State)) {
        change(&mut lock(&self.state));
        self.changed.notify_all();
    }
}

impl Drop for Saves {
    fn drop(&mut self) {
        // A program that ends after its last save must not lose it.
        if let Err(error) = self.finish(&mut || Ok(())) {
            warn_or_stderr(|| tracing::warn!("{error}"));
        }
    }
}

/// The right of a thread to begin the next save. Without a turn, a save of a clone on another thread could find the
/// folder locked although it only has to wait.
pub(crate) struct Turn {
    saves: Arc<Saves>,
}

impl Turn {
    /// Returns the last save in the background if it failed and nothing has reported that yet.
    pub(crate) fn earlier(&self) -> Option<Unreported> {
        let save = lock(&self.saves.state).last.clone()?;
        save.unreported_error().map(|source| Unreported { save, source })
    }

    /// Starts a thread that makes a save, and returns when it holds all live tensors. Then the turn ends.
    ///
    /// # Errors
    /// Returns the errors of [`Save::start`].
    pub(crate) fn start(
        self,
        path: PathBuf,
        writer: Writer,
        write: impl FnOnce(&Writer, &mut Progress<'_>) -> Result<()> + Send + 'static,
    ) -> Result<SaveHandle> {
        let save = Arc::new(Save::new(path));
        save.start(writer, write)?;
        self.saves.record(|state| state.last = Some(save.clone()));
        Ok(SaveHandle::new(save, self.saves.clone()))
    }

    /// Makes a save on this thread. The turn ends at once, and other saves wait for this one. `write` must release the
    /// folder, and call its function whenever it makes progress.
    ///
    /// # Errors
    /// Returns the error of `write`.
    pub(crate) fn make(
        self,
        path: PathBuf,
        progress: &mut Progress<'_>,
        write: impl FnOnce(&mut Progress<'_>) -> Result<()>,
    ) -> Result<()> {
        let save = Arc::new(Save::new(path));
        let saves = self.saves.clone();
        saves.record(|state| state.current = Some(save.clone()));
        drop(self);
        let _ended = Ended(&saves, &save);
        write(&mut || {
            save.record(|state| state.reports += 1);
            progress()
        })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.saves.record(|state| state.is_taken = false);
    }
}

/// Ends a save that was made on this thread when it is dropped, also by a panic. The caller has its error.
struct Ended<'a>(&'a Saves, &'a Save);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        let Self(saves, save) = self;
        save.record(|state| state.result = Some(Ok(())));
        saves.record(|state| state.current = None);
    }
}

/// A save that failed without any report of it yet.
pub(crate) struct Unreported {
    save: Arc<Save>,
    source: Arc<Error>,
}

impl Unreported {
    /// Returns the error for the save that reports it, at `next`.
    pub(crate) fn report(self, next: &Path) -> Error {
        self.save.record(|state| state.is_reported = true);
        Error::Earlier { path: self.save.path.clone(), next: next.to_path_buf(), source: self.source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::{HeldTensors, LiveTensors, SourceError};
    use crate::{CheckpointManager, Reader};
    use distribute_tensor::{DType, HostTensor};
    use distribute_testing::watched;
    use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
    use std::thread;

    const LIMIT: Duration = Duration::from_secs(60);

    /// A tensor that is held when the test permits it.
    struct Gated {
        begins: Mutex<Sender<()>>,
        permits: Mutex<Receiver<()>>,
    }

    impl LiveTensors for Gated {
        fn hold(&self) -> Result<Box<dyn HeldTensors + '_>, SourceError> {
            lock(&self.begins).send(())?;
            lock(&self.permits).recv_timeout(LIMIT)?;
            Ok(Box::new(self))
        }
    }

    impl HeldTensors for &Gated {
        fn copy(&self, _index: usize) -> Result<HostTensor, SourceError> {
            Ok(HostTensor::scalar(1i64))
        }
    }

    // INV-96
    #[test]
    fn a_save_of_a_clone_waits_for_one_that_is_only_beginning() {
        watched(|| {
            for (first_waits, second_waits) in [(false, false), (false, true), (true, false), (true, true)] {
                let folder = tempfile::tempdir().unwrap();
                let manager = CheckpointManager::new(folder.path()).unwrap();
                let (begins, begun) = channel();
                let (permit, permits) = channel();
                let gated = Gated { begins: Mutex::new(begins), permits: Mutex::new(permits) };
                let live: Arc<dyn LiveTensors> = Arc::new(gated);
                let mut writer = Writer::new();
                writer.insert_live("a", DType::I64, [], &live, 0).unwrap();
                let save = |waits: bool, writer: Writer| {
                    let (manager, (results, result)) = (manager.clone(), channel());
                    thread::spawn(move || {
                        let saved = if waits {
                            manager.save(&writer, 1)
                        } else {
                            manager.save_async(writer, 1).and_then(|saving| saving.wait(LIMIT))
                        };
                        results.send(saved)
                    });
                    result
                };
                let first = save(first_waits, writer);
                begun.recv_timeout(LIMIT).unwrap();
                let second = save(second_waits, Writer::new());
                // An error would be there at once.
                let early = second.recv_timeout(Duration::from_millis(50));
                assert!(matches!(early, Err(RecvTimeoutError::Timeout)), "{early:?}");
                permit.send(()).unwrap();
                let paths = [first, second].map(|saved| saved.recv_timeout(LIMIT).unwrap().unwrap());
                let names = ["ckpt-000001", "ckpt-000002"].map(|name| folder.path().join(name));
                assert_eq!(paths, names);
                assert_eq!(Reader::open(&paths[0]).unwrap().tensor("a").unwrap().item::<i64>().unwrap(), 1);
            }
        });
    }
}
