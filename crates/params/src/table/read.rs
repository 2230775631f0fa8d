//! Reading, all of a table or rows.

use super::Table;
use super::layout::Stretch;
use super::stripes::Stripe;
use crate::Result;
use distribute_tensor::dtype::Buffer;
use distribute_tensor::{Element, HostTensor, with_buffer};

/// A value, and which one it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Versioned {
    /// What [`Table::version`] was when it was read: the value has all that was written up to there, and perhaps some of what
    /// came later.
    pub version: u64,
    /// The value.
    pub value: HostTensor,
}

impl Table {
    /// All of it.
    pub fn read(&self) -> Result<Versioned> {
        // Before the value: a write that comes between makes it look older than it is, never newer.
        let version = self.version();
        Ok(Versioned { version, value: self.whole(|stripe| &stripe.values)? })
    }

    /// All of it, unless it is what it was at version `known`.
    pub fn read_if_changed(&self, known: u64) -> Result<Option<Versioned>> {
        if self.version() == known { Ok(None) } else { self.read().map(Some) }
    }

    /// These rows, in this order; a row may be asked for more than once. Of a scalar there is row 0, of shape `[]`.
    ///
    /// # Errors
    /// [`Error::Row`](crate::Error::Row), and [`Error::Tensor`](crate::Error::Tensor) where there is no memory for so many.
    #[doc(alias = "tf.gather")]
    pub fn read_rows(&self, rows: &[usize]) -> Result<HostTensor> {
        self.check_are_here("read_rows", rows)?;
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
        // An error where there are more of them than memory has.
        let mut out = HostTensor::zeros(self.dtype, shape)?;
        with_buffer!(&Buffer::zeros(self.dtype, 0), like => fill(like, self, rows, &mut out));
        Ok(out)
    }

    /// One buffer of each stripe, put together.
    pub(super) fn whole(&self, of: impl Fn(&Stripe) -> &Buffer) -> Result<HostTensor> {
        let mut whole = Whole::new(self)?;
        self.stripes.read_all(|stripe, stretches| whole.put(of(stripe), stretches));
        whole.finish()
    }
}

/// A buffer of all rows that is put together from those of stripes.
pub(super) struct Whole {
    shape: Vec<usize>,
    width: usize,
    buffer: Buffer,
}

impl Whole {
    pub(super) fn new(table: &Table) -> Result<Self> {
        let width = table.width();
        table.require_memory(table.rows() * width)?;
        let buffer = Buffer::zeros(table.dtype, table.rows() * width);
        Ok(Self { shape: table.shape.clone(), width, buffer })
    }

    pub(super) fn put(&mut self, from: &Buffer, stretches: &mut dyn Iterator<Item = Stretch>) {
        let width = self.width;
        fn like<'a, T: Element>(_: &[T], buffer: &'a Buffer) -> &'a [T] {
            T::slice(buffer).unwrap_or_default()
        }
        with_buffer!(&mut self.buffer, to => {
            let from = like(to, from);
            for stretch in stretches {
                to[stretch.rows.start * width..stretch.rows.end * width]
                    .clone_from_slice(&from[stretch.local.start * width..stretch.local.end * width]);
            }
        })
    }

    pub(super) fn finish(self) -> Result<HostTensor> {
        Ok(HostTensor::from_buffer(self.buffer, self.shape)?)
    }
}
