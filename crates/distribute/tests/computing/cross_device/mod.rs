//! The rules of reduce_to, batch_reduce_to, broadcast_to, cross-device ops and communication options. Each has a test
//! with the rule in its name. If a rule describes a trap of TensorFlow, the test checks the behaviour of this crate
//! instead.

mod algorithms;
mod authors;
mod options;
mod reduce_to;

use crate::support::{mirrored, per_replica};
use distribute::strategy::CrossDeviceOps;
use distribute::tensor::{IndexedSlices, Leaf};
use distribute::{HostTensor, MirroredStrategy, Strategy};

fn with_ops(replicas: usize, ops: impl CrossDeviceOps) -> Strategy {
    let names: Vec<String> = (0..replicas).map(|i| format!("cpu:{i}")).collect();
    let builder = MirroredStrategy::builder().devices(names.iter().map(String::as_str));
    builder.cross_device_ops(ops).build().unwrap()
}

fn rows(values: Vec<f32>, indices: Vec<i64>) -> Leaf {
    let whole = Some(vec![5]);
    IndexedSlices::new(HostTensor::vector(values), HostTensor::vector(indices), whole).unwrap().into()
}
