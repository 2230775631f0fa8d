//! A replica's gradient of one variable, on the replica's device.

use crate::conversion::row_len;
use crate::gradients::Gradient;
use crate::header::Kind;
use candle_core::{Tensor, Var};
use distribute_base::internal::{Any, DeviceRows, LocalGradient, Rows, from_vec, to_device, to_host};
use distribute_base::{Error, Result};

/// A replica's gradient of one variable, on the replica's device: contiguous, of the variable's dtype.
#[derive(Clone, Debug)]
pub(crate) enum DeviceGradient {
    /// Of all elements.
    Dense(Tensor),
    /// Of some rows.
    Rows(DeviceRows),
    /// By row, of none: a device is asked for nothing of no size.
    NoRows,
}

impl DeviceGradient {
    /// The gradient as users see it, on the device of a copy of the variable. Of rows that occur several times the sum.
    pub(crate) fn of(gradient: Gradient, copy: &Var) -> Result<Self> {
        match gradient {
            Gradient::Dense(tensor) => Ok(Self::Dense(to_device(&tensor, copy.device())?)),
            rows => Self::new(rows.into_local(copy)?, copy),
        }
    }

    /// One from the host, on the device of `copy`.
    pub(crate) fn new(gradient: LocalGradient, copy: &Var) -> Result<Self> {
        let device = copy.device();
        let Rows { rows, values } = match gradient {
            LocalGradient::Dense(tensor) => return Ok(Self::Dense(to_device(&tensor, device)?)),
            LocalGradient::Deposited(dense) => return Ok(Self::Dense(dense.tensor(copy)?)),
            LocalGradient::Rows(rows) => rows,
        };
        if rows.is_empty() {
            return Ok(Self::NoRows);
        }
        let shape = (rows.len(), row_len(copy));
        let values = match values {
            Any::F32(values) => from_vec(values, shape, device)?,
            Any::F64(values) => from_vec(values, shape, device)?,
        };
        Ok(Self::Rows(DeviceRows { rows, values }))
    }

    /// The same on the host. Waits for the device.
    pub(crate) fn to_host(&self, variable: &Var) -> Result<LocalGradient> {
        Ok(match self {
            Self::Dense(values) => LocalGradient::Dense(to_host(values)?),
            Self::Rows(rows) => LocalGradient::Rows(rows.to_host()?),
            Self::NoRows => LocalGradient::no_rows(variable),
        })
    }

    /// This and another of the same variable.
    pub(crate) fn plus(self, other: Self, copy: &Var) -> Result<Self> {
        Ok(match (self, other) {
            (Self::NoRows, one) | (one, Self::NoRows) => one,
            (Self::Rows(mine), Self::Rows(other)) => Self::Rows(mine.plus(other)?),
            (mine, other) => Self::Dense((mine.to_dense(copy)? + other.to_dense(copy)?)?),
        })
    }

    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Dense(_) => Kind::Dense,
            Self::Rows(_) | Self::NoRows => Kind::Rows,
        }
    }

    /// Its numbers, if it has any.
    pub(crate) fn values(&self) -> Option<&Tensor> {
        match self {
            Self::Dense(values) => Some(values),
            Self::Rows(rows) => Some(&rows.values),
            Self::NoRows => None,
        }
    }

    /// Changes its numbers, if it has any, to others of the same shape.
    pub(crate) fn change(&mut self, change: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<()> {
        match self {
            Self::Dense(values) | Self::Rows(DeviceRows { values, .. }) => *values = change(values)?,
            Self::NoRows => {}
        }
        Ok(())
    }

    /// With a number for each element of the variable.
    pub(crate) fn to_dense(&self, copy: &Var) -> Result<Tensor> {
        Ok(match self {
            Self::Dense(values) => values.clone(),
            Self::Rows(rows) => rows.spread(copy.shape())?,
            Self::NoRows => copy.zeros_like()?.detach(),
        })
    }

    /// Which rows it is of, as an index of the device; `None` where it is of all elements, or of nothing.
    pub(crate) fn index(&self) -> Result<Option<Tensor>> {
        match self {
            Self::Rows(rows) => Ok(Some(rows.index()?)),
            Self::Dense(_) | Self::NoRows => Ok(None),
        }
    }
}

/// Some rows of a variable or of a slot; all of it without an index.
pub(crate) fn part_of(whole: &Tensor, index: Option<&Tensor>) -> Result<Tensor> {
    Ok(match index {
        Some(index) => as_rows(whole)?.index_select(index, 0)?,
        None => whole.clone(),
    })
}

/// A view as a matrix of rows, in the same memory.
pub(crate) fn as_rows(whole: &Tensor) -> Result<Tensor> {
    let Some(height) = whole.dims().first() else {
        return Err(Error::invalid("optimizer step", "a scalar has no rows"));
    };
    let width: usize = whole.dims()[1..].iter().product();
    Ok(whole.reshape((*height, width))?)
}
