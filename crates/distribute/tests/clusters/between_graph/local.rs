//! Tests of the strategy without a cluster.

use distribute::between_graph::AsyncWorkerStrategy;
use distribute::cluster::ClusterSpec;
use distribute::cluster::resolver::SimpleClusterResolver;
use distribute::prelude::*;
use distribute::strategy::{DeviceName, VariablePlacement};
use distribute::variables::VariableAggregation;
use std::time::Duration;

fn alone<'a>(devices: impl IntoIterator<Item = &'a str>) -> AsyncWorkerStrategy {
    let none = SimpleClusterResolver::new(ClusterSpec::new());
    let settings = distribute::ParameterServerStrategy::builder().cluster_resolver(none);
    AsyncWorkerStrategy::of(settings.devices(devices)).unwrap()
}

#[test]
fn psv1_5_a_single_device_has_everything() {
    let strategy = alone(["cpu:3"]);
    let here = DeviceName::cpu(3);
    assert_eq!(
        (strategy.extended().worker_devices(), strategy.extended().parameter_devices()),
        (&[here][..], vec![here])
    );
    let variable = strategy.scope(|| Variable::new("v", 1f32)).unwrap();
    assert_eq!(variable.devices(), [here]);
    assert_eq!((strategy.workers(), strategy.worker()), (1, 0));
    assert!(strategy.placement().is_none());
    assert!(strategy.is_chief());
    strategy.finish(Duration::ZERO).unwrap();
}

#[test]
fn psv1_5_without_servers_several_devices_have_variables_on_the_cpu() {
    let strategy = alone(["cpu:1", "cpu:2"]);
    assert_eq!(strategy.extended().variable_placement(), VariablePlacement::Central(DeviceName::cpu(0)));
    assert_eq!(strategy.extended().parameter_devices(), [DeviceName::cpu(0)]);
    let build = || Variable::builder("v", 10f32).aggregation(VariableAggregation::Sum).create();
    let variable = strategy.scope(build).unwrap();
    assert_eq!(variable.devices(), [DeviceName::cpu(0)]);
    strategy.run((), |_, ()| variable.assign_add(1f32)).unwrap();
    assert_eq!(variable.read::<f32>().unwrap(), 12.);
}

// PSV1-1
#[test]
fn psv1_1_without_a_cluster_a_number_of_gpus_is_enough() {
    // Nothing in this process's environment names a cluster.
    let strategy = AsyncWorkerStrategy::new(0).unwrap();
    assert_eq!(strategy.extended().worker_devices(), [DeviceName::cpu(0)]);
    assert!(strategy.cluster_resolver().is_none());
    let steps = strategy.global_step().unwrap();
    strategy.run((), |_, ()| steps.assign_add(1i64)).unwrap();
    assert_eq!(strategy.global_step().unwrap().read::<i64>().unwrap(), 1);
}
