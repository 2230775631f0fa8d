//! Writes to complete tables and to rows: assignment, addition, and the other operations of [`Write`].

use super::Table;
use super::layout::StripeRange;
use crate::{Error, Result};
use distribute_tensor::dtype::Buffer;
use distribute_tensor::{Element, HostTensor, Write, with_buffer};

impl Table {
    /// Writes a value to the complete table with the operation `how`, element by element. The value must have the
    /// table's shape and dtype. Integers wrap around.
    ///
    /// # Errors
    /// - [`Error::Shape`]: the value has a wrong shape.
    /// - [`Error::DType`]: the value has a wrong dtype.
    /// - [`Error::UnsupportedDType`]: the operation is not defined for the dtype. Booleans and strings can only be
    ///   assigned; complex numbers have no minimum and maximum.
    /// - [`Error::DivisionByZero`]: an integer would be divided by 0.
    /// - [`Error::Tensor`]: there is not enough memory to check a division.
    #[doc(alias = "assign")]
    #[doc(alias = "assign_add")]
    #[doc(alias = "assign_sub")]
    pub fn write(&self, how: Write, value: &HostTensor) -> Result<()> {
        self.check_whole(how.name(), value)?;
        self.check_values(how, value)?;
        let width = self.width();
        let done = self.stripes.write_all(|_, stripe, stripe_ranges| {
            let part = part(value.buffer(), width, stripe_ranges);
            stripe.values.write(how, &part).map_err(|e| self.refused(how, e))
        });
        self.changed();
        done
    }

    /// Writes values to rows with the operation `how`, one row after another. A row that occurs twice is written twice.
    /// `values` contains one row for each element of `rows`.
    ///
    /// # Errors
    /// Returns the errors of [`write`](Table::write), and:
    /// - [`Error::Row`]: the table does not contain one of the rows.
    #[doc(alias = "scatter_add")]
    #[doc(alias = "scatter_sub")]
    #[doc(alias = "scatter_mul")]
    #[doc(alias = "scatter_div")]
    #[doc(alias = "scatter_min")]
    #[doc(alias = "scatter_max")]
    #[doc(alias = "scatter_update")]
    #[doc(alias = "batch_scatter_update")]
    pub fn write_rows(&self, how: Write, rows: &[usize], values: &HostTensor) -> Result<()> {
        self.check_rows(how.name(), rows, values)?;
        self.check_values(how, values)?;
        let (layout, width) = (self.stripes.layout, self.width());
        let mut done = Ok(());
        for (stripe, positions) in self.stripes.by_stripe(rows).each() {
            let local: Vec<usize> = positions.iter().map(|at| layout.local(rows[*at])).collect();
            let taken = taken(values.buffer(), width, positions);
            let written = self.stripes.write(stripe).values.write_rows(how, &local, &taken);
            done = done.and(written.map_err(|e| self.refused(how, e)));
        }
        if !rows.is_empty() {
            self.changed();
        }
        done
    }

    /// Checks for all errors that depend only on the values and the dtype, before anything is written.
    fn check_values(&self, how: Write, value: &HostTensor) -> Result<()> {
        let checked = if how == Write::Div {
            HostTensor::zeros(self.dtype, value.dims()).and_then(|mut zeros| zeros.write(how, value))
        } else {
            Buffer::zeros(self.dtype, 0).write(how, &Buffer::zeros(self.dtype, 0))
        };
        checked.map_err(|e| self.refused(how, e))
    }

    fn refused(&self, how: Write, error: distribute_tensor::Error) -> Error {
        let (operation, table) = (how.name(), self.name.clone());
        match error {
            distribute_tensor::Error::DivisionByZero { .. } => Error::DivisionByZero { operation, table },
            distribute_tensor::Error::UnsupportedDType { dtype, .. } => {
                Error::UnsupportedDType { operation, table, dtype }
            }
            other => other.into(),
        }
    }
}

/// Returns the rows of some ranges, concatenated.
pub(super) fn part(
    values: &Buffer,
    width: usize,
    stripe_ranges: &mut dyn Iterator<Item = StripeRange>,
) -> Buffer {
    with_buffer!(values, values => {
        let mut part = Vec::new();
        for StripeRange { rows, .. } in stripe_ranges {
            part.extend_from_slice(&values[rows.start * width..rows.end * width]);
        }
        Element::into_buffer(part)
    })
}

/// Returns the rows at the given positions, concatenated.
fn taken(values: &Buffer, width: usize, positions: &[usize]) -> Buffer {
    with_buffer!(values, values => {
        let mut taken = Vec::with_capacity(positions.len() * width);
        positions.iter().for_each(|at| taken.extend_from_slice(&values[at * width..(at + 1) * width]));
        Element::into_buffer(taken)
    })
}
