//! The rules of contexts, `run`, merging, distributed values and collectives, one test for each, named by the rule.
//!
//! Where a rule describes a trap of TensorFlow, the test asserts what is done here instead.

mod all_reduce;
mod contradictions;
mod errors;
mod gather;
mod merge;
mod modes;
mod reduce;
mod replica;
mod run;
mod strategies;
mod texts;
mod values;

use candle_core::{Device, Tensor, Var};
use distribute::{
    ContextKind, Error, HostTensor, MirroredStrategy, OneDeviceStrategy, PerReplica, Result, Strategy,
    get_replica_context,
};

fn mirrored(replicas: usize) -> Strategy {
    MirroredStrategy::cpus(replicas).unwrap().into()
}

fn one_device() -> Strategy {
    OneDeviceStrategy::new("cpu:0").unwrap().into()
}

fn tensor(values: &[f32]) -> Tensor {
    Tensor::new(values, &Device::Cpu).unwrap()
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

fn host<T: distribute::tensor::Element>(values: Vec<T>, shape: impl Into<Vec<usize>>) -> HostTensor {
    HostTensor::new(values, shape).unwrap()
}

fn per_replica<T>(values: impl IntoIterator<Item = T>) -> PerReplica<T> {
    PerReplica::from_values(values.into_iter().collect())
}

/// Of two replicas.
fn id() -> usize {
    get_replica_context().unwrap().replica_id_in_sync_group()
}

fn is_wrong_context(error: &Error, required: ContextKind, found: ContextKind) -> bool {
    matches!(error.root_cause(), Error::WrongContext { required: r, found: f, .. } if (*r, *f) == (required, found))
}

fn is_mixed<T: std::fmt::Debug>(result: Result<T>) -> bool {
    matches!(result.unwrap_err().root_cause(), Error::MixedStrategies { .. })
}

/// The gradient at x of `loss(ctx, x)` on each replica, for `x[r]`.
fn gradients(
    x: &[&[f32]],
    loss: impl Fn(&distribute::ReplicaContext, &Tensor) -> Result<Tensor> + Sync,
) -> Result<PerReplica<Vec<f32>>> {
    mirrored(x.len()).run((), |ctx, ()| {
        let x = Var::from_tensor(&tensor(x[ctx.replica_id_in_sync_group()]))?;
        let grads = loss(ctx, x.as_tensor())?.backward()?;
        Ok(grads.get(&x).map_or(Vec::new(), floats))
    })
}
