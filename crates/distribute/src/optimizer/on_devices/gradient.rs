//! A replica's gradient of one variable, on the replica's device.

use crate::deposit::{DeviceRows, LocalGradient, Rows};
use crate::number::{Any, Elements};
use crate::optimizer::conversion::row_len;
use crate::optimizer::tally::Kind;
use crate::variables::to_host;
use crate::{Error, Result};
use candle_core::{Tensor, Var};

/// A replica's gradient of one variable, on the replica's device: contiguous, of the variable's dtype.
#[derive(Clone, Debug)]
pub(in crate::optimizer) struct DeviceGradient {
    /// Which rows of the variable have one, each once and ascending; `None` where all elements have.
    rows: Option<Vec<usize>>,
    /// Of the variable's shape, or that of its rows.
    values: Tensor,
}

impl DeviceGradient {
    pub(in crate::optimizer) fn dense(values: Tensor) -> Self {
        Self { rows: None, values }
    }

    /// One from the host, on the device of `copy`.
    pub(in crate::optimizer) fn new(gradient: LocalGradient, copy: &Var) -> Result<Self> {
        let device = copy.device();
        let Rows { rows, values } = match gradient {
            LocalGradient::Dense(tensor) => return Ok(Self::dense(tensor.to_device(device)?)),
            LocalGradient::Deposited(dense) => return Ok(Self::dense(dense.tensor(copy)?)),
            LocalGradient::Rows(rows) => rows,
        };
        if rows.is_empty() {
            // A device is asked for nothing of no size: one row that nobody reads.
            let values = Tensor::zeros((1, row_len(copy)), copy.dtype(), device)?;
            return Ok(Self { rows: Some(rows), values });
        }
        let shape = (rows.len(), row_len(copy));
        let values = match values {
            Any::F32(values) => Tensor::from_vec(values, shape, device)?,
            Any::F64(values) => Tensor::from_vec(values, shape, device)?,
        };
        Ok(Self { rows: Some(rows), values })
    }

    /// Of rows that are there.
    pub(in crate::optimizer) fn of_rows(DeviceRows { rows, values }: DeviceRows) -> Self {
        Self { rows: Some(rows), values }
    }

    /// The same on the host. Waits for the device.
    pub(in crate::optimizer) fn to_host(&self) -> Result<LocalGradient> {
        if self.is_empty() {
            return Ok(LocalGradient::Rows(Rows {
                rows: Vec::new(),
                values: Elements::none(self.values.dtype()),
            }));
        }
        Ok(match self.as_rows() {
            Some(rows) => LocalGradient::Rows(rows.to_host()?),
            None => LocalGradient::Dense(to_host(&self.values)?),
        })
    }

    /// This and another of the same variable.
    pub(in crate::optimizer) fn plus(self, other: Self, copy: &Var) -> Result<Self> {
        if self.is_empty() {
            return Ok(other);
        }
        if other.is_empty() {
            return Ok(self);
        }
        if let (Some(mine), Some(other)) = (self.as_rows(), other.as_rows()) {
            return Ok(Self::of_rows(mine.plus(other)?));
        }
        Ok(Self::dense((self.to_dense(copy)?.values + other.to_dense(copy)?.values)?))
    }

    fn as_rows(&self) -> Option<DeviceRows> {
        Some(DeviceRows { rows: self.rows.clone()?, values: self.values.clone() })
    }

    pub(in crate::optimizer) fn kind(&self) -> Kind {
        if self.rows.is_some() { Kind::Rows } else { Kind::Dense }
    }

    /// Whether it is of no row.
    pub(in crate::optimizer) fn is_empty(&self) -> bool {
        self.rows.as_ref().is_some_and(Vec::is_empty)
    }

    pub(in crate::optimizer) fn values(&self) -> &Tensor {
        &self.values
    }

    /// With other values of the same shape.
    pub(in crate::optimizer) fn with(&self, values: Tensor) -> Self {
        Self { rows: self.rows.clone(), values }
    }

    /// Which rows it is of, as an index of the device; `None` where it is of all elements.
    pub(super) fn index(&self) -> Result<Option<Tensor>> {
        Ok(self.as_rows().map(|rows| rows.index()).transpose()?)
    }

    /// With a number for each element of the variable.
    pub(super) fn to_dense(&self, copy: &Var) -> Result<Self> {
        if self.is_empty() {
            return Ok(Self::dense(copy.zeros_like()?.detach()));
        }
        let Some(rows) = self.as_rows() else { return Ok(self.clone()) };
        Ok(Self::dense(rows.spread(copy.shape())?))
    }

    /// The values of the variable, or of a slot, that it is a gradient of.
    pub(super) fn part_of(&self, whole: &Tensor, index: Option<&Tensor>) -> Result<Tensor> {
        Ok(match index {
            Some(index) => as_rows(whole)?.index_select(index, 0)?,
            None => whole.clone(),
        })
    }
}

/// A view as a matrix of rows, in the same memory.
pub(super) fn as_rows(whole: &Tensor) -> Result<Tensor> {
    let Some(height) = whole.dims().first() else {
        return Err(Error::invalid("optimizer step", "a scalar has no rows"));
    };
    let width: usize = whole.dims()[1..].iter().product();
    Ok(whole.reshape((*height, width))?)
}
