//! Layers that depend on replicas: N replicas compute the same as one device on the global batch.

mod batch_norm;
mod conv1d;
mod conv_transpose;
mod dropout;
mod lora;
mod of_candle;
mod per_thread;
mod pool;
mod rnn;
mod stock_operations;

use crate::support::{assert_close, flat, mirrored, one_device};
use candle_core::{DType, Device, Result, Tensor, Var};

/// Returns numbers around 5. The same arguments result in the same numbers.
fn numbers(shape: &[usize], dtype: DType) -> Tensor {
    let n: usize = shape.iter().product();
    let values: Vec<f64> = (0..n).map(|i| 5. + ((i * i * 7 + 3 * i) as f64 * 0.37).sin()).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
}

/// Returns a variable of numbers around 0.
fn var(shape: &[usize]) -> Var {
    Var::from_tensor(&(numbers(shape, DType::F64) - 5.).unwrap()).unwrap()
}

/// Returns (f(x + h) - f(x - h)) / 2 h for each element of `of`.
fn by_differences(of: &Var, f: &dyn Fn() -> Result<Tensor>) -> Vec<f64> {
    const H: f64 = 1e-5;
    let before = flat(of);
    let moved = |element: usize, by: f64| {
        let mut values = before.clone();
        values[element] += by;
        of.set(&Tensor::from_vec(values, of.shape(), &Device::Cpu).unwrap()).unwrap();
        f().unwrap().to_scalar::<f64>().unwrap()
    };
    let all = (0..before.len()).map(|element| (moved(element, H) - moved(element, -H)) / (2. * H)).collect();
    of.set(&Tensor::from_vec(before, of.shape(), &Device::Cpu).unwrap()).unwrap();
    all
}
