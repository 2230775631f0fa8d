//! Functions that read tensors from a checkpoint, and return an error if a tensor is missing or does not match.

use super::{Reader, SOME};
use crate::checkpoint::{RestoreFilter, RestoreReport};
use distribute_base::{Error, Result};
use distribute_tensor::{DType, Element, HostTensor};
use std::ops::Range;

/// Returns an error if the checkpoint lacks any of the `expected` names. The error lists up to 20 missing names.
pub fn require_names(reader: &Reader, expected: &[String]) -> Result<()> {
    let missing: Vec<_> = expected.iter().filter(|name| !reader.contains(name)).take(20).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let there: Vec<_> = reader.names().take(20).collect();
    let path = reader.path().display();
    Err(Error::invalid(
        "Checkpoint::restore",
        format!(
            "{path} lacks {missing:?}; it has {there:?}; build model and optimizer as they were when it was saved"
        ),
    ))
}

/// Returns a tensor of a checkpoint, converted to `dtype`. The caller must have checked with a [`RestoreFilter`] that
/// the tensor's dtype can be converted.
pub(crate) fn read_cast(reader: &Reader, name: &str, dtype: DType) -> Result<HostTensor> {
    let value = reader.tensor(name)?;
    Ok(if value.dtype() == dtype { value } else { value.cast(dtype)? })
}

/// Decides which of the tensors in `here` (name, dtype and shape) are restored from a checkpoint.
///
/// # Errors
/// Returns the errors of [`RestoreFilter::decide`].
pub(crate) fn decide(
    select: &RestoreFilter<'_>,
    reader: &Reader,
    here: impl IntoIterator<Item = (String, DType, Vec<usize>)>,
) -> Result<RestoreReport> {
    let there = |name: &str| reader.describe(name).ok().map(|found| (Some(found.dtype), found.shape));
    let names = || reader.names().map(String::from).collect();
    select.decide(SOME, &reader.path().display().to_string(), here, there, names)
}

/// Reads a tensor from a checkpoint. Returns an error if its dtype or shape is not the given one.
pub fn read_as(reader: &Reader, name: &str, dtype: DType, shape: &[usize]) -> Result<HostTensor> {
    require_as(reader, name, dtype, shape)?;
    Ok(reader.tensor(name)?)
}

/// Verifies the checksums of a tensor by reading all of it, in ranges of rows. Returns an error if its dtype or shape
/// is not the given one.
pub fn verify_as(reader: &Reader, name: &str, dtype: DType, shape: &[usize]) -> Result<()> {
    require_as(reader, name, dtype, shape)?;
    let scan = reader.scan(name);
    reader.row_ranges(name)?.try_for_each(|rows| Ok(scan.rows(rows).map(drop)?))
}

/// Reads a range of a tensor's elements. Returns an error if the tensor's dtype or shape is not the given one. Only the
/// rows that contain these elements are read.
pub fn read_elements<F: Element>(
    reader: &Reader,
    name: &str,
    dtype: DType,
    shape: &[usize],
    elements: &Range<usize>,
) -> Result<Vec<F>> {
    require_as(reader, name, dtype, shape)?;
    if elements.is_empty() {
        return Ok(Vec::new());
    }
    let Some((_, row)) = shape.split_first() else { return Ok(reader.tensor(name)?.into_vec()?) };
    // There are elements, so rows are not empty.
    let width = row.iter().product::<usize>().max(1);
    let rows = elements.start / width..elements.end.div_ceil(width);
    let first = rows.start * width;
    let mut values = reader.rows(name, rows)?.into_vec::<F>()?;
    values.truncate(elements.end - first);
    Ok(values.split_off(elements.start - first))
}

fn require_as(reader: &Reader, name: &str, dtype: DType, shape: &[usize]) -> Result<()> {
    let found = reader.describe(name)?;
    if (found.dtype, &*found.shape) == (dtype, shape) {
        return Ok(());
    }
    Err(Error::invalid(
        "Checkpoint::restore",
        format!(
            "{name} in {} is {}{:?}, but here it is {dtype}{shape:?}",
            reader.path().display(),
            found.dtype,
            found.shape
        ),
    ))
}
