//! Rows of a table's gradient.

use crate::error::Result;
use crate::number::{Any, Elements, Number};
use crate::transfer::{from_vec, to_host};
use candle_core::{DType, Shape, Tensor};
use distribute_tensor::HostTensor;
use distribute_tensor::kernel::RowMerge;

/// Rows of a gradient, each once and ascending.
#[derive(Clone, Debug)]
pub struct Rows {
    /// The numbers of the rows.
    pub rows: Vec<usize>,
    /// The elements of the rows.
    pub values: RowValues,
}

/// The elements of rows.
#[derive(Clone, Debug)]
pub enum RowValues {
    /// Elements on the host, one row after another.
    Host(Elements),
    /// A matrix on a replica's device. `None` for no rows: a device is asked for nothing of no size.
    Device(Option<Tensor>),
}

impl Rows {
    /// Rows on the host.
    pub fn new(rows: Vec<usize>, values: Elements) -> Self {
        Self { rows, values: RowValues::Host(values) }
    }

    /// The elements, if they are on the host and of this type.
    pub fn elements<T: Number>(&self) -> Option<&[T]> {
        match &self.values {
            RowValues::Host(values) => T::in_vector(values),
            RowValues::Device(_) => None,
        }
    }

    /// These and others of the same table on the host: of a row in both, the sum.
    pub(super) fn plus<T: Number>(self, other: Self) -> Self {
        let (Some(mine), Some(others)) = (self.elements::<T>(), other.elements::<T>()) else {
            return self;
        };
        let (Some(width), false) = (mine.len().checked_div(self.rows.len()), other.rows.is_empty()) else {
            return if self.rows.is_empty() { other } else { self };
        };
        let merge = RowMerge::new(&[self.rows.as_slice(), other.rows.as_slice()].concat());
        let mut sums = vec![T::of(0.); merge.rows().len() * width];
        merge.sum(&[mine, others].concat(), width, 0, &mut sums);
        Self::new(merge.into_rows(), T::vector(sums))
    }

    /// The rows at some positions, as a tensor of rows of this shape.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for rows on a device.
    pub fn take(&self, positions: &[usize], row: &[usize]) -> Result<HostTensor> {
        fn take<T: Copy>(values: &[T], positions: &[usize], width: usize) -> Vec<T> {
            let mut taken = Vec::with_capacity(positions.len() * width);
            positions.iter().for_each(|at| taken.extend_from_slice(&values[at * width..][..width]));
            taken
        }
        let width = row.iter().product();
        let shape: Vec<usize> = std::iter::once(&positions.len()).chain(row).copied().collect();
        Ok(match &self.values {
            RowValues::Host(Any::F32(values)) => HostTensor::new(take(values, positions, width), shape)?,
            RowValues::Host(Any::F64(values)) => HostTensor::new(take(values, positions, width), shape)?,
            RowValues::Device(_) => {
                return Err(crate::Error::invalid("optimizer step", "rows of a gradient are on a device"));
            }
        })
    }

    /// Adds them to the elements of the whole table. They are on the host.
    pub fn add_to<T: Number>(&self, table: &mut [T]) {
        let values = self.elements::<T>().unwrap_or_default();
        let Some(width) = values.len().checked_div(self.rows.len()).filter(|width| *width > 0) else {
            return;
        };
        for (row, values) in self.rows.iter().zip(values.chunks_exact(width)) {
            let table = &mut table[row * width..][..width];
            table.iter_mut().zip(values).for_each(|(sum, value)| *sum = sum.plus(*value));
        }
    }

    /// A number for each of a table's `elements`, on the host.
    pub(crate) fn spread<T: Number>(&self, elements: usize) -> Vec<T> {
        let mut all = vec![T::of(0.); elements];
        self.add_to(&mut all);
        all
    }
}

/// Rows on a device.
impl Rows {
    /// Rows as they come, of which some may be the same: their values added up.
    pub(super) fn merged(rows: &[usize], values: &Tensor) -> candle_core::Result<Self> {
        let merge = RowMerge::new(rows);
        if merge.is_identity() {
            return Ok(Self::on_device(merge.into_rows(), values.clone()));
        }
        let place = |row: &usize| merge.rows().binary_search(row).map_or(0, |place| place as i64);
        let places: Vec<i64> = rows.iter().map(place).collect();
        let places = from_vec(places, rows.len(), values.device())?;
        let zeros = Tensor::zeros((merge.rows().len(), values.dim(1)?), values.dtype(), values.device())?;
        let values = zeros.index_add(&places, values, 0)?;
        Ok(Self::on_device(merge.into_rows(), values))
    }

    fn on_device(rows: Vec<usize>, values: Tensor) -> Self {
        Self { rows, values: RowValues::Device(Some(values)) }
    }

    fn there(&self) -> Option<&Tensor> {
        match &self.values {
            RowValues::Device(values) => values.as_ref(),
            RowValues::Host(_) => None,
        }
    }

    /// The same on the host. Waits for the device. Rows that are not there have this dtype.
    ///
    /// # Errors
    /// candle's, of the device.
    pub fn to_host(&self, dtype: DType) -> Result<Self> {
        let values = match &self.values {
            RowValues::Host(values) => values.clone(),
            RowValues::Device(None) => Elements::none(dtype),
            RowValues::Device(Some(values)) => {
                let flat = to_host(values)?.flatten_all()?;
                match flat.dtype() {
                    DType::F64 => Any::F64(flat.to_vec1()?),
                    _ => Any::F32(flat.to_vec1()?),
                }
            }
        };
        Ok(Self::new(self.rows.clone(), values))
    }

    /// The row numbers as an index on the device. `None` where there are none.
    pub(super) fn index(&self) -> candle_core::Result<Option<Tensor>> {
        let Some(values) = self.there() else { return Ok(None) };
        let index: Vec<i64> = self.rows.iter().map(|row| *row as i64).collect();
        from_vec(index, self.rows.len(), values.device()).map(Some)
    }

    /// A number for each element of a table of this shape, on the device. `None` where there are no rows.
    pub(super) fn spread_on_device(&self, table: &Shape) -> candle_core::Result<Option<Tensor>> {
        let (Some(values), Some(index)) = (self.there(), self.index()?) else { return Ok(None) };
        let (height, width) = (table.dims().first().copied().unwrap_or(0), values.dim(1)?);
        let zeros = Tensor::zeros((height, width), values.dtype(), values.device())?;
        zeros.index_add(&index, values, 0)?.reshape(table).map(Some)
    }

    /// These and others of the same table on the same device: of a row in both, the sum.
    pub(super) fn plus_on_device(self, other: Self) -> candle_core::Result<Self> {
        match (self.there(), other.there()) {
            (Some(mine), Some(others)) => {
                let values = Tensor::cat(&[mine, others], 0)?;
                Self::merged(&[self.rows.as_slice(), other.rows.as_slice()].concat(), &values)
            }
            (None, Some(_)) => Ok(other),
            _ => Ok(self),
        }
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
        let first = Rows::merged(&[2, 0, 2], &matrix(&[1., 2., 3., 4., 10., 20.])).unwrap();
        assert_eq!(
            (first.rows.as_slice(), first.there().unwrap().to_vec2::<f64>().unwrap()),
            (&[0, 2][..], vec![vec![3., 4.], vec![11., 22.]])
        );
        let second = Rows::merged(&[1, 2], &matrix(&[5., 6., 7., 8.])).unwrap();
        let both = first.plus_on_device(second).unwrap();
        let on_host = both.to_host(DType::F64).unwrap();
        assert_eq!(on_host.rows, [0, 1, 2]);
        assert_eq!(on_host.elements::<f64>().unwrap(), [3., 4., 5., 6., 18., 30.]);
        let spread = both
            .spread_on_device(&Shape::from((4, 2)))
            .unwrap()
            .unwrap()
            .flatten_all()
            .unwrap()
            .to_vec1::<f64>()
            .unwrap();
        assert_eq!(spread, on_host.spread::<f64>(8));
    }
}
