//! What one replica brings to a step.

use super::Trained;
use super::Weighting;
use super::gradients::Gradient;
use super::losses::Losses;
use super::pass;
use super::tally::{Kind, Tally};
use super::transform::Transform;
use crate::deposit::{Bucket, Deposit, Rows};
use crate::number::{Any, Elements, Number};
use crate::{HostTensor, IndexedSlices, Result};
use candle_core::{DType, Device, Tensor, Var};
use distribute_optim::merge_rows;
use std::sync::Arc;

/// What one replica brings to a step.
#[derive(Debug)]
pub(super) struct Contribution {
    pub(super) tally: Tally,
    /// For each variable its gradient, none where the loss doesn't depend on it.
    pub(super) gradients: Vec<Option<Ready>>,
}

/// A gradient as the pass takes it.
#[derive(Clone, Debug)]
pub(super) enum Ready {
    /// Contiguous.
    Dense(Tensor),
    /// That of the variable with this number, where layers have put it.
    Deposited(Arc<Bucket>, usize),
    Rows(Rows),
}

impl Contribution {
    /// The replica's gradients, transformed, with duplicates of rows added up: here, on the replica's own thread.
    pub(super) fn new(trained: &Trained, mine: Losses, before_reduce: &[Transform]) -> Result<Self> {
        let Losses { gradients, bucket, weighting, loss, dtype } = mine;
        let gradients = gradients.of_optimizer(trained)?;
        let mut tally = Tally {
            weighting,
            loss,
            dtype,
            rows: None,
            finite: loss.is_finite(),
            rate: None,
            kinds: vec![Kind::Nothing; gradients.len()],
        };
        // INV-9: of no examples they have no weight, not even if they are NaN. Added up over none, they are the others':
        // their losses depend on this replica, through collectives.
        if weighting == Weighting::MeanOver(0) {
            return Ok(Self { tally, gradients: vec![None; gradients.len()] });
        }
        let mut gradients = Ready::all(trained, gradients, bucket)?;
        if !before_reduce.is_empty() && weighting != Weighting::SumOver(0) {
            // What users clip is the gradient of the mean, whose size does not grow with the piece of the batch.
            let weight = match weighting {
                Weighting::SumOver(examples) => {
                    tally.weighting = Weighting::MeanOver(examples);
                    1. / examples as f64
                }
                _ => 1.,
            };
            gradients = pass::transformed(before_reduce, trained, weight, &gradients)?;
        }
        tally.kinds = gradients.iter().map(Kind::of).collect();
        Ok(Self { tally, gradients })
    }
}

impl Ready {
    /// Of each variable what candle has found and what layers have put into the bucket.
    fn all(
        trained: &Trained,
        gradients: Vec<Option<Gradient>>,
        bucket: Option<Bucket>,
    ) -> Result<Vec<Option<Self>>> {
        let found = gradients.into_iter().zip(&trained.variables).map(|(gradient, (_, variable))| {
            gradient.map(|gradient| Ready::new(gradient, variable)).transpose()
        });
        let mut all = found.collect::<Result<Vec<_>>>()?;
        let Some(mut bucket) = bucket else { return Ok(all) };
        let mut dense = Vec::new();
        for (number, ready) in all.iter_mut().enumerate() {
            // Of a variable that is used by layers and by other operations, too, the gradients add up.
            if bucket.has(number) {
                match ready.take() {
                    Some(Ready::Dense(tensor)) => bucket.add(number, &tensor)?,
                    Some(Ready::Rows(rows)) => bucket.add_rows(number, rows),
                    Some(Ready::Deposited(..)) | None => {}
                }
            }
            match bucket.take(number) {
                Deposit::Nothing => {}
                Deposit::Rows(rows) => *ready = Some(Ready::Rows(rows)),
                Deposit::Dense => dense.push(number),
            }
        }
        let bucket = Arc::new(bucket);
        for number in dense {
            all[number] = Some(Ready::Deposited(bucket.clone(), number));
        }
        Ok(all)
    }

    pub(super) fn new(gradient: Gradient, variable: &Var) -> Result<Self> {
        fn merged<F: Number>(slices: &IndexedSlices, row_len: usize) -> Result<Rows> {
            let values = slices.values.as_slice::<F>().unwrap_or_default();
            let (rows, values) = merge_rows(slices.indices.as_slice().unwrap_or_default(), values, row_len)?;
            Ok(Rows { rows, values: F::vector(values) })
        }
        let row_len = row_len(variable);
        match (gradient, variable.dtype()) {
            (Gradient::Dense(tensor), _) => Ok(Ready::Dense(tensor)),
            (Gradient::Rows(slices), DType::F32) => Ok(Ready::Rows(merged::<f32>(&slices, row_len)?)),
            (Gradient::Rows(slices), _) => Ok(Ready::Rows(merged::<f64>(&slices, row_len)?)),
        }
    }

    /// As users see it.
    pub(super) fn into_gradient(self, variable: &Var) -> Result<Gradient> {
        let Rows { rows, values } = match self {
            Ready::Dense(tensor) => return Ok(Gradient::Dense(tensor)),
            Ready::Deposited(bucket, number) => return Ok(Gradient::Dense(bucket.tensor(number, variable)?)),
            Ready::Rows(rows) => rows,
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

    /// The gradient of a replica that has none: no rows.
    pub(super) fn nothing(variable: &Var) -> Self {
        Ready::Rows(Rows { rows: Vec::new(), values: Elements::none(variable.dtype()) })
    }

    /// The same with a number for each element: beside a dense one, rows are no shorter way.
    pub(super) fn to_dense(&self, variable: &Var) -> Result<Self> {
        let (Ready::Rows(rows), count, shape) = (self, variable.elem_count(), variable.shape()) else {
            return Ok(self.clone());
        };
        Ok(Ready::Dense(match variable.dtype() {
            DType::F32 => Tensor::from_vec(rows.spread::<f32>(count), shape, &Device::Cpu)?,
            _ => Tensor::from_vec(rows.spread::<f64>(count), shape, &Device::Cpu)?,
        }))
    }
}

/// The elements of a row: of everything but the first axis.
pub(super) fn row_len(variable: &Var) -> usize {
    variable.dims().get(1..).map_or(0, |rest| rest.iter().product())
}
