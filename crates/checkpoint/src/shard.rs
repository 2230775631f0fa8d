//! A safetensors file with a checksum for each block. Every read is verified against the checksums.

// - **INV-22** No byte of a checkpoint is used before its checksum has been compared, and no more is allocated than
//   the files hold. Tests: `checkpoint/tests/it/damage.rs`.

use crate::index::FileEntry;
use crate::progress::{Progress, report, report_in_write};
use crate::{Error, Result, rows};
use safetensors::tensor::{Metadata, TensorInfo};
use std::fmt::Debug;
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The size in bytes of a block, which is part of the format. Each block has its own checksum.
const BLOCK: u64 = 1 << 20;

/// The number of blocks that are written or verified between two reports of progress.
const BLOCKS_PER_REPORT: usize = 8;

/// The number of bytes after which a file that is being written is synced. The final sync, during which no progress is
/// reported, is then short.
const SYNC_EVERY: u64 = 512 << 20;

/// The maximum size in bytes that safetensors allows for a header.
const MAX_HEADER: u64 = 100_000_000;

/// A function that writes the elements of one tensor.
pub(crate) type Fill<'a> = Box<dyn Fn(&mut dyn Write) -> io::Result<()> + 'a>;

/// A tensor that is to be written into a file.
pub(crate) struct PendingTensor<'a> {
    pub(crate) key: String,
    pub(crate) dtype: safetensors::Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: usize,
    /// A function that writes the elements: exactly `bytes` bytes.
    pub(crate) write: Fill<'a>,
}

/// Creates the file at `path`, which must not exist yet, writes the tensors, and syncs the file to disk. `name` is the
/// name of the file in the index. Calls `progress` during the write and after the sync.
pub(crate) fn write(
    path: &Path,
    name: String,
    tensors: Vec<PendingTensor<'_>>,
    progress: &mut Progress<'_>,
) -> Result<FileEntry> {
    let file = File::create_new(path).map_err(Error::io("writing", path))?;
    write_open(&file, path, name, tensors, progress)
}

/// Acts like [`write`], for a file that was created at `path` and is still empty.
pub(crate) fn write_open(
    file: &File,
    path: &Path,
    name: String,
    tensors: Vec<PendingTensor<'_>>,
    progress: &mut Progress<'_>,
) -> Result<FileEntry> {
    let io = |error| Error::io("writing", path)(error);
    let synced = SyncedFile { file, unsynced: 0 };
    let entry = write_to(BufWriter::with_capacity(1 << 18, synced), path, name, tensors, progress)?;
    file.sync_all().map_err(io)?;
    report(progress)?;
    Ok(entry)
}

/// A file that is synced from time to time while it is being written.
struct SyncedFile<'f> {
    file: &'f File,
    /// The number of bytes that were written since the last sync.
    unsynced: u64,
}

impl Write for SyncedFile<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.unsynced >= SYNC_EVERY {
            self.file.sync_data()?;
            self.unsynced = 0;
        }
        let written = self.file.write(bytes)?;
        self.unsynced += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Writes `tensors` to `to` in the format of safetensors, and returns the entry for the index of a file called `name`.
/// Calls `progress` repeatedly.
///
/// # Errors
/// - [`Error::Io`]: writing fails. The error contains `path`.
/// - [`Error::InvalidArgument`]: the header is too long.
/// - [`Error::Source`]: rows cannot be read.
/// - [`Error::Interrupted`]: `progress` ended the write.
pub(crate) fn write_to(
    to: impl Write,
    path: &Path,
    name: String,
    mut tensors: Vec<PendingTensor<'_>>,
    progress: &mut Progress<'_>,
) -> Result<FileEntry> {
    // Larger elements first, as in safetensors, so that all are aligned.
    tensors.sort_by(|a, b| b.dtype.cmp(&a.dtype).then_with(|| a.key.cmp(&b.key)));
    let io = |error| Error::io("writing", path)(error);
    let mut end = 0;
    let info = |tensor: &PendingTensor<'_>| {
        let start = end;
        end += tensor.bytes;
        let (dtype, shape) = (tensor.dtype, tensor.shape.clone());
        (tensor.key.clone(), TensorInfo { dtype, shape, data_offsets: (start, end) })
    };
    let header =
        Metadata::new(None, tensors.iter().map(info).collect()).map_err(|e| io(io::Error::other(e)))?;
    let mut header = serde_json::to_vec(&header).map_err(|e| io(e.into()))?;
    header.resize(header.len().next_multiple_of(8), b' ');
    if header.len() as u64 > MAX_HEADER {
        let reason = format!(
            "the header of {name} would have {} bytes, of {MAX_HEADER} at most; use more shards",
            header.len()
        );
        return Err(Error::InvalidArgument { operation: "save", reason });
    }
    let mut summing = ChecksumWriter::new(to, progress);
    let written = (|| {
        summing.write_all(&(header.len() as u64).to_le_bytes())?;
        summing.write_all(&header)?;
        tensors.iter().try_for_each(|tensor| (tensor.write)(&mut summing))?;
        summing.flush()
    })();
    written.map_err(|error| rows::error(error, io))?;
    let (bytes, crc32) = summing.finish();
    Ok(FileEntry { name, bytes, crc32 })
}

/// A writer that forwards to another one, computes the checksum of every block, and reports progress every few blocks.
struct ChecksumWriter<'a, 'p, W> {
    inner: W,
    bytes: u64,
    block: crc32fast::Hasher,
    done: Vec<u32>,
    progress: &'a mut Progress<'p>,
}

impl<'a, 'p, W: Write> ChecksumWriter<'a, 'p, W> {
    fn new(inner: W, progress: &'a mut Progress<'p>) -> Self {
        Self { inner, bytes: 0, block: crc32fast::Hasher::new(), done: Vec::new(), progress }
    }

    /// Returns the number of bytes written, and the checksum of every block.
    fn finish(mut self) -> (u64, Vec<u32>) {
        if !self.bytes.is_multiple_of(BLOCK) {
            self.done.push(self.block.finalize());
        }
        (self.bytes, self.done)
    }
}

impl<W: Write> Write for ChecksumWriter<'_, '_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = BLOCK - self.bytes % BLOCK;
        let n = self.inner.write(&bytes[..bytes.len().min(room as usize)])?;
        self.block.update(&bytes[..n]);
        self.bytes += n as u64;
        if n > 0 && self.bytes.is_multiple_of(BLOCK) {
            self.done.push(std::mem::take(&mut self.block).finalize());
            if self.done.len().is_multiple_of(BLOCKS_PER_REPORT) {
                report_in_write(self.progress)?;
            }
        }
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// The contents of a safetensors file: an open file or memory. On Unix, an open file can be read even after it has
/// been removed.
pub(crate) trait Content: Read + Seek + Send + Debug {}

impl<C: Read + Seek + Send + Debug> Content for C {}

/// The block of a file that was read and verified last.
#[derive(Debug, Default)]
pub(crate) struct LastBlock {
    number: Option<u64>,
    bytes: Vec<u8>,
}

/// An open safetensors file of a checkpoint.
#[derive(Debug)]
pub(crate) struct Shard {
    path: PathBuf,
    file: Mutex<Box<dyn Content>>,
    entry: FileEntry,
    header: Metadata,
    /// The offset in bytes at which the elements begin, after the header.
    data: u64,
}

impl Shard {
    /// Opens a file in a checkpoint's folder, and reads its header. The length of the file is checked now. Its
    /// contents are checked when they are read.
    pub(crate) fn open(folder: &Path, entry: &FileEntry) -> Result<Self> {
        let path = folder.join(&entry.name);
        let damaged = |offset: u64, reason: String| Error::Damaged { path: path.clone(), offset, reason };
        let file = distribute_files::open(&path).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput => damaged(0, error.to_string()),
            _ => Error::io("reading", &path)(error),
        })?;
        let found = file.metadata().map_err(Error::io("reading", &path))?.len();
        Self::of(Box::new(file), found, path, entry)
    }

    /// Opens contents that are `found` bytes long, and reads the header. Errors contain `path`.
    pub(crate) fn of(
        content: Box<dyn Content>,
        found: u64,
        path: PathBuf,
        entry: &FileEntry,
    ) -> Result<Self> {
        let damaged = |offset: u64, reason: String| Error::Damaged { path: path.clone(), offset, reason };
        if found != entry.bytes {
            let reason = format!("the file has {found} bytes, but {} were written", entry.bytes);
            return Err(damaged(found.min(entry.bytes), reason));
        }
        if entry.crc32.len() as u64 != entry.bytes.div_ceil(BLOCK) {
            let reason = format!(
                "the index has {} checksums, but a file of {} bytes has {} blocks",
                entry.crc32.len(),
                entry.bytes,
                entry.bytes.div_ceil(BLOCK)
            );
            return Err(damaged(0, reason));
        }
        let no_header = Metadata::new(None, Vec::new()).map_err(|error| damaged(0, error.to_string()))?;
        let mut shard = Self {
            path: path.clone(),
            file: Mutex::new(content),
            entry: entry.clone(),
            header: no_header,
            data: 8,
        };
        let len = shard.read(0..8.min(entry.bytes))?;
        let len = <[u8; 8]>::try_from(len).map(u64::from_le_bytes).unwrap_or(u64::MAX);
        if len > MAX_HEADER || len > entry.bytes.saturating_sub(8) {
            return Err(damaged(0, format!("a header of {len} bytes doesn't fit in {} bytes", entry.bytes)));
        }
        let header = shard.read(8..8 + len)?;
        shard.header = serde_json::from_slice(&header)
            .map_err(|error| damaged(8, format!("invalid safetensors header: {error}")))?;
        shard.data = 8 + len;
        let end = shard.data.saturating_add(shard.header.data_len() as u64);
        if end != entry.bytes {
            let reason = format!("tensors should end at byte {end}, but the file does at {}", entry.bytes);
            return Err(damaged(end.min(entry.bytes), reason));
        }
        Ok(shard)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn info(&self, key: &str) -> Option<&TensorInfo> {
        self.header.info(key)
    }

    /// Returns the byte range of a tensor's elements in the file.
    pub(crate) fn position(&self, info: &TensorInfo) -> Range<u64> {
        self.data + info.data_offsets.0 as u64..self.data + info.data_offsets.1 as u64
    }

    /// Reads a range of bytes, and verifies the checksums of the blocks that contain it. Never allocates more
    /// than the file contains.
    pub(crate) fn read(&self, range: Range<u64>) -> Result<Vec<u8>> {
        self.read_after(range, &mut LastBlock::default())
    }

    /// Acts like [`read`](Self::read), after another read of this file that had the same `last`. The block in which
    /// that one ended is not read again.
    pub(crate) fn read_after(&self, range: Range<u64>, last: &mut LastBlock) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.visit(range, last, &mut |read| bytes.extend_from_slice(read))?;
        Ok(bytes)
    }

    /// Reads the complete file, verifies all checksums, and reports progress every 8 MiB.
    pub(crate) fn verify(&self, progress: &mut Progress<'_>) -> Result<()> {
        const STEP: u64 = BLOCKS_PER_REPORT as u64 * BLOCK;
        (0..self.entry.bytes).step_by(STEP as usize).try_for_each(|start| {
            let range = start..self.entry.bytes.min(start + STEP);
            self.visit(range, &mut LastBlock::default(), &mut |_| ())?;
            report(progress)
        })
    }

    fn visit(&self, range: Range<u64>, last: &mut LastBlock, then: &mut dyn FnMut(&[u8])) -> Result<()> {
        let damaged =
            |offset: u64, reason: String| Error::Damaged { path: self.path.clone(), offset, reason };
        if range.end > self.entry.bytes {
            return Err(damaged(self.entry.bytes, format!("the file ends here, not at byte {}", range.end)));
        }
        if range.is_empty() {
            return Ok(());
        }
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let LastBlock { number: last, bytes: block } = last;
        for number in range.start / BLOCK..range.end.div_ceil(BLOCK) {
            let start = number * BLOCK;
            let end = (start + BLOCK).min(self.entry.bytes);
            let from = range.start.max(start) - start;
            let to = range.end.min(end) - start;
            if *last == Some(number) {
                then(&block[from as usize..to as usize]);
                continue;
            }
            *last = None;
            block.resize((end - start) as usize, 0);
            let read = file.seek(SeekFrom::Start(start)).and_then(|_| file.read_exact(block));
            read.map_err(Error::io("reading", &self.path))?;
            let found = crc32fast::hash(block);
            let expected = self.entry.crc32.get(number as usize).copied().unwrap_or_default();
            if found != expected {
                let reason = format!(
                    "the checksum of the {} bytes from here is {found:08x}, but {expected:08x} was written",
                    block.len()
                );
                return Err(damaged(start, reason));
            }
            *last = Some(number);
            then(&block[from as usize..to as usize]);
        }
        Ok(())
    }
}
