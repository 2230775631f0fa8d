//! Saves in the background, on the chief of the workers.

use super::target::{Begun, Target};
use super::workers::Saved;
use super::{Checkpoint, CheckpointManager, SAVE};
use crate::context::require_outside_of_run;
use crate::strategy::{Report, Strategy};
use bytes::Bytes;
use distribute_base::{Error, Result};
use distribute_checkpoint::SaveHandle;
use distribute_cluster::{Fingerprint, Operation};
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A save that the chief makes in the background, while training continues. See [`Checkpoint::save_async`].
///
/// Dropping a `PendingSave` does not stop the save. If the save fails and [`wait`](Self::wait) has not returned the
/// error, the next save with the same manager returns it.
#[derive(Clone, Debug)]
pub struct PendingSave {
    strategy: Strategy,
    path: PathBuf,
    maker: Maker,
}

/// The thread or process that makes a save.
#[derive(Clone, Debug)]
enum Maker {
    /// A thread of this process.
    Thread(SaveHandle),
    /// The call that began the save: the save was complete when the call returned.
    Caller,
    /// Another worker, which was the chief when the save began.
    Chief,
}

impl PendingSave {
    /// Returns the path of the checkpoint in the folder of this worker's manager. The checkpoint itself appears only in
    /// the chief's folder, once the save has succeeded.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns `true` if this worker has nothing left to write, which is always the case on workers other than the
    /// chief. The result therefore differs between workers: do not use it to decide on calls that all workers must
    /// make.
    pub fn is_finished(&self) -> bool {
        match &self.maker {
            Maker::Thread(saving) => saving.is_finished(),
            Maker::Caller | Maker::Chief => true,
        }
    }

    /// Waits until the checkpoint is complete, for at most `timeout`, and returns its path. With several workers, all
    /// must make this call, and get the chief's result. This method may be called again.
    ///
    /// # Errors
    /// - [`Error::Checkpoint`]: the save failed. `CheckpointError::Unfinished` means that it was not complete after
    ///   `timeout`, or made no progress for five minutes; it then continues.
    /// - [`Error::Worker`], [`Error::Collective`]: with several workers, one of them fails or does not make the call.
    ///   The save continues.
    /// - [`Error::WrongContext`]: called inside `run`.
    /// - [`Error::InvalidArgument`]: another worker has become the chief, and the checkpoint is not in its folder.
    #[track_caller]
    pub fn wait(&self, timeout: Duration) -> Result<PathBuf> {
        const OPERATION: &str = "PendingSave::wait";
        let at = Location::caller();
        require_outside_of_run(OPERATION, "wait between runs")?;
        let call = || Fingerprint::new(Operation::Save, "the end of a save in the background", at);
        let wait = |mut report: Report<'_>| {
            match &self.maker {
                // The loss of another worker ends the wait, so that recovery does not wait for the disk.
                Maker::Thread(saving) => drop(saving.wait_with(timeout, &mut || Ok(report.send()?))?),
                // It was complete, even if the manager has removed it as an old one.
                Maker::Caller => {}
                Maker::Chief => self.require_complete(OPERATION)?,
            }
            Ok(())
        };
        self.strategy.on_chief(OPERATION, call, wait, |()| Bytes::new())?;
        Ok(self.path.clone())
    }

    /// Returns an error if there is no checkpoint at the path. A checkpoint gets this name only when it is complete.
    fn require_complete(&self, operation: &'static str) -> Result<()> {
        if self.path.is_dir() {
            return Ok(());
        }
        let reason = format!(
            "{} does not exist, and another worker was the chief when its save began; save again",
            self.path.display()
        );
        Err(Error::invalid(operation, reason))
    }
}

impl Checkpoint<'_> {
    /// Begins to save everything as the next checkpoint in the manager's folder, and returns while the chief copies and
    /// writes it. The checkpoint is bit-identical to that of [`save_to`](Self::save_to) at this time. Training may
    /// continue at once.
    ///
    /// A thread of the chief copies the variables and the slots of optimizers first. Until a tensor has been copied,
    /// every write to it waits, whether by an optimizer or by candle; the next step usually computes gradients in this
    /// time. The thread then writes the copies, with a low priority on Linux. Only the chief needs memory for copies.
    ///
    /// At most one save of a manager is under way: the manager's next save, in the background or not, waits for this
    /// one. If this one fails, a warning is logged at once, and [`PendingSave::wait`] returns the error on all workers.
    /// Without that call, the next save returns the error, but is made nevertheless. The result may be dropped. Wait
    /// for the last save of a program, however, or make it with `save_to`; otherwise only the warning reports its
    /// failure. A program that returns from `main` waits for the save when it drops the manager; [`std::process::exit`]
    /// interrupts the save like a crash, and the previous checkpoint remains the latest. Create the manager outside the
    /// closure of `Training::run`, so that recovery does not wait for the save.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use candle_nn::linear;
    /// use distribute::{Checkpoint, checkpoint::CheckpointManager};
    /// use std::time::Duration;
    ///
    /// # let folder = tempfile::tempdir().unwrap();
    /// let strategy = MirroredStrategy::cpus(2)?;
    /// let model = strategy.replicate(|vb| linear(4, 2, vb.pp("fc")))?;
    /// let training = Checkpoint::new().part("model", &model.variables);
    /// let manager = CheckpointManager::new(folder.path())?;
    /// let saving = training.save_async(&manager)?;
    /// // … train …
    /// let path = saving.wait(Duration::from_secs(60))?;
    /// assert_eq!(manager.latest()?.unwrap().path(), path);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    ///
    /// # Several workers
    ///
    /// All workers make the same calls. They wait until each has read its components and the chief's thread holds the
    /// variables, but not while that thread copies and writes. State that several workers have is collected before this
    /// returns: slots of sharded optimizers, residuals of compressed gradients, running statistics, and values of
    /// parameter servers.
    ///
    /// Tables that workers store together may be larger than the memory of one, and each worker writes its own rows.
    /// With such a table, the checkpoint is saved before this returns, as by [`save_to`](Self::save_to).
    ///
    /// # Errors
    /// - [`Error::Checkpoint`]: the same as for [`CheckpointManager::save_async`]. With `CheckpointError::Earlier`, the
    ///   save has begun, but the last one failed.
    /// - The other errors of [`save_to`](Self::save_to).
    #[doc(alias = "tf.train.CheckpointOptions")]
    #[doc(alias = "experimental_enable_async_checkpoint")]
    #[track_caller]
    pub fn save_async(&self, manager: &CheckpointManager) -> Result<PendingSave> {
        let saved = self.save_by(Location::caller(), Target::InBackground(manager))?;
        let (path, maker) = match saved {
            Saved::Here(Begun::Saving(saving)) => (saving.path().to_path_buf(), Maker::Thread(saving)),
            Saved::Here(Begun::Saved(path)) => (path, Maker::Caller),
            Saved::ByChief(name) => (manager.folder().join(&*String::from_utf8_lossy(&name)), Maker::Chief),
        };
        Ok(PendingSave { strategy: self.joint_strategy(SAVE)?, path, maker })
    }
}
