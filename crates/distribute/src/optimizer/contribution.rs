//! What one replica brings to a step.

use super::Trained;
use super::gradients::{Gradient, Weighting};
use super::number::{Any, Number};
use super::pass::{self, Workers};
use super::step::Losses;
use super::transform::Transform;
use crate::{HostTensor, IndexedSlices, ReduceOp, Result};
use candle_core::{DType, Device, Tensor, Var};
use distribute_optim::merge_rows;
use std::sync::Arc;

/// What one replica brings to a step.
#[derive(Debug)]
pub(super) struct Contribution {
    pub(super) weighting: Weighting,
    /// The losses of all examples, added up.
    pub(super) loss: f64,
    pub(super) dtype: DType,
    /// For each variable its gradient, none where the loss doesn't depend on it.
    pub(super) gradients: Vec<Option<Ready>>,
}

/// A gradient as the pass takes it.
#[derive(Clone, Debug)]
pub(super) enum Ready {
    /// Contiguous.
    Dense(Tensor),
    Rows(Rows),
}

/// Rows of a gradient, each once and ascending.
#[derive(Clone, Debug)]
pub(super) struct Rows {
    pub(super) rows: Vec<usize>,
    pub(super) values: Any<Vec<f32>, Vec<f64>>,
}

impl Contribution {
    /// The replica's gradients, transformed, with duplicates of rows added up: here, on the replica's own thread.
    pub(super) fn new(trained: &Trained, mine: Losses, before_reduce: &[Transform]) -> Result<Self> {
        let Losses { gradients, weighting, loss, dtype } = mine;
        let gradients = gradients.of_optimizer(trained)?;
        let mut made = Self { weighting, loss, dtype, gradients: vec![None; gradients.len()] };
        // INV-9: of no examples they have no weight, not even if they are NaN. Added up over none, they are the others':
        // their losses depend on this replica, through collectives.
        if weighting == Weighting::MeanOver(0) {
            return Ok(made);
        }
        for ((ready, gradient), (_, variable)) in
            made.gradients.iter_mut().zip(gradients).zip(&trained.variables)
        {
            *ready = gradient.map(|gradient| Ready::new(gradient, variable)).transpose()?;
        }
        if !before_reduce.is_empty() && weighting != Weighting::SumOver(0) {
            // What users clip is the gradient of the mean, whose size does not grow with the piece of the batch.
            let weight = match weighting {
                Weighting::SumOver(examples) => {
                    made.weighting = Weighting::MeanOver(examples);
                    1. / examples as f64
                }
                _ => 1.,
            };
            let mine = [(weight, made.gradients.as_slice())];
            made.gradients = pass::transformed(before_reduce, trained, &mine, &Workers::alone())?;
        }
        Ok(made)
    }

    /// What these gradients weigh among those of all replicas.
    pub(super) fn weight(&self, examples: f64, replicas: usize) -> f64 {
        match self.weighting {
            Weighting::MeanOver(mine) => mine as f64 / examples,
            Weighting::SumOver(_) => 1. / examples,
            Weighting::Replicas(ReduceOp::Sum) => 1.,
            Weighting::Replicas(ReduceOp::Mean) => 1. / replicas as f64,
        }
    }

    /// The examples of all replicas.
    pub(super) fn examples(all: &[Arc<Self>]) -> f64 {
        all.iter().filter_map(|contribution| contribution.weighting.examples()).map(|n| n as f64).sum()
    }
}

impl Ready {
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
        let values = match variable.dtype() {
            DType::F32 => Any::F32(Vec::new()),
            _ => Any::F64(Vec::new()),
        };
        Ready::Rows(Rows { rows: Vec::new(), values })
    }

    /// The same with a number for each element: beside a dense one, rows are no shorter way.
    pub(super) fn to_dense(&self, variable: &Var) -> Result<Self> {
        fn spread<F: Number>(rows: &[usize], values: &[F], variable: &Var) -> Vec<F> {
            let (mut all, len) = (vec![F::of(0.); variable.elem_count()], row_len(variable));
            for (row, values) in rows.iter().zip(values.chunks_exact(len.max(1))) {
                all[row * len..][..len].copy_from_slice(values);
            }
            all
        }
        let Ready::Rows(Rows { rows, values }) = self else { return Ok(self.clone()) };
        Ok(Ready::Dense(match values {
            Any::F32(values) => {
                Tensor::from_vec(spread(rows, values, variable), variable.shape(), &Device::Cpu)?
            }
            Any::F64(values) => {
                Tensor::from_vec(spread(rows, values, variable), variable.shape(), &Device::Cpu)?
            }
        }))
    }
}

/// The elements of a row: of everything but the first axis.
pub(super) fn row_len(variable: &Var) -> usize {
    variable.dims().get(1..).map_or(0, |rest| rest.iter().product())
}
