//! A replica's gradient of one variable, on its way from backward to the update.

use super::{Bucket, Flat, RowValues, Rows};
use crate::number::{Elements, Number, with_elements};
use crate::transfer::{from_vec, to_device, to_host};
use candle_core::{DType, Device, Result, Tensor, Var};
use std::ops::Range;
use std::sync::Arc;

/// A replica's gradient of one variable, wherever its elements are.
#[derive(Clone, Debug)]
pub enum ReplicaGradient {
    /// A number for each element of the variable.
    Dense(Dense),
    /// Some rows of a table.
    Rows(Rows),
}

/// The elements of a dense gradient.
#[derive(Clone, Debug)]
pub enum Dense {
    /// A contiguous tensor on the host.
    Host(Tensor),
    /// A contiguous tensor on the replica's device.
    Device(Tensor),
    /// The place of a variable, by its number, in the bucket that layers have filled.
    Bucket(Arc<Bucket>, usize),
    /// The place of a variable, by its number, in packs: those of a bucket, or those that another worker has sent.
    Packed {
        /// The packs.
        packs: Arc<Flat>,
        /// The number of the variable.
        number: usize,
        /// The elements that the gradient is of, if not of all that are there.
        range: Option<Range<usize>>,
    },
}

impl ReplicaGradient {
    /// Returns the gradient of a replica without one: no rows.
    pub fn none(variable: &Var) -> Self {
        Self::Rows(Rows::new(Vec::new(), Elements::none(variable.dtype())))
    }

    /// Returns whether its elements are on the replica's device.
    pub fn is_on_device(&self) -> bool {
        matches!(self, Self::Dense(Dense::Device(_)) | Self::Rows(Rows { values: RowValues::Device(_), .. }))
    }

    /// Returns the packs that a dense gradient is in, if it is in packs.
    pub fn packs(&self) -> Option<&Arc<Flat>> {
        match self {
            Self::Dense(Dense::Packed { packs, .. }) => Some(packs),
            _ => None,
        }
    }

    /// Converts it to a dense gradient on the host: next to a dense one, rows save nothing.
    ///
    /// # Errors
    /// candle's.
    pub fn to_dense(&self, variable: &Var) -> Result<Self> {
        let (Self::Rows(rows), count, shape) = (self, variable.elem_count(), variable.shape()) else {
            return Ok(self.clone());
        };
        Ok(Self::Dense(Dense::Host(match variable.dtype() {
            DType::F32 => Tensor::from_vec(rows.spread::<f32>(count), shape, &Device::Cpu)?,
            _ => Tensor::from_vec(rows.spread::<f64>(count), shape, &Device::Cpu)?,
        })))
    }

    /// Copies it to the host. Waits for the device.
    ///
    /// # Errors
    /// candle's, of the device.
    pub fn to_host(&self, variable: &Var) -> crate::Result<Self> {
        Ok(match self {
            Self::Dense(Dense::Device(values)) => Self::Dense(Dense::Host(to_host(values)?)),
            Self::Rows(rows) => Self::Rows(rows.to_host(variable.dtype())?),
            Self::Dense(_) => self.clone(),
        })
    }

    /// Copies it to the device of `copy`, a copy of the variable that the replica computes with.
    ///
    /// # Errors
    /// candle's, of the device.
    pub fn into_device(self, copy: &Var) -> Result<Self> {
        let device = copy.device();
        Ok(match self {
            Self::Dense(Dense::Host(tensor)) => Self::Dense(Dense::Device(to_device(&tensor, device)?)),
            Self::Dense(dense @ (Dense::Bucket(..) | Dense::Packed { .. })) => {
                Self::Dense(Dense::Device(dense.tensor(copy)?))
            }
            Self::Rows(Rows { rows, values: RowValues::Host(values) }) => {
                let shape = (rows.len(), copy.dims().get(1..).map_or(0, |rest| rest.iter().product()));
                let values = match values {
                    _ if rows.is_empty() => None,
                    Elements::F32(values) => Some(from_vec(values, shape, device)?),
                    Elements::F64(values) => Some(from_vec(values, shape, device)?),
                };
                Self::Rows(Rows { rows, values: RowValues::Device(values) })
            }
            there => there,
        })
    }

    /// Adds another gradient of the same variable. Both are on the device of `copy`.
    ///
    /// # Errors
    /// candle's, of the device.
    pub fn plus_on_device(self, other: Self, copy: &Var) -> Result<Self> {
        Ok(match (self, other) {
            (Self::Rows(none), one) | (one, Self::Rows(none)) if none.rows.is_empty() => one,
            (Self::Rows(mine), Self::Rows(other)) => Self::Rows(mine.plus_on_device(other)?),
            (mine, other) => Self::Dense(Dense::Device((mine.spread_on(copy)? + other.spread_on(copy)?)?)),
        })
    }

    /// Returns its numbers on the device, if it is there and has any.
    pub fn on_device(&self) -> Option<&Tensor> {
        match self {
            Self::Dense(Dense::Device(values)) => Some(values),
            Self::Rows(Rows { values: RowValues::Device(values), .. }) => values.as_ref(),
            _ => None,
        }
    }

    /// Changes its numbers on the device, if it has any, to others of the same shape.
    ///
    /// # Errors
    /// The error of `change`.
    pub fn change_on_device(
        &mut self,
        change: impl FnOnce(&Tensor) -> crate::Result<Tensor>,
    ) -> crate::Result<()> {
        match self {
            Self::Dense(Dense::Device(values))
            | Self::Rows(Rows { values: RowValues::Device(Some(values)), .. }) => *values = change(values)?,
            _ => {}
        }
        Ok(())
    }

    /// Returns its rows as an index on the device. `None` for a gradient of all elements or of none.
    ///
    /// # Errors
    /// candle's, of the device.
    pub fn index_on_device(&self) -> Result<Option<Tensor>> {
        match self {
            Self::Rows(rows) => rows.index(),
            Self::Dense(_) => Ok(None),
        }
    }

    /// Returns a tensor on the device of `copy` with a number for each element of the variable.
    ///
    /// # Errors
    /// candle's, of the device.
    pub fn spread_on(&self, copy: &Var) -> Result<Tensor> {
        match self {
            Self::Dense(dense) => dense.tensor(copy),
            Self::Rows(rows) => match rows.spread_on_device(copy.shape())? {
                Some(values) => Ok(values),
                None => Ok(copy.zeros_like()?.detach()),
            },
        }
    }
}

impl Dense {
    /// Calls `then` with the elements, which are on the host.
    ///
    /// # Errors
    /// candle's, for another dtype and for elements on a device.
    pub fn with_elements<T: Number, R>(&self, then: impl FnOnce(&[T]) -> R) -> Result<R> {
        match self {
            Self::Host(tensor) | Self::Device(tensor) => with_elements(tensor, then),
            _ => match self.placed() {
                Some(elements) => Ok(then(elements)),
                None => candle_core::bail!("a gradient is of another dtype than its variable"),
            },
        }
    }

    /// Returns its elements, if they are in a bucket or in packs. `None` for another dtype.
    pub fn placed<T: Number>(&self) -> Option<&[T]> {
        match self {
            Self::Host(_) | Self::Device(_) => None,
            Self::Bucket(bucket, number) => bucket.dense(*number),
            Self::Packed { packs, number, range } => {
                let all = packs.dense(*number);
                match range {
                    Some(range) => all?.get(range.clone()),
                    None => all,
                }
            }
        }
    }

    /// Returns a tensor of the variable's shape on the variable's device: a copy of what is in a bucket or in packs.
    ///
    /// # Errors
    /// candle's.
    pub fn tensor(&self, variable: &Var) -> Result<Tensor> {
        let (shape, device) = (variable.shape(), variable.device());
        match (self, variable.dtype()) {
            (Self::Host(tensor) | Self::Device(tensor), _) => Ok(tensor.clone()),
            (_, DType::F32) => Tensor::from_slice(self.placed::<f32>().unwrap_or_default(), shape, device),
            _ => Tensor::from_slice(self.placed::<f64>().unwrap_or_default(), shape, device),
        }
    }
}
