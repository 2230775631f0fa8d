//! The log of an optimizer's steps, the settings of variables, and user code inside a step. This is a separate program,
//! because the log belongs to the process.

mod examples;
mod finite;
mod groups;
mod inside_of_run;
mod missing;
mod models;
mod own_code;
mod shaped;
mod unfit;

use crate::support::{Log, mirrored, vector};
use candle_core::{DType, Tensor};
use candle_nn::{Init, VarBuilder};
use distribute::prelude::*;

/// Creates a model of named vectors with 3 elements, which are all 1.
fn vectors(strategy: &Strategy, names: &'static [&'static str]) -> Replicated<Vec<Tensor>> {
    let build = move |vb: VarBuilder| -> candle_core::Result<Vec<Tensor>> {
        let of = |name: &&str| vb.get_with_hints_dtype(3, name, Init::Const(1.), DType::F64);
        names.iter().map(of).collect()
    };
    strategy.replicate(build).unwrap()
}

fn value<M>(model: &Replicated<M>, name: &str) -> Vec<f64> {
    let value = model.variables.get(name).unwrap().to_dtype(DType::F64).unwrap();
    value.flatten_all().unwrap().to_vec1().unwrap()
}
