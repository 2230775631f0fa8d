//! A strategy configured only by the environment, as in TensorFlow's runner for graph networks.

use distribute_base::Result;
use distribute_cluster::Job;
use distribute_cluster::resolver;
use distribute_parameter_server::ParameterServerStrategy;
use distribute_ps_tables::MinSizePartitioner;

/// Creates a [`ParameterServerStrategy`] for the cluster that `TF_CONFIG`, Slurm or MPI describes, with variables
/// partitioned over all servers.
///
/// A variable has as many shards as there are parameter servers, unless shards would be smaller than `min_shard_bytes`;
/// `None` means 256 KiB. Call this in the task that runs the training loop. It does not start servers in the other
/// tasks. Use [`serve`](distribute_parameter_server::serve) for that.
///
/// # Errors
/// - [`Error::Cluster`](distribute_base::Error::Cluster): the environment is malformed, or the cluster has no
///   parameter servers.
/// - [`Error::Params`](distribute_base::Error::Params): `min_shard_bytes` is 0.
/// - The errors of [`ParameterServerStrategy::new`].
#[doc(alias = "tfgnn.runner.ParameterServerStrategy")]
#[doc(alias = "ParameterServerStrategy")]
#[track_caller]
pub fn parameter_server_strategy_from_env(min_shard_bytes: Option<usize>) -> Result<ParameterServerStrategy> {
    let resolver = resolver::from_env()?;
    // GNN-1: before anything else is checked.
    let servers = resolver.cluster_spec()?.num_tasks(&Job::Ps)?;
    let partitioner = MinSizePartitioner::new(min_shard_bytes.unwrap_or(256 << 10), servers.max(1))?;
    ParameterServerStrategy::builder().partitioner(partitioner).build()
}
