//! A sorted table of keys and values in LevelDB's format: blocks with a checksum each, and a footer.

// No byte of the index is used before the checksum of its block has been compared. No more is allocated than a fixed
// multiple of the file's size. Tests: `tests/it/damage.rs`.

use crate::damage::{damaged, masked, varint};
use distribute_checkpoint::{Error, Result};
use std::borrow::Cow;
use std::path::Path;

/// The last 8 bytes of a table.
const MAGIC: u64 = 0xdb47_7524_8b80_fb57;

/// The size of the footer in bytes: the locations of two blocks, zeros, and the magic number.
const FOOTER: usize = 48;

/// The number of bytes that follow the contents of a block: the kind of compression and the checksum.
const TRAILER: usize = 5;

/// The maximum ratio of the total size of all keys to the size of the file. Keys share prefixes, so the keys of a small
/// forged table could need more memory than the machine has.
const MAX_RATIO: usize = 64;

/// The maximum ratio of a block to its compressed size. In Snappy's format, a copy of 64 bytes takes 3 bytes.
const MAX_COMPRESSION: usize = 22;

/// A table in memory, whose blocks are checked one after another.
pub(crate) struct Table<'a> {
    path: &'a Path,
    bytes: &'a [u8],
}

/// A block whose checksum has been compared.
struct Block<'a> {
    contents: Cow<'a, [u8]>,
    /// The offset of the contents in the file.
    offset: usize,
}

impl<'a> Table<'a> {
    /// Creates a table from the bytes of the file at `path`.
    pub(crate) fn new(path: &'a Path, bytes: &'a [u8]) -> Self {
        Self { path, bytes }
    }

    /// Calls `each` with every key, its value, and the offset of the entry in the file, in the order of the keys. In a
    /// compressed block, the offset is that of the block.
    ///
    /// # Errors
    /// - [`Error::Damaged`]: the bytes are not a table.
    /// - The errors of `each`.
    pub(crate) fn each(&self, mut each: impl FnMut(&[u8], &[u8], u64) -> Result<()>) -> Result<()> {
        let (meta, index) = self.footer()?;
        self.block(meta.0, meta.1, self.bytes.len() - FOOTER)?;
        let (mut last, mut is_first) = (Vec::new(), true);
        let mut room = self.bytes.len().saturating_mul(MAX_RATIO);
        let mut index_room = room;
        let index = self.block(index.0, index.1, self.bytes.len() - FOOTER)?;
        self.entries(&index, &mut index_room, |_, mut handle, at| {
            let (Some(offset), Some(size)) = (varint(&mut handle), varint(&mut handle)) else {
                return Err(self.damaged(at, "the location of a block is incomplete"));
            };
            let block = self.block(offset, size, at as usize)?;
            self.entries(&block, &mut room, |key, value, at| {
                // Otherwise a forged index could list the same block again and again.
                if !is_first && key <= last.as_slice() {
                    return Err(self.damaged(at, "the keys are not in order"));
                }
                is_first = false;
                last.clear();
                last.extend_from_slice(key);
                each(key, value, at)
            })
        })
    }

    /// Returns the offsets and sizes of two blocks: the block of metadata, and the block with the locations of all
    /// others.
    fn footer(&self) -> Result<((u64, u64), (u64, u64))> {
        let Some((_, footer)) = self.bytes.split_last_chunk::<FOOTER>() else {
            let reason =
                format!("the file has {} bytes, and an index has {FOOTER} or more", self.bytes.len());
            return Err(self.damaged(self.bytes.len() as u64, reason));
        };
        let start = (self.bytes.len() - FOOTER) as u64;
        let magic = footer.last_chunk().copied().map(u64::from_le_bytes);
        if magic != Some(MAGIC) {
            let reason = "the file doesn't end like an index of TensorFlow";
            return Err(self.damaged(start + FOOTER as u64 - 8, reason));
        }
        let mut rest = &footer[..FOOTER - 8];
        let handles = [(); 4].map(|()| varint(&mut rest));
        match handles {
            [Some(meta), Some(meta_size), Some(index), Some(index_size)]
                if rest.iter().all(|byte| *byte == 0) =>
            {
                Ok(((meta, meta_size), (index, index_size)))
            }
            _ => Err(self.damaged(start, "the locations in the footer are not valid")),
        }
    }

    /// Returns a block after its checksum has been compared. `named_at` is the offset in the file at which its location
    /// is stored.
    fn block(&self, offset: u64, size: u64, named_at: usize) -> Result<Block<'a>> {
        let range = || {
            let (offset, size) = (usize::try_from(offset).ok()?, usize::try_from(size).ok()?);
            let end = offset.checked_add(size)?.checked_add(TRAILER)?;
            (end <= self.bytes.len() - FOOTER).then_some(offset..end)
        };
        let Some(range) = range() else {
            let reason = format!(
                "a block of {size} bytes at {offset} doesn't fit into the file of {} bytes",
                self.bytes.len()
            );
            return Err(self.damaged(named_at as u64, reason));
        };
        let (start, block) = (range.start, &self.bytes[range]);
        let Some((summed, stored)) = block.split_last_chunk() else {
            return Err(self.damaged(offset, "the block has no checksum"));
        };
        let (stored, found) = (u32::from_le_bytes(*stored), masked(crc32c::crc32c(summed)));
        if stored != found {
            let reason = format!("the block has checksum {found:08x}, but {stored:08x} was written");
            return Err(self.damaged(offset, reason));
        }
        let contents = match summed.split_last() {
            Some((0, contents)) => Cow::Borrowed(contents),
            Some((1, contents)) => Cow::Owned(self.uncompressed(contents, offset)?),
            other => {
                let kind = other.map_or(0, |(kind, _)| *kind);
                return Err(self.damaged(offset, format!("the block has the unknown compression {kind}")));
            }
        };
        Ok(Block { contents, offset: start })
    }

    fn uncompressed(&self, contents: &[u8], offset: u64) -> Result<Vec<u8>> {
        let wrong = |reason: String| self.damaged(offset, reason);
        let len = snap::raw::decompress_len(contents).map_err(|error| wrong(error.to_string()))?;
        if len > contents.len().saturating_mul(MAX_COMPRESSION) {
            return Err(wrong(format!("{} compressed bytes cannot be {len} bytes", contents.len())));
        }
        snap::raw::Decoder::new().decompress_vec(contents).map_err(|error| wrong(error.to_string()))
    }

    /// Calls `each` with the key and value of each entry of a block, and the offset of the entry in the file. In a
    /// compressed block, the offset is that of the block. The size of each key is subtracted from `room`.
    fn entries(
        &self,
        block: &Block<'_>,
        room: &mut usize,
        mut each: impl FnMut(&[u8], &[u8], u64) -> Result<()>,
    ) -> Result<()> {
        let contents = &*block.contents;
        let entries = || {
            let (rest, restarts) = contents.split_last_chunk()?;
            let restarts = usize::try_from(u32::from_le_bytes(*restarts)).ok()?.checked_mul(4)?;
            contents.get(..rest.len().checked_sub(restarts)?)
        };
        let Some(entries) = entries() else {
            return Err(self.damaged(block.offset as u64, "the block is shorter than its table of restarts"));
        };
        let (mut rest, mut key) = (entries, Vec::new());
        while !rest.is_empty() {
            let at = match &block.contents {
                Cow::Borrowed(_) => block.offset + entries.len() - rest.len(),
                Cow::Owned(_) => block.offset,
            } as u64;
            let value = entry(&mut rest, &mut key);
            let value = value.ok_or_else(|| self.damaged(at, "the entry is incomplete"))?;
            *room = room.checked_sub(key.len()).ok_or_else(|| {
                self.damaged(at, format!("the keys have over {MAX_RATIO} times the size of the file"))
            })?;
            each(&key, value, at)?;
        }
        Ok(())
    }

    fn damaged(&self, offset: u64, reason: impl Into<String>) -> Error {
        damaged(self.path, offset, reason)
    }
}

/// Removes the next entry from `rest`, changes `key` from the previous key to that of the entry, and returns the value.
fn entry<'a>(rest: &mut &'a [u8], key: &mut Vec<u8>) -> Option<&'a [u8]> {
    let mut len = || varint(rest).and_then(|len| usize::try_from(len).ok());
    let (shared, more, value) = (len()?, len()?, len()?);
    if shared > key.len() {
        return None;
    }
    let (added, after) = rest.split_at_checked(more)?;
    let (value, after) = after.split_at_checked(value)?;
    key.truncate(shared);
    key.extend_from_slice(added);
    *rest = after;
    Some(value)
}
