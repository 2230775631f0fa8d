//! The saves of a manager and its clones, of which one at a time is made.

use crate::background::{STALLED, Save, SaveHandle, lock};
use crate::{Error, Progress, Result, Writer};
use distribute_cluster::Deadline;
use distribute_log::warn_or_stderr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

/// The saves of a manager, of which at most one is under way.
#[derive(Debug)]
pub(crate) struct Saves {
    folder: PathBuf,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Whether a thread has the turn to begin a save.
    is_taken: bool,
    /// The latest save in the background.
    last: Option<Arc<Save>>,
    /// The save that a thread is making while its caller waits.
    current: Option<Current>,
}

#[derive(Debug)]
struct Current {
    save: Arc<Save>,
    thread: ThreadId,
}

impl State {
    /// Returns a save that is under way, if there is one.
    fn unfinished(&self) -> Option<Arc<Save>> {
        let current = self.current.as_ref().map(|current| &current.save);
        let mut all = current.into_iter().chain(&self.last);
        all.find(|save| !save.is_finished()).cloned()
    }

    /// Returns `true` if this thread is making a save, so that waiting for the save would deadlock. This happens if
    /// the save's progress function calls the manager.
    fn is_on_this_thread(&self) -> bool {
        let mut current = self.current.iter().filter(|current| !current.save.is_finished());
        current.any(|current| current.thread == thread::current().id())
    }
}

impl Saves {
    pub(crate) fn new(folder: &Path) -> Arc<Self> {
        let (folder, state) = (folder.to_path_buf(), Mutex::default());
        Arc::new(Self { folder, state, changed: Condvar::new() })
    }

    /// Waits for the saves that are under way or about to begin.
    ///
    /// # Errors
    /// - [`Error::Unfinished`]: a save has made no progress for five minutes.
    /// - [`Error::Interrupted`]: `progress` returned an error.
    /// - [`Error::InvalidArgument`]: `operation` is called by the `progress` of a save, which would wait for itself.
    pub(crate) fn finish(&self, operation: &'static str, progress: &mut Progress<'_>) -> Result<()> {
        self.wait_until_free(operation, progress).map(drop)
    }

    /// Waits until no save is under way, and acquires the turn to begin the next one. Other threads wait until the
    /// turn is dropped.
    ///
    /// # Errors
    /// Returns the errors of [`finish`](Self::finish).
    pub(crate) fn turn(
        self: &Arc<Self>,
        operation: &'static str,
        progress: &mut Progress<'_>,
    ) -> Result<Turn> {
        self.wait_until_free(operation, progress)?.is_taken = true;
        Ok(Turn { saves: self.clone() })
    }

    /// Waits until no save is under way and no thread has the turn. Calls `progress` repeatedly.
    fn wait_until_free(
        &self,
        operation: &'static str,
        progress: &mut Progress<'_>,
    ) -> Result<MutexGuard<'_, State>> {
        loop {
            let mut deadline = Deadline::after(STALLED);
            let mut state = lock(&self.state);
            if state.is_on_this_thread() {
                let reason = "called while this thread saves to the same folder: call it after the save, not in \
                              the function that reports progress";
                return Err(Error::InvalidArgument { operation, reason: reason.into() });
            }
            while state.is_taken {
                let slice = deadline.look();
                if slice.is_zero() {
                    return Err(Error::Unfinished { path: self.folder.clone(), after: STALLED });
                }
                state = self.changed.wait_timeout(state, slice).unwrap_or_else(PoisonError::into_inner).0;
                drop(state);
                // Other workers wait for this one.
                crate::progress::report(progress)?;
                state = lock(&self.state);
            }
            let Some(save) = state.unfinished() else { return Ok(state) };
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
        // A program that exits after its last save must not lose it.
        if let Err(error) = self.finish("drop", &mut || Ok(())) {
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
    /// Returns the latest save in the background if it failed and its error has not been returned yet.
    pub(crate) fn earlier(&self) -> Option<Unreported> {
        let save = lock(&self.saves.state).last.clone()?;
        save.unreported_error().map(|source| Unreported { save, source })
    }

    /// Starts a thread that makes a save. Returns when the thread has locked all live tensors, so that nothing changes
    /// them before they are copied. Then the turn ends.
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

    /// Makes a save on this thread. The turn ends when the save begins, because other saves then wait for the save
    /// itself. `write` must unlock the folder before it returns, and call its argument whenever it makes progress.
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
        let thread = thread::current().id();
        saves.record(|state| state.current = Some(Current { save: save.clone(), thread }));
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

/// A guard that marks a save on this thread as finished when it is dropped, even after a panic. Errors of the save go
/// to the caller and are not recorded.
struct Ended<'a>(&'a Saves, &'a Arc<Save>);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        let Self(saves, save) = self;
        save.record(|state| state.result = Some(Ok(())));
        // The next save may have begun.
        saves.record(|state| {
            state.current.take_if(|current| Arc::ptr_eq(&current.save, save));
        });
    }
}

/// A failed save in the background whose error has not been returned yet.
pub(crate) struct Unreported {
    save: Arc<Save>,
    source: Arc<Error>,
}

impl Unreported {
    /// Returns the error with which the save to `next` reports this failure; `None` if it has been reported in the
    /// meantime.
    pub(crate) fn report(self, next: &Path) -> Option<Error> {
        let Self { save, source } = self;
        let is_first = save.set_reported();
        is_first.then(|| Error::Earlier { path: save.path.clone(), next: next.to_path_buf(), source })
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

    // INV-96
    #[test]
    fn the_end_of_a_save_leaves_the_next_one() {
        let saves = Saves::new(Path::new("all"));
        let of = |name: &str| Arc::new(Save::new(name.into()));
        let (first, second) = (of("first"), of("second"));
        let ended = Ended(&saves, &first);
        let thread = thread::current().id();
        saves.record(|state| state.current = Some(Current { save: second.clone(), thread }));
        drop(ended);
        assert!(first.is_finished());
        // A third save waits for the second one.
        assert!(lock(&saves.state).unfinished().is_some_and(|save| Arc::ptr_eq(&save, &second)));
    }

    // INV-107
    #[test]
    fn a_wait_for_a_turn_reports_progress_and_can_be_interrupted() {
        watched(|| {
            let saves = Saves::new(Path::new("all"));
            let turn = saves.turn("save", &mut || Ok(())).unwrap();
            let mut calls = 0;
            let mut stop = || {
                calls += 1;
                if calls < 3 { Ok(()) } else { Err("worker 1 is gone".into()) }
            };
            let errors = [saves.finish("restore", &mut stop).err(), saves.turn("save", &mut stop).err()];
            for error in errors {
                assert!(matches!(error, Some(Error::Interrupted { .. })), "{error:?}");
            }
            drop(turn);
            saves.finish("restore", &mut || Ok(())).unwrap();
        });
    }

    // INV-96
    #[test]
    fn a_save_within_a_save_of_the_same_thread_is_an_error_at_once() {
        watched(|| {
            let folder = tempfile::tempdir().unwrap();
            let manager = CheckpointManager::new(folder.path()).unwrap();
            let mut writer = Writer::new();
            writer.insert("a", HostTensor::vector(vec![5u8; 20 << 20])).unwrap();
            let mut refused = Vec::new();
            let mut within = || {
                refused.push(manager.save(&Writer::new(), 1).map(drop));
                refused.push(manager.save_async(Writer::new(), 1).map(drop));
                refused.push(manager.latest_undamaged().map(drop));
                Ok(())
            };
            manager.save_with(&writer, 1, &mut within).unwrap();
            assert!(!refused.is_empty());
            for refused in refused {
                assert!(matches!(refused, Err(Error::InvalidArgument { .. })), "{refused:?}");
            }
            assert_eq!(manager.paths().unwrap().len(), 1);
        });
    }

    // INV-96
    #[test]
    fn a_failed_save_is_reported_before_the_next_one_may_begin() {
        watched(|| {
            let folder = tempfile::tempdir().unwrap();
            let manager = CheckpointManager::new(folder.path()).unwrap();
            let failed = Arc::new(Save::new("failed".into()));
            failed.record(|state| {
                state.result = Some(Err(Arc::new(Error::Panicked { path: "failed".into() })))
            });
            manager.saves().record(|state| state.last = Some(failed));
            let earlier = manager.saves().turn("save", &mut || Ok(())).unwrap().earlier().unwrap();
            let error = manager.save(&Writer::new(), 1).unwrap_err();
            assert!(matches!(error, Error::Earlier { .. }), "{error:?}");
            assert!(earlier.report(Path::new("next")).is_none(), "it was reported twice");
        });
    }
}
