//! Between a gradient as users see it and as it goes to the reduction.

use super::gradients::Gradient;
use super::on_devices::DeviceGradient;
use crate::deposit::{LocalGradient, Rows};
use crate::number::{Any, Number};
use crate::transfer::to_device;
use crate::transfer::to_host;
use crate::{HostTensor, IndexedSlices, Result};
use candle_core::{DType, Var};
use distribute_optim::merge_rows;

impl LocalGradient {
    /// On the host. Of rows that occur several times the sum.
    pub(super) fn new(gradient: Gradient, variable: &Var) -> Result<Self> {
        fn merged<F: Number>(slices: &IndexedSlices, row_len: usize) -> Result<Rows> {
            let values = slices.values.as_slice::<F>().unwrap_or_default();
            let (rows, values) = merge_rows(slices.indices.as_slice().unwrap_or_default(), values, row_len)?;
            Ok(Rows { rows, values: F::vector(values) })
        }
        let row_len = row_len(variable);
        match (gradient, variable.dtype()) {
            (Gradient::Dense(tensor), _) => Ok(Self::Dense(to_host(&tensor)?)),
            (Gradient::Rows(slices), DType::F32) => Ok(Self::Rows(merged::<f32>(&slices, row_len)?)),
            (Gradient::Rows(slices), _) => Ok(Self::Rows(merged::<f64>(&slices, row_len)?)),
        }
    }

    /// As users see it.
    pub(super) fn into_gradient(self, variable: &Var) -> Result<Gradient> {
        let Rows { rows, values } = match self {
            Self::Dense(tensor) => return Ok(Gradient::Dense(tensor)),
            Self::Deposited(dense) => return Ok(Gradient::Dense(dense.tensor(variable)?)),
            Self::Rows(rows) => rows,
        };
        let mut shape = variable.dims().to_vec();
        let whole = Some(shape.clone());
        shape[0] = rows.len();
        let values = match values {
            Any::F32(values) => HostTensor::new(values, shape)?,
            Any::F64(values) => HostTensor::new(values, shape)?,
        };
        let indices = HostTensor::vector(rows.into_iter().map(|row| row as i64).collect());
        Ok(Gradient::Rows(IndexedSlices::new(values, indices, whole)?))
    }
}

/// On the device of a copy of the variable. Of rows that occur several times the sum.
pub(super) fn on_device(gradient: Gradient, copy: &Var) -> Result<DeviceGradient> {
    match gradient {
        Gradient::Dense(tensor) => Ok(DeviceGradient::Dense(to_device(&tensor, copy.device())?)),
        rows => DeviceGradient::new(LocalGradient::new(rows, copy)?, copy),
    }
}

/// The elements of a row: of everything but the first axis.
pub(super) fn row_len(variable: &Var) -> usize {
    variable.dims().get(1..).map_or(0, |rest| rest.iter().product())
}
