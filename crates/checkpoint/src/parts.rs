//! Checkpoints that several processes write: each writes a file with the rows that it stores, and the index names all
//! of these files.

use crate::error::show;
use crate::index::{Entry, FileEntry, SliceEntry};
use crate::live::SourceError;
use crate::progress::Progress;
use crate::rows::Rows;
use crate::shard::{self, PendingTensor};
use crate::writer::require_fixed_size;
use crate::{Error, Result, Writer, encoding, tensors};
use distribute_tensor::{DType, HostTensor};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The name of the file by which a process recognizes the folder of a checkpoint that is being written. It contains a
/// random number.
const TOKEN: &str = "token";

/// The position of a process's rows in a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RowPosition {
    /// Every `step`th of the tensor's `rows` rows, from row `first` on. With a step of 1, as many consecutive rows as
    /// are added.
    Every {
        /// The index of the first row.
        first: usize,
        /// The distance between two rows.
        step: usize,
        /// The number of rows of the complete tensor.
        rows: usize,
    },
    /// After the rows of the processes before. The tensor has the rows of all processes, in the order of processes.
    Next,
}

/// Rows of a tensor that this process adds to a checkpoint.
#[derive(Clone, Debug)]
pub(crate) struct OwnRows {
    position: RowPosition,
    rows: Rows,
}

impl OwnRows {
    /// Returns whether both can be rows of one tensor: they are parts of the same division, and begin at different rows
    /// unless one is empty.
    fn is_beside(&self, other: &Self) -> bool {
        let is_empty = |own: &Self| own.rows.dims().first() == Some(&0);
        match (self.position, other.position) {
            (
                RowPosition::Every { first, step, rows },
                RowPosition::Every { first: other_first, step: other_step, rows: other_rows },
            ) => {
                (step, rows) == (other_step, other_rows)
                    && (first != other_first || is_empty(self) || is_empty(other))
            }
            _ => false,
        }
    }
}

/// The folder of a checkpoint that is being written, as the process that saves it describes it to the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartFolder {
    /// The name of the folder, which is next to that of the complete checkpoint.
    name: String,
    token: u64,
    /// The number of parts.
    parts: usize,
}

/// The open file that a process has created for its part, next to those of the others. If the save fails, the process
/// that saves the checkpoint removes it with its folder.
#[derive(Debug)]
pub struct PartFile {
    file: File,
    path: PathBuf,
    name: String,
}

/// A description of the part that a process has written: its file, and the rows in it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Part {
    file: FileEntry,
    tensors: BTreeMap<String, PartTensor>,
}

/// The rows of one tensor in a part.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct PartTensor {
    dtype: String,
    /// The shape of a row.
    row: Vec<usize>,
    slices: Vec<PartSlice>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct PartSlice {
    key: String,
    position: RowPosition,
    count: usize,
}

/// A function that lets all processes write their parts into a folder, and returns the parts in their order. It calls
/// the given function repeatedly while they write. If it returns an error, the save ends with [`Error::Interrupted`].
pub type WriteParts<'p> = dyn FnMut(&PartFolder, &mut Progress<'_>) -> Result<Vec<Part>, SourceError> + 'p;

impl Writer {
    /// Declares that this writer is for a checkpoint that several processes write. Components then add the rows that
    /// this process stores with [`insert_own`](Self::insert_own) and [`insert_own_read`](Self::insert_own_read), and
    /// one of the processes [saves](crate::CheckpointManager::save_parts_with) all else.
    pub fn in_parts(mut self) -> Self {
        self.in_parts = true;
        self
    }

    /// Returns `true` if several processes write the checkpoint; see [`in_parts`](Self::in_parts).
    pub fn is_in_parts(&self) -> bool {
        self.in_parts
    }

    /// Returns `true` if rows that this process stores were added.
    pub fn has_own_rows(&self) -> bool {
        !self.own.is_empty()
    }

    /// Adds rows of a tensor that this process stores, and that are in memory. One process may add several ranges with
    /// [`RowPosition::Every`] to a tensor, and one with [`RowPosition::Next`].
    ///
    /// # Errors
    /// - [`Error::Entry`]: the writer is not [for a checkpoint in parts](Self::is_in_parts), the rows have no position
    ///   in such a tensor, or there are such rows or a complete tensor of this name already.
    pub fn insert_own(
        &mut self,
        name: impl Into<String>,
        position: RowPosition,
        rows: HostTensor,
    ) -> Result<()> {
        self.add_own("insert_own", name.into(), position, Rows::Memory(rows))
    }

    /// Adds rows of a tensor that this process stores. They are read while the part is written: see
    /// [`insert_read`](Self::insert_read). `dims` is the shape of these rows; their indices begin at 0.
    ///
    /// # Errors
    /// - [`Error::Entry`]: as for [`insert_own`](Self::insert_own) and [`insert_read`](Self::insert_read).
    pub fn insert_own_read<F>(
        &mut self,
        name: impl Into<String>,
        position: RowPosition,
        dtype: DType,
        dims: impl Into<Vec<usize>>,
        read: F,
    ) -> Result<()>
    where
        F: Fn(Range<usize>) -> Result<HostTensor, SourceError> + Send + Sync + 'static,
    {
        const OPERATION: &str = "insert_own_read";
        let (name, dims) = (name.into(), dims.into());
        require_fixed_size(OPERATION, &name, dtype, &dims)?;
        self.add_own(OPERATION, name, position, Rows::Read { dtype, dims, read: Arc::new(read) })
    }

    fn add_own(
        &mut self,
        operation: &'static str,
        name: String,
        position: RowPosition,
        rows: Rows,
    ) -> Result<()> {
        if !self.in_parts {
            let reason = "only this process would have these rows: other processes don't write parts of this \
                          checkpoint (see Writer::is_in_parts); use insert";
            return Err(Error::entry(operation, &name, reason));
        }
        let (dtype, dims) = (rows.dtype(), rows.dims());
        let has_place = dims.first().is_some_and(|count| match position {
            RowPosition::Every { first, step, rows } => {
                let last = count.checked_sub(1).map(|steps| steps.saturating_mul(step).saturating_add(first));
                step > 0 && last.is_none_or(|last| last < rows)
            }
            RowPosition::Next => true,
        });
        let is_interleaved = matches!(position, RowPosition::Every { step, .. } if step > 1);
        if !has_place || dtype == DType::String || is_interleaved && !tensors::can_be_interleaved(dtype) {
            let reason = format!("{} are not rows at {position:?}", show(dtype, dims));
            return Err(Error::entry(operation, &name, reason));
        }
        if self.contains(&name) {
            return Err(Error::entry(operation, &name, "a tensor of this name exists already"));
        }
        let own = self.own.entry(name.clone()).or_default();
        if own.iter().any(|of| (of.rows.dtype(), of.rows.dims().get(1..)) != (dtype, rows.dims().get(1..))) {
            let reason = format!("{} are rows of another tensor than those before", show(dtype, rows.dims()));
            return Err(Error::entry(operation, &name, reason));
        }
        let added = OwnRows { position, rows };
        if own.iter().any(|of| !added.is_beside(of)) {
            let reason = format!("{position:?} does not fit to the rows of this name that exist already");
            return Err(Error::entry(operation, &name, reason));
        }
        own.push(added);
        Ok(())
    }

    /// Writes the rows that this process stores into `file`, and syncs it to disk. Calls `progress` repeatedly.
    ///
    /// # Errors
    /// - [`Error::Io`]: the file cannot be written.
    /// - [`Error::Source`]: rows cannot be read.
    /// - [`Error::Interrupted`]: `progress` returned an error.
    pub fn write_part(&self, file: PartFile, progress: &mut Progress<'_>) -> Result<Part> {
        let (mut pending, mut described) = (Vec::new(), BTreeMap::new());
        for (name, own) in &self.own {
            let mut tensor = PartTensor { dtype: String::new(), row: Vec::new(), slices: Vec::new() };
            for (number, OwnRows { position, rows }) in own.iter().enumerate() {
                let (dtype, dims) = (rows.dtype(), rows.dims());
                let count = dims.first().copied().unwrap_or_default();
                tensor.dtype = dtype.name().to_owned();
                tensor.row = dims.get(1..).unwrap_or_default().to_vec();
                let Some(stored) = encoding::stored(dtype, dims).filter(|_| count > 0) else { continue };
                let key = if number == 0 { name.clone() } else { format!("{name}[{number}]") };
                let write = Box::new(move |sink: &mut dyn Write| rows.write(name, 0..count, sink));
                let (shape, bytes) = (stored.shape, rows.size(0..rows.len()));
                pending.push(PendingTensor { key: key.clone(), dtype: stored.dtype, shape, bytes, write });
                tensor.slices.push(PartSlice { key, position: *position, count });
            }
            described.insert(name.clone(), tensor);
        }
        make_unique(&mut pending, &mut described);
        // Written by its handle: at the path may be the folder of a later save, if this process was suspended.
        let entry = shard::write_open(&file.file, &file.path, file.name, pending, progress)?;
        Ok(Part { file: entry, tensors: described })
    }
}

/// Changes the keys that are not unique in the file.
fn make_unique(pending: &mut [PendingTensor<'_>], described: &mut BTreeMap<String, PartTensor>) {
    let mut keys = BTreeSet::new();
    let slices = described.values_mut().flat_map(|tensor| &mut tensor.slices);
    for (tensor, slice) in pending.iter_mut().zip(slices) {
        slice.key = crate::writer::unused(std::mem::take(&mut slice.key), &mut keys);
        tensor.key.clone_from(&slice.key);
    }
}

impl PartFolder {
    /// Marks a folder, so that other processes recognize it.
    pub(crate) fn mark(folder: &Path, parts: usize) -> Result<Self> {
        let name = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let mut random = RandomState::new().build_hasher();
        random.write_u32(std::process::id());
        let marked = Self { name, token: random.finish(), parts };
        let path = folder.join(TOKEN);
        let write = || {
            let mut file = File::create_new(&path)?;
            file.write_all(marked.text().as_bytes())?;
            file.sync_all()
        };
        write().map_err(Error::io("writing", &path))?;
        Ok(marked)
    }

    /// Removes the mark.
    pub(crate) fn unmark(folder: &Path) -> Result<()> {
        let path = folder.join(TOKEN);
        fs::remove_file(&path).map_err(Error::io("removing", &path))
    }

    /// Creates this process's part. `parent` is the folder in which the checkpoint will be, as this process sees it,
    /// and `number` is the number of the part, from 0.
    ///
    /// # Errors
    /// - [`Error::NotShared`]: the folder is not there, or is another one, or this process may not write to it. Saving
    ///   again would not help.
    /// - [`Error::Io`]: the file cannot be created, for example because the disk is full.
    pub fn create_part(&self, parent: &Path, number: usize) -> Result<PartFile> {
        let mut name = Path::new(&self.name).components();
        let is_plain = matches!((name.next(), name.next()), (Some(std::path::Component::Normal(_)), None));
        let folder = parent.join(&self.name);
        let not_shared = |reason: String| Error::NotShared { path: folder.clone(), reason };
        if !is_plain {
            return Err(not_shared("it is not next to the checkpoint".into()));
        }
        let failed = |operation, path: &Path, error: io::Error| match error.kind() {
            io::ErrorKind::NotFound if self.name.contains(char::REPLACEMENT_CHARACTER) => {
                not_shared("its name is not valid UTF-8".into())
            }
            io::ErrorKind::NotFound
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::PermissionDenied
            | io::ErrorKind::ReadOnlyFilesystem => not_shared(error.to_string()),
            _ => Error::io(operation, path)(error),
        };
        let (token, mut found) = (folder.join(TOKEN), String::new());
        let file = distribute_files::open(&token).map_err(|error| failed("reading", &token, error))?;
        file.take(64).read_to_string(&mut found).map_err(|error| failed("reading", &token, error))?;
        if found != self.text() {
            return Err(not_shared("another folder has this name".into()));
        }
        let name = self.part_name(number);
        let path = folder.join(&name);
        let file = File::create_new(&path).map_err(|error| failed("creating", &path, error))?;
        Ok(PartFile { file, path, name })
    }

    /// Returns the name of a part. A process that belongs to another save does not use it, because it contains the
    /// token.
    fn part_name(&self, number: usize) -> String {
        format!("part-{:05}-of-{:05}-{:016x}.safetensors", number + 1, self.parts, self.token)
    }

    /// Checks that `parts` are those of all processes, in their order.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: a part is missing, is there twice, or belongs to another process or save.
    pub(crate) fn check(&self, parts: &[Part]) -> Result<()> {
        let wrong = |reason| Err(Error::InvalidArgument { operation: "save", reason });
        if parts.len() != self.parts {
            return wrong(format!("{} parts were written, of {}", parts.len(), self.parts));
        }
        for (number, part) in parts.iter().enumerate() {
            let (found, expected) = (&part.file.name, self.part_name(number));
            if *found != expected {
                return wrong(format!("the part of process {number} is {found:?}, expected {expected:?}"));
            }
        }
        Ok(())
    }

    /// Returns this description as text, which can be sent to another process.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Returns the description with these bytes; `None` if it cannot be read.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }

    fn text(&self) -> String {
        format!("{:016x}\n", self.token)
    }
}

impl Part {
    /// Returns this description as text, which can be sent to another process.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Returns the description with these bytes; `None` if it cannot be read.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}

/// Adds the files and tensors of all parts to those of an index. The files are checked later, when the checkpoint is
/// opened.
///
/// # Errors
/// - [`Error::Entry`]: a tensor has another dtype or shape in another part, or is also complete.
pub(crate) fn merge(
    parts: Vec<Part>,
    files: &mut Vec<FileEntry>,
    entries: &mut BTreeMap<String, Entry>,
) -> Result<()> {
    const OPERATION: &str = "save";
    let mut merged: BTreeMap<String, Entry> = BTreeMap::new();
    for Part { file, tensors } in parts {
        for (name, tensor) in tensors {
            let wrong = |reason: String| Error::entry(OPERATION, &name, format!("{}: {reason}", file.name));
            let dtype: DType =
                tensor.dtype.parse().map_err(|_| wrong(format!("no dtype {}", tensor.dtype)))?;
            let shape = || std::iter::once(&0).chain(&tensor.row).copied().collect::<Vec<_>>();
            if entries.contains_key(&name) {
                return Err(wrong("it has rows of a tensor that is complete in another file".into()));
            }
            let entry = merged.entry(name.clone());
            let entry = entry.or_insert_with(|| Entry { dtype, shape: shape(), slices: Vec::new() });
            if entry.dtype != dtype || entry.shape.get(1..) != Some(&*tensor.row) {
                let (found, before) = (show(dtype, &tensor.row), show(entry.dtype, &entry.shape));
                return Err(wrong(format!("rows of {found}, but those of other parts are of {before}")));
            }
            for PartSlice { key, position, count } in tensor.slices {
                let total = entry.shape.first().copied().unwrap_or_default();
                let (first, step, total) = match position {
                    RowPosition::Every { first, step, rows } => (first, step, rows),
                    RowPosition::Next => (total, 1, total.saturating_add(count)),
                };
                entry.shape.iter_mut().take(1).for_each(|rows| *rows = total);
                let mut offset = vec![0; entry.shape.len()];
                offset.iter_mut().take(1).for_each(|row| *row = first);
                let shape = std::iter::once(&count).chain(&tensor.row).copied().collect();
                entry.slices.push(SliceEntry { file: files.len(), key, ends: None, offset, shape, step });
            }
        }
        files.push(file);
    }
    for entry in merged.values_mut() {
        entry.slices.sort_by(|a, b| (&a.offset, &a.shape).cmp(&(&b.offset, &b.shape)));
    }
    entries.append(&mut merged);
    Ok(())
}

/// Returns the error for parts that do not fit together, or that this process does not see as they were written.
pub(crate) fn unfit(path: &Path, source: Error) -> Error {
    Error::Parts { path: path.to_path_buf(), source: Box::new(source) }
}
