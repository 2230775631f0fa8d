//! The values of the rows that share a lock, in the table's dtype or in bf16.

// - **INV-95** Values in bf16 are updated in f32 and rounded by the seed, the name of the table, the step, the row of
//   the variable and the element alone, so they are bit-identical for every placement, partition and order of requests.
//   Other writes are rounded to the nearest. Tests: `optim/src/rounding.rs`, `ps-tables/src/table/tests.rs`,
//   `ps-tables/src/dynamic/tests.rs`, `clusters/multi_worker/table_rounding.rs`.

use crate::halves::{narrow_nearest, widen, widened};
use distribute_tensor::dtype::Buffer;
use distribute_tensor::{DType, Element, Result, Write, with_buffer};
use std::ops::Range;

/// The values of the rows of a stripe.
#[derive(Debug)]
pub(super) enum Values {
    Full(Buffer),
    /// The bits of `f32` values that are stored in bf16.
    Halves(Vec<u16>),
}

impl Values {
    /// Stores values, in bf16 if `in_halves` is `true` and they are `f32`.
    pub(super) fn new(values: Buffer, in_halves: bool) -> Self {
        match values {
            Buffer::F32(values) if in_halves => {
                let mut halves = vec![0; values.len()];
                narrow_nearest(values, &mut halves);
                Self::Halves(halves)
            }
            values => Self::Full(values),
        }
    }

    /// Returns the dtype of the table, which is `float32` for values in bf16.
    pub(super) fn dtype(&self) -> DType {
        match self {
            Self::Full(values) => values.dtype(),
            Self::Halves(_) => DType::F32,
        }
    }

    /// Returns the size in bytes, without the contents of strings.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Full(values) => values.len() * values.dtype().bytes().unwrap_or(size_of::<Vec<u8>>()),
            Self::Halves(halves) => 2 * halves.len(),
        }
    }

    /// Copies elements to a buffer of the table's dtype.
    pub(super) fn copy_to(&self, at: Range<usize>, to: &mut Buffer, to_at: Range<usize>) {
        match (self, to) {
            (Self::Full(values), to) => copy(values, at, to, to_at),
            (Self::Halves(halves), Buffer::F32(to)) => widen(&halves[at], &mut to[to_at]),
            (Self::Halves(_), _) => {}
        }
    }

    /// Replaces elements by those of a buffer of the table's dtype.
    pub(super) fn copy_from(&mut self, from: &Buffer, from_at: Range<usize>, at: Range<usize>) {
        match (self, from) {
            (Self::Full(values), from) => copy(from, from_at, values, at),
            (Self::Halves(halves), Buffer::F32(from)) => {
                narrow_nearest(from[from_at].to_vec(), &mut halves[at]);
            }
            (Self::Halves(_), _) => {}
        }
    }

    /// Writes to all elements: see [`Buffer::write`].
    pub(super) fn write(&mut self, how: Write, from: &Buffer) -> Result<()> {
        match self {
            Self::Full(values) => values.write(how, from),
            Self::Halves(halves) => {
                let mut values = Buffer::F32(widened(halves));
                values.write(how, from)?;
                store_nearest(values, halves);
                Ok(())
            }
        }
    }

    /// Writes to rows, one after another: see [`Buffer::write_rows`]. Values in bf16 are rounded once, after all
    /// writes.
    pub(super) fn write_rows(&mut self, how: Write, rows: &[usize], from: &Buffer) -> Result<()> {
        let halves = match self {
            Self::Full(values) => return values.write_rows(how, rows, from),
            Self::Halves(halves) => halves,
        };
        let width = from.len().checked_div(rows.len()).unwrap_or(0);
        let mut unique = rows.to_vec();
        unique.sort_unstable();
        unique.dedup();
        let of = |row: &usize| row * width..(row + 1) * width;
        let values = unique.iter().flat_map(|row| widened(&halves[of(row)])).collect();
        let places: Vec<usize> = rows.iter().map(|row| unique.partition_point(|other| other < row)).collect();
        let mut values = Buffer::F32(values);
        values.write_rows(how, &places, from)?;
        let mut written = vec![0; unique.len() * width];
        store_nearest(values, &mut written);
        for (row, written) in unique.iter().zip(written.chunks_exact(width.max(1))) {
            halves[of(row)].copy_from_slice(written);
        }
        Ok(())
    }
}

fn store_nearest(values: Buffer, halves: &mut [u16]) {
    if let Buffer::F32(values) = values {
        narrow_nearest(values, halves);
    }
}

/// Copies elements from one buffer to another of the same dtype.
pub(super) fn copy(from: &Buffer, from_at: Range<usize>, to: &mut Buffer, to_at: Range<usize>) {
    fn like<'a, T: Element>(_: &[T], buffer: &'a Buffer) -> &'a [T] {
        T::slice(buffer).unwrap_or_default()
    }
    with_buffer!(to, to => {
        let from = like(to, from);
        to[to_at].clone_from_slice(&from[from_at]);
    })
}
