//! Reads of complete tables and of rows.

use super::Table;
use super::layout::StripeRange;
use super::stripes::{Stripe, slot_width};
use crate::Result;
use distribute_optim::SlotSpec;
use distribute_tensor::dtype::Buffer;
use distribute_tensor::{Element, HostTensor, with_buffer};

/// A value with its version.
#[derive(Clone, Debug, PartialEq)]
pub struct Versioned {
    /// The version of the table before the value was read. The value includes all writes up to this version, and
    /// perhaps some later ones.
    pub version: u64,
    /// The value that was read.
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
        Ok(Versioned { version, value: self.concatenate(|stripe| &stripe.values)? })
    }

    /// Reads the complete table, or returns `None` if its version is still `known`.
    ///
    /// # Errors
    /// Returns the errors of [`read`](Self::read).
    pub fn read_if_changed(&self, known: u64) -> Result<Option<Versioned>> {
        if self.version() == known { Ok(None) } else { self.read().map(Some) }
    }

    /// Returns the given rows, in the given order; a row may occur more than once. A scalar has row 0, of shape `[]`.
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
                let values = T::slice(&stripe.values).unwrap_or_default();
                for at in positions {
                    let local = layout.local(rows[*at]);
                    out[at * width..(at + 1) * width]
                        .clone_from_slice(&values[local * width..(local + 1) * width]);
                }
            }
        }
        // Allocation fails with an error if there are more rows than fit into memory.
        let mut out = HostTensor::zeros(self.dtype, shape)?;
        with_buffer!(&Buffer::zeros(self.dtype, 0), like => fill(like, self, rows, &mut out));
        Ok(out)
    }

    /// Concatenates one buffer of each stripe, in the order of the table's rows.
    pub(super) fn concatenate(&self, of: impl Fn(&Stripe) -> &Buffer) -> Result<HostTensor> {
        let mut whole = WholeBuffer::new(self)?;
        self.stripes.read_all(|stripe, stripe_ranges| whole.put(of(stripe), stripe_ranges));
        whole.finish()
    }
}

/// A buffer for all rows, which is filled from the buffers of the stripes.
pub(super) struct WholeBuffer {
    shape: Vec<usize>,
    width: usize,
    buffer: Buffer,
}

impl WholeBuffer {
    pub(super) fn new(table: &Table) -> Result<Self> {
        Self::of_shape(table, table.shape.clone(), table.width())
    }

    /// Creates the buffer of a slot.
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

    pub(super) fn put(&mut self, from: &Buffer, stripe_ranges: &mut dyn Iterator<Item = StripeRange>) {
        let width = self.width;
        fn like<'a, T: Element>(_: &[T], buffer: &'a Buffer) -> &'a [T] {
            T::slice(buffer).unwrap_or_default()
        }
        with_buffer!(&mut self.buffer, to => {
            let from = like(to, from);
            for stripe_range in stripe_ranges {
                to[stripe_range.rows.start * width..stripe_range.rows.end * width]
                    .clone_from_slice(&from[stripe_range.local.start * width..stripe_range.local.end * width]);
            }
        })
    }

    pub(super) fn finish(self) -> Result<HostTensor> {
        Ok(HostTensor::from_buffer(self.buffer, self.shape)?)
    }
}
