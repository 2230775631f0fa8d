//! The location of the rows of each tensor: the index, checked against the files.

use crate::encoding::{self, Stored};
use crate::error::show;
use crate::index::{Entry, SliceEntry};
use crate::shard::Shard;
use distribute_tensor::DType;
use std::collections::BTreeSet;
use std::ops::Range;

/// A tensor of a checkpoint, with the locations of its rows.
#[derive(Debug)]
pub(crate) struct Tensor {
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    /// The number of elements of one row; 1 for a scalar, 0 if there are no rows.
    pub(crate) row: usize,
    /// The slices in ascending order, without gaps. A scalar is one row.
    pub(crate) slices: Vec<Slice>,
}

/// The location of a range of rows that are stored in one file.
#[derive(Debug)]
pub(crate) struct Slice {
    pub(crate) rows: Range<usize>,
    pub(crate) shard: usize,
    /// The byte range of the elements in the file; for strings, the byte range of their concatenated bytes.
    pub(crate) bytes: Range<u64>,
    /// The byte range of the strings' end offsets in the file; `None` for other dtypes.
    pub(crate) ends: Option<Range<u64>>,
}

impl Tensor {
    /// Finds the slices of an index entry in the files. `used` collects the keys that entries refer to. If the
    /// entry and the files do not match, returns a description of the mismatch.
    pub(crate) fn resolve(
        entry: &Entry,
        shards: &[Shard],
        used: &mut BTreeSet<(usize, String)>,
    ) -> Result<Self, String> {
        let Entry { dtype, shape, .. } = entry;
        let mut slices = Vec::new();
        for (number, slice) in entry.slices.iter().enumerate() {
            let found =
                locate(entry, slice, shards, used).map_err(|reason| format!("slice {number}: {reason}"))?;
            slices.push(found);
        }
        slices.sort_by_key(|slice: &Slice| (slice.rows.start, slice.rows.end));
        let mut end = 0;
        for slice in &slices {
            if slice.rows.start != end {
                let (what, a, b) = if slice.rows.start > end {
                    ("missing", end, slice.rows.start)
                } else {
                    ("there twice", slice.rows.start, end.min(slice.rows.end))
                };
                return Err(format!("rows {a}..{b} of {} are {what}", show(*dtype, shape)));
            }
            end = slice.rows.end;
        }
        let total = shape.first().copied().unwrap_or(1);
        if end != total {
            return Err(format!("rows {end}..{total} of {} are missing", show(*dtype, shape)));
        }
        Ok(Self { dtype: *dtype, shape: shape.clone(), row: row_of(shape)?, slices })
    }
}

/// Returns the number of elements per row: 1 for a scalar, 0 if there are no rows. Returns an error if the number
/// overflows.
fn row_of(shape: &[usize]) -> Result<usize, String> {
    match shape.split_first() {
        None => Ok(1),
        Some((0, _)) => Ok(0),
        Some((_, row)) => {
            let elements = row.iter().try_fold(1usize, |n, size| n.checked_mul(*size));
            elements.ok_or_else(|| format!("shape {shape:?} has more elements than memory can address"))
        }
    }
}

/// Finds one slice in its file, checks that its dtype and shape match, and adds its keys to `used`. Returns an error if
/// a key has been used before.
fn locate(
    entry: &Entry,
    slice: &SliceEntry,
    shards: &[Shard],
    used: &mut BTreeSet<(usize, String)>,
) -> Result<Slice, String> {
    let Entry { dtype, shape, .. } = entry;
    let whole_rows = slice.shape.len() == shape.len()
        && slice.offset.len() == shape.len()
        && slice.shape.iter().zip(shape).skip(1).all(|(part, whole)| part == whole)
        && slice.offset.iter().skip(1).all(|offset| *offset == 0);
    let start = slice.offset.first().copied().unwrap_or(0);
    let count = slice.shape.first().copied().unwrap_or(1);
    let end = start.checked_add(count).filter(|end| *end <= shape.first().copied().unwrap_or(1));
    let Some(end) = end.filter(|_| whole_rows) else {
        return Err(format!(
            "{:?} from {:?} on are not rows of {}",
            slice.shape,
            slice.offset,
            show(*dtype, shape)
        ));
    };
    let shard = shards
        .get(slice.file)
        .ok_or_else(|| format!("there is no file {}, of {}", slice.file, shards.len()))?;
    let mut take = |key: &str, expected: Option<Stored>| -> Result<Range<u64>, String> {
        let file = shard.path().display();
        let info = shard.info(key).ok_or_else(|| format!("{file} has no tensor {key:?}"))?;
        if !used.insert((slice.file, key.to_string())) {
            return Err(format!("the tensor {key:?} of {file} is used twice"));
        }
        let found = Stored { dtype: info.dtype, shape: info.shape.clone() };
        match expected {
            Some(expected) if expected != found => Err(format!(
                "the tensor {key:?} of {file} is {}{:?}, expected {}{:?}",
                found.dtype, found.shape, expected.dtype, expected.shape
            )),
            _ => Ok(shard.position(info)),
        }
    };
    let (bytes, ends) = match (encoding::stored(*dtype, &slice.shape), &slice.ends) {
        (Some(stored), None) => (take(&slice.key, Some(stored))?, None),
        (None, Some(ends)) => {
            let ends =
                take(ends, Some(Stored { dtype: safetensors::Dtype::U64, shape: slice.shape.clone() }))?;
            (take(&slice.key, None)?, Some(ends))
        }
        (Some(_), Some(_)) => return Err(format!("only strings have ends, not {dtype}")),
        (None, None) => return Err("strings without ends".into()),
    };
    Ok(Slice { rows: start..end, shard: slice.file, bytes, ends })
}
