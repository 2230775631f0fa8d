//! Saves in the background: a thread copies the state and writes it while the program continues.

// - **INV-96** A save in the background has the state at the time of its call: every live tensor is held before the
//   call returns, and released when it is copied. A manager makes one such save at a time. An error of the save is
//   logged at once, and returned by its handle or by the manager's next save; the files are those of a save that was
//   waited for. Tests: `checkpoint/src/background.rs`, `checkpoint/src/save.rs`, `computing/resume/background.rs`,
//   `clusters/multi_worker/checkpoint/background.rs`, `clusters/recovery/matrix.rs`.

use crate::saves::Saves;
use crate::{Error, Progress, Result, Writer};
use distribute_cluster::Deadline;
use distribute_log::warn_or_stderr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;
use tracing::dispatcher;

/// The time without progress after which threads stop waiting for a save. Progress is a tensor copied, 8 MiB written,
/// or a sync of at most 512 MiB.
pub(crate) const STALLED: Duration = Duration::from_secs(300);

/// A save that a thread makes in the background, while the program continues. See
/// [`CheckpointManager::save_async`](crate::CheckpointManager::save_async).
///
/// Dropping the handle does not stop the save. If the save fails and [`wait`](Self::wait) has not returned the error,
/// the manager's next save returns it. When the last of the manager, its clones and its handles is dropped, the drop
/// waits for the save.
#[derive(Clone, Debug)]
pub struct SaveHandle {
    save: Arc<Save>,
    /// The saves of the manager. Dropping the last reference waits for the save that is under way.
    _saves: Arc<Saves>,
}

impl SaveHandle {
    pub(crate) fn new(save: Arc<Save>, saves: Arc<Saves>) -> Self {
        Self { save, _saves: saves }
    }

    /// Returns the path of the checkpoint. It exists once the save has succeeded.
    pub fn path(&self) -> &Path {
        &self.save.path
    }

    /// Returns `true` if the save has succeeded or failed. [`wait`](Self::wait) then returns the result at once.
    pub fn is_finished(&self) -> bool {
        self.save.is_finished()
    }

    /// Waits until the save has succeeded, for at most `timeout`, and returns the path of the checkpoint. This method
    /// may be called repeatedly.
    ///
    /// # Errors
    /// - [`Error::Background`]: the save failed. The previous checkpoint remains the latest, unless the failure came
    ///   after the new one was complete, for example because an old one could not be removed.
    /// - [`Error::Unfinished`]: the save is still under way after `timeout`, or has made no progress for five minutes.
    ///   It continues.
    pub fn wait(&self, timeout: Duration) -> Result<PathBuf> {
        self.wait_with(timeout, &mut || Ok(()))
    }

    /// Acts like [`wait`](Self::wait), and calls `progress` repeatedly while the save makes progress.
    ///
    /// # Errors
    /// - [`Error::Interrupted`]: `progress` returned an error. The save continues.
    /// - The errors of [`wait`](Self::wait).
    pub fn wait_with(&self, timeout: Duration, progress: &mut Progress<'_>) -> Result<PathBuf> {
        self.save.wait(Deadline::after(timeout), progress)?;
        match self.save.take_error() {
            None => Ok(self.save.path.clone()),
            Some(source) => Err(Error::Background { path: self.save.path.clone(), source }),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Save {
    pub(crate) path: PathBuf,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// Whether all live tensors have been held.
    is_held: bool,
    /// Whether the caller has given up waiting for the tensors.
    is_abandoned: bool,
    /// The number of progress reports so far.
    pub(crate) reports: u64,
    pub(crate) result: Option<Result<(), Arc<Error>>>,
    /// Whether the error has been returned to the program.
    pub(crate) is_reported: bool,
}

impl Save {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Starts a thread that makes the save. Returns when the thread has locked all live tensors, so that nothing
    /// changes them before they are copied. `write` makes the save after the tensors have been copied. It receives a
    /// function to call whenever it makes progress.
    ///
    /// # Errors
    /// - [`Error::Io`]: the thread cannot be started.
    /// - [`Error::Source`]: tensors cannot be locked.
    /// - [`Error::Panicked`]: holding them panicked.
    /// - [`Error::Unfinished`]: another thread has been changing tensors for five minutes.
    pub(crate) fn start(
        self: &Arc<Self>,
        mut writer: Writer,
        write: impl FnOnce(&Writer, &mut Progress<'_>) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let of_thread = self.clone();
        let make = move || {
            let report = || of_thread.record(|state| state.reports += 1);
            writer.copy_live(|| of_thread.set_held(), report)?;
            yield_to_training();
            write(&writer, &mut || {
                report();
                Ok(())
            })
        };
        let (of_thread, subscriber) = (self.clone(), dispatcher::get_default(Clone::clone));
        let run = move || {
            let _subscriber = dispatcher::set_default(&subscriber);
            // Afterwards, the memory of the copies is released and the folder is unlocked.
            let made = catch_unwind(AssertUnwindSafe(make));
            let panicked = |_| Err(Error::Panicked { path: of_thread.path.clone() });
            of_thread.end(made.unwrap_or_else(panicked));
        };
        let thread = thread::Builder::new().name("distribute-save".into());
        thread.spawn(run).map_err(Error::io("starting a thread for", &self.path))?;
        self.wait_until_held()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.lock().result.is_some()
    }

    pub(crate) fn record(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    fn end(&self, result: Result<()>) {
        if let Err(error) = &result {
            warn_or_stderr(|| {
                tracing::warn!("the save of {} in the background failed: {error}", self.path.display());
            });
        }
        self.record(|state| state.result = Some(result.map_err(Arc::new)));
    }

    pub(crate) fn unreported_error(&self) -> Option<Arc<Error>> {
        let state = self.lock();
        state.result.as_ref()?.as_ref().err().filter(|_| !state.is_reported).cloned()
    }

    /// Marks the error as returned to the program. Returns `true` if it was not marked before.
    pub(crate) fn set_reported(&self) -> bool {
        !std::mem::replace(&mut self.lock().is_reported, true)
    }

    /// Returns the error if the save failed, and marks it as returned to the program.
    fn take_error(&self) -> Option<Arc<Error>> {
        let mut state = self.lock();
        let error = state.result.as_ref()?.as_ref().err().cloned()?;
        state.is_reported = true;
        Some(error)
    }

    /// Records that all live tensors are held. Returns an error if the caller has stopped waiting for the tensors.
    fn set_held(&self) -> Result<()> {
        // Both flags are under one lock, so a save that the caller has abandoned is not made.
        let mut state = self.lock();
        state.is_held = !state.is_abandoned;
        let is_held = state.is_held;
        drop(state);
        self.changed.notify_all();
        if is_held { Ok(()) } else { Err(self.unfinished(STALLED)) }
    }

    fn unfinished(&self, after: Duration) -> Error {
        Error::Unfinished { path: self.path.clone(), after }
    }

    /// Waits until the thread holds all live tensors. If that takes too long, the save is abandoned.
    fn wait_until_held(&self) -> Result<()> {
        let is_held = |state: &State| state.is_held || state.result.is_some();
        let waited = self.wait_for(is_held, Deadline::after(STALLED), &mut || Ok(()));
        let mut state = self.lock();
        if let Err(error) = waited
            && !is_held(&state)
        {
            state.is_abandoned = true;
            return Err(error);
        }
        let is_held = state.is_held;
        match state.result.take_if(|result| result.is_err() && !is_held) {
            // The error has no other owner yet, so it is returned itself.
            Some(Err(error)) => Err(Arc::try_unwrap(error)
                .unwrap_or_else(|source| Error::Background { path: self.path.clone(), source })),
            _ => Ok(()),
        }
    }

    /// Waits until the save has succeeded or failed. Returns the errors of [`wait_for`](Self::wait_for), not that of
    /// the save.
    pub(crate) fn wait(&self, deadline: Deadline, progress: &mut Progress<'_>) -> Result<()> {
        self.wait_for(|state| state.result.is_some(), deadline, progress)
    }

    /// Waits until `is_met` returns `true`. Calls `progress` whenever the save has made progress.
    ///
    /// # Errors
    /// - [`Error::Unfinished`]: `deadline` has passed, or the save has made no progress for [`STALLED`].
    /// - [`Error::Interrupted`]: `progress` returned an error.
    fn wait_for(
        &self,
        is_met: impl Fn(&State) -> bool,
        mut deadline: Deadline,
        progress: &mut Progress<'_>,
    ) -> Result<()> {
        let mut state = self.lock();
        let (mut seen, mut stalled) = (state.reports, Deadline::after(STALLED));
        loop {
            if is_met(&state) {
                return Ok(());
            }
            let slice = deadline.look().min(stalled.look());
            if slice.is_zero() {
                let after = if stalled.has_passed() { STALLED } else { deadline.timeout() };
                return Err(self.unfinished(after));
            }
            state = self.changed.wait_timeout(state, slice).unwrap_or_else(PoisonError::into_inner).0;
            if state.reports != seen {
                (seen, stalled) = (state.reports, Deadline::after(STALLED));
                drop(state);
                crate::progress::report(progress)?;
                state = self.lock();
            }
        }
    }
}

/// Lowers the priority of this thread on Linux, so that a save does not slow down training. On a busy core, the
/// thread gets about a thirtieth of the time; on an idle core, it runs at full speed.
fn yield_to_training() {
    #[cfg(target_os = "linux")]
    {
        /// The scheduler gives a thread of this niceness a weight of 36. An ordinary thread has 1,024.
        const NICENESS: i32 = 15;
        // On Linux, this concerns the thread alone. Without the right to do so, the save only competes with the step.
        let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICENESS);
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::{HeldTensors, LiveTensors, SourceError};
    use crate::{CheckpointManager, Reader};
    use distribute_tensor::{DType, HostTensor};
    use distribute_testing::{names_in, watched};
    use std::fs;
    use std::sync::mpsc::{Receiver, Sender, channel};

    const LIMIT: Duration = Duration::from_secs(60);

    /// A tensor whose copy is made when the test permits it, with the result that the test sends.
    struct Gated(Mutex<Receiver<Result<i64, &'static str>>>);

    impl LiveTensors for Gated {
        fn hold(&self) -> Result<Box<dyn HeldTensors + '_>, SourceError> {
            Ok(Box::new(self))
        }
    }

    impl HeldTensors for &Gated {
        fn copy(&self, _index: usize) -> Result<HostTensor, SourceError> {
            match lock(&self.0).recv_timeout(LIMIT)? {
                Ok(value) => Ok(HostTensor::scalar(value)),
                Err("panic") => panic!("the source has a defect"),
                Err(error) => Err(error.into()),
            }
        }
    }

    /// Returns a writer, and the sender of the result of its copy.
    fn gated() -> (Writer, Sender<Result<i64, &'static str>>) {
        let (permit, permitted) = channel();
        let live: Arc<dyn LiveTensors> = Arc::new(Gated(Mutex::new(permitted)));
        let mut writer = Writer::new();
        writer.insert("a", HostTensor::vector(vec![5u8; 20 << 20])).unwrap();
        writer.insert_live("b", DType::I64, [], &live, 0).unwrap();
        (writer, permit)
    }

    fn manager() -> (tempfile::TempDir, CheckpointManager) {
        let folder = tempfile::tempdir().unwrap();
        let manager = CheckpointManager::new(folder.path()).unwrap();
        (folder, manager)
    }

    fn value(path: &Path) -> i64 {
        Reader::open(path).unwrap().tensor("b").unwrap().item().unwrap()
    }

    // INV-96
    #[test]
    fn a_save_in_the_background_has_the_files_of_one_that_was_waited_for() {
        watched(|| {
            let (folder, manager) = manager();
            let (writer, permit) = gated();
            let saving = manager.save_async(writer, 2).unwrap();
            assert!(!saving.is_finished() && manager.latest().unwrap().is_none());
            let error = saving.wait(Duration::ZERO).unwrap_err();
            assert!(matches!(&error, Error::Unfinished { path, .. } if path == saving.path()), "{error:?}");
            permit.send(Ok(7)).unwrap();
            let path = saving.wait(LIMIT).unwrap();
            assert!(saving.is_finished() && saving.wait(Duration::ZERO).unwrap() == path);

            let (writer, permit) = gated();
            permit.send(Ok(7)).unwrap();
            let waited = folder.path().join("waited");
            writer.save(&waited, 2).unwrap();
            let names = names_in(&waited);
            assert_eq!((names.len(), &names), (3, &names_in(&path)));
            for name in names {
                assert_eq!(
                    fs::read(path.join(&name)).unwrap(),
                    fs::read(waited.join(&name)).unwrap(),
                    "{name}"
                );
            }
        });
    }

    // INV-96
    #[test]
    fn a_dropped_handle_loses_neither_the_save_nor_its_error() {
        watched(|| {
            let (folder, manager) = manager();
            let (writer, permit) = gated();
            drop(manager.save_async(writer, 1).unwrap());
            permit.send(Ok(1)).unwrap();
            // Waits for the save, like a program that exits.
            drop(manager);
            assert_eq!(value(&folder.path().join("ckpt-000001")), 1);

            let manager = CheckpointManager::new(folder.path()).unwrap();
            let (writer, permit) = gated();
            drop(manager.save_async(writer, 1).unwrap());
            permit.send(Err("the memory is gone")).unwrap();
            let (writer, permit) = gated();
            permit.send(Ok(2)).unwrap();
            let error = manager.save(&writer, 1).unwrap_err();
            let text = error.to_string();
            let Error::Earlier { path, next, .. } = error else { panic!("{text}") };
            assert!(path == next && value(&next) == 2 && text.contains("the memory is gone"), "{text}");
            // It was reported.
            permit.send(Ok(3)).unwrap();
            assert_eq!(value(&manager.save(&writer, 1).unwrap()), 3);
        });
    }

    // INV-96
    #[test]
    fn a_failed_save_is_the_error_of_its_handle_and_then_of_no_other_call() {
        watched(|| {
            let (folder, manager) = manager();
            for (cause, says) in [("the memory is gone", "\"b\" was not saved"), ("panic", "panicked")] {
                let (writer, permit) = gated();
                let saving = manager.save_async(writer, 1).unwrap();
                permit.send(Err(cause)).unwrap();
                for _ in 0..2 {
                    let error = saving.wait(LIMIT).unwrap_err();
                    let text = error.to_string();
                    let says = text.contains(says) && text.contains("ckpt-000001 in the background failed: ");
                    assert!(says && matches!(error, Error::Background { .. }), "{text}");
                }
                assert_eq!(names_in(folder.path()), [".lock"]);
            }
            let (writer, permit) = gated();
            permit.send(Ok(1)).unwrap();
            manager.save_async(writer, 1).unwrap().wait(LIMIT).unwrap();
        });
    }

    // INV-96
    #[test]
    fn a_second_save_waits_for_the_first_and_another_manager_gets_an_error() {
        watched(|| {
            let (folder, manager) = manager();
            let (writer, permit) = gated();
            let first = manager.save_async(writer, 1).unwrap();
            let other = CheckpointManager::new(folder.path()).unwrap();
            let (writer, of_second) = gated();
            assert!(matches!(other.save_async(writer.clone(), 1), Err(Error::Busy { .. })));
            of_second.send(Ok(2)).unwrap();
            // If it did not wait, the folder would be busy.
            let second = thread::spawn({
                let manager = manager.clone();
                move || manager.save_async(writer, 1)?.wait(LIMIT)
            });
            permit.send(Ok(1)).unwrap();
            let second = second.join().unwrap().unwrap();
            assert_eq!((value(first.path()), value(&second)), (1, 2));
            assert_eq!(second, folder.path().join("ckpt-000002"));
        });
    }

    // INV-96
    #[test]
    fn a_wait_that_is_interrupted_ends_although_the_save_goes_on() {
        watched(|| {
            let save = Arc::new(Save::new("saved".into()));
            // The save makes progress as soon as the wait for it has begun.
            let is_met = |_: &State| {
                let save = save.clone();
                thread::spawn(move || save.record(|state| state.reports += 1));
                false
            };
            let mut stop = || Err("worker 1 is gone".into());
            let error = save.wait_for(is_met, Deadline::after(LIMIT), &mut stop).unwrap_err();
            assert!(matches!(error, Error::Interrupted { .. }), "{error:?}");
        });
    }

    // INV-96
    #[test]
    fn a_save_that_the_caller_has_given_up_is_not_made() {
        let save = Save::new("saved".into());
        save.record(|state| state.is_abandoned = true);
        assert!(matches!(save.set_held(), Err(Error::Unfinished { .. })));
        assert!(!save.lock().is_held);
    }

    #[test]
    fn rows_that_are_read_during_the_save_and_wrong_arguments_are_errors_at_once() {
        let (folder, manager) = manager();
        let mut writer = Writer::new();
        writer.insert_read("rows", DType::U8, [1], |_| Ok(HostTensor::vector(vec![0u8]))).unwrap();
        let refused = [manager.save_async(writer, 1), manager.save_async(Writer::new(), 0)];
        for refused in refused {
            assert!(matches!(refused, Err(Error::InvalidArgument { .. })), "{refused:?}");
        }
        assert!(names_in(folder.path()).is_empty());
    }
}
