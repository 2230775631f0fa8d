//! Layers that know about replicas: N replicas compute what one device does on the global batch.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "layers/batch_norm.rs"]
mod batch_norm;
#[path = "layers/conv1d.rs"]
mod conv1d;
#[path = "layers/dropout.rs"]
mod dropout;

use candle_core::{DType, Device, Tensor};
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
