//! The rules of contexts, `run`, merging, distributed values and collectives. Each has a test with the rule in its
//! name.
//!
//! If a rule describes a trap of TensorFlow, the test checks the behaviour of this crate instead.

mod all_reduce;
mod beside;
mod contradictions;
mod documents;
mod errors;
mod gather;
mod merge;
mod modes;
mod partitioners;
mod reduce;
mod replica;
mod replica_context;
mod run;
mod scope;
mod strategies;
mod strategy;
mod strategy_extended;
mod texts;
mod values;

use crate::everywhere::{each, everywhere, of_all};
use crate::support::{floats, mirrored, on_cluster, one_device, per_replica, tensor};
use candle_core::{Tensor, Var};
use distribute::context::{ContextKind, get_replica_context};
use distribute::{CentralStorageStrategy, Error, HostTensor, PerReplica, Result, Strategy, Variable};

fn host<T: distribute::tensor::Element>(values: Vec<T>, shape: impl Into<Vec<usize>>) -> HostTensor {
    HostTensor::new(values, shape).unwrap()
}

/// Creates a strategy of two replicas with variables on the device of the second one.
fn central() -> Strategy {
    CentralStorageStrategy::new(["cpu:0", "cpu:1"], "cpu:1").unwrap()
}

/// Creates the strategy of a worker with `count` parameter servers and unsharded variables.
fn servers(count: usize) -> Strategy {
    on_cluster(1, count).into()
}

/// Creates a variable with a single copy, on the given device.
fn on_one(strategy: &Strategy, device: &str, name: &str) -> Result<Variable> {
    strategy.scope(|| strategy.colocate_vars_with(device, || Variable::new(name, 10f32)))
}

fn bits(tensor: &Tensor) -> Vec<u32> {
    tensor.to_vec1::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
}

/// Returns the id of the replica that calls this.
fn id() -> usize {
    get_replica_context().unwrap().replica_id_in_sync_group()
}

fn is_wrong_context(error: &Error, required: ContextKind, found: ContextKind) -> bool {
    matches!(error.root_cause(), Error::WrongContext { required: r, found: f, .. } if (*r, *f) == (required, found))
}

fn is_mixed<T: std::fmt::Debug>(result: Result<T>) -> bool {
    matches!(result.unwrap_err().root_cause(), Error::MixedStrategies { .. })
}

/// Returns the gradient of `loss(ctx, x)` with respect to x on each replica of this worker. x is `x(id)`.
fn gradients(
    strategy: &Strategy,
    x: impl Fn(usize) -> Vec<f32> + Sync,
    loss: impl Fn(&distribute::ReplicaContext, &Tensor) -> Result<Tensor> + Sync,
) -> Result<PerReplica<Vec<f32>>> {
    strategy.run((), |ctx, ()| {
        let x = Var::from_tensor(&tensor(&x(ctx.replica_id_in_sync_group())))?;
        let grads = loss(ctx, x.as_tensor())?.backward()?;
        Ok(grads.get(&x).map_or(Vec::new(), floats))
    })
}

/// Returns whether there are several replicas, on any worker.
fn has_others(strategy: &Strategy) -> bool {
    strategy.num_replicas_in_sync() > 1
}

/// Returns the text with which an error names all replicas except the first; in one process, only replica 1.
fn others(strategy: &Strategy) -> &'static str {
    match strategy.num_replicas_in_sync() {
        4 if strategy.world().is_multi_worker() => "replicas 1, 2 and 3",
        3 if strategy.world().is_multi_worker() => "replicas 1 and 2",
        _ => "replica 1",
    }
}

/// Returns 0 for replica 0 and 1 for all others.
fn is_other(ctx: &distribute::ReplicaContext) -> usize {
    ctx.replica_id_in_sync_group().min(1)
}
