//! A replica's gradient of one variable, between backward and the update.

use super::{Bucket, PackedGradients, RowValues, Rows};
use crate::number::{Elements, Number, with_elements};
use crate::transfer::{from_vec, to_device, to_host};
use bytes::Bytes;
use candle_core::{DType, Device, Result, Tensor, Var};
use distribute_tensor::Wire;
use std::ops::Range;
use std::sync::Arc;

/// A replica's gradient of one variable, in any storage location.
#[derive(Clone, Debug)]
pub enum ReplicaGradient {
    /// A gradient with all elements of the variable.
    Dense(Dense),
    /// A gradient that contains only some rows of a table.
    Rows(Rows),
}

/// The elements of a dense gradient.
#[derive(Clone, Debug)]
pub enum Dense {
    /// A contiguous tensor on the host.
    Host(Tensor),
    /// A contiguous tensor on the replica's device.
    Device(Tensor),
    /// Elements that layers have written into a bucket, with the index of the variable.
    Bucket(Arc<Bucket>, usize),
    /// Elements in packs, which were filled from a bucket or received from another worker.
    Packed {
        /// The packs that contain the elements.
        packs: Arc<PackedGradients>,
        /// The index of the variable.
        number: usize,
        /// The range of the variable's elements that this gradient contains; `None` for all elements.
        range: Option<Range<usize>>,
    },
}

impl ReplicaGradient {
    /// Returns an empty gradient by row, for a replica that has no gradient.
    pub fn none(variable: &Var) -> Self {
        Self::Rows(Rows::new(Vec::new(), Elements::none(variable.dtype())))
    }

    /// Returns `true` if the elements are on the replica's device.
    pub fn is_on_device(&self) -> bool {
        matches!(self, Self::Dense(Dense::Device(_)) | Self::Rows(Rows { values: RowValues::Device(_), .. }))
    }

    /// Returns the packs that contain this gradient, if it is dense and in packs.
    pub fn packs(&self) -> Option<&Arc<PackedGradients>> {
        match self {
            Self::Dense(Dense::Packed { packs, .. }) => Some(packs),
            _ => None,
        }
    }

    /// Returns the pack that contains this gradient and no other variable, if there is one.
    pub fn lone_pack(&self) -> Option<&Bytes> {
        match self {
            Self::Dense(Dense::Packed { packs, number, range: None }) => packs.lone(*number),
            _ => None,
        }
    }

    /// Rounds rows of `f32` on the host to the precision of `wire`, in which they are sent. Does not change other
    /// gradients.
    pub fn round_rows(&mut self, wire: Wire) {
        if let Self::Rows(Rows { values: RowValues::Host(Elements::F32(values)), .. }) = self {
            wire.round(values);
        }
    }

    /// Converts rows, which must be on the host, to a dense gradient on the host, so that they can be added to a dense
    /// gradient. Returns a dense gradient unchanged.
    ///
    /// # Errors
    /// Returns an error of candle if the rows are on a device, or if the tensor cannot be created.
    pub fn to_dense(&self, variable: &Var) -> Result<Self> {
        let (Self::Rows(rows), count, shape) = (self, variable.elem_count(), variable.shape()) else {
            return Ok(self.clone());
        };
        if rows.device_values().is_some() {
            candle_core::bail!("rows on a device cannot be added to a dense gradient on the host");
        }
        Ok(Self::Dense(Dense::Host(match variable.dtype() {
            DType::F32 => Tensor::from_vec(rows.to_dense::<f32>(count), shape, &Device::Cpu)?,
            _ => Tensor::from_vec(rows.to_dense::<f64>(count), shape, &Device::Cpu)?,
        })))
    }

    /// Returns the gradient on the host: a copy if it is on a device. Waits for the device.
    ///
    /// # Errors
    /// Returns candle's error if the device fails.
    pub fn to_host(&self, variable: &Var) -> crate::Result<Self> {
        Ok(match self {
            Self::Dense(Dense::Device(values)) => Self::Dense(Dense::Host(to_host(values)?)),
            Self::Rows(rows) => Self::Rows(rows.to_host(variable.dtype())?),
            Self::Dense(_) => self.clone(),
        })
    }

    /// Returns the gradient on the device of `copy`, which is the copy of the variable that the replica computes with.
    ///
    /// # Errors
    ///
    /// Returns candle's error if the device fails.
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

    /// Adds another gradient of the same variable. Both gradients must be on the device of `copy`.
    ///
    /// # Errors
    /// Returns candle's error if the device fails.
    pub fn add_on_device(self, other: Self, copy: &Var) -> Result<Self> {
        Ok(match (self, other) {
            (Self::Rows(none), one) | (one, Self::Rows(none)) if none.rows.is_empty() => one,
            (Self::Rows(mine), Self::Rows(other)) => Self::Rows(mine.add_on_device(other)?),
            (mine, other) => {
                Self::Dense(Dense::Device((mine.to_dense_on(copy)? + other.to_dense_on(copy)?)?))
            }
        })
    }

    /// Returns the elements on the device, if there are any.
    pub fn on_device(&self) -> Option<&Tensor> {
        match self {
            Self::Dense(Dense::Device(values)) => Some(values),
            Self::Rows(Rows { values: RowValues::Device(values), .. }) => values.as_ref(),
            _ => None,
        }
    }

    /// Replaces the elements on the device, if there are any, with the result of `change`, which must have the same
    /// shape.
    ///
    /// # Errors
    /// Returns the error of `change`.
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

    /// Returns the row numbers as an index tensor on the device. Returns `None` for a dense gradient or one
    /// without rows.
    ///
    /// # Errors
    /// Returns candle's error if the device fails.
    pub fn index_on_device(&self) -> Result<Option<Tensor>> {
        match self {
            Self::Rows(rows) => rows.index(),
            Self::Dense(_) => Ok(None),
        }
    }

    /// Returns all elements of the variable's gradient as a tensor. Elements in a bucket, in packs or in rows are
    /// copied to the device of `copy`; rows must be on that device or on the host. A tensor is returned unchanged.
    ///
    /// # Errors
    /// Returns candle's error if the device fails.
    pub fn to_dense_on(&self, copy: &Var) -> Result<Tensor> {
        match self {
            Self::Dense(dense) => dense.tensor(copy),
            Self::Rows(rows) => match rows.to_dense_on_device(copy.shape())? {
                Some(values) => Ok(values),
                None => match self.to_dense(copy)? {
                    Self::Dense(dense) => to_device(&dense.tensor(copy)?, copy.device()),
                    Self::Rows(_) => Ok(copy.zeros_like()?.detach()),
                },
            },
        }
    }
}

impl Dense {
    /// Calls `then` with the elements, which must be on the host.
    ///
    /// # Errors
    /// Returns candle's error if the dtype is different or the elements are on a device.
    pub fn with_elements<T: Number, R>(&self, then: impl FnOnce(&[T]) -> R) -> Result<R> {
        match self {
            Self::Host(tensor) | Self::Device(tensor) => with_elements(tensor, then),
            _ => match self.stored_elements() {
                Some(elements) => Ok(then(elements)),
                None => candle_core::bail!("a gradient has another dtype than its variable"),
            },
        }
    }

    /// Returns the elements that are stored in a bucket or in packs. Returns `None` for other storage or a
    /// different dtype.
    pub fn stored_elements<T: Number>(&self) -> Option<&[T]> {
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

    /// Returns the elements as a tensor. Elements in a bucket or in packs are copied to a tensor with the variable's
    /// shape, on the variable's device. A tensor is returned unchanged.
    ///
    /// # Errors
    /// Returns candle's error if the elements cannot be copied, or if the gradient contains only a range of them.
    pub fn tensor(&self, variable: &Var) -> Result<Tensor> {
        let (shape, device) = (variable.shape(), variable.device());
        match (self, variable.dtype()) {
            (Self::Host(tensor) | Self::Device(tensor), _) => Ok(tensor.clone()),
            (_, DType::F32) => {
                Tensor::from_slice(self.stored_elements::<f32>().unwrap_or_default(), shape, device)
            }
            _ => Tensor::from_slice(self.stored_elements::<f64>().unwrap_or_default(), shape, device),
        }
    }
}
