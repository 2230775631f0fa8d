//! A replica's gradient of one variable, on the replica's device.

use crate::deposit::{LocalGradient, Rows};
use crate::number::{Any, Elements};
use crate::optimizer::conversion::row_len;
use crate::optimizer::tally::Kind;
use crate::variables::to_host;
use crate::{Error, Result};
use candle_core::{DType, Device, Tensor, Var};

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
        let shape = (rows.len(), row_len(copy));
        let values = match values {
            Any::F32(values) => Tensor::from_vec(values, shape, device)?,
            Any::F64(values) => Tensor::from_vec(values, shape, device)?,
        };
        Ok(Self { rows: Some(rows), values })
    }

    /// The same on the host. Waits for the device.
    pub(in crate::optimizer) fn to_host(&self) -> Result<LocalGradient> {
        let values = to_host(&self.values)?;
        let Some(rows) = &self.rows else { return Ok(LocalGradient::Dense(values)) };
        let flat = values.flatten_all()?;
        let values: Elements = match flat.dtype() {
            DType::F64 => Any::F64(flat.to_vec1()?),
            _ => Any::F32(flat.to_vec1()?),
        };
        Ok(LocalGradient::Rows(Rows { rows: rows.clone(), values }))
    }

    pub(in crate::optimizer) fn kind(&self) -> Kind {
        if self.rows.is_some() { Kind::Rows } else { Kind::Dense }
    }

    /// Whether it is of no row.
    pub(super) fn is_empty(&self) -> bool {
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
    pub(super) fn index(&self, device: &Device) -> Result<Option<Tensor>> {
        let Some(rows) = &self.rows else { return Ok(None) };
        let index: Vec<i64> = rows.iter().map(|row| *row as i64).collect();
        Ok(Some(Tensor::from_vec(index, rows.len(), device)?))
    }

    /// With a number for each element of the variable.
    pub(super) fn to_dense(&self, copy: &Var) -> Result<Self> {
        let Some(index) = self.index(copy.device())? else { return Ok(self.clone()) };
        let table = Tensor::zeros(as_rows(copy)?.shape(), copy.dtype(), copy.device())?;
        let values = table.index_add(&index, &self.values, 0)?;
        Ok(Self::dense(values.reshape(copy.shape())?))
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
