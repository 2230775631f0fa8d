//! What an optimizer says of its steps, which variables it trains how, and users' code inside of a step. A program of
//! its own: the log is the process's.

mod examples;
mod finite;
mod groups;
mod inside_of_run;
mod missing;
mod models;
mod own_code;
mod unfit;

use crate::support::{Log, mirrored, vector};
use candle_core::{DType, Tensor};
use candle_nn::{Init, VarBuilder};
use distribute::prelude::*;

/// A model of vectors of 3 elements, by name: all 1 at first.
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
