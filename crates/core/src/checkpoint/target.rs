//! The destination of a save, and whether it is made in the background.

use super::parts::Parts;
use super::workers;
use bytes::Bytes;
use distribute_base::Result;
use distribute_checkpoint::{CheckpointManager, Progress, SaveHandle, Writer};
use std::path::{Path, PathBuf};

/// The destination of a save.
#[derive(Clone, Copy)]
pub(super) enum Target<'m> {
    /// A new folder.
    Folder(&'m Path),
    /// The next checkpoint of a manager.
    Next(&'m CheckpointManager),
    /// The next checkpoint of a manager, which a thread writes. If rows are read from others during the save, which
    /// have to wait for that, it is complete when the call returns.
    InBackground(&'m CheckpointManager),
}

/// A save that this worker has made or begun.
pub(super) enum Begun {
    Saving(SaveHandle),
    /// The checkpoint is already complete.
    Saved(PathBuf),
}

impl Begun {
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Saving(saving) => saving.path(),
            Self::Saved(path) => path,
        }
    }
}

impl Target<'_> {
    /// Returns `true` if a thread may write the checkpoint after the call has returned.
    pub(super) fn is_in_background(&self) -> bool {
        matches!(self, Self::InBackground(_))
    }

    /// Returns the folder in which the checkpoint will be.
    pub(super) fn parent(&self) -> &Path {
        match self {
            Self::Folder(path) => {
                path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
            }
            Self::Next(manager) | Self::InBackground(manager) => manager.folder(),
        }
    }

    /// Waits for earlier saves to the same destination.
    pub(super) fn wait(&self, progress: &mut Progress<'_>) -> Result<()> {
        match self {
            Self::Folder(_) => Ok(()),
            Self::Next(manager) | Self::InBackground(manager) => Ok(manager.finish_with(progress)?),
        }
    }

    /// Writes the contents of `writer`. If the workers write parts, `parts` lets them do so.
    pub(super) fn write(
        &self,
        writer: &Writer,
        parts: Option<Parts<'_, '_>>,
        progress: &mut Progress<'_>,
    ) -> Result<Begun> {
        Ok(match (*self, parts) {
            (Self::Folder(path), parts) => {
                match parts {
                    Some(parts) => writer.save_parts_with(path, 1, parts, progress)?,
                    None => writer.save_with(path, 1, progress)?,
                }
                Begun::Saved(path.to_path_buf())
            }
            (Self::Next(manager) | Self::InBackground(manager), Some(parts)) => {
                Begun::Saved(manager.save_parts_with(writer, 1, parts, progress)?)
            }
            (Self::InBackground(manager), None) if !writer.reads_rows() => {
                Begun::Saving(manager.save_async_with(writer.clone(), 1, progress)?)
            }
            (Self::Next(manager) | Self::InBackground(manager), None) => {
                Begun::Saved(manager.save_with(writer, 1, progress)?)
            }
        })
    }

    /// Returns what the chief sends to the other workers about its save: the path, or the name in the manager's folder.
    pub(super) fn describe(&self, begun: &Begun) -> Bytes {
        match self {
            Self::Folder(path) => path.to_string_lossy().into_owned().into(),
            Self::Next(_) | Self::InBackground(_) => workers::name(begun.path()),
        }
    }
}
