//! The strategy itself: errors of its constructor, devices, replicas and collectives.

use crate::parameter_servers::support::servers;
use distribute::cluster::resolver::SimpleClusterResolver;
use distribute::cluster::{ClusterError, Job};
use distribute::parameter_server::{FixedShardsPartitioner, MinSizePartitioner, PlacementPolicy};
use distribute::strategy::{DeviceName, VariablePlacement};
use distribute::{
    Error, HostTensor, LocalCluster, ParameterServerStrategy, ReduceOp, Strategy, Variable, nn,
};
use distribute_testing::watched;

fn build(spec: &str) -> Result<ParameterServerStrategy, Error> {
    let resolver = SimpleClusterResolver::new(spec.parse().unwrap());
    ParameterServerStrategy::new(resolver, FixedShardsPartitioner::new(2).unwrap())
}

// PSV2-2: all of it is checked in `strategy/parameter_server/members.rs`.
#[test]
fn psv2_2_a_cluster_without_servers_or_workers_is_refused() {
    assert!(matches!(build("{}"), Err(Error::InvalidArgument { .. })));
    for (spec, missing) in [(r#"{"worker": ["a:1"]}"#, Job::Ps), (r#"{"ps": ["a:1"]}"#, Job::Worker)] {
        let error = build(spec).unwrap_err();
        let Error::Cluster(error) = error else { panic!("{error}") };
        assert!(matches!(*error, ClusterError::NoSuchJob { job, .. } if job == missing));
    }
    let task = |job: Job| {
        ParameterServerStrategy::builder()
            .cluster_resolver(LocalCluster::new(1, 1).unwrap().resolver_of(job.task(0)))
            .build()
    };
    assert!(task(Job::Ps).unwrap_err().to_string().contains("this process is ps 0"));
    assert!(task(Job::Worker).is_ok() && task(Job::Chief).is_ok());
}

// PSV2-4, PSV2-5
#[test]
fn psv2_5_the_resolver_and_the_devices_of_servers_are_available() {
    let strategy = servers(3, 2);
    let resolver = strategy.cluster_resolver().unwrap();
    assert_eq!((resolver.task_type(), resolver.task_id()), (Some(Job::Chief), Some(0)));
    let extended = strategy.extended();
    assert_eq!(extended.parameter_devices(), [0, 1, 2].map(DeviceName::of_server));
    assert_eq!(extended.worker_devices(), [DeviceName::cpu(0)]);
    assert_eq!(extended.variable_placement(), VariablePlacement::Servers);
    assert_eq!((strategy.num_replicas_in_sync(), strategy.workers()), (1, 1));
    assert!(strategy.is_chief());
    let handle: Strategy = strategy.into();
    assert!(handle.to_string().starts_with("ParameterServerStrategy (1 replica"), "{handle}");
}

// PSV2-7
#[test]
fn psv2_7_collectives_span_the_replicas_of_one_worker() {
    watched(|| {
        let cluster = LocalCluster::new(2, 1).unwrap();
        let builder = ParameterServerStrategy::builder().cluster_resolver(cluster.resolver());
        let strategy = builder.devices(["cpu:0", "cpu:1", "cpu:2"]).build().unwrap();
        let sums = strategy.run((), |ctx, ()| {
            let id = ctx.replica_id_in_sync_group() as f32;
            Ok((ctx.all_reduce(ReduceOp::Sum, id)?, ctx.all_gather(HostTensor::vector(vec![id]), 0)?))
        });
        for (sum, all) in sums.unwrap().into_values() {
            assert_eq!((sum, all), (3., HostTensor::vector(vec![0f32, 1., 2.])));
        }
        let halves =
            strategy.distribute_values_from_function(|ctx| Ok(ctx.replica_id_in_sync_group as f32)).unwrap();
        assert_eq!(strategy.reduce(ReduceOp::Mean, halves, None).unwrap(), 1.);
    });
}

#[test]
fn place_1_shards_count_each_and_can_be_placed_by_bytes() {
    let make = |policy| {
        let builder =
            ParameterServerStrategy::builder().cluster_resolver(LocalCluster::new(1, 3).unwrap().resolver());
        let strategy =
            builder.partitioner(FixedShardsPartitioner::new(5).unwrap()).placement(policy).build().unwrap();
        let zeros = |rows: usize| HostTensor::new(vec![0f32; rows], [rows]).unwrap();
        let made = strategy.scope(|| {
            Ok([
                Variable::new("a", zeros(10))?,
                Variable::new("b", zeros(100))?,
                Variable::new("c", zeros(1))?,
            ])
        });
        let servers =
            |v: &Variable| v.shards().iter().map(|shard| shard.device.server.unwrap()).collect::<Vec<_>>();
        made.unwrap().iter().map(servers).collect::<Vec<_>>()
    };
    assert_eq!(make(PlacementPolicy::RoundRobin), [vec![0, 1, 2, 0, 1], vec![2, 0, 1, 2, 0], vec![1]]);
    assert_eq!(make(PlacementPolicy::GreedyByBytes), [vec![0, 1, 2, 0, 1], vec![2, 0, 1, 2, 0], vec![1]]);
}

// GNN-1: the shards are of 256 KiB at least, and as many as there are servers at most.
#[test]
fn gnn_1_the_partitioner_of_the_runner_partitions_by_bytes() {
    let cluster = LocalCluster::new(1, 4).unwrap();
    for (min_shard_bytes, shards) in [(256 << 10, 2), (1 << 10, 4), (1 << 30, 1)] {
        let partitioner = MinSizePartitioner::new(min_shard_bytes, 4).unwrap();
        let strategy = ParameterServerStrategy::new(cluster.resolver(), partitioner).unwrap();
        let table = strategy.scope(|| {
            Variable::new(format!("t{shards}"), HostTensor::new(vec![0f32; 100_000], [1000, 100])?)
        });
        assert_eq!(table.unwrap().shards().len(), shards);
    }
}

#[test]
fn the_guide_shows_the_placement_as_it_is_printed() {
    let guide = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/clusters/sharded-variables.md"
    ));
    let cluster = LocalCluster::new(1, 3).unwrap();
    let partitioner = MinSizePartitioner::new(256 << 10, 3).unwrap();
    let strategy = ParameterServerStrategy::new(cluster.resolver(), partitioner).unwrap();
    let model = strategy.replicate(|vb| {
        distribute::Ok((nn::embedding(50_000, 16, vb.pp("words"))?, nn::linear(16, 2, vb.pp("out"))?))
    });
    assert_eq!(model.unwrap().variables.names().len(), 3);
    let printed = format!("```text\n{}```\n", strategy.placement());
    assert!(guide.unwrap().contains(&printed), "{printed}");
}
