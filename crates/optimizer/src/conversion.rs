//! Between a gradient as users see it and as it goes to the reduction.

use crate::gradients::Gradient;
use candle_core::{DType, Var};
use distribute_base::Result;
use distribute_base::internal::{Any, LocalGradient, Number, Rows, to_host};
use distribute_optim::merge_rows;
use distribute_tensor::{HostTensor, IndexedSlices};

impl Gradient {
    /// On the host, as it goes to the reduction. Of rows that occur several times the sum.
    pub(crate) fn into_local(self, variable: &Var) -> Result<LocalGradient> {
        fn merged<F: Number>(slices: &IndexedSlices, row_len: usize) -> Result<Rows> {
            let values = slices.values.as_slice::<F>().unwrap_or_default();
            let (rows, values) = merge_rows(slices.indices.as_slice().unwrap_or_default(), values, row_len)?;
            Ok(Rows { rows, values: F::vector(values) })
        }
        let row_len = row_len(variable);
        match (self, variable.dtype()) {
            (Gradient::Dense(tensor), _) => Ok(LocalGradient::Dense(to_host(&tensor)?)),
            (Gradient::Rows(slices), DType::F32) => Ok(LocalGradient::Rows(merged::<f32>(&slices, row_len)?)),
            (Gradient::Rows(slices), _) => Ok(LocalGradient::Rows(merged::<f64>(&slices, row_len)?)),
        }
    }

    /// As users see it.
    pub(crate) fn from_local(local: LocalGradient, variable: &Var) -> Result<Self> {
        let Rows { rows, values } = match local {
            LocalGradient::Dense(tensor) => return Ok(Self::Dense(tensor)),
            LocalGradient::Deposited(dense) => return Ok(Self::Dense(dense.tensor(variable)?)),
            LocalGradient::Rows(rows) => rows,
        };
        let mut shape = variable.dims().to_vec();
        let whole = Some(shape.clone());
        shape[0] = rows.len();
        let values = match values {
            Any::F32(values) => HostTensor::new(values, shape)?,
            Any::F64(values) => HostTensor::new(values, shape)?,
        };
        let indices = HostTensor::vector(rows.into_iter().map(|row| row as i64).collect());
        Ok(Self::Rows(IndexedSlices::new(values, indices, whole)?))
    }
}

/// The elements of a row: of everything but the first axis.
pub(crate) fn row_len(variable: &Var) -> usize {
    variable.dims().get(1..).map_or(0, |rest| rest.iter().product())
}
