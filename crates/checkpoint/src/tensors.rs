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
    /// The slices in ascending order. A scalar is one row.
    pub(crate) slices: Vec<Slice>,
    /// 1 if slices are consecutive rows without gaps. Otherwise the number of slices: slice `i` contains the rows `i`,
    /// `i + step`, `i + 2 * step` and so on.
    pub(crate) step: usize,
}

/// The location of rows that are stored in one file.
#[derive(Debug)]
pub(crate) struct Slice {
    /// The range from the first row to the last. Other slices may contain some of the rows between them.
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
        let (total, row) = (shape.first().copied().unwrap_or(1), row_of(shape)?);
        let step = entry.slices.iter().map(|slice| slice.step).max().unwrap_or(1);
        if step > 1 {
            require_interleaved(entry, step, total)?;
            return Ok(Self { dtype: *dtype, shape: shape.clone(), row, slices, step });
        }
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
        if end != total {
            return Err(format!("rows {end}..{total} of {} are missing", show(*dtype, shape)));
        }
        Ok(Self { dtype: *dtype, shape: shape.clone(), row, slices, step })
    }
}

/// Returns whether a slice may contain every nth row. Any bytes of such elements are valid.
pub(crate) fn can_be_interleaved(dtype: DType) -> bool {
    !matches!(dtype, DType::Bool | DType::String)
}

/// Checks that the slices of an entry together contain each of its rows once: slice `i` of `step` slices those from `i`
/// on, in steps of `step`.
fn require_interleaved(entry: &Entry, step: usize, total: usize) -> Result<(), String> {
    let Entry { dtype, shape, slices } = entry;
    let mut first: Vec<_> = slices.iter().map(|slice| (slice.step, slice.offset.first().copied())).collect();
    first.sort_unstable();
    if !first.into_iter().eq((0..step.min(total)).map(|first| (step, Some(first)))) || step > total {
        let found = slices.len();
        return Err(format!("{found} slices are not the rows of {} in steps of {step}", show(*dtype, shape)));
    }
    let count = |first: usize| (total - first).div_ceil(step);
    let differs =
        |slice: &&SliceEntry| slice.shape.first().copied() != slice.offset.first().map(|first| count(*first));
    match slices.iter().find(differs) {
        None => Ok(()),
        Some(SliceEntry { offset, shape: found, .. }) => Err(format!(
            "the rows of {} in steps of {step} from {offset:?} on don't have the shape {found:?}",
            show(*dtype, shape)
        )),
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
    let span = match count.checked_sub(1) {
        None => Some(0),
        Some(steps) => steps.checked_mul(slice.step).and_then(|span| span.checked_add(1)),
    };
    let end = span.and_then(|span| start.checked_add(span));
    let end = end.filter(|end| *end <= shape.first().copied().unwrap_or(1) && slice.step > 0);
    let Some(end) = end.filter(|_| whole_rows) else {
        return Err(format!(
            "{:?} from {:?} on are not rows of {}",
            slice.shape,
            slice.offset,
            show(*dtype, shape)
        ));
    };
    if slice.step > 1 && !can_be_interleaved(*dtype) {
        return Err(format!("only rows of numbers are saved in steps, not {}", show(*dtype, shape)));
    }
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
