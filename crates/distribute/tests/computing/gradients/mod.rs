//! Custom gradients: `apply_gradients` is equal to `minimize`, transforms run before and after the reduction, and
//! gradients by row train like dense ones, also on parameter servers' tables.

mod apply;
mod callbacks;
mod rows;
mod servers;
mod transforms;

use crate::support::{mirrored, vector};
use candle_core::{DType, Device, Tensor};
use candle_nn::{Init, VarBuilder};
use distribute::optimizer::rules::Sgd;
use distribute::optimizer::{Gradients, Weighting};
use distribute::{Optimizer, Replicated, Result, Strategy};

const COUNTS: [usize; 5] = [1, 2, 3, 4, 8];

/// Creates a model of a vector and a matrix.
fn model(strategy: &Strategy) -> Replicated<Vec<Tensor>> {
    let build = |vb: VarBuilder| -> candle_core::Result<Vec<Tensor>> {
        let vb = vb.to_dtype(DType::F64);
        let init = Init::Uniform { lo: -1., up: 1. };
        Ok(vec![vb.get_with_hints(3, "a", init)?, vb.get_with_hints((4, 3), "b", init)?])
    };
    strategy.replicate_seeded(5, build).unwrap()
}

/// Returns a loss that depends on every weight, with different gradients on every replica.
fn loss(weights: &[Tensor], replica: usize) -> Result<Tensor> {
    let x = (Tensor::arange(1f64, 4., &Device::Cpu)? * (replica as f64 - 1.5))?;
    let out = weights[1].broadcast_mul(&x)?.sum(1)?.tanh()?;
    Ok((out.mean_all()? + weights[0].mul(&x)?.sin()?.sum_all()?)?)
}

fn bits<M>(model: &Replicated<M>) -> Vec<u64> {
    let mut all = Vec::new();
    for name in model.variables.names() {
        let value = model.variables.get(&name).unwrap().to_dtype(DType::F64).unwrap();
        all.extend(value.flatten_all().unwrap().to_vec1::<f64>().unwrap());
    }
    all.into_iter().map(f64::to_bits).collect()
}

fn numbers<M>(model: &Replicated<M>) -> Vec<f64> {
    bits(model).into_iter().map(f64::from_bits).collect()
}

/// Creates one weight, which starts at 0.
fn one_weight(strategy: &Strategy, shape: impl Into<candle_core::Shape>) -> Replicated<Tensor> {
    let shape = shape.into();
    let build =
        move |vb: VarBuilder| vb.get_with_hints_dtype(shape.clone(), "w", Init::Const(0.), DType::F64);
    strategy.replicate(build).unwrap()
}

/// Returns the reduced gradient: the amount that gradient descent with rate 1 subtracts from weights of 0 in one step.
fn reduced(
    n: usize,
    prepare: impl Fn(Optimizer<Sgd>) -> Result<Optimizer<Sgd>>,
    gradient: impl Fn(usize) -> Option<Vec<f64>> + Sync,
    weighting: impl Fn(usize) -> Weighting + Sync,
) -> Result<Vec<f64>> {
    let strategy = mirrored(n);
    let len = (0..n).find_map(&gradient).map_or(1, |gradient| gradient.len());
    let model = one_weight(&strategy, len);
    let optimizer = prepare(Optimizer::with_rule(Sgd, &model.variables, 1.)?)?;
    strategy.run((), |ctx, ()| {
        let replica = ctx.replica_id_in_sync_group();
        let mut gradients = Gradients::new(&optimizer);
        if let Some(gradient) = gradient(replica) {
            gradients.insert("w", vector(&gradient))?;
        }
        optimizer.apply_gradients(ctx, gradients, weighting(replica))
    })?;
    Ok(numbers(&model).into_iter().map(|x| 0. - x).collect())
}
