//! Variables on parameter servers, in this process or in others.

use distribute::cluster::resolver;
use distribute::params::MinSizePartitioner;
use distribute::prelude::*;
use distribute::{LocalCluster, ParameterServerStrategy};
use std::sync::OnceLock;

/// Servers of this process, where no cluster is given.
const SERVERS: usize = 2;

/// A variable has no shards of fewer bytes.
const SHARD: usize = 256 << 10;

/// That of this program, whose servers end with it.
static STRATEGY: OnceLock<ParameterServerStrategy> = OnceLock::new();

/// The strategy of the process that trains. A parameter server, and a worker, serves until that one is through, and ends here.
pub fn strategy() -> distribute::Result<Strategy> {
    let found = resolver::from_env()?;
    let cluster = found.cluster_spec()?;
    let strategy = if cluster.is_empty() {
        let cluster = LocalCluster::new(1, SERVERS)?;
        ParameterServerStrategy::new(cluster.resolver(), MinSizePartitioner::new(SHARD, SERVERS)?)?
    } else {
        if distribute::serve(&*found)? {
            std::process::exit(0);
        }
        let servers = cluster.num_tasks(&distribute::Job::Ps)?;
        ParameterServerStrategy::builder()
            .partitioner(MinSizePartitioner::new(SHARD, servers.max(1))?)
            .build()?
    };
    Ok(STRATEGY.get_or_init(|| strategy).clone().into())
}

/// Ends the servers in other processes.
pub fn end() {
    if let Some(strategy) = STRATEGY.get()
        && let Err(error) = strategy.end_servers()
    {
        eprintln!("distribute: {error}");
    }
}
