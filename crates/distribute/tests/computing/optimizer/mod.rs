//! What an optimizer says of its steps, which variables it trains how, and users' code inside of a step. A program of its
//! own: the log is the process's.

mod examples;
mod finite;
mod groups;
mod inside_of_run;
mod missing;
mod models;
mod own_code;
mod unfit;

use candle_core::{DType, Device, Tensor};
use candle_nn::{Init, VarBuilder};
use distribute::prelude::*;
use std::sync::{Arc, Mutex, OnceLock};
use tracing_subscriber::fmt::MakeWriter;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Log;
    fn make_writer(&'a self) -> Log {
        self.clone()
    }
}

/// Starts the log, which all tests here share.
fn log() -> Log {
    static LOG: OnceLock<Log> = OnceLock::new();
    let start = || {
        let log = Log::default();
        tracing_subscriber::fmt().with_writer(log.clone()).with_ansi(false).init();
        log
    };
    LOG.get_or_init(start).clone()
}

impl Log {
    /// The lines with a part that only one test has.
    fn lines(&self, with: &str) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().filter(|line| line.contains(with)).map(String::from).collect()
    }
}

fn replicas(n: usize) -> Strategy {
    MirroredStrategy::cpus(n).unwrap().into()
}

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

fn vector(values: &[f64]) -> Tensor {
    Tensor::from_slice(values, values.len(), &Device::Cpu).unwrap()
}
