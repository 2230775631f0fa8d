//! Reading of elements: complete pieces with their checksum, and ranges of rows.

use crate::bundle::{Piece, Tensor};
use crate::damage::{damaged, io_error, masked, open, varint};
use crate::slices::{Region, count};
use distribute_checkpoint::{Error, Result};
use distribute_tensor::dtype::Buffer;
use distribute_tensor::{DType, HostTensor, codec};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// The maximum number of bytes that are read at once to compare a checksum.
const BLOCK: usize = 1 << 20;

/// The file that was read last. It stays open for the next read.
#[derive(Default)]
pub(crate) struct LastFile(Option<(Arc<Path>, File)>);

impl LastFile {
    /// Returns the file at `path`, which is opened unless it was the last one.
    fn at(&mut self, path: &Arc<Path>) -> Result<&mut File> {
        let last = self.0.take().filter(|(last, _)| last == path);
        let file = match last {
            Some((_, file)) => file,
            None => open(path)?,
        };
        Ok(&mut self.0.insert((path.clone(), file)).1)
    }
}

/// A function that receives a piece, the range of its rows that was read, and the bytes of these rows.
pub(crate) type Observe<'a> = dyn FnMut(&Piece, Range<usize>, &[u8]) -> Result<()> + 'a;

/// Returns rows of a tensor of a supported dtype. `rows` must be in range; a scalar is one row. Pieces that are read
/// completely are compared with their checksum; `observe` receives the bytes of the others, unless these are strings.
pub(crate) fn rows(
    tensor: &Tensor,
    dtype: DType,
    rows: Range<usize>,
    observe: &mut Observe<'_>,
) -> Result<HostTensor> {
    let mut shape = tensor.shape.clone();
    if let Some(first) = shape.first_mut() {
        *first = rows.len();
    }
    let near = |piece: &&Piece| {
        let there = piece.region.rows();
        there.start < rows.end && rows.start < there.end && piece.region.len() != Some(0)
    };
    let pieces: Vec<&Piece> = tensor.pieces.iter().filter(near).collect();
    let file = &mut LastFile::default();
    // Even an empty tensor has a checksum.
    for piece in tensor.pieces.iter().filter(|piece| piece.region.len() == Some(0)) {
        verify(piece, dtype, file)?;
    }
    match dtype.bytes() {
        Some(_) => numbers(&pieces, dtype, &shape, rows, file, observe),
        None => texts(&pieces, &shape, rows, file),
    }
}

fn numbers(
    pieces: &[&Piece],
    dtype: DType,
    shape: &[usize],
    rows: Range<usize>,
    file: &mut LastFile,
    observe: &mut Observe<'_>,
) -> Result<HostTensor> {
    let (mut all, bytes) = (Vec::new(), dtype.bytes().unwrap_or_default());
    for piece in pieces {
        let (part, within) = intersection(&piece.region, &rows);
        let skipped = within.start * (piece.size / piece.region.rows().len().max(1));
        let len = count(&part.shape).unwrap_or_default() * bytes;
        let found = read_at(file, piece, skipped, len)?;
        if len == piece.size {
            compare(piece, crc32c::crc32c(&found))?;
        } else {
            observe(piece, within, &found)?;
        }
        require_valid(piece, dtype, skipped, &found)?;
        if part.shape == shape {
            all = found;
            continue;
        }
        all.resize(count(shape).unwrap_or_default() * bytes, 0);
        part.runs(shape, |there, here, len| {
            let (there, here, len) = (there * bytes, here * bytes, len * bytes);
            all[there..there + len].copy_from_slice(&found[here..here + len]);
        });
    }
    // The elements of all pieces are valid. If they were not, their number would differ from that of the shape.
    let buffer = codec::read(dtype, &all).unwrap_or_else(|_| Buffer::zeros(dtype, 0));
    Ok(HostTensor::from_buffer(buffer, shape)?)
}

fn texts(pieces: &[&Piece], shape: &[usize], rows: Range<usize>, file: &mut LastFile) -> Result<HostTensor> {
    let mut all = vec![Vec::new(); count(shape).unwrap_or_default()];
    for piece in pieces {
        let mut found = strings(file, piece)?;
        let (part, within) = intersection(&piece.region, &rows);
        let row = found.len() / piece.region.shape.first().copied().unwrap_or(1).max(1);
        part.runs(shape, |there, here, len| {
            let here = here + within.start * row;
            all[there..there + len].swap_with_slice(&mut found[here..here + len]);
        });
    }
    Ok(HostTensor::new(all, shape)?)
}

/// Returns the part of a region that is in a range of rows, with indices relative to the first of these rows. Also
/// returns the range of rows of this part, relative to the first row of the region.
fn intersection(region: &Region, rows: &Range<usize>) -> (Region, Range<usize>) {
    let mut part = region.clone();
    let there = region.rows();
    let both = there.start.max(rows.start)..there.end.min(rows.end);
    if let (Some(start), Some(len)) = (part.start.first_mut(), part.shape.first_mut()) {
        (*start, *len) = (both.start - rows.start, both.len());
    }
    (part, both.start - there.start..both.end - there.start)
}

/// Verifies the checksum of a piece without keeping its elements.
pub(crate) fn verify(piece: &Piece, dtype: DType, file: &mut LastFile) -> Result<()> {
    if dtype == DType::String {
        return strings(file, piece).map(drop);
    }
    let mut crc = 0;
    for start in (0..piece.size).step_by(BLOCK) {
        let bytes = read_at(file, piece, start, BLOCK.min(piece.size - start))?;
        crc = crc32c::crc32c_append(crc, &bytes);
        require_valid(piece, dtype, start, &bytes)?;
    }
    compare(piece, crc)
}

/// Checks that bytes of a piece, which begin at `start`, are elements of `dtype`. Only bytes of bools can be invalid.
fn require_valid(piece: &Piece, dtype: DType, start: usize, bytes: &[u8]) -> Result<()> {
    let wrong = match dtype {
        DType::Bool => bytes.iter().position(|byte| *byte > 1),
        _ => None,
    };
    match wrong {
        None => Ok(()),
        Some(at) => {
            let reason = format!("{} is no bool", bytes[at]);
            Err(damaged(&piece.file, piece.offset + (start + at) as u64, reason))
        }
    }
}

/// Reads `len` bytes of a piece, beginning at `start`. The range must be within the piece, and the piece within the
/// file.
fn read_at(file: &mut LastFile, piece: &Piece, start: usize, len: usize) -> Result<Vec<u8>> {
    let file = file.at(&piece.file)?;
    file.seek(SeekFrom::Start(piece.offset + start as u64)).map_err(io_error("reading", &piece.file))?;
    let mut bytes = Vec::new();
    let too_large = |_| Error::Io {
        operation: "reading",
        path: piece.file.to_path_buf(),
        source: std::io::Error::new(std::io::ErrorKind::OutOfMemory, format!("{len} bytes of a tensor")),
    };
    bytes.try_reserve_exact(len).map_err(too_large)?;
    file.take(len as u64).read_to_end(&mut bytes).map_err(io_error("reading", &piece.file))?;
    if bytes.len() < len {
        let end = piece.offset + (start + bytes.len()) as u64;
        return Err(damaged(&piece.file, end, "the file has become shorter since it was opened"));
    }
    Ok(bytes)
}

/// Compares the checksum of a piece with that in the index.
pub(crate) fn compare(piece: &Piece, crc: u32) -> Result<()> {
    if masked(crc) == piece.crc {
        return Ok(());
    }
    let (size, found, written) = (piece.size, masked(crc), piece.crc);
    let reason =
        format!("{size} bytes from here on have checksum {found:08x}, but {written:08x} was written");
    Err(damaged(&piece.file, piece.offset, reason))
}

/// Reads the strings of a piece: their lengths, the checksum of these, and the concatenated strings.
fn strings(file: &mut LastFile, piece: &Piece) -> Result<Vec<Vec<u8>>> {
    let bytes = read_at(file, piece, 0, piece.size)?;
    let mut rest = bytes.as_slice();
    let wrong = |rest: &[u8], reason: &str| {
        Err(damaged(&piece.file, piece.offset + (piece.size - rest.len()) as u64, reason))
    };
    let (mut lens, mut crc) = (Vec::new(), 0);
    for _ in 0..piece.region.len().unwrap_or_default() {
        let Some(len) = varint(&mut rest) else { return wrong(rest, "the length of a string is incomplete") };
        crc = match u32::try_from(len) {
            Ok(len) => crc32c::crc32c_append(crc, &len.to_le_bytes()),
            Err(_) => crc32c::crc32c_append(crc, &len.to_le_bytes()),
        };
        lens.push(len);
    }
    let Some((stored, after)) = rest.split_first_chunk() else {
        return wrong(rest, "the checksum of the lengths is incomplete");
    };
    if u32::from_le_bytes(*stored) != masked(crc) {
        return wrong(rest, "the lengths of the strings have another checksum than was written");
    }
    compare(piece, crc32c::crc32c_append(crc32c::crc32c_append(crc, stored), after))?;
    rest = after;
    let mut all = Vec::new();
    for len in lens {
        let split = usize::try_from(len).ok().and_then(|len| rest.split_at_checked(len));
        let Some((string, after)) = split else { return wrong(rest, "a string is incomplete") };
        all.push(string.to_vec());
        rest = after;
    }
    if rest.is_empty() { Ok(all) } else { wrong(rest, "there are bytes after the last string") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_opened_once_for_all_that_is_read_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let bytes = vec![7u8; 3 * BLOCK + 5];
        let path = folder.path().join("data");
        std::fs::write(&path, &bytes).unwrap();
        let piece = Piece {
            region: Region { start: vec![0], shape: vec![bytes.len()] },
            file: path.as_path().into(),
            offset: 0,
            size: bytes.len(),
            crc: masked(crc32c::crc32c(&bytes)),
        };
        let file = &mut LastFile::default();
        verify(&piece, DType::U8, file).unwrap();
        // It has no name any more.
        std::fs::remove_file(&path).unwrap();
        verify(&piece, DType::U8, file).unwrap();
        assert!(verify(&piece, DType::U8, &mut LastFile::default()).is_err());
        let other = Piece { file: folder.path().join("other").into(), ..piece };
        assert!(verify(&other, DType::U8, file).is_err());
    }
}
