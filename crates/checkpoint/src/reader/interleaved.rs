//! Reads of tensors whose slices contain every nth row each.

use super::Reader;
use crate::shard::LastBlock;
use crate::tensors::Tensor;
use crate::{Error, Result};
use distribute_tensor::{HostTensor, codec};
use std::cell::RefCell;
use std::ops::Range;

/// A read of a tensor by ranges of rows, one after another. Returned by [`Reader::scan`].
#[derive(Debug)]
pub struct RowScan<'r> {
    reader: &'r Reader,
    name: String,
    /// The last block of each slice, if every nth row is in another slice.
    last: RefCell<Vec<LastBlock>>,
}

impl Reader {
    /// Returns a read of a tensor by ranges of rows. If several processes saved every nth row each, it keeps 1 MiB of
    /// each of their files, so that ascending ranges read each block of the files once.
    pub fn scan(&self, name: impl Into<String>) -> RowScan<'_> {
        RowScan { reader: self, name: name.into(), last: RefCell::default() }
    }
}

impl RowScan<'_> {
    /// Reads the given range of rows.
    ///
    /// # Errors
    /// Returns the errors of [`Reader::rows`].
    pub fn rows(&self, rows: Range<usize>) -> Result<HostTensor> {
        let (tensor, shape) = self.reader.require_rows(&self.name, &rows)?;
        match tensor.step {
            0 | 1 => self.reader.read(tensor, rows, shape),
            _ => read(self.reader, tensor, rows, shape, &mut self.last.borrow_mut()),
        }
    }
}

/// Reads rows of a tensor whose slices contain every nth row each. `last` has the last block of each slice.
pub(super) fn read(
    reader: &Reader,
    tensor: &Tensor,
    rows: Range<usize>,
    shape: Vec<usize>,
    last: &mut Vec<LastBlock>,
) -> Result<HostTensor> {
    let width = tensor.row * tensor.dtype.bytes().unwrap_or(1);
    if width == 0 || rows.is_empty() {
        return Ok(HostTensor::zeros(tensor.dtype, shape)?);
    }
    last.resize_with(tensor.slices.len(), LastBlock::default);
    // The slices together have these rows, so the files contain at least as many bytes.
    let mut bytes = vec![0; rows.len() * width];
    for (first, (slice, last)) in tensor.slices.iter().zip(last).enumerate() {
        let before = |row: usize| row.saturating_sub(first).div_ceil(tensor.step);
        let part = before(rows.start)..before(rows.end);
        if part.is_empty() {
            continue;
        }
        let at = |row: usize| slice.bytes.start + (row * width) as u64;
        let read = reader.shards[slice.shard].read_after(at(part.start)..at(part.end), last)?;
        let places = (first + part.start * tensor.step - rows.start..).step_by(tensor.step);
        for (place, row) in places.zip(read.chunks_exact(width)) {
            bytes[place * width..(place + 1) * width].copy_from_slice(row);
        }
    }
    let buffer = codec::read(tensor.dtype, &bytes).map_err(|position| Error::Damaged {
        path: reader.path.clone(),
        offset: position as u64,
        reason: format!("these bytes are not valid {}", tensor.dtype),
    })?;
    Ok(HostTensor::from_buffer(buffer, shape)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::Shard;
    use crate::{Part, PartFolder, Progress, RowPosition, Writer};
    use std::fs::{self, File};
    use std::io::{self, Read, Seek, SeekFrom};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A file that counts the bytes that are read.
    #[derive(Debug)]
    struct Counted(File, Arc<AtomicU64>);

    impl Read for Counted {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let count = self.0.read(into)?;
            self.1.fetch_add(count as u64, Ordering::Relaxed);
            Ok(count)
        }
    }

    impl Seek for Counted {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            self.0.seek(to)
        }
    }

    /// Three parts of 3 MiB each. A range of rows is a few KiB of each part.
    #[test]
    fn a_scan_reads_each_block_of_each_part_once() {
        const STEP: usize = 3;
        const ROWS: usize = 9 << 10;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("saved");
        let row = |row: usize| (0..256).map(move |at| (row * 256 + at) as f32);
        let mut parts = |of: &PartFolder, _: &mut Progress<'_>| {
            let part = |first: usize| {
                let mine = (first..ROWS).step_by(STEP);
                let rows = HostTensor::new(mine.clone().flat_map(row).collect::<Vec<_>>(), [mine.len(), 256]);
                let mut writer = Writer::new().in_parts();
                writer.insert_own("t", RowPosition::Every { first, step: STEP, rows: ROWS }, rows?)?;
                writer.write_part(of.create_part(folder.path(), first)?, &mut || Ok(()))
            };
            Ok((0..STEP).map(part).collect::<Result<Vec<Part>>>()?)
        };
        Writer::new().save_parts_with(&path, 1, (STEP, &mut parts), &mut || Ok(())).unwrap();
        let read = Arc::new(AtomicU64::new(0));
        let index = path.join(crate::index::NAME);
        let mut size = 0;
        let mut open = |entry: &crate::index::FileEntry| {
            let file = path.join(&entry.name);
            size += entry.bytes;
            let content = Counted(File::open(&file).unwrap(), read.clone());
            Shard::of(Box::new(content), entry.bytes, file, entry)
        };
        let reader = Reader::of(&path, &index, &fs::read(&index).unwrap(), &mut open).unwrap();
        let read = || read.swap(0, Ordering::Relaxed);
        read();
        let ranges = || (0..ROWS).step_by(100).map(|start| start..ROWS.min(start + 100));
        let scan = reader.scan("t");
        for rows in ranges() {
            let found = scan.rows(rows.clone()).unwrap().into_vec::<f32>().unwrap();
            assert!(found.into_iter().eq(rows.flat_map(row)));
        }
        let once = read();
        assert!(once <= size, "{once} of {size}");
        ranges().for_each(|rows| drop(reader.rows("t", rows).unwrap()));
        let separately = read();
        assert!(separately > 10 * size, "{separately} of {size}");
        // Any other range is read as well.
        for rows in [5000..5001, 7..900, 0..0, ROWS - 1..ROWS] {
            assert_eq!(scan.rows(rows.clone()).unwrap(), reader.rows("t", rows).unwrap());
        }
        assert!(matches!(scan.rows(0..ROWS + 1), Err(Error::Rows { .. })));
        assert!(matches!(reader.scan("none").rows(0..0), Err(Error::UnknownName { .. })));
    }
}
