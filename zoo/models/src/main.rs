//! Examines the models of candle_transformers with the patched candle-nn: whether each of their variables has a gradient,
//! and whether it is right. Prints the table of docs/train/zoo.md.
//!
//!     cargo run --manifest-path zoo/models/Cargo.toml            all models, some minutes
//!     cargo run --manifest-path zoo/models/Cargo.toml -- llama   those whose names contain a word, with details
//!
//! `-- two-steps FOLDER` trains some of them two steps: see pytorch.py.

#![recursion_limit = "256"]

mod audio;
mod encoders;
mod examine;
mod language;
mod rest;
mod two_steps;
mod vision;

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::VarBuilder;
use serde_json::Value;

/// Computes the output of a model that was built.
type Forward = Box<dyn FnMut() -> Result<Tensor>>;

/// A model of the zoo, small, and an input for it.
struct Entry {
    /// The module in candle_transformers::models, and the part of it if it has several.
    name: &'static str,
    build: fn(VarBuilder<'static>) -> Result<Forward>,
}

fn entry(name: &'static str, build: fn(VarBuilder<'static>) -> Result<Forward>) -> Entry {
    Entry { name, build }
}

fn run(forward: impl FnMut() -> Result<Tensor> + 'static) -> Result<Forward> {
    Ok(Box::new(forward))
}

/// Parses a configuration, which may have more fields than the model takes.
fn config<T: serde::de::DeserializeOwned>(json: Value) -> T {
    serde_json::from_value(json).unwrap_or_else(|error| panic!("{error}"))
}

/// Adds the fields of `more` to those of `json`, or replaces them.
fn with(mut json: Value, more: Value) -> Value {
    for (key, value) in more.as_object().into_iter().flatten() {
        json[key] = value.clone();
    }
    json
}

/// Returns two texts of five tokens of 32.
fn tokens() -> Tensor {
    Tensor::new(&[[3u32, 17, 8, 29, 1], [5, 5, 30, 2, 11]], &Device::Cpu).expect("tokens")
}

/// Returns numbers between -1 and 1, always the same.
fn numbers(shape: &[usize]) -> Tensor {
    let mut state = 12_345u64;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 / (1 << 23) as f32) - 1.
    };
    let values: Vec<f32> = std::iter::repeat_with(next).take(shape.iter().product()).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).expect("numbers")
}

fn ones(shape: &[usize], dtype: DType) -> Tensor {
    Tensor::ones(shape, dtype, &Device::Cpu).expect("ones")
}

fn main() {
    let word = std::env::args().nth(1);
    let all = [language::models(), encoders::models(), vision::models(), audio::models(), rest::models()];
    let all: Vec<Entry> = all.into_iter().flatten().collect();
    if let (Some("two-steps"), Some(folder)) = (word.as_deref(), std::env::args().nth(2)) {
        return two_steps::train(&all, folder.as_ref()).unwrap_or_else(|error| panic!("{error}"));
    }
    let mut rows = rest::not_built();
    // A model that fails must not end the program, nor print a backtrace between the rows.
    if word.is_none() {
        std::panic::set_hook(Box::new(|_| {}));
    }
    for entry in all {
        if word.as_ref().is_some_and(|word| !entry.name.contains(word.as_str())) {
            continue;
        }
        let row = examine::examine(&entry, word.is_some());
        eprintln!("{} | {} | {}", row.name, row.variables, row.result);
        rows.push(row);
    }
    if word.is_none() {
        rows.sort_by(|a, b| a.name.cmp(&b.name));
        println!("| module | variables | result |\n|---|---|---|");
        for row in rows {
            println!("| `{}` | {} | {} |", row.name, row.variables, row.result);
        }
    }
}
