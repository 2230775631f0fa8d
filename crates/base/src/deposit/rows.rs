//! Rows of a table's gradient.

use crate::error::Result;
use crate::number::{Any, Elements, Number};
use crate::transfer::{from_vec, to_host};
use candle_core::{DType, Shape, Tensor};
use distribute_tensor::HostTensor;
use distribute_tensor::kernel::RowMerge;

/// Rows of a gradient, each once and ascending, with the values of each one after another.
#[derive(Clone, Debug)]
pub struct Rows {
    /// The numbers of the rows.
    pub rows: Vec<usize>,
    /// The elements of the rows, one row after another.
    pub values: Elements,
}

/// The same on a device: the values are a matrix there.
#[derive(Clone, Debug)]
pub struct DeviceRows {
    /// The numbers of the rows.
    pub rows: Vec<usize>,
    /// The rows, on the device.
    pub values: Tensor,
}

impl DeviceRows {
    /// On the host. Waits for the device.
    pub fn to_host(&self) -> Result<Rows> {
        let flat = to_host(&self.values)?.flatten_all()?;
        let values = match flat.dtype() {
            DType::F64 => Any::F64(flat.to_vec1()?),
            _ => Any::F32(flat.to_vec1()?),
        };
        Ok(Rows { rows: self.rows.clone(), values })
    }

    /// The row numbers, as an index there.
    pub fn index(&self) -> candle_core::Result<Tensor> {
        let index: Vec<i64> = self.rows.iter().map(|row| *row as i64).collect();
        from_vec(index, self.rows.len(), self.values.device())
    }

    /// A number for each element of a table of this shape.
    pub fn spread(&self, table: &Shape) -> candle_core::Result<Tensor> {
        let (height, width) = (table.dims().first().copied().unwrap_or(0), self.values.dim(1)?);
        let zeros = Tensor::zeros((height, width), self.values.dtype(), self.values.device())?;
        zeros.index_add(&self.index()?, &self.values, 0)?.reshape(table)
    }

    /// These and others of the same table: of a row in both, the sum.
    pub fn plus(self, other: Self) -> candle_core::Result<Self> {
        let values = Tensor::cat(&[&self.values, &other.values], 0)?;
        Self::merged(&[self.rows, other.rows].concat(), &values)
    }

    /// Rows as they come, of which some may be the same: their values added up.
    pub(crate) fn merged(rows: &[usize], values: &Tensor) -> candle_core::Result<Self> {
        let merge = RowMerge::new(rows);
        if merge.is_identity() {
            return Ok(Self { rows: merge.into_rows(), values: values.clone() });
        }
        let place = |row: &usize| merge.rows().binary_search(row).map_or(0, |place| place as i64);
        let places: Vec<i64> = rows.iter().map(place).collect();
        let places = from_vec(places, rows.len(), values.device())?;
        let zeros = Tensor::zeros((merge.rows().len(), values.dim(1)?), values.dtype(), values.device())?;
        let values = zeros.index_add(&places, values, 0)?;
        Ok(Self { rows: merge.into_rows(), values })
    }
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
    pub fn take(&self, positions: &[usize], row: &[usize]) -> Result<HostTensor> {
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
    pub fn add_to<T: Number>(&self, table: &mut [T]) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn rows_on_a_device_add_up_as_those_on_the_host_do() {
        let on = &Device::Cpu;
        let matrix = |values: &[f64]| Tensor::from_slice(values, (values.len() / 2, 2), on).unwrap();
        let first = DeviceRows::merged(&[2, 0, 2], &matrix(&[1., 2., 3., 4., 10., 20.])).unwrap();
        assert_eq!(
            (first.rows.as_slice(), first.values.to_vec2::<f64>().unwrap()),
            (&[0, 2][..], vec![vec![3., 4.], vec![11., 22.]])
        );
        let second = DeviceRows::merged(&[1, 2], &matrix(&[5., 6., 7., 8.])).unwrap();
        let both = first.plus(second).unwrap();
        let on_host = both.to_host().unwrap();
        assert_eq!(on_host.rows, [0, 1, 2]);
        assert_eq!(f64::in_vector(&on_host.values).unwrap(), [3., 4., 5., 6., 18., 30.]);
        let spread =
            both.spread(&Shape::from((4, 2))).unwrap().flatten_all().unwrap().to_vec1::<f64>().unwrap();
        assert_eq!(spread, on_host.spread::<f64>(8));
    }
}
