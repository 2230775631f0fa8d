//! [`ParameterServerStrategy`]: the constructor that trainers of graph networks use, from the environment alone.

use distribute_base::Result;
use distribute_cluster::Job;
use distribute_cluster::resolver::{ClusterResolver, TfConfigClusterResolver};
use distribute_parameter_server as strategy;
use distribute_ps_tables::MinSizePartitioner;

/// A namespace for parameter servers from `TF_CONFIG`, with variables that are partitioned over all of them.
pub enum ParameterServerStrategy {}

impl ParameterServerStrategy {
    /// Creates a [`ParameterServerStrategy`](strategy::ParameterServerStrategy) of the cluster in `TF_CONFIG`.
    ///
    /// A variable has as many shards as there are parameter servers, but no shard has fewer than
    /// `min_shard_bytes`; `None` means 256 KiB. Call this in the task that runs the training loop. It does not
    /// start servers in the tasks of parameter servers.
    ///
    /// # Errors
    /// - [`Error::Cluster`](distribute_base::Error::Cluster): `TF_CONFIG` is malformed or has no parameter servers.
    /// - [`Error::Params`](distribute_base::Error::Params): `min_shard_bytes` is 0.
    /// - The errors of [`ParameterServerStrategy::new`](strategy::ParameterServerStrategy::new).
    #[doc(alias = "tfgnn.runner.ParameterServerStrategy")]
    #[doc(alias = "ParameterServerStrategy")]
    #[track_caller]
    #[expect(
        clippy::new_ret_no_self,
        reason = "the name is that of the documents; what is made is the one strategy there is"
    )]
    pub fn new(min_shard_bytes: Option<usize>) -> Result<strategy::ParameterServerStrategy> {
        let resolver = TfConfigClusterResolver::from_env()?;
        // GNN-1: before anything else is checked.
        let servers = resolver.cluster_spec()?.num_tasks(&Job::Ps)?;
        let partitioner = MinSizePartitioner::new(min_shard_bytes.unwrap_or(256 << 10), servers.max(1))?;
        strategy::ParameterServerStrategy::new(resolver, partitioner)
    }
}
