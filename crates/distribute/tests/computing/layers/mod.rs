//! Layers that know about replicas: N replicas compute what one device does on the global batch.

mod batch_norm;
mod conv1d;
mod conv_transpose;
mod dropout;
mod of_candle;
mod per_thread;
mod pool;
mod rnn;
mod stock_operations;

use candle_core::{DType, Device, Result, Tensor, Var};
use distribute::{MirroredStrategy, OneDeviceStrategy, Strategy};

fn one_device() -> Strategy {
    OneDeviceStrategy::new("cpu:0").unwrap().into()
}

fn replicas(n: usize) -> Strategy {
    MirroredStrategy::cpus(n).unwrap().into()
}

/// Numbers around 5, always the same.
fn numbers(shape: &[usize], dtype: DType) -> Tensor {
    let n: usize = shape.iter().product();
    let values: Vec<f64> = (0..n).map(|i| 5. + ((i * i * 7 + 3 * i) as f64 * 0.37).sin()).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
}

fn flat(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

fn assert_close(a: &Tensor, b: &Tensor, limit: f64, what: &str) {
    assert_eq!(a.dims(), b.dims(), "{what}");
    for (a, b) in flat(a).into_iter().zip(flat(b)) {
        assert!((a - b).abs() <= limit * b.abs().max(1.), "{what}: {a}, not {b}");
    }
}

/// (f(x + h) - f(x - h)) / 2 h for each element of `of`.
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
