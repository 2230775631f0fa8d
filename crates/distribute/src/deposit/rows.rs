//! Rows of a table's gradient.

use crate::Result;
use crate::number::{Any, Elements, Number};
use distribute_tensor::HostTensor;
use distribute_tensor::kernel::RowMerge;

/// Rows of a gradient, each once and ascending, with the values of each one after another.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    pub(crate) rows: Vec<usize>,
    pub(crate) values: Elements,
}

impl Rows {
    /// These and others of the same table: of a row in both, the sum.
    pub(super) fn plus<T: Number>(self, other: Self) -> Self {
        let (Some(mine), Some(others)) = (T::in_vector(&self.values), T::in_vector(&other.values)) else {
            return self;
        };
        let (Some(width), false) = (mine.len().checked_div(self.rows.len()), other.rows.is_empty()) else {
            return if self.rows.is_empty() { other } else { self };
        };
        let merge = RowMerge::new(&[self.rows, other.rows].concat());
        let mut sums = vec![T::of(0.); merge.rows().len() * width];
        merge.sum(&[mine, others].concat(), width, 0, &mut sums);
        Self { rows: merge.into_rows(), values: T::vector(sums) }
    }

    /// Those at some positions, as a tensor of rows of this shape.
    pub(crate) fn take(&self, positions: &[usize], row: &[usize]) -> Result<HostTensor> {
        fn take<T: Copy>(values: &[T], positions: &[usize], width: usize) -> Vec<T> {
            let mut taken = Vec::with_capacity(positions.len() * width);
            positions.iter().for_each(|at| taken.extend_from_slice(&values[at * width..][..width]));
            taken
        }
        let width = row.iter().product();
        let shape: Vec<usize> = std::iter::once(&positions.len()).chain(row).copied().collect();
        Ok(match &self.values {
            Any::F32(values) => HostTensor::new(take(values, positions, width), shape)?,
            Any::F64(values) => HostTensor::new(take(values, positions, width), shape)?,
        })
    }

    /// Adds them to the elements of the whole table.
    pub(crate) fn add_to<T: Number>(&self, table: &mut [T]) {
        let values = T::in_vector(&self.values).unwrap_or_default();
        let Some(width) = values.len().checked_div(self.rows.len()).filter(|width| *width > 0) else {
            return;
        };
        for (row, values) in self.rows.iter().zip(values.chunks_exact(width)) {
            let table = &mut table[row * width..][..width];
            table.iter_mut().zip(values).for_each(|(sum, value)| *sum = sum.plus(*value));
        }
    }

    /// A number for each of a table's `elements`.
    pub(crate) fn spread<T: Number>(&self, elements: usize) -> Vec<T> {
        let mut all = vec![T::of(0.); elements];
        self.add_to(&mut all);
        all
    }
}
