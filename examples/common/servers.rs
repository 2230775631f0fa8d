//! Variables on parameter servers, in this process or in others.

use distribute::cluster::resolver;
use distribute::params::MinSizePartitioner;
use distribute::{LocalCluster, ParameterServerStrategy};
use std::sync::OnceLock;

/// The number of servers in this process, if neither a cluster nor another number is given.
const SERVERS: usize = 2;

/// The minimum size of a shard, in bytes.
const SHARD: usize = 256 << 10;

/// The strategy of this program, whose servers end with it.
static STRATEGY: OnceLock<ParameterServerStrategy> = OnceLock::new();

/// Returns the strategy of the process that trains. Without a cluster, it has this number of workers and
/// servers in this process. A process of a parameter server or worker serves until the chief has finished,
/// and exits here.
pub fn strategy(workers: usize, servers: Option<usize>) -> distribute::Result<ParameterServerStrategy> {
    let found = resolver::from_env()?;
    let cluster = found.cluster_spec()?;
    let strategy = if cluster.is_empty() {
        let servers = servers.unwrap_or(SERVERS);
        let cluster = LocalCluster::new(workers, servers)?;
        ParameterServerStrategy::new(cluster.resolver(), MinSizePartitioner::new(SHARD, servers)?)?
    } else {
        if distribute::serve(&*found)? {
            std::process::exit(0);
        }
        let servers = cluster.num_tasks(&distribute::Job::Ps)?;
        ParameterServerStrategy::builder()
            .partitioner(MinSizePartitioner::new(SHARD, servers.max(1))?)
            .build()?
    };
    Ok(STRATEGY.get_or_init(|| strategy).clone())
}

/// Ends the servers in other processes.
pub fn end() {
    if let Some(strategy) = STRATEGY.get()
        && let Err(error) = strategy.end_servers()
    {
        eprintln!("distribute: {error}");
    }
}
