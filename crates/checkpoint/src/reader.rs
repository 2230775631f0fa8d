//! The reader of saved checkpoints. It reads tensors on demand.

mod interleaved;

use crate::index::{self, FileEntry, Index};
use crate::progress::{Progress, report};
use crate::shard::Shard;
use crate::tensors::Tensor;
use crate::{Error, Result, Value, metadata};
use distribute_tensor::{DType, Element, HostTensor, codec};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

pub use interleaved::RowScan;

/// A saved checkpoint, opened for reading. Opening reads only the index and the files' headers. Tensors are read
/// on demand, and only the requested rows.
///
/// Clones share the files, which stay open. On Unix, they can therefore be read even after the checkpoint has been
/// removed.
#[doc(alias = "tf.train.CheckpointReader")]
#[doc(alias = "CheckpointReader")]
#[derive(Clone, Debug)]
pub struct Reader {
    path: PathBuf,
    checksum: u32,
    pub(crate) is_image: bool,
    metadata: BTreeMap<String, Value>,
    shards: Arc<[Shard]>,
    tensors: Arc<BTreeMap<String, Tensor>>,
}

/// The dtype, the shape and the slices of a tensor in a checkpoint. Returned by [`Reader::describe`].
#[derive(Clone, Debug, PartialEq)]
pub struct Description {
    /// The type of the elements.
    pub dtype: DType,
    /// The size of each axis of the complete tensor.
    pub shape: Vec<usize>,
    /// The row range of each slice in which the tensor was saved; empty for a scalar. If several processes saved every
    /// nth row each, the ranges overlap: each is from the first row of a slice to its last.
    pub slices: Vec<Range<usize>>,
}

impl Reader {
    /// Opens the checkpoint in the folder `path`. Checks that the index, the files and their headers are
    /// consistent.
    ///
    /// # Errors
    /// The message of every error contains the path of the file.
    ///
    /// - [`Error::NoCheckpoint`]: `path` is not a folder, or has no index.
    /// - [`Error::Io`]: a file other than the index is missing, or a file cannot be read.
    /// - [`Error::Damaged`]: a file is truncated or altered.
    /// - [`Error::Version`]: the checkpoint has a format that this version does not support.
    /// - [`Error::Index`]: the index is inconsistent.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let index_path = path.join(index::NAME);
        let bytes = distribute_files::open(&index_path).and_then(|mut file| {
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).map(|_| bytes)
        });
        let bytes = bytes.map_err(|error| {
            no_checkpoint(path, &error).unwrap_or_else(|| Error::io("reading", &index_path)(error))
        })?;
        Self::of(path, &index_path, &bytes, &mut |file| Shard::open(path, file))
    }

    /// Creates a reader from `bytes`, the contents of the index at `index_path`. Calls `open` for each file that the
    /// index lists. `path` is the path of the checkpoint.
    pub(crate) fn of(
        path: &Path,
        index_path: &Path,
        bytes: &[u8],
        open: &mut dyn FnMut(&FileEntry) -> Result<Shard>,
    ) -> Result<Self> {
        let (index, checksum) = (Index::from_bytes(index_path, bytes)?, crc32fast::hash(bytes));
        let wrong = |at: String, reason: String| Error::Index { path: index_path.to_path_buf(), at, reason };
        let mut shards = Vec::new();
        for file in &index.files {
            let mut parts = Path::new(&file.name).components();
            // An index must not cause reads outside its folder.
            let plain = matches!((parts.next(), parts.next()), (Some(Component::Normal(name)), None) if name == file.name.as_str());
            if !plain {
                let at = format!("file {}", shards.len());
                return Err(wrong(at, format!("{:?} is not the name of a file in this folder", file.name)));
            }
            shards.push(open(file)?);
        }
        let mut tensors = BTreeMap::new();
        // Each tensor of a file is used at most once, so the reader never reads more than the files contain.
        let mut used = BTreeSet::new();
        for (name, entry) in index.entries {
            let tensor = Tensor::resolve(&entry, &shards, &mut used);
            let tensor = tensor.map_err(|reason| wrong(format!("entry {name:?}"), reason))?;
            tensors.insert(name, tensor);
        }
        Ok(Self {
            path: path.to_path_buf(),
            checksum,
            is_image: false,
            metadata: index.metadata,
            shards: shards.into(),
            tensors: Arc::new(tensors),
        })
    }

    /// Returns the path of the checkpoint's folder, or the source that was passed to
    /// [`from_image`](Self::from_image).
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns `true` if this checkpoint is an [image](Self::from_image) in memory, and not a folder.
    #[doc(hidden)]
    pub fn is_image(&self) -> bool {
        self.is_image
    }

    /// Returns the checksum of the index. The index contains the checksums of all other contents, so its checksum
    /// identifies the complete checkpoint.
    ///
    /// Copies of one checkpoint have the same checksum. Two different checkpoints have the same one with a
    /// probability of 2⁻³².
    pub fn checksum(&self) -> u32 {
        self.checksum
    }

    /// Returns the names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Returns whether the checkpoint has a tensor named `name`.
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Returns the metadata value for `key`; `None` if there is none.
    pub fn metadata(&self, key: &str) -> Option<&Value> {
        self.metadata.get(key)
    }

    /// Returns the metadata value for `key` if it is a number, including NaN and infinities, which are stored as
    /// text.
    ///
    /// ```
    /// # use distribute_checkpoint::{Reader, Writer};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("saved");
    /// let mut writer = Writer::new();
    /// writer.metadata("best_loss", f64::INFINITY);
    /// writer.save(&path, 1)?;
    /// assert_eq!(Reader::open(&path)?.number("best_loss"), Some(f64::INFINITY));
    /// # Ok::<(), distribute_checkpoint::Error>(())
    /// ```
    pub fn number(&self, key: &str) -> Option<f64> {
        self.metadata(key).and_then(metadata::number)
    }

    /// Returns all metadata values by key.
    pub fn all_metadata(&self) -> &BTreeMap<String, Value> {
        &self.metadata
    }

    /// Returns the dtype, shape and slices of a tensor without reading its elements.
    ///
    /// # Errors
    /// - [`Error::UnknownName`]: there is no tensor named `name`.
    pub fn describe(&self, name: &str) -> Result<Description> {
        let tensor = self.find(name)?;
        let slices = if tensor.shape.is_empty() {
            Vec::new()
        } else {
            tensor.slices.iter().map(|slice| slice.rows.clone()).collect()
        };
        Ok(Description { dtype: tensor.dtype, shape: tensor.shape.clone(), slices })
    }

    /// Reads a complete tensor, regardless of the slices in which it was saved.
    ///
    /// # Errors
    /// - [`Error::UnknownName`]: there is no tensor named `name`.
    /// - [`Error::Damaged`], [`Error::Io`]: a block of the tensor is damaged or cannot be read.
    pub fn tensor(&self, name: &str) -> Result<HostTensor> {
        let tensor = self.find(name)?;
        let rows = tensor.shape.first().copied().unwrap_or(1);
        self.read(tensor, 0..rows, tensor.shape.clone())
    }

    /// Reads the given range of rows of a tensor, that is, of indices along axis 0. Only the blocks that contain
    /// these rows are read from disk.
    ///
    /// # Errors
    /// - [`Error::UnknownName`]: there is no tensor named `name`.
    /// - [`Error::Rows`]: the tensor does not have these rows, or is a scalar.
    /// - [`Error::Damaged`], [`Error::Io`]: a block that contains these rows is damaged or cannot be read.
    pub fn rows(&self, name: &str, rows: Range<usize>) -> Result<HostTensor> {
        let (tensor, shape) = self.require_rows(name, &rows)?;
        self.read(tensor, rows, shape)
    }

    /// Returns a tensor, and the shape of the given range of its rows.
    fn require_rows(&self, name: &str, rows: &Range<usize>) -> Result<(&Tensor, Vec<usize>)> {
        let tensor = self.find(name)?;
        let total = tensor.shape.first().copied();
        if rows.start > rows.end || total.is_none_or(|total| rows.end > total) {
            let (start, end) = (rows.start, rows.end);
            return Err(Error::Rows { name: name.into(), start, end, rows: total.unwrap_or(0) });
        }
        let mut shape = tensor.shape.clone();
        if let Some(count) = shape.first_mut() {
            *count = rows.len();
        }
        Ok((tensor, shape))
    }

    /// Splits the rows of a tensor into consecutive ranges of at most 8 MiB, but of at least one row each. Use them
    /// with [`rows`](Self::rows) to read a tensor that is larger than memory. A string counts as one byte.
    ///
    /// # Errors
    /// - [`Error::UnknownName`]: there is no tensor named `name`.
    pub fn row_ranges(&self, name: &str) -> Result<impl Iterator<Item = Range<usize>>> {
        let tensor = self.find(name)?;
        let row = tensor.row * tensor.dtype.bytes().unwrap_or(1);
        Ok(crate::rows::pieces(0..tensor.shape.first().copied().unwrap_or_default(), row))
    }

    /// Reads the complete checkpoint, and verifies all checksums.
    ///
    /// # Errors
    /// - [`Error::Damaged`], [`Error::Io`]: a block is damaged or cannot be read. The error contains the file and, if a
    ///   block is damaged, its offset.
    pub fn verify(&self) -> Result<()> {
        self.verify_with(&mut || Ok(()))
    }

    /// Acts like [`verify`](Self::verify), and calls `progress` repeatedly, at least once for every 8 MiB unless a
    /// row is larger.
    ///
    /// # Errors
    /// - [`Error::Interrupted`]: `progress` returned an error.
    /// - The errors of [`verify`](Self::verify).
    pub fn verify_with(&self, progress: &mut Progress<'_>) -> Result<()> {
        self.shards.iter().try_for_each(|shard| shard.verify(progress))?;
        // Any bytes are valid numbers, so only tensors of these two dtypes are read again.
        let checked = |(_, tensor): &(&String, &Tensor)| matches!(tensor.dtype, DType::Bool | DType::String);
        for (name, tensor) in self.tensors.iter().filter(checked) {
            if tensor.shape.is_empty() {
                self.tensor(name)?;
            }
            for rows in self.row_ranges(name)? {
                self.rows(name, rows)?;
                report(progress)?;
            }
        }
        Ok(())
    }

    fn find(&self, name: &str) -> Result<&Tensor> {
        self.tensors.get(name).ok_or_else(|| Error::UnknownName {
            path: self.path.clone(),
            name: name.into(),
            names: self.names().map(String::from).collect(),
        })
    }

    fn read(&self, tensor: &Tensor, rows: Range<usize>, shape: Vec<usize>) -> Result<HostTensor> {
        if tensor.step > 1 {
            return interleaved::read(self, tensor, rows, shape, &mut Vec::new());
        }
        let (mut bytes, mut strings, mut places) = (Vec::new(), Vec::new(), Vec::new());
        for slice in &tensor.slices {
            let part = rows.start.max(slice.rows.start)..rows.end.min(slice.rows.end);
            if part.is_empty() {
                continue;
            }
            let elements =
                (part.start - slice.rows.start) * tensor.row..(part.end - slice.rows.start) * tensor.row;
            let shard = &self.shards[slice.shard];
            match (&slice.ends, tensor.dtype.bytes()) {
                (Some(ends), _) => {
                    read_strings(shard, slice.bytes.clone(), ends.clone(), elements, &mut strings)?
                }
                (None, size) => {
                    let size = size.unwrap_or(1) as u64;
                    let from = slice.bytes.start + elements.start as u64 * size;
                    places.push((bytes.len(), shard, from));
                    bytes.append(&mut shard.read(from..slice.bytes.start + elements.end as u64 * size)?);
                }
            }
        }
        let buffer = match tensor.dtype {
            DType::String => Vec::<u8>::into_buffer(strings),
            dtype => codec::read(dtype, &bytes).map_err(|position| {
                let place = places.iter().rev().find(|(start, ..)| *start <= position);
                Error::Damaged {
                    path: place.map_or(&*self.path, |(_, shard, _)| shard.path()).to_path_buf(),
                    offset: place.map_or(0, |(start, _, offset)| offset + (position - start) as u64),
                    reason: format!("these bytes are not valid {dtype}"),
                }
            })?,
        };
        Ok(HostTensor::from_buffer(buffer, shape)?)
    }
}

/// Returns the error for a path that contains no checkpoint. Returns `None` if `error` shows another reason why
/// the index could not be read.
fn no_checkpoint(path: &Path, error: &std::io::Error) -> Option<Error> {
    use std::io::ErrorKind::{NotADirectory, NotFound};
    if !matches!(error.kind(), NotFound | NotADirectory) {
        return None;
    }
    let reason = if path.is_dir() {
        match crate::names::latest_in(path) {
            Some(latest) => format!(
                "it is a folder of checkpoints; pass one of them, the latest of which is {}, or pass its \
                 CheckpointManager to restore_latest",
                latest.display()
            ),
            None => format!("it has no {}", index::NAME),
        }
    } else if path.exists() {
        "it is a file, and a checkpoint is a folder; the weights in a safetensors file are loaded by Variables::load".into()
    } else {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        match folder.and_then(crate::names::latest_in) {
            Some(latest) => {
                format!("it does not exist; the latest checkpoint in its folder is {}", latest.display())
            }
            None => "nothing is there".into(),
        }
    };
    Some(Error::NoCheckpoint { path: path.to_path_buf(), reason })
}

/// Reads some of the strings of a slice, and appends them to `strings`. `bytes` and `ends` are the ranges of the
/// slice's bytes and end offsets in the file; `elements` are the indices of the strings to read.
fn read_strings(
    shard: &Shard,
    bytes: Range<u64>,
    ends: Range<u64>,
    elements: Range<usize>,
    strings: &mut Vec<Vec<u8>>,
) -> Result<()> {
    // The first string begins at the end of the previous one.
    let first = elements.start.saturating_sub(1);
    let from = ends.start + 8 * first as u64;
    let read = shard.read(from..ends.start + 8 * elements.end as u64)?;
    let mut read = read.chunks_exact(8).map(|end| end.try_into().map_or(u64::MAX, u64::from_le_bytes));
    let wrong = |number: usize, end: u64| Error::Damaged {
        path: shard.path().to_path_buf(),
        offset: ends.start + 8 * number as u64,
        reason: format!(
            "a string ends at {end}: before its beginning, or after the {} bytes of all",
            bytes.end - bytes.start
        ),
    };
    let start = if elements.start == 0 { 0 } else { read.next().unwrap_or_default() };
    let ends: Vec<u64> = read.collect();
    let mut previous = start;
    for (i, end) in ends.iter().enumerate() {
        if *end < previous || *end > bytes.end - bytes.start {
            return Err(wrong(elements.start + i, *end));
        }
        previous = *end;
    }
    let text = shard.read(bytes.start + start..bytes.start + previous)?;
    let mut from = 0;
    strings.reserve_exact(ends.len());
    for end in ends {
        let to = (end - start) as usize;
        strings.push(text[from..to].to_vec());
        from = to;
    }
    Ok(())
}
