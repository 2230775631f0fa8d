//! Saving and restoring on the workers of a strategy: the chief writes, all workers read, and all get the
//! same result.

// - **INV-107** The loss of another worker ends the chief's wait for an earlier save, but not the save that it has
//   begun to write, once it needs nothing more from others. Tests: `clusters/multi_worker/checkpoint/lost.rs`,
//   `clusters/multi_worker/checkpoint/parts.rs`.

use super::parts::SaveInParts;
use super::target::{Begun, Target};
use super::{Checkpoint, CheckpointManager, RESTORE, Reader, Restore, SAVE, Writer};
use crate::context::get_strategy;
use crate::strategy::{Report, Strategy};
use bytes::Bytes;
use distribute_base::{Error, Result};
use distribute_cluster::{Fingerprint, Operation};
use std::borrow::Borrow;
use std::panic::Location;
use std::path::Path;

/// The outcome of a save on one worker.
pub(super) enum Saved {
    /// This worker writes the checkpoint.
    Here(Begun),
    /// The chief wrote the checkpoint. The variant contains the description that the chief sent.
    ByChief(Bytes),
}

/// A closure that opens the checkpoint that the chief chose.
type Open<'m> = Box<dyn FnOnce() -> Result<Reader> + 'm>;

impl<'a> Checkpoint<'a> {
    /// Collects the state of the components on all workers, waits for earlier saves, and writes it on the chief. If the
    /// workers store state together and share the folder of the target, each writes its own rows.
    ///
    /// The loss of another worker ends the wait. It ends the write only if the write still needs rows of tables, or the
    /// part of a worker.
    pub(super) fn save_by(&self, at: &'static Location<'static>, target: Target<'_>) -> Result<Saved> {
        self.require(SAVE)?;
        self.require_chief()?;
        let strategy = self.joint_strategy(SAVE)?;
        strategy.require_caught_up(SAVE)?;
        let call = || self.call(Operation::Save, at);
        // Nothing is written if a worker cannot read its components.
        let collect = |writer: Writer| {
            let has_own = |writer: &Writer| Bytes::from(vec![0; usize::from(writer.has_own_rows())]);
            strategy.exchange_results(SAVE, call, self.collect(writer), has_own)
        };
        // A thread of the chief writes what the workers do not store together. It needs all of it.
        let in_parts = strategy.shares_tables() || !target.is_in_background();
        let in_parts = in_parts && strategy.world().is_multi_worker();
        let first = Writer::new().saved_at_once();
        let (mut writer, own) = collect(if in_parts { first.in_parts() } else { first })?;
        let written = || call().part("written by the chief");
        if own.iter().any(|own| !own.is_empty()) {
            let save = SaveInParts { strategy: &strategy, target, call: &call, written: &written };
            match save.save(&writer)? {
                Ok(saved) => return Ok(saved),
                Err(reason) => save.warn(&reason),
            }
            writer = collect(Writer::new().saved_at_once())?.0;
        }
        let save = |mut report: Report<'_>| {
            // Recovery does not wait for an earlier save and then for this one.
            target.wait(&mut || Ok(report.send()?))?;
            if writer.reads_rows() {
                return target.write(&writer, None, &mut || Ok(report.send()?));
            }
            // The chief has all that it saves, so the loss of another worker loses no checkpoint.
            let mut lost = None;
            let begun = target.write(&writer, None, &mut || {
                if lost.is_none() {
                    lost = report.send().err();
                }
                Ok(())
            })?;
            lost.map_or(Ok(begun), Err)
        };
        let (begun, told) = strategy.on_chief(SAVE, written, save, |begun| target.describe(begun))?;
        Ok(begun.map_or(Saved::ByChief(told), Saved::Here))
    }

    /// Reads the checkpoint on all workers, and applies it if all workers can read it and have the same
    /// checkpoint.
    pub(super) fn restore_by<R: Borrow<Reader>, T>(
        &self,
        operation: &'static str,
        at: &'static Location<'static>,
        open: impl FnOnce() -> Result<R>,
        read: impl FnOnce(&Reader) -> Result<(Vec<Restore<'a>>, T)>,
    ) -> Result<(R, T)> {
        self.require(operation)?;
        let strategy = self.joint_strategy(operation)?;
        let ready = open().and_then(|reader| {
            let (ready, restored) = read(reader.borrow())?;
            Ok((reader, ready, restored))
        });
        let same = (
            "the checkpoint",
            "let all workers read the chief's checkpoint, from one folder or copies of it",
        );
        let sum = |(reader, ..): &(R, _, _)| format!("one with checksum {:08x}", reader.borrow().checksum());
        let call = || self.call(Operation::Restore, at);
        let (reader, ready, restored) = strategy.require_equal(operation, call, ready, same, sum)?;
        ready.into_iter().try_for_each(|change| change())?;
        Ok((reader, restored))
    }

    /// Returns a closure that opens the chief's latest checkpoint in the manager's folder; `None` if there is
    /// none yet.
    pub(super) fn latest<'m>(
        &self,
        manager: &'m CheckpointManager,
        at: &'static Location<'static>,
    ) -> Result<Option<Open<'m>>> {
        let strategy = self.joint_strategy(RESTORE)?;
        let call = || Fingerprint::new(Operation::Restore, "the latest", at);
        let describe =
            |latest: &Option<Reader>| latest.as_ref().map(|latest| name(latest.path())).unwrap_or_default();
        let open = |mut report: Report<'_>| Ok(manager.latest_undamaged_with(&mut || Ok(report.send()?))?);
        let (latest, told) = strategy.on_chief(RESTORE, call, open, describe)?;
        Ok(match latest {
            Some(latest) => latest.map(|latest| -> Open<'m> { Box::new(|| Ok(latest)) }),
            None if told.is_empty() => None,
            None => Some(Box::new(move || find(manager, &String::from_utf8_lossy(&told)))),
        })
    }

    /// Returns the strategy whose workers save and restore this checkpoint together. If a component's strategy may have
    /// several workers, this is that strategy; otherwise it is the current strategy.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: two components belong to different strategies that may have several workers.
    #[doc(hidden)]
    pub fn joint_strategy(&self, operation: &'static str) -> Result<Strategy> {
        let parts = self.parts.iter().filter_map(|(name, part)| Some((name, part.strategy()?)));
        // The strategies with several workers, or with one that others may join.
        let mut multi_worker = parts.filter(|(_, strategy)| strategy.extended().group().is_some());
        let Some((name, strategy)) = multi_worker.next() else { return Ok(get_strategy()) };
        match multi_worker.find(|(_, other)| *other != strategy) {
            None => Ok(strategy.clone()),
            Some((other, _)) => {
                let reason = format!(
                    "components {name:?} and {other:?} belong to different strategies with several workers; use a \
                     separate checkpoint for each"
                );
                Err(Error::invalid(operation, reason))
            }
        }
    }

    // PSV1-11
    /// Returns an error if a component's strategy runs its workers independently and this worker is not the chief. Only
    /// the chief saves.
    fn require_chief(&self) -> Result<()> {
        let not = |strategy: &&Strategy| strategy.extended().independent().is_some() && !strategy.is_chief();
        match self.parts.iter().filter_map(|(_, part)| part.strategy()).find(not) {
            None => Ok(()),
            Some(strategy) => {
                let reason = format!(
                    "this worker of {strategy} is not the chief, which saves for all; save only if strategy.is_chief()"
                );
                Err(Error::invalid(SAVE, reason))
            }
        }
    }

    fn call(&self, operation: Operation, at: &'static Location<'static>) -> Fingerprint {
        let names: Vec<_> = self.parts.iter().map(|(name, _)| name.as_str()).collect();
        Fingerprint::new(operation, format!("parts {}", names.join(", ")), at)
    }
}

/// Returns the file name of a path; empty if the path has none.
pub(super) fn name(path: &Path) -> Bytes {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default().into()
}

/// Opens the checkpoint named `name` in the manager's folder.
fn find(manager: &CheckpointManager, name: &str) -> Result<Reader> {
    let paths = manager.paths()?;
    match paths.into_iter().find(|path| path.file_name().is_some_and(|found| found == name)) {
        Some(path) => Ok(Reader::open(path)?),
        None => {
            let reason = format!(
                "{} has no {name}, which is the chief's latest; let all workers use one folder, or copies of it",
                manager.folder().display()
            );
            Err(Error::invalid(RESTORE, reason))
        }
    }
}
