//! The computation of the memory that rows occupy, from the headers of pages before the pages are read.

use super::batches::catch_panics;
use super::checksums::Checksums;
use super::column::Tensors;
use super::pages::{Page, Widest};
use super::plan::GroupSize;
use crate::{Error, Location, Result};
use ::parquet::basic::{Compression, Type};
use ::parquet::file::metadata::RowGroupMetaData;
use ::parquet::file::reader::ChunkReader;
use distribute_tensor::HostTensor;
use std::ops::Range;

/// Returns the number of bytes that a range of a column's rows occupies.
pub(super) fn bytes(column: &Tensors, rows: Range<usize>) -> u64 {
    match column {
        Tensors::Whole(column) => tensor_bytes(column, rows),
        Tensors::Ragged(all) => {
            let all = all.get(rows).unwrap_or_default();
            all.iter().map(|row| tensor_bytes(row, 0..row.dims().first().copied().unwrap_or(0))).sum()
        }
    }
}

/// Returns the number of bytes that a range of a tensor's rows occupies.
fn tensor_bytes(column: &HostTensor, rows: Range<usize>) -> u64 {
    let each: usize = column.dims().iter().skip(1).product();
    let values = rows.start * each..rows.end * each;
    match (column.dtype().bytes(), column.as_slice::<Vec<u8>>()) {
        (Some(bytes), _) => (values.len() * bytes) as u64,
        (None, texts) => {
            let texts = texts.and_then(|texts| texts.get(values)).unwrap_or_default();
            texts.iter().map(|text| (text.len() + size_of::<Vec<u8>>()) as u64).sum()
        }
    }
}

/// Reads the page headers of a row group's selected columns, and checks them against the limit for one element. Returns
/// the sizes of the columns, and an upper bound on the longest text of a dictionary. `number` is the index of the row
/// group, and `read` returns whether a leaf is selected. Pages that have a checksum are added to `checksums`.
pub(super) fn sizes(
    location: &Location,
    file: &impl ChunkReader,
    group: &RowGroupMetaData,
    number: usize,
    read: impl Fn(usize) -> bool,
    checksums: &mut Checksums,
) -> Result<(GroupSize, u64)> {
    let (mut entry, mut names) = (0, Vec::new());
    let rows = u64::try_from(group.num_rows()).unwrap_or(0);
    let mut size = GroupSize { rows, ..GroupSize::default() };
    for (_, column) in group.columns().iter().enumerate().filter(|(leaf, _)| read(*leaf)) {
        let mut widest = Widest::default();
        let width = match column.column_type() {
            Type::BOOLEAN => Some(1),
            Type::INT32 | Type::FLOAT => Some(4),
            Type::INT64 | Type::DOUBLE => Some(8),
            Type::INT96 => Some(12),
            Type::BYTE_ARRAY | Type::FIXED_LEN_BYTE_ARRAY => None,
        };
        let name = column.column_path().string();
        check_codec(location, &name, column.compression())?;
        let flat = column.column_descr().max_rep_level() == 0;
        let mut pages = checksums.column(name.clone(), number, rows, flat);
        let (mut at, len) = catch_panics(location, || Ok(column.byte_range()))?;
        let end = at.saturating_add(len).min(file.len());
        while at < end {
            let Some(page) = page(location, file, at, end)? else { break };
            widest.add(&page, width, location.limit()).map_err(|what| Error::Damaged {
                path: location.to_string(),
                offset: at,
                what,
            })?;
            pages.add(at.saturating_add(page.header), &page);
            at = at.saturating_add(page.header).saturating_add(page.packed);
        }
        entry = entry.max(widest.entry);
        names.push(name);
        size.columns.push(widest.size);
    }
    let (row, largest) = size.row();
    location.limit().check("a row", row).map_err(|what| Error::Column {
        path: location.to_string(),
        column: names.into_iter().nth(largest).unwrap_or_default(),
        what,
    })?;
    Ok((size, entry))
}

/// Reads the header of the page at offset `at`. Returns `None` if the bytes up to `end` do not begin with a valid
/// header, because the library has better errors for that case.
fn page(location: &Location, file: &impl ChunkReader, at: u64, end: u64) -> Result<Option<Page>> {
    // Headers are short, but may contain the minimum and the maximum value.
    let mut len = 256;
    loop {
        let there = len.min(end - at);
        let bytes = catch_panics(location, || file.get_bytes(at, there as usize))?;
        match Page::read(&bytes) {
            None if there < end - at && there < MAX_HEADER => len *= 8,
            page => return Ok(page),
        }
    }
}

/// The maximum length of a page header in bytes.
const MAX_HEADER: u64 = 1 << 24;

/// Checks that the compression of a column is supported.
fn check_codec(location: &Location, column: &str, codec: Compression) -> Result<()> {
    match codec {
        Compression::BROTLI(_) if !cfg!(feature = "brotli") => {
            let what = format!("{location}, column {column}, which is compressed with brotli");
            Err(Error::Feature { what, feature: "brotli" })
        }
        Compression::LZO => {
            let what = "it is compressed with LZO, which is not read; write it with zstd or snappy".into();
            Err(Error::Column { path: location.to_string(), column: column.to_string(), what })
        }
        _ => Ok(()),
    }
}
