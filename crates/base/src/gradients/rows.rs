//! Gradients of tables by row.

use crate::error::Result;
use crate::number::{EitherFloat, Elements, Number};
use crate::transfer::{from_vec, to_host};
use candle_core::{DType, Shape, Tensor};
use distribute_tensor::HostTensor;
use distribute_tensor::kernel::RowMerge;

/// Returns the rows at the given positions. Each row has `width` elements.
fn take<T: Copy>(values: &[T], positions: &[usize], width: usize) -> Vec<T> {
    let mut taken = Vec::with_capacity(positions.len() * width);
    positions.iter().for_each(|at| taken.extend_from_slice(&values[at * width..][..width]));
    taken
}

fn on_device() -> crate::Error {
    crate::Error::invalid("optimizer step", "rows of a gradient are on a device")
}

/// The rows of a table's gradient that are not zero. Row indices are in ascending order, without duplicates.
#[derive(Clone, Debug)]
pub struct Rows {
    /// The row indices.
    pub rows: Vec<usize>,
    /// The elements of the rows, in the order of `rows`.
    pub values: RowValues,
}

/// The elements of some rows.
#[derive(Clone, Debug)]
pub enum RowValues {
    /// The elements on the host, one row after another.
    Host(Elements),
    /// A matrix on a replica's device; `None` if there are no rows, because devices cannot allocate empty
    /// memory.
    Device(Option<Tensor>),
}

impl Rows {
    /// Creates rows on the host. `values` contains the elements, one row after another.
    pub fn new(rows: Vec<usize>, values: Elements) -> Self {
        Self { rows, values: RowValues::Host(values) }
    }

    /// Returns the elements, if they are on the host and have type `T`.
    pub fn elements<T: Number>(&self) -> Option<&[T]> {
        match &self.values {
            RowValues::Host(values) => T::slice_of(values),
            RowValues::Device(_) => None,
        }
    }

    /// Adds other rows of the same table. Returns `self` unchanged if either is on a device, or if its elements do not
    /// have type `T`.
    pub(super) fn add<T: Number>(self, other: Self) -> Self {
        let (Some(mine), Some(others)) = (self.elements::<T>(), other.elements::<T>()) else {
            return self;
        };
        let (Some(width), false) = (mine.len().checked_div(self.rows.len()), other.rows.is_empty()) else {
            return if self.rows.is_empty() { other } else { self };
        };
        let merge = RowMerge::new(&[self.rows.as_slice(), other.rows.as_slice()].concat());
        let mut sums = vec![T::of(0.); merge.rows().len() * width];
        merge.sum(&[mine, others].concat(), width, 0, &mut sums);
        Self::new(merge.into_rows(), T::into_elements(sums))
    }

    /// Returns the rows at the given positions, as a tensor whose rows have shape `row`.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`](crate::Error::InvalidArgument): the rows are on a device.
    pub fn take(&self, positions: &[usize], row: &[usize]) -> Result<HostTensor> {
        let width = row.iter().product();
        let shape: Vec<usize> = std::iter::once(&positions.len()).chain(row).copied().collect();
        Ok(match &self.values {
            RowValues::Host(EitherFloat::F32(values)) => {
                HostTensor::new(take(values, positions, width), shape)?
            }
            RowValues::Host(EitherFloat::F64(values)) => {
                HostTensor::new(take(values, positions, width), shape)?
            }
            RowValues::Device(_) => return Err(on_device()),
        })
    }

    /// Returns the rows at the given positions, which must be in ascending order, as a gradient.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`](crate::Error::InvalidArgument): the rows are on a device.
    pub fn select(&self, positions: &[usize]) -> Result<Self> {
        let width = |elements: usize| elements.checked_div(self.rows.len()).unwrap_or(0);
        let values = match &self.values {
            RowValues::Host(EitherFloat::F32(all)) => {
                EitherFloat::F32(take(all, positions, width(all.len())))
            }
            RowValues::Host(EitherFloat::F64(all)) => {
                EitherFloat::F64(take(all, positions, width(all.len())))
            }
            RowValues::Device(_) => return Err(on_device()),
        };
        Ok(Self::new(take(&self.rows, positions, 1), values))
    }

    /// Adds the rows to `table`, which contains all elements of the table. Does nothing if the rows are on a device, or
    /// if their elements do not have type `T`.
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

    /// Returns a vector on the host with all elements of a table. `elements` is the number of elements.
    pub(crate) fn to_dense<T: Number>(&self, elements: usize) -> Vec<T> {
        let mut all = vec![T::of(0.); elements];
        self.add_to(&mut all);
        all
    }
}

/// Operations on rows that are on a device.
impl Rows {
    /// Creates rows on a device from rows in any order. Values of rows that occur more than once are added.
    pub(super) fn merge_on_device(rows: &[usize], values: &Tensor) -> candle_core::Result<Self> {
        let merge = RowMerge::new(rows);
        if merge.is_identity() {
            return Ok(Self::on_device(merge.into_rows(), values.clone()));
        }
        let position = |row: &usize| merge.rows().binary_search(row).map_or(0, |position| position as i64);
        let positions: Vec<i64> = rows.iter().map(position).collect();
        let positions = from_vec(positions, rows.len(), values.device())?;
        let zeros = Tensor::zeros((merge.rows().len(), values.dim(1)?), values.dtype(), values.device())?;
        let values = zeros.index_add(&positions, values, 0)?;
        Ok(Self::on_device(merge.into_rows(), values))
    }

    fn on_device(rows: Vec<usize>, values: Tensor) -> Self {
        Self { rows, values: RowValues::Device(Some(values)) }
    }

    pub(super) fn device_values(&self) -> Option<&Tensor> {
        match &self.values {
            RowValues::Device(values) => values.as_ref(),
            RowValues::Host(_) => None,
        }
    }

    /// Copies the rows to the host. Waits for the device. If there are no rows, the result has dtype `dtype`.
    ///
    /// # Errors
    /// Returns candle's error if the device fails.
    pub fn to_host(&self, dtype: DType) -> Result<Self> {
        let values = match &self.values {
            RowValues::Host(values) => values.clone(),
            RowValues::Device(None) => Elements::none(dtype),
            RowValues::Device(Some(values)) => {
                let flat = to_host(values)?.flatten_all()?;
                match flat.dtype() {
                    DType::F64 => EitherFloat::F64(flat.to_vec1()?),
                    _ => EitherFloat::F32(flat.to_vec1()?),
                }
            }
        };
        Ok(Self::new(self.rows.clone(), values))
    }

    /// Returns the row indices as an index tensor on the device, or `None` if there are no rows.
    pub(super) fn index(&self) -> candle_core::Result<Option<Tensor>> {
        let Some(values) = self.device_values() else { return Ok(None) };
        let index: Vec<i64> = self.rows.iter().map(|row| *row as i64).collect();
        from_vec(index, self.rows.len(), values.device()).map(Some)
    }

    /// Returns a tensor on the device with all elements of a table of shape `table`. Returns `None` if there are no
    /// rows.
    pub(super) fn to_dense_on_device(&self, table: &Shape) -> candle_core::Result<Option<Tensor>> {
        let (Some(values), Some(index)) = (self.device_values(), self.index()?) else { return Ok(None) };
        let (height, width) = (table.dims().first().copied().unwrap_or(0), values.dim(1)?);
        let zeros = Tensor::zeros((height, width), values.dtype(), values.device())?;
        zeros.index_add(&index, values, 0)?.reshape(table).map(Some)
    }

    /// Adds other rows of the same table. Both sets of rows must be on the same device.
    pub(super) fn add_on_device(self, other: Self) -> candle_core::Result<Self> {
        match (self.device_values(), other.device_values()) {
            (Some(mine), Some(others)) => {
                let values = Tensor::cat(&[mine, others], 0)?;
                Self::merge_on_device(&[self.rows.as_slice(), other.rows.as_slice()].concat(), &values)
            }
            (None, Some(_)) => Ok(other),
            _ => Ok(self),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::internal::ReplicaGradient;
    use candle_core::Device;

    #[test]
    fn rows_on_a_device_add_up_as_those_on_the_host_do() {
        let on = &Device::Cpu;
        let matrix = |values: &[f64]| Tensor::from_slice(values, (values.len() / 2, 2), on).unwrap();
        let first = Rows::merge_on_device(&[2, 0, 2], &matrix(&[1., 2., 3., 4., 10., 20.])).unwrap();
        assert_eq!(
            (first.rows.as_slice(), first.device_values().unwrap().to_vec2::<f64>().unwrap()),
            (&[0, 2][..], vec![vec![3., 4.], vec![11., 22.]])
        );
        let second = Rows::merge_on_device(&[1, 2], &matrix(&[5., 6., 7., 8.])).unwrap();
        let both = first.add_on_device(second).unwrap();
        let on_host = both.to_host(DType::F64).unwrap();
        assert_eq!(on_host.rows, [0, 1, 2]);
        assert_eq!(on_host.elements::<f64>().unwrap(), [3., 4., 5., 6., 18., 30.]);
        let dense = both
            .to_dense_on_device(&Shape::from((4, 2)))
            .unwrap()
            .unwrap()
            .flatten_all()
            .unwrap()
            .to_vec1::<f64>()
            .unwrap();
        assert_eq!(dense, on_host.to_dense::<f64>(8));
    }

    #[test]
    fn rows_elsewhere_are_copied_or_refused_and_are_not_zeros() {
        let variable = candle_core::Var::zeros((3, 2), candle_core::DType::F64, &Device::Cpu).unwrap();
        let values = Tensor::from_slice(&[1f64, 2.], (1, 2), &Device::Cpu).unwrap();
        let on_device = Rows::merge_on_device(&[2], &values).unwrap();
        let on_host = ReplicaGradient::Rows(on_device.to_host(DType::F64).unwrap());
        let all = |tensor: Tensor| tensor.flatten_all().unwrap().to_vec1::<f64>().unwrap();
        assert_eq!(all(on_host.to_dense_on(&variable).unwrap()), [0., 0., 0., 0., 1., 2.]);
        let on_device = ReplicaGradient::Rows(on_device);
        assert_eq!(all(on_device.to_dense_on(&variable).unwrap()), [0., 0., 0., 0., 1., 2.]);
        assert!(on_device.to_dense(&variable).is_err());
    }
}
