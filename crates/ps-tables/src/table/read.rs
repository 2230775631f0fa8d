//! Reads of complete tables and of rows.

use super::Table;
use super::layout::StripeRange;
use super::stripes::slot_width;
use super::values::{Values, copy};
use crate::Result;
use crate::halves::widen;
use distribute_optim::SlotSpec;
use distribute_tensor::dtype::Buffer;
use distribute_tensor::{Element, HostTensor, with_buffer};

/// A value of a table, with its version.
#[derive(Clone, Debug, PartialEq)]
pub struct Versioned {
    /// The version of the table before the value was read. The value includes all writes up to this version, and
    /// perhaps parts of later ones.
    pub version: u64,
    /// The value of the complete table.
    pub value: HostTensor,
}

impl Table {
    /// Reads the complete table, with its version.
    ///
    /// # Errors
    /// - [`Error::NoMemory`](crate::Error::NoMemory): there is not enough memory for the result.
    pub fn read(&self) -> Result<Versioned> {
        // The version is read before the value: after a concurrent write the value looks older than it is,
        // never newer.
        let version = self.version();
        let mut whole = WholeBuffer::new(self)?;
        self.stripes.read_all(|stripe, stripe_ranges| whole.put_values(&stripe.values, stripe_ranges));
        Ok(Versioned { version, value: whole.finish()? })
    }

    /// Reads the complete table; returns `None` if its version is still `known`.
    ///
    /// # Errors
    /// Returns the errors of [`read`](Self::read).
    pub fn read_if_changed(&self, known: u64) -> Result<Option<Versioned>> {
        if self.version() == known { Ok(None) } else { self.read().map(Some) }
    }

    /// Returns the given rows, in the given order; a row may occur more than once. The only row of a scalar has index 0
    /// and shape `[]`.
    ///
    /// # Errors
    /// - [`Error::Row`](crate::Error::Row): the table does not contain one of the rows.
    /// - [`Error::Tensor`](crate::Error::Tensor): there is not enough memory for the result.
    #[doc(alias = "tf.gather")]
    pub fn read_rows(&self, rows: &[usize]) -> Result<HostTensor> {
        self.check_rows_exist("read_rows", rows)?;
        let mut shape = self.shape.clone();
        match shape.first_mut() {
            Some(height) => *height = rows.len(),
            None => shape.push(rows.len()),
        }
        fn fill<T: Element>(_: &[T], table: &Table, rows: &[usize], out: &mut HostTensor) {
            let (layout, width) = (table.stripes.layout, table.width());
            let Some(out) = out.as_mut_slice::<T>() else { return };
            for (stripe, positions) in table.stripes.by_stripe(rows).each() {
                let stripe = table.stripes.read(stripe);
                let Values::Full(values) = &stripe.values else { continue };
                let values = T::slice(values).unwrap_or_default();
                for at in positions {
                    let local = layout.local(rows[*at]);
                    out[at * width..(at + 1) * width]
                        .clone_from_slice(&values[local * width..(local + 1) * width]);
                }
            }
        }
        // Allocation fails with an error if there are more rows than fit into memory.
        let mut out = HostTensor::zeros(self.dtype, shape)?;
        if self.halves.is_some() {
            self.fill_from_halves(rows, out.as_mut_slice().unwrap_or_default());
            return Ok(out);
        }
        with_buffer!(&Buffer::zeros(self.dtype, 0), like => fill(like, self, rows, &mut out));
        Ok(out)
    }
}

impl Table {
    /// Writes the given rows, which are stored in bf16, to `out` as `f32`.
    fn fill_from_halves(&self, rows: &[usize], out: &mut [f32]) {
        let (layout, width) = (self.stripes.layout, self.width());
        for (stripe, positions) in self.stripes.by_stripe(rows).each() {
            let stripe = self.stripes.read(stripe);
            let Values::Halves(halves) = &stripe.values else { continue };
            for at in positions {
                let local = layout.local(rows[*at]);
                widen(&halves[local * width..(local + 1) * width], &mut out[at * width..(at + 1) * width]);
            }
        }
    }
}

/// A buffer for all rows of a table, which is filled stripe by stripe.
pub(super) struct WholeBuffer {
    shape: Vec<usize>,
    width: usize,
    buffer: Buffer,
}

impl WholeBuffer {
    pub(super) fn new(table: &Table) -> Result<Self> {
        Self::of_shape(table, table.shape.clone(), table.width())
    }

    /// Creates a buffer for a slot of all rows.
    pub(super) fn of_slot(table: &Table, slot: &SlotSpec) -> Result<Self> {
        Self::of_shape(table, slot.shape.dims(&table.shape), slot_width(slot, table.width()))
    }

    fn of_shape(table: &Table, shape: Vec<usize>, width: usize) -> Result<Self> {
        table.require_memory(table.rows() * width)?;
        let buffer = Buffer::zeros(table.dtype, table.rows() * width);
        Ok(Self { shape, width, buffer })
    }

    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// Copies the values of a stripe.
    pub(super) fn put_values(&mut self, from: &Values, stripe_ranges: &mut dyn Iterator<Item = StripeRange>) {
        let width = self.width;
        for StripeRange { rows, local } in stripe_ranges {
            let [to, at] = [rows, local].map(|rows| rows.start * width..rows.end * width);
            from.copy_to(at, &mut self.buffer, to);
        }
    }

    /// Copies the elements of a slot from a stripe.
    pub(super) fn put(&mut self, from: &Buffer, stripe_ranges: &mut dyn Iterator<Item = StripeRange>) {
        let width = self.width;
        for StripeRange { rows, local } in stripe_ranges {
            let [to, at] = [rows, local].map(|rows| rows.start * width..rows.end * width);
            copy(from, at, &mut self.buffer, to);
        }
    }

    pub(super) fn finish(self) -> Result<HostTensor> {
        Ok(HostTensor::from_buffer(self.buffer, self.shape)?)
    }
}
