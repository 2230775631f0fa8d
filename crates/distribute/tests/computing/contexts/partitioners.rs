//! Tests of statements in the documentation of the runner's `ParameterServerStrategy` about the partition of variables
//! and the properties of the cluster.

use crate::contexts::{everywhere, servers};
use crate::support::log_of;
use distribute::cluster::Job;
use distribute::cluster::resolver::{ClusterResolver, TfConfigClusterResolver};
use distribute::data::{Dataset, Distribution, Layout, Location, text_lines};
use distribute::parameter_server::{FixedShardsPartitioner, MinSizePartitioner, Partitioner};
use distribute::strategy::{DeviceName, StrategyExtended};
use distribute::tensor::DType;
use distribute::{
    HostTensor, LocalCluster, MultiWorkerMirroredStrategy, ParameterServerStrategy, Strategy, Variable,
};
use distribute_testing::watched;
use std::sync::{Arc, Mutex};

fn rows(count: usize) -> HostTensor {
    HostTensor::vector(vec![0f32; count])
}

fn with(servers: usize, partitioner: impl Partitioner) -> ParameterServerStrategy {
    ParameterServerStrategy::new(LocalCluster::new(1, servers).unwrap().resolver(), partitioner).unwrap()
}

// The partitioner

#[test]
fn shard_1_without_a_partitioner_no_variable_is_sharded() {
    let strategy = servers(3);
    let v = strategy.scope(|| Variable::new("v", rows(1 << 18))).unwrap();
    assert_eq!((v.is_sharded(), v.shards().len(), v.devices().len()), (false, 1, 1));
}

/// A partitioner that makes two shards and records its arguments.
#[derive(Debug)]
struct Asked(Arc<Mutex<Vec<Vec<usize>>>>);

impl Partitioner for Asked {
    fn partitions(
        &self,
        shape: &[usize],
        dtype: DType,
        axis: usize,
    ) -> distribute_ps_tables::Result<Vec<usize>> {
        self.0.lock().unwrap().push(shape.to_vec());
        FixedShardsPartitioner::new(2)?.partitions(shape, dtype, axis)
    }
}

#[test]
fn shard_1_the_partitioner_is_called_for_each_variable_and_one_part_is_unsharded() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let strategy = with(2, Asked(asked.clone()));
    let made = strategy.scope(|| {
        let (table, one) = (Variable::new("table", rows(5))?, Variable::new("one", rows(1))?);
        let beside = strategy.colocate_vars_with(&table, || Variable::new("beside", rows(7)))?;
        Ok([table, one, beside])
    });
    let cut = made.unwrap().map(|v| (v.is_sharded(), v.shards().len()));
    assert_eq!(cut, [(true, 2), (false, 1), (false, 1)]);
    // COLO-4: the partitioner is not called for a variable that is created beside another one.
    assert_eq!(*asked.lock().unwrap(), [[5], [1]]);
}

#[test]
fn shard_3_thirteen_ids_over_five_shards_are_in_order_and_the_first_have_one_more() {
    let strategy = with(5, FixedShardsPartitioner::new(5).unwrap());
    let v = strategy.scope(|| Variable::new("v", rows(13))).unwrap();
    let ids = v.shards().into_iter().map(|shard| shard.rows.collect::<Vec<_>>()).collect::<Vec<_>>();
    assert_eq!(ids, [vec![0, 1, 2], vec![3, 4, 5], vec![6, 7, 8], vec![9, 10], vec![11, 12]]);
}

/// Checks that there are at most as many shards as servers, and that each shard is on a different server.
#[test]
fn part_3_by_least_size_each_server_has_one_shard_at_most() {
    let strategy = with(3, MinSizePartitioner::new(256 << 10, 3).unwrap());
    for (bytes, shards) in [(256 << 10, 1), (512 << 10, 2), (768 << 10, 3), (8 << 20, 3)] {
        let v = strategy.scope(|| Variable::new(format!("v{bytes}"), rows(bytes / 4))).unwrap();
        let mut on: Vec<_> = v.shards().iter().map(|shard| shard.device.server.unwrap()).collect();
        on.sort_unstable();
        on.dedup();
        assert_eq!((v.shards().len(), on.len()), (shards, shards), "{bytes} bytes");
        assert!(v.shards().iter().all(|shard| shard.dims[0] * 4 >= 256 << 10), "{bytes} bytes");
    }
}

// What is known of the cluster

/// A custom strategy with the resolver of its cluster.
#[derive(Debug)]
struct Found([DeviceName; 1], Option<TfConfigClusterResolver>);

impl StrategyExtended for Found {
    fn kind(&self) -> &'static str {
        "Found"
    }
    fn worker_devices(&self) -> &[DeviceName] {
        &self.0
    }
    fn cluster_resolver(&self) -> Option<&dyn ClusterResolver> {
        self.1.as_ref().map(|resolver| resolver as &dyn ClusterResolver)
    }
}

#[test]
fn str_5_the_resolver_comes_from_the_strategy_and_has_the_task() {
    let config = r#"{"cluster": {"worker": ["localhost:12345", "localhost:23456"], "ps": ["localhost:34567"]},
        "task": {"type": "worker", "index": 0}}"#;
    let resolver = TfConfigClusterResolver::new(config.parse().unwrap());
    let strategy = Strategy::new(Found([DeviceName::cpu(0)], Some(resolver))).unwrap();
    let resolver = strategy.cluster_resolver().unwrap();
    assert_eq!((resolver.task_type(), resolver.task_id()), (Some(Job::Worker), Some(0)));
    assert_ne!(resolver.task_type(), Some(Job::Ps));
    assert_eq!(resolver.cluster_spec().unwrap().num_tasks(&Job::Ps).unwrap(), 1);
    // There is none if the author of a strategy has set none, or in a strategy of one process.
    assert!(Strategy::new(Found([DeviceName::cpu(0)], None)).unwrap().cluster_resolver().is_none());
    watched(|| {
        let here = |strategy: &Strategy| strategy.extended().parameter_servers().is_none();
        everywhere(|s| assert_eq!(s.cluster_resolver().is_none(), here(s), "{s}"));
    });
}

// Input over workers

/// Checks that infinite datasets of workers differ only in the seed.
#[test]
fn fn_1_workers_of_a_dataset_without_end_differ_in_their_seeds_alone() {
    watched(|| {
        let each = MultiWorkerMirroredStrategy::on_threads(2, 1, |strategy| {
            let data = strategy.distribute_datasets_from_function(|context| {
                let batch = context.get_per_replica_batch_size(8)?;
                let seed = context.input_pipeline_id as u64;
                Ok(Dataset::range(8).shuffle(8, seed).repeat_forever().batch(batch))
            })?;
            let ids = |step: distribute::PerReplica<HostTensor>| step.values()[0].to_vec::<i64>();
            let steps = data.iter().take(4).map(|step| Ok(ids(step?).unwrap()));
            Ok(steps.collect::<distribute::Result<Vec<_>>>()?.concat())
        });
        let each = each.unwrap();
        assert_ne!(each[0], each[1]);
        for of_worker in each {
            for epoch in of_worker.chunks(8) {
                let mut epoch = epoch.to_vec();
                epoch.sort_unstable();
                assert_eq!(epoch, (0..8).collect::<Vec<_>>());
            }
        }
    });
}

/// Checks the warning that all workers read all data (AS-8). TensorFlow also warns about data in memory, which costs
/// nothing to read.
#[test]
fn as_8_that_every_worker_reads_everything_is_warned_of_where_it_reads_files() {
    let two = Layout { workers: 2, replicas: 1 };
    let of_files = log_of(|| {
        let lines = text_lines(Location::bytes("lines", "a\nb\n")).batch(2);
        Distribution::new(&lines, two, Default::default()).unwrap();
    });
    assert_eq!(of_files.matches("WARN").count(), 1, "{of_files}");
    assert!(of_files.contains("every worker reads all files"), "{of_files}");
    let mut explained = String::new();
    let of_range = log_of(|| {
        let parted = Distribution::new(&Dataset::range(4).batch(2), two, Default::default()).unwrap();
        explained = parted.explain();
    });
    assert_eq!(of_range, "");
    assert!(
        explained.contains("policy DATA (AUTO)") && explained.contains("reads everything"),
        "{explained}"
    );
}
