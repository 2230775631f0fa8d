//! The matrix of strategies, for tests of rules that the documents state for all of them.

use distribute::cluster::resolver::{ClusterResolver, SimpleClusterResolver};
use distribute::params::FixedShardsPartitioner;
use distribute::{
    CentralStorageStrategy, ClusterSpec, Job, LocalCluster, MirroredStrategy, MultiWorkerMirroredStrategy,
    OneDeviceStrategy, ParameterServerStrategy, Serve, Strategy, Variable, get_strategy,
};
use distribute_testing::{Port, child, watched};
use std::process::Stdio;

const SERVERS: usize = 2;

/// Calls `check` under a strategy of each kind, and returns the name of the strategy and the result of each worker.
/// The kinds are: no strategy, one device, mirrored, central storage, parameter servers in this process and in
/// separate processes, both with unsharded and with sharded variables, and several workers.
pub fn everywhere<O: Send + 'static>(check: impl Fn(&Strategy) -> O + Sync) -> Vec<(String, Vec<O>)> {
    let one_process: [(&str, Strategy); 5] = [
        ("the default strategy", get_strategy()),
        ("one device", OneDeviceStrategy::new("cpu:1").unwrap().into()),
        ("2 mirrored replicas", MirroredStrategy::cpus(2).unwrap().into()),
        ("3 mirrored replicas", MirroredStrategy::cpus(3).unwrap().into()),
        ("central storage", CentralStorageStrategy::new(["cpu:0", "cpu:1"], "cpu:1").unwrap().into()),
    ];
    let mut all: Vec<_> =
        one_process.iter().map(|(name, one)| (name.to_string(), vec![check(one)])).collect();
    for (replicas, shards, is_local) in [(1, 1, true), (2, 2, true), (1, 2, false), (2, 1, false)] {
        let name =
            format!("{replicas} replicas and servers {}", if is_local { "here" } else { "in processes" });
        let found = if is_local {
            check(&on_servers(LocalCluster::new(1, SERVERS).unwrap().resolver(), replicas, shards))
        } else {
            let servers = Processes::start();
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

/// Creates a strategy with variables on servers, in this number of shards.
fn on_servers(cluster: impl ClusterResolver + 'static, replicas: usize, shards: usize) -> Strategy {
    let builder = ParameterServerStrategy::builder().cluster_resolver(cluster);
    let builder = builder.devices(["cpu:0", "cpu:1"].into_iter().take(replicas));
    builder.partitioner(FixedShardsPartitioner::new(shards).unwrap()).build().unwrap().into()
}

/// Parameter servers in separate processes, which are killed when this is dropped.
struct Processes {
    cluster: String,
    _ports: Vec<Port>,
    _all: Vec<child::Killed>,
}

const SERVE: &str = "everywhere::parameter_servers_are_processes";

impl Processes {
    fn start() -> Self {
        let ports: Vec<_> = (0..=SERVERS).map(|_| Port::reserve()).collect();
        let at: Vec<_> = ports.iter().map(|port| port.address().to_string()).collect();
        let cluster = format!("{{\"worker\": [{:?}], \"ps\": {:?}}}", at[0], &at[1..]);
        let start = |number| {
            let mut command = child::command(SERVE, &format!("{number}\n{cluster}"));
            child::Killed(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
        };
        let all = (0..SERVERS).map(start).collect();
        Self { cluster, _ports: ports, _all: all }
    }

    fn resolver(&self) -> SimpleClusterResolver {
        SimpleClusterResolver::new(self.cluster.parse::<ClusterSpec>().unwrap())
    }
}

#[test]
fn parameter_servers_are_processes() {
    if let Some(part) = child::part() {
        let (number, cluster) = part.split_once('\n').unwrap();
        let task = Job::Ps.task(number.parse().unwrap());
        let resolver = SimpleClusterResolver::new(cluster.parse::<ClusterSpec>().unwrap()).with_task(task);
        assert!(Serve::new().run(&resolver).unwrap());
        return;
    }
    watched(|| {
        let servers = Processes::start();
        let strategy = on_servers(servers.resolver(), 1, 2);
        let v =
            strategy.scope(|| Variable::new("v", distribute::HostTensor::vector(vec![1f32, 2.]))).unwrap();
        assert_eq!(v.shards().len(), 2);
        v.assign_add(distribute::HostTensor::vector(vec![1f32, 1.])).unwrap();
        assert_eq!(v.read::<distribute::HostTensor>().unwrap().to_vec::<f32>().unwrap(), [2., 3.]);
    });
}
