//! The number of kills, and the strategy of the chief.

use distribute::ParameterServerStrategy;
use distribute::cluster::resolver::SimpleClusterResolver;
use distribute::cluster::{ClusterSpec, Job};
use distribute::parameter_server::{FixedShardsPartitioner, ParameterServerStrategyBuilder};

/// Returns the number of kills: `DISTRIBUTE_TEST_KILLS`, or the default.
pub fn kills(default: usize) -> usize {
    std::env::var("DISTRIBUTE_TEST_KILLS").map_or(default, |kills| kills.parse().unwrap())
}

pub fn strategy(spec: ClusterSpec) -> ParameterServerStrategy {
    settings(spec).build().unwrap()
}

/// Returns the settings of the chief's strategy.
pub fn settings(spec: ClusterSpec) -> ParameterServerStrategyBuilder {
    let resolver = SimpleClusterResolver::new(spec).with_task(Job::Chief.task(0));
    let partitioner = FixedShardsPartitioner::new(2).unwrap();
    ParameterServerStrategy::builder().cluster_resolver(resolver).partitioner(partitioner)
}
