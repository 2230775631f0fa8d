//! Strategies, small tensors and logs for tests.

#![allow(dead_code, reason = "no program of tests uses all of it")]

pub mod cluster;
pub mod gate;

use candle_core::{DType, Device, Tensor};
use distribute::{
    LocalCluster, MirroredStrategy, OneDeviceStrategy, ParameterServerStrategy, PerReplica, Strategy,
};
use std::io::{Result, Write};
use std::sync::{Arc, Mutex, OnceLock};
use tracing_subscriber::fmt::MakeWriter;

/// Creates a strategy whose replicas are threads of this process.
pub fn mirrored(replicas: usize) -> Strategy {
    MirroredStrategy::cpus(replicas).unwrap()
}

pub fn one_device() -> Strategy {
    OneDeviceStrategy::new("cpu:0").unwrap()
}

/// Creates the coordinator's strategy over a cluster whose tasks are all in this process. Variables are unsharded.
pub fn on_cluster(workers: usize, servers: usize) -> ParameterServerStrategy {
    let cluster = LocalCluster::new(workers, servers).unwrap();
    ParameterServerStrategy::builder().cluster_resolver(cluster.resolver()).build().unwrap()
}

pub fn tensor(values: &[f32]) -> Tensor {
    Tensor::new(values, &Device::Cpu).unwrap()
}

pub fn vector(values: &[f64]) -> Tensor {
    Tensor::new(values, &Device::Cpu).unwrap()
}

/// Returns the elements of an `f32` tensor in row-major order.
pub fn floats(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// Returns the elements of a tensor of any float type, in row-major order.
pub fn flat(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

pub fn assert_close(a: &Tensor, b: &Tensor, limit: f64, what: &str) {
    assert_eq!(a.dims(), b.dims(), "{what}");
    for (a, b) in flat(a).into_iter().zip(flat(b)) {
        assert!((a - b).abs() <= limit * b.abs().max(1.), "{what}: {a}, not {b}");
    }
}

pub fn per_replica<T>(values: impl IntoIterator<Item = T>) -> PerReplica<T> {
    PerReplica::from_values(values.into_iter().collect())
}

/// A log in memory, to which a subscriber writes.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Log;
    fn make_writer(&'a self) -> Log {
        self.clone()
    }
}

impl Log {
    /// Returns the log of this process, which all its tests share. The first call starts it.
    pub fn of_process() -> Self {
        static LOG: OnceLock<Log> = OnceLock::new();
        let start = || {
            let log = Log::default();
            tracing_subscriber::fmt().with_writer(log.clone()).with_ansi(false).init();
            log
        };
        LOG.get_or_init(start).clone()
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// Returns the lines that contain `with`, which must occur in the lines of one test only.
    pub fn lines(&self, with: &str) -> Vec<String> {
        self.text().lines().filter(|line| line.contains(with)).map(String::from).collect()
    }
}

/// Returns the messages that `body` logs on this thread.
pub fn log_of(body: impl FnOnce()) -> String {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(log.clone());
    tracing::subscriber::with_default(subscriber.finish(), body);
    log.text()
}
