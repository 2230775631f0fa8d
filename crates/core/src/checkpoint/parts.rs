//! Saves in parts: each worker writes the rows of tables that it stores, and the chief everything else.

// - **INV-110** A checkpoint in parts gets its name after each worker has written its part and synced it to disk, and
//   the chief has found each with its length and its rows. If one of them fails or is lost, all get an error, and the
//   checkpoint before is the latest. No worker reads rows of others for it. Tests: `checkpoint/tests/it/parts.rs`,
//   `clusters/multi_worker/checkpoint/parts.rs`.

use super::workers::Saved;
use super::{SAVE, Writer};
use crate::strategy::Strategy;
use bytes::Bytes;
use distribute_base::{Error, Result};
use distribute_checkpoint::{Part, PartFolder, Progress, ProgressError, SourceError, WriteParts};
use distribute_cluster::Fingerprint;
use distribute_log::warn_or_stderr;
use std::cell::RefCell;
use std::path::Path;

/// The number of parts of a checkpoint, and the function that lets the workers write them.
pub(super) type Parts<'a, 'p> = (usize, &'a mut WriteParts<'p>);

/// A save by all workers.
pub(super) struct SaveInParts<'s> {
    pub(super) strategy: &'s Strategy,
    /// The folder in which the checkpoint will be.
    pub(super) folder: &'s Path,
    pub(super) call: &'s dyn Fn() -> Fingerprint,
    /// The call in which the other workers wait for the chief.
    pub(super) written: &'s dyn Fn() -> Fingerprint,
}

/// The end of the workers' common work before the chief's own work ended. All of them know it.
enum Ended {
    /// A worker cannot write into the chief's folder, for this reason.
    NotShared(String),
    Failed(Error),
}

impl SaveInParts<'_> {
    /// Saves on all workers: the chief names a folder, all create their files there and write them, and the chief
    /// writes everything else and the index. The inner result is the reason why a worker cannot write into the folder.
    /// Nothing has been saved then.
    ///
    /// # Errors
    /// - [`Error::Worker`]: a worker cannot write its part, or the chief cannot save.
    /// - [`Error::Collective`]: a worker is lost.
    pub(super) fn save<T>(
        &self,
        writer: &Writer,
        wait: &dyn Fn(&mut Progress<'_>) -> Result<()>,
        write: &dyn Fn(&Writer, Option<Parts<'_, '_>>, &mut Progress<'_>) -> Result<T>,
        describe: &dyn Fn(&T) -> Bytes,
    ) -> Result<Result<Saved<T>, String>> {
        let Self { strategy, written, .. } = self;
        if !strategy.world().is_chief() {
            let folder = PartFolder::from_bytes(&strategy.await_chief(SAVE, written)?);
            return match self.write_parts(folder.as_ref(), writer) {
                Ok(_) => Ok(Ok(Saved::ByChief(strategy.await_chief(SAVE, written)?))),
                Err(Ended::NotShared(reason)) => Ok(Err(reason)),
                Err(Ended::Failed(error)) => Err(error),
            };
        }
        let (ended, mut report) = (RefCell::new(None), strategy.report(SAVE, written));
        let mut progress = || -> Result<(), ProgressError> { Ok(report.send()?) };
        let mut parts = |folder: &PartFolder| -> Result<Vec<Part>, SourceError> {
            let told = || Bytes::from(folder.to_bytes());
            let told = strategy.exchange_results(SAVE, written, Ok(()), |()| told());
            let all = told.map_err(Ended::Failed).and_then(|_| self.write_parts(Some(folder), writer));
            let all = all.map_err(|error| {
                *ended.borrow_mut() = Some(error);
                "the workers could not write their parts"
            })?;
            all.iter().enumerate().map(|(worker, part)| Ok(self.part(worker, part)?)).collect()
        };
        let parts = (strategy.world().workers(), &mut parts as &mut WriteParts<'_>);
        let saved = wait(&mut progress).and_then(|()| write(writer, Some(parts), &mut progress));
        match ended.into_inner() {
            Some(Ended::NotShared(reason)) => Ok(Err(reason)),
            Some(Ended::Failed(error)) => Err(error),
            None => {
                let (saved, _) = strategy.exchange_results(SAVE, written, saved, describe)?;
                Ok(Ok(Saved::Here(saved)))
            }
        }
    }

    /// Creates and writes this worker's part, at the same time as the other workers. Returns the descriptions of all
    /// parts.
    fn write_parts(&self, folder: Option<&PartFolder>, writer: &Writer) -> Result<Vec<Bytes>, Ended> {
        let Self { strategy, call, .. } = self;
        let file = match folder {
            Some(folder) => folder.create_part(self.folder, strategy.world().worker()).map_err(Error::from),
            None => Err(Error::other("the chief's description of the folder cannot be read")),
        };
        let reason = file.as_ref().err().map(ToString::to_string).unwrap_or_default();
        let see = || call().part("a file of each worker in the chief's folder");
        let reasons = strategy.exchange_results(SAVE, see, Ok(()), |()| reason.into());
        let (_, reasons) = reasons.map_err(Ended::Failed)?;
        if let Some((worker, reason)) = reasons.iter().enumerate().find(|(_, reason)| !reason.is_empty()) {
            let (worker, reason) = (strategy.describe_worker(worker), String::from_utf8_lossy(reason));
            return Err(Ended::NotShared(format!("{worker}: {reason}")));
        }
        let part = || call().part("the parts of all workers");
        let write = |report: &mut dyn FnMut() -> Result<()>| -> Result<Part> {
            Ok(writer.write_part(file?, &mut || Ok(report()?))?)
        };
        let written = strategy.on_all(SAVE, part, write, |part: &Part| part.to_bytes().into());
        written.map(|(_, all)| all).map_err(Ended::Failed)
    }

    fn part(&self, worker: usize, part: &Bytes) -> Result<Part> {
        Part::from_bytes(part).ok_or_else(|| {
            let worker = self.strategy.describe_worker(worker);
            Error::other(format!("the description of the part of {worker} cannot be read"))
        })
    }

    /// Logs a warning on the chief, once, that the checkpoint is written by the chief alone.
    pub(super) fn warn(&self, reason: &str) {
        if self.strategy.world().is_chief() && self.strategy.warns_of_folder() {
            warn_or_stderr(|| {
                tracing::warn!(
                    "the chief saves the tables of all workers, because they do not share the folder {}: {reason}; \
                     complete tables of ids need memory on the chief then; save to a folder that all workers can \
                     write to",
                    self.folder.display()
                );
            });
        }
    }
}
