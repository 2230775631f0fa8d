//! The steps of a save, ordered so that a crash at any point leaves either no checkpoint or a complete one.

// - **INV-21** A checkpoint has its name only when it is complete and on the disk. Tests: `checkpoint/src/save.rs`.

use crate::index::{self, Index};
use crate::parts::{self, PartFolder, WriteParts};
use crate::progress::{Progress, report};
use crate::writer::Writer;
use crate::{Error, Reader, Result, shard};
use distribute_files::Partial;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// One step of a save.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    /// Creates the folder under a temporary name next to its destination.
    CreateFolder,
    /// Lets all processes write their parts.
    WriteParts,
    /// Writes the safetensors file with the given index, and syncs it to disk.
    WriteShard(usize),
    /// Writes `index.json`, and syncs it to disk.
    WriteIndex,
    /// Opens the files, because other processes have written some of them.
    CheckParts,
    /// Syncs the folder, so that the names of its files are on disk.
    SyncFolder,
    /// Renames the folder to its final name. After this step, the checkpoint exists and is complete.
    Rename,
    /// Syncs the parent folder, so that the new name of the folder is on disk.
    SyncParent,
}

/// Returns the steps of a save with the given number of files, in order. `in_parts` is whether other processes write
/// further files.
fn steps(files: usize, in_parts: bool) -> Vec<Step> {
    let mut steps = vec![Step::CreateFolder];
    steps.extend(in_parts.then_some(Step::WriteParts));
    steps.extend((0..files).map(Step::WriteShard));
    steps.push(Step::WriteIndex);
    steps.extend(in_parts.then_some(Step::CheckParts));
    steps.extend([Step::SyncFolder, Step::Rename, Step::SyncParent]);
    steps
}

impl Writer {
    /// Saves the checkpoint as a new folder at `path`, in at most `shards` files of about equal size.
    ///
    /// A tensor that is larger than an equal share is split between rows. The save is atomic. The folder is
    /// written next to its destination, under a name that begins with a dot and ends with `.part`. It is then
    /// synced to disk and renamed. The next save to the same path removes anything that a crash has left. The
    /// same contents give the same bytes.
    ///
    /// # Errors
    /// After an error, there is no folder at `path`, unless it existed before or only the sync of its parent folder
    /// failed.
    /// - [`Error::Exists`]: `path` already exists.
    /// - [`Error::Entry`]: some rows of a tensor were not added, or [other processes](Self::in_parts) have some.
    /// - [`Error::InvalidArgument`]: `shards` is 0, `path` does not end in a name, or the header of a file would be too
    ///   large.
    /// - [`Error::Index`]: metadata is nested too deeply to be read again.
    /// - [`Error::Source`]: rows of a tensor cannot be read or copied.
    /// - [`Error::Io`]: an operation on a file or folder failed. The error contains its path.
    pub fn save(&self, path: impl AsRef<Path>, shards: usize) -> Result<()> {
        self.save_with(path, shards, &mut || Ok(()))
    }

    /// Acts like [`save`](Self::save), and calls `progress` repeatedly: after every 8 MiB that are written, and
    /// after each file is synced.
    ///
    /// # Errors
    /// - [`Error::Interrupted`]: `progress` returned an error. No checkpoint was saved.
    /// - The errors of [`save`](Self::save).
    pub fn save_with(
        &self,
        path: impl AsRef<Path>,
        shards: usize,
        progress: &mut Progress<'_>,
    ) -> Result<()> {
        save(self, path.as_ref(), shards, None, progress, &mut |_| Ok(()))
    }

    /// Acts like [`save_with`](Self::save_with), for a checkpoint that `parts` processes write. `write` lets each of
    /// them create and write its part, this process included, and returns the parts in their order. The checkpoint gets
    /// its name when the parts of all processes are in the folder, with their lengths and rows. Their contents are not
    /// read again; a [reader](Reader) compares them with their checksums. The names of parts contain a random number.
    ///
    /// # Errors
    /// - [`Error::Interrupted`]: `write` or `progress` returned an error.
    /// - [`Error::Parts`]: the parts do not fit together, or a file is not there or not as it was written.
    /// - The errors of [`save_with`](Self::save_with).
    pub fn save_parts_with(
        &self,
        path: impl AsRef<Path>,
        shards: usize,
        (parts, write): (usize, &mut WriteParts<'_>),
        progress: &mut Progress<'_>,
    ) -> Result<()> {
        save(self, path.as_ref(), shards, Some((parts, write)), progress, &mut |_| Ok(()))
    }
}

/// Saves like [`Writer::save_with`]. Calls `before` before each step, so that tests can fail or crash there.
fn save(
    writer: &Writer,
    path: &Path,
    shards: usize,
    mut parts: Option<(usize, &mut WriteParts<'_>)>,
    progress: &mut Progress<'_>,
    before: &mut dyn FnMut(Step) -> io::Result<()>,
) -> Result<()> {
    let mut layout =
        if parts.is_some() { writer.layout_beside_parts(shards)? } else { writer.layout(shards)? };
    let parent = parent(path)?;
    // `rename` would replace an empty folder.
    if path.symlink_metadata().is_ok() {
        return Err(Error::Exists { path: path.to_path_buf() });
    }
    let files = std::mem::take(&mut layout.files);
    let (steps, count) = (steps(files.len(), parts.is_some()), files.len());
    let mut files = files.into_iter();
    let (mut written, mut of_others) = (Vec::new(), Vec::new());
    // Its files are removed if a step fails.
    let mut partial: Option<Partial> = None;
    for step in steps {
        let _save = tracing::trace_span!("save", ?step).entered();
        before(step).map_err(Error::io("saving", path))?;
        match (step, partial.as_ref().map(Partial::path)) {
            (Step::CreateFolder, _) => {
                partial = Some(Partial::folder(path).map_err(Error::io("creating", path))?)
            }
            (Step::WriteParts, Some(partial)) => {
                if let Some((count, write)) = &mut parts {
                    let folder = PartFolder::mark(partial, *count)?;
                    of_others =
                        (*write)(&folder, progress).map_err(|source| Error::Interrupted { source })?;
                    folder.check(&of_others).map_err(|error| parts::unfit(path, error))?;
                    PartFolder::unmark(partial)?;
                }
            }
            (Step::CheckParts, Some(partial)) => {
                Reader::open(partial).map_err(|error| parts::unfit(path, error))?;
            }
            (Step::SyncParent, _) => sync_folder(parent)?,
            (Step::WriteShard(number), Some(partial)) => {
                let name = format!("shard-{:05}-of-{count:05}.safetensors", number + 1);
                let tensors = files.next().unwrap_or_default();
                written.push(shard::write(&partial.join(&name), name, tensors, progress)?);
            }
            (Step::WriteIndex, Some(partial)) => {
                let of_others = std::mem::take(&mut of_others);
                parts::merge(of_others, &mut written, &mut layout.entries)
                    .map_err(|error| parts::unfit(path, error))?;
                write_index(&partial.join(index::NAME), &layout.index(written.clone()))?;
                report(progress)?;
            }
            (Step::SyncFolder, Some(partial)) => {
                sync_folder(partial)?;
                report(progress)?;
            }
            (Step::Rename, _) => {
                let renamed = partial.take().map_or(Ok(None), |partial| partial.rename(path));
                renamed.map_err(|error| match path.symlink_metadata() {
                    // Another process was faster.
                    Ok(_) => Error::Exists { path: path.to_path_buf() },
                    Err(_) => Error::io("renaming to", path)(error),
                })?;
            }
            (
                Step::WriteParts
                | Step::WriteShard(_)
                | Step::WriteIndex
                | Step::CheckParts
                | Step::SyncFolder,
                None,
            ) => (),
        }
    }
    Ok(())
}

/// Returns the parent folder of `path`, the future folder of a checkpoint; `.` if `path` is only a name. Returns an
/// error if `path` does not end in a name.
fn parent(path: &Path) -> Result<&Path> {
    if path.file_name().is_none() {
        let reason = format!("{} does not end in the name of a folder to be created", path.display());
        return Err(Error::InvalidArgument { operation: "save", reason });
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    Ok(parent.unwrap_or(Path::new(".")))
}

fn write_index(path: &Path, index: &Index) -> Result<()> {
    let io = |error| Error::io("writing", path)(error);
    let text = index.to_text().map_err(|error| io(error.into()))?;
    // Metadata may be nested too deeply for a reader.
    Index::from_bytes(path, text.as_bytes())?;
    let mut file = File::create_new(path).map_err(io)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(io)
}

/// Syncs the names in a folder to disk. Does nothing on Windows, because folders cannot be opened there: a name may not
/// be on disk yet when this returns.
fn sync_folder(path: &Path) -> Result<()> {
    if cfg!(windows) {
        Ok(())
    } else {
        File::open(path).and_then(|folder| folder.sync_all()).map_err(Error::io("syncing", path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::saves::Saves;
    use crate::{HeldTensors, LiveTensors, Part, RowPosition, SourceError};
    use distribute_tensor::{DType, HostTensor};
    use std::fs;
    use std::process::Command;
    use std::sync::Arc;
    use std::time::Duration;

    fn writer(value: i64) -> Writer {
        let mut writer = Writer::new();
        writer.insert("a", HostTensor::vector(vec![value; 100])).unwrap();
        writer.insert("b", HostTensor::scalar(value)).unwrap();
        writer
    }

    fn value(path: &Path) -> i64 {
        let checkpoint = Reader::open(path).unwrap();
        checkpoint.verify().unwrap();
        let a = checkpoint.tensor("a").unwrap().to_vec::<i64>().unwrap();
        let b = checkpoint.tensor("b").unwrap().item::<i64>().unwrap();
        assert_eq!(a, vec![b; 100]);
        b
    }

    fn count(writer: &Writer, in_parts: bool) -> usize {
        steps(writer.layout(2).unwrap().files.len(), in_parts).len()
    }

    /// Writes two parts into the folder of a checkpoint in `parent`. Each has a row of the tensor `c`.
    fn write_parts(folder: &PartFolder, parent: &Path) -> Result<Vec<Part>> {
        let part = |number| {
            let mut writer = Writer::new().in_parts();
            let position = RowPosition::Every { first: number, step: 2, rows: 2 };
            writer.insert_own("c", position, HostTensor::vector(vec![number as i64]))?;
            writer.write_part(folder.create_part(parent, number)?, &mut || Ok(()))
        };
        (0..2).map(part).collect()
    }

    /// Saves in parts if `in_parts`, and otherwise alone. Calls `before` before each step.
    fn save_as(
        in_parts: bool,
        path: &Path,
        value: i64,
        before: &mut dyn FnMut(Step) -> io::Result<()>,
    ) -> Result<()> {
        let mut write =
            |folder: &PartFolder, _: &mut Progress<'_>| Ok(write_parts(folder, path.parent().unwrap())?);
        let parts = in_parts.then_some((2, &mut write as &mut WriteParts<'_>));
        save(&writer(value), path, 2, parts, &mut || Ok(()), before)
    }

    // INV-21, INV-111
    #[test]
    fn a_failure_before_any_step_leaves_nothing_and_is_reported() {
        let each = |in_parts| (0..count(&writer(1), in_parts)).map(move |at| (in_parts, at));
        for (in_parts, fail_at) in each(false).chain(each(true)) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("saved");
            let mut steps = Vec::new();
            let full = |step| {
                steps.push(step);
                if steps.len() > fail_at { Err(io::Error::other("no space left")) } else { Ok(()) }
            };
            let error = save_as(in_parts, &path, 1, &mut { full }).unwrap_err();
            assert!(
                error.to_string().contains("saved") && error.to_string().contains("no space left"),
                "{error}"
            );
            let names = distribute_testing::names_in(folder.path());
            match steps.last().unwrap() {
                Step::SyncParent => assert_eq!((names, value(&path)), (vec!["saved".to_string()], 1)),
                _ => assert!(names.is_empty(), "{names:?} after {steps:?}"),
            }
        }
    }

    const CRASH: &str = "DISTRIBUTE_CHECKPOINT_TEST_CRASH";

    /// Crashes in the child processes that the next tests start. In the test program itself, it does nothing.
    #[test]
    fn child_that_crashes() {
        let Ok(order) = std::env::var(CRASH) else { return };
        let [way, at, path] = order.splitn(3, ' ').collect::<Vec<_>>().try_into().unwrap();
        let (at, path): (usize, _) = (at.parse().unwrap(), Path::new(path).to_path_buf());
        let mut steps = 0;
        let mut crash = move |_| {
            steps += 1;
            if steps > at {
                std::process::abort();
            }
            Ok(())
        };
        if way == "waited" || way == "parts" {
            return save_as(way == "parts", &path, 2, &mut crash).unwrap();
        }
        let mut writer = writer(2);
        if way == "copying" {
            writer.insert_live("c", DType::I64, [], &(Arc::new(Crash) as Arc<dyn LiveTensors>), 0).unwrap();
        }
        let write = {
            let path = path.clone();
            move |writer: &Writer, progress: &mut Progress<'_>| {
                save(writer, &path, 2, None, progress, &mut crash)
            }
        };
        let turn = Saves::new(&path).turn("save", &mut || Ok(())).unwrap();
        turn.start(path, writer, write).unwrap().wait(Duration::from_secs(60)).unwrap();
    }

    /// A tensor whose copy crashes the process.
    struct Crash;

    impl LiveTensors for Crash {
        fn hold(&self) -> Result<Box<dyn HeldTensors + '_>, SourceError> {
            Ok(Box::new(Crash))
        }
    }

    impl HeldTensors for Crash {
        fn copy(&self, _index: usize) -> Result<HostTensor, SourceError> {
            std::process::abort()
        }
    }

    // Equivalent to kill -9, which can do no more than abort.
    // INV-21, INV-96, INV-111
    #[test]
    fn a_crash_before_any_step_leaves_the_old_checkpoint_or_also_the_new_one() {
        let steps = |way| count(&writer(2), way == "parts");
        let each = |way| (0..=steps(way)).map(move |at| (way, at));
        let all = each("waited").chain(each("background")).chain(each("parts")).chain([("copying", 0)]);
        for (way, at) in all {
            let steps = steps(way);
            let folder = tempfile::tempdir().unwrap();
            let manager = crate::CheckpointManager::new(folder.path()).unwrap();
            let old = manager.save(&writer(1), 2).unwrap();
            let new = folder.path().join("ckpt-000002");
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args(["--exact", "save::tests::child_that_crashes"]);
            let ended = child.env(CRASH, format!("{way} {at} {}", new.display())).output().unwrap();
            assert_eq!(ended.status.success(), at == steps, "{ended:?}");

            assert_eq!(value(&old), 1);
            let renamed = at >= steps - 1;
            let latest = manager.latest().unwrap().unwrap();
            assert_eq!((latest.path(), value(latest.path())), if renamed { (&*new, 2) } else { (&*old, 1) });
            // The next save succeeds, and removes the leftovers of the crash.
            manager.save(&writer(3), 2).unwrap();
            let names = distribute_testing::names_in(folder.path());
            assert!(names.iter().all(|name| !name.ends_with(".part")));
            assert_eq!(value(manager.latest().unwrap().unwrap().path()), 3);
        }
    }

    /// A crash without a manager. A partial checkpoint that another process is writing is kept.
    #[test]
    fn the_next_save_to_the_same_path_removes_files_of_a_crash() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("saved");
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "save::tests::child_that_crashes"]);
        let ended = child.env(CRASH, format!("waited 2 {}", path.display())).output().unwrap();
        let names = || fs::read_dir(folder.path()).unwrap().count();
        assert!(!ended.status.success() && names() == 1, "{ended:?}");
        let writing = Partial::folder(&folder.path().join("other")).unwrap();
        save(&writer(1), &path, 2, None, &mut || Ok(()), &mut |_| Ok(())).unwrap();
        assert_eq!((names(), value(&path)), (2, 1));
        assert!(writing.path().exists());
    }

    // INV-21
    #[test]
    fn progress_is_reported_for_every_8_mib_and_an_error_of_it_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("saved");
        let mut writer = Writer::new();
        writer.insert("a", HostTensor::vector(vec![1u8; 10 << 20])).unwrap();
        writer.insert("b", HostTensor::vector(vec![2u8; 10 << 20])).unwrap();
        let mut all = 0;
        let count = |stop: usize| {
            let mut reports = 0;
            let saved = writer.save_with(&path, 2, &mut || {
                reports += 1;
                if reports == stop { Err("worker 1 is gone".into()) } else { Ok(()) }
            });
            (reports, saved)
        };
        for stop in 1.. {
            let (reports, saved) = count(stop);
            let Err(error) = saved else {
                all = reports;
                break;
            };
            assert!(matches!(error, Error::Interrupted { .. }), "{error:?}");
            assert_eq!(error.to_string(), "worker 1 is gone");
            assert!(distribute_testing::names_in(folder.path()).is_empty(), "after report {stop}");
        }
        // One for the 10 MiB of each file, one after each sync: of two files, the index and the folder.
        assert_eq!(all, 2 + 4);
        Reader::open(&path).unwrap().verify().unwrap();
    }

    #[test]
    fn the_name_comes_after_the_bytes() {
        use Step::*;
        let expected =
            [CreateFolder, WriteShard(0), WriteShard(1), WriteIndex, SyncFolder, Rename, SyncParent];
        assert_eq!(steps(2, false), expected);
        let expected =
            [CreateFolder, WriteParts, WriteShard(0), WriteIndex, CheckParts, SyncFolder, Rename, SyncParent];
        assert_eq!(steps(1, true), expected);
    }
}
