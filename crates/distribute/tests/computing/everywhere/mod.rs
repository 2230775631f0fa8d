//! Strategies of all kinds, for tests of rules that the documents state for all of them.

use crate::support::cluster::{Cluster, is_task};
use distribute::cluster::resolver::ClusterResolver;
use distribute::context::get_strategy;
use distribute::parameter_server::FixedShardsPartitioner;
use distribute::{
    CentralStorageStrategy, LocalCluster, MirroredStrategy, MultiWorkerMirroredStrategy, OneDeviceStrategy,
    ParameterServerStrategy, PerReplica, Strategy, Variable,
};
use distribute_testing::watched;

const SERVERS: usize = 2;

/// Calls `check` under a strategy of each kind, and returns the name of the strategy and the result of each worker.
/// The kinds are: no strategy, one device, mirrored, central storage, parameter servers in this process and in
/// separate processes, both with unsharded and with sharded variables, and several workers.
pub fn everywhere<O: Send + 'static>(check: impl Fn(&Strategy) -> O + Sync) -> Vec<(String, Vec<O>)> {
    let one_process: [(&str, Strategy); 5] = [
        ("the default strategy", get_strategy()),
        ("one device", OneDeviceStrategy::new("cpu:1").unwrap()),
        ("2 mirrored replicas", MirroredStrategy::cpus(2).unwrap()),
        ("3 mirrored replicas", MirroredStrategy::cpus(3).unwrap()),
        ("central storage", CentralStorageStrategy::new(["cpu:0", "cpu:1"], "cpu:1").unwrap()),
    ];
    let mut all: Vec<_> =
        one_process.iter().map(|(name, one)| (name.to_string(), vec![check(one)])).collect();
    for (replicas, shards, is_local) in [(1, 1, true), (2, 2, true), (1, 2, false), (2, 1, false)] {
        let name =
            format!("{replicas} replicas and servers {}", if is_local { "here" } else { "in processes" });
        let found = if is_local {
            check(&on_servers(LocalCluster::new(1, SERVERS).unwrap().resolver(), replicas, shards))
        } else {
            let servers = in_processes();
            check(&on_servers(servers.resolver(), replicas, shards))
        };
        all.push((name, vec![found]));
    }
    for (workers, replicas) in [(2, 1), (2, 2), (3, 1)] {
        let each = MultiWorkerMirroredStrategy::on_threads(workers, replicas, |one| Ok(check(one)));
        let name = format!("{workers} workers of {replicas} replicas");
        all.push((name.clone(), each.unwrap_or_else(|error| panic!("{name}: {error}"))));
    }
    all
}

/// Returns a value for each replica of this worker, computed from the replica's global id.
pub fn each<T>(strategy: &Strategy, value: impl Fn(usize) -> T) -> PerReplica<T> {
    strategy.distribute_values_from_function(|ctx| Ok(value(ctx.replica_id_in_sync_group))).unwrap()
}

/// Returns the values that [`each`] returns on all workers together.
pub fn of_all<T>(strategy: &Strategy, value: impl FnMut(usize) -> T) -> Vec<T> {
    (0..strategy.num_replicas_in_sync()).map(value).collect()
}

/// Creates a strategy with variables on servers, in the given number of shards.
fn on_servers(cluster: impl ClusterResolver + 'static, replicas: usize, shards: usize) -> Strategy {
    let builder = ParameterServerStrategy::builder().cluster_resolver(cluster);
    let builder = builder.devices(["cpu:0", "cpu:1"].into_iter().take(replicas));
    builder.partitioner(FixedShardsPartitioner::new(shards).unwrap()).build().unwrap().into()
}

/// Starts parameter servers in separate processes, which are killed when the cluster is dropped.
fn in_processes() -> Cluster {
    const TEST: &str = "everywhere::parameter_servers_are_processes";
    Cluster::builder(TEST, 1, SERVERS).without_workers().in_memory().start()
}

#[test]
fn parameter_servers_are_processes() {
    if is_task() {
        return;
    }
    watched(|| {
        let servers = in_processes();
        let strategy = on_servers(servers.resolver(), 1, 2);
        let v =
            strategy.scope(|| Variable::new("v", distribute::HostTensor::vector(vec![1f32, 2.]))).unwrap();
        assert_eq!(v.shards().len(), 2);
        v.assign_add(distribute::HostTensor::vector(vec![1f32, 1.])).unwrap();
        assert_eq!(v.read::<distribute::HostTensor>().unwrap().to_vec::<f32>().unwrap(), [2., 3.]);
    });
}
