//! Saves in parts: each worker writes the rows of tables that it stores, and the chief everything else.

// - **INV-111** A checkpoint in parts gets its name after each worker has written its part and synced it to disk, and
//   the chief has found the parts of all workers of this save, each with its length and its rows. If a worker fails or
//   is lost before, all get an error, and the checkpoint before is the latest. If one is lost after that, all get an
//   error, but the chief completes the save. No worker writes or removes a file of another save. Tests:
//   `checkpoint/tests/it/parts.rs`, `checkpoint/tests/it/killed.rs`, `clusters/multi_worker/checkpoint/parts.rs`,
//   `clusters/multi_worker/checkpoint/killed.rs`, `ps-client/src/own_ids/tests.rs`.

use super::target::{Begun, Target};
use super::workers::Saved;
use super::{SAVE, Writer};
use crate::strategy::Strategy;
use bytes::Bytes;
use distribute_base::{Error, Result};
use distribute_checkpoint::{
    Error as CheckpointError, Part, PartFile, PartFolder, Progress, ProgressError, SourceError, WriteParts,
};
use distribute_cluster::Fingerprint;
use distribute_log::warn_or_stderr;
use std::cell::{Cell, RefCell};

/// The number of parts of a checkpoint, and the function that lets the workers write them.
pub(super) type Parts<'a, 'p> = (usize, &'a mut WriteParts<'p>);

/// A save by all workers.
pub(super) struct SaveInParts<'s> {
    pub(super) strategy: &'s Strategy,
    pub(super) target: Target<'s>,
    pub(super) call: &'s dyn Fn() -> Fingerprint,
    /// The call in which the other workers wait for the chief.
    pub(super) written: &'s dyn Fn() -> Fingerprint,
}

/// The end of the workers' common work before the chief's own work ended. All of them know it.
enum Ended {
    /// A worker does not share the chief's folder, for this reason.
    NotShared(String),
    Failed(Error),
}

/// The chief's reaction when its save makes progress.
#[derive(Clone, Copy)]
enum AtProgress {
    /// It reports to the other workers, which wait for it. The loss of one of them ends the save.
    Send,
    /// No report: all workers write, and report to each other.
    WithOthers,
    /// It reports, but the loss of a worker does not end the save: the chief needs no worker to complete it.
    Complete,
}

impl SaveInParts<'_> {
    /// Saves on all workers: the chief names a folder, all create their files there and write them, and the chief
    /// writes everything else and the index. The inner result is the reason why a worker does not share the folder.
    /// Nothing has been saved then.
    ///
    /// # Errors
    /// - [`Error::Worker`]: a worker cannot create or write its part, or the chief cannot save.
    /// - [`Error::Collective`]: a worker is lost. If all had written their parts, the checkpoint is saved nevertheless.
    pub(super) fn save(&self, writer: &Writer) -> Result<Result<Saved, String>> {
        let Self { strategy, target, written, .. } = self;
        if !strategy.world().is_chief() {
            let folder = PartFolder::from_bytes(&strategy.await_chief(SAVE, written)?);
            return match self.write_parts(folder.as_ref(), writer, &mut || ()) {
                Ok(_) => Ok(Ok(Saved::ByChief(strategy.await_chief(SAVE, written)?))),
                Err(Ended::NotShared(reason)) => Ok(Err(reason)),
                Err(Ended::Failed(error)) => Err(error),
            };
        }
        let (ended, mut report) = (RefCell::new(None), strategy.report(SAVE, written));
        let (reports, mut lost) = (Cell::new(AtProgress::Send), None);
        let mut progress = || -> Result<(), ProgressError> {
            match reports.get() {
                AtProgress::Send => report.send()?,
                AtProgress::WithOthers => {}
                AtProgress::Complete if lost.is_some() => {}
                AtProgress::Complete => lost = report.send().err(),
            }
            Ok(())
        };
        let mut parts = |folder: &PartFolder, count: &mut Progress<'_>| -> Result<Vec<Part>, SourceError> {
            let told = || Bytes::from(folder.to_bytes());
            let told = strategy.exchange_results(SAVE, written, Ok(()), |()| told());
            reports.set(AtProgress::WithOthers);
            // It only counts now, and cannot fail.
            let mut count = || drop(count());
            let all =
                told.map_err(Ended::Failed).and_then(|_| self.write_parts(Some(folder), writer, &mut count));
            let all = all.map_err(|error| {
                *ended.borrow_mut() = Some(error);
                "the workers could not write their parts"
            })?;
            // Rows that are read during the save may be those of a worker that is lost.
            reports.set(if writer.reads_rows() { AtProgress::Send } else { AtProgress::Complete });
            all.iter().enumerate().map(|(worker, part)| Ok(self.part(worker, part)?)).collect()
        };
        let parts = (strategy.world().workers(), &mut parts as &mut WriteParts<'_>);
        let begun =
            target.wait(&mut progress).and_then(|()| target.write(writer, Some(parts), &mut progress));
        match ended.into_inner() {
            Some(Ended::NotShared(reason)) => Ok(Err(reason)),
            Some(Ended::Failed(error)) => Err(error),
            None => {
                let begun = begun.and_then(|begun| lost.map_or(Ok(begun), Err));
                let describe = |begun: &Begun| target.describe(begun);
                let (begun, _) = strategy.exchange_results(SAVE, written, begun, describe)?;
                Ok(Ok(Saved::Here(begun)))
            }
        }
    }

    /// Creates and writes this worker's part, at the same time as the other workers. Returns the descriptions of all
    /// parts. Calls `count` whenever a worker makes progress.
    fn write_parts(
        &self,
        folder: Option<&PartFolder>,
        writer: &Writer,
        count: &mut dyn FnMut(),
    ) -> Result<Vec<Bytes>, Ended> {
        let Self { strategy, call, .. } = self;
        let see = || call().part("a file of each worker in the chief's folder");
        let created = self.create_part(folder);
        let not_shared = |created: &Result<PartFile, String>| created.as_ref().err().cloned();
        let reasons = strategy
            .exchange_results(SAVE, see, created, |created| not_shared(created).unwrap_or_default().into());
        let (file, reasons) = reasons.map_err(Ended::Failed)?;
        if let Some((worker, reason)) = reasons.iter().enumerate().find(|(_, reason)| !reason.is_empty()) {
            let (worker, reason) = (strategy.describe_worker(worker), String::from_utf8_lossy(reason));
            return Err(Ended::NotShared(format!("{worker}: {reason}")));
        }
        let part = || call().part("the parts of all workers");
        let write = |report: &mut dyn FnMut() -> Result<()>| -> Result<Part> {
            Ok(writer.write_part(file.map_err(Error::other)?, &mut || Ok(report()?))?)
        };
        let written = strategy.on_all(SAVE, part, write, |part: &Part| part.to_bytes().into(), count);
        written.map(|(_, all)| all).map_err(Ended::Failed)
    }

    /// Creates this worker's part. The inner result is the reason why this worker does not share the folder. Any other
    /// failure, such as a full disk, is an error: the chief would have no memory for all tables only because of it.
    fn create_part(&self, folder: Option<&PartFolder>) -> Result<Result<PartFile, String>> {
        let unreadable = || Error::other("the chief's description of the folder cannot be read");
        match folder.ok_or_else(unreadable)?.create_part(self.target.parent(), self.strategy.world().worker())
        {
            Ok(file) => Ok(Ok(file)),
            Err(error @ CheckpointError::NotShared { .. }) => Ok(Err(error.to_string())),
            Err(error) => Err(error.into()),
        }
    }

    fn part(&self, worker: usize, part: &Bytes) -> Result<Part> {
        Part::from_bytes(part).ok_or_else(|| {
            let worker = self.strategy.describe_worker(worker);
            Error::other(format!("the description of the part of {worker} cannot be read"))
        })
    }

    /// Logs a warning on the chief that the checkpoint is written by the chief alone.
    pub(super) fn warn(&self, reason: &str) {
        if self.strategy.world().is_chief() {
            warn_or_stderr(|| {
                tracing::warn!(
                    "the chief saves the rows of all workers, because they do not share the folder {}: {reason}; \
                     complete tables of ids and sharded states need memory on the chief then; save to a folder that \
                     all workers can write to",
                    self.target.parent().display()
                );
            });
        }
    }
}
