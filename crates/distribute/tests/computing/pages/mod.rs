//! The pages of StrategyExtended and ReplicaContext, and what that of Strategy says of input, sentence by sentence: `docs/pages.md` names the test of each, here
//! or elsewhere, and this program fails where it names none, or one that is not there.

mod clusters;
mod colocated;
mod members;
mod replica_context;
mod scope;
mod steps;
mod strategy_extended;
mod table;

use crate::everywhere::everywhere;
use candle_core::{Device, Tensor};
use distribute::{
    CentralStorageStrategy, LocalCluster, MirroredStrategy, ParameterServerStrategy, PerReplica, Result,
    Strategy, Variable,
};

fn mirrored(replicas: usize) -> Strategy {
    MirroredStrategy::cpus(replicas).unwrap().into()
}

/// Two replicas, and the variables on the second's device.
fn central() -> Strategy {
    CentralStorageStrategy::new(["cpu:0", "cpu:1"], "cpu:1").unwrap().into()
}

/// One worker of a cluster of so many parameter servers, which keep variables whole.
fn servers(count: usize) -> Strategy {
    let cluster = LocalCluster::new(1, count).unwrap();
    let builder = ParameterServerStrategy::builder().cluster_resolver(cluster.resolver());
    builder.build().unwrap().into()
}

/// A variable with one copy, on this device.
fn on_one(strategy: &Strategy, device: &str, name: &str) -> Result<Variable> {
    strategy.scope(|| strategy.colocate_vars_with(device, || Variable::new(name, 10f32)))
}

fn per_replica<T>(values: impl IntoIterator<Item = T>) -> PerReplica<T> {
    PerReplica::from_values(values.into_iter().collect())
}

fn tensor(values: &[f32]) -> Tensor {
    Tensor::new(values, &Device::Cpu).unwrap()
}

fn bits(tensor: &Tensor) -> Vec<u32> {
    tensor.to_vec1::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
}
