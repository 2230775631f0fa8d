//! [`ParameterServerStrategy`]: the strategy that trainers of graph networks make, from the environment alone.

use distribute_base::Result;
use distribute_cluster::Job;
use distribute_cluster::resolver::{ClusterResolver, TfConfigClusterResolver};
use distribute_parameter_server as strategy;
use distribute_params::MinSizePartitioner;

/// Parameter servers as `TF_CONFIG` has them, with variables that are cut over all of them.
pub enum ParameterServerStrategy {}

impl ParameterServerStrategy {
    /// A [`ParameterServerStrategy`](strategy::ParameterServerStrategy) of the cluster in `TF_CONFIG`, in which a variable has as
    /// many shards as there are parameter servers, but none of less than `min_shard_bytes`: 256 KiB where that is `None`.
    ///
    /// It is made where training is led. Tasks of parameter servers are started as servers; this does not do that.
    ///
    /// # Errors
    /// [`Error::Cluster`](distribute_base::Error::Cluster) where `TF_CONFIG` is malformed or has no parameter servers,
    /// [`Error::Params`](distribute_base::Error::Params) for shards of 0 bytes, and those of
    /// [`ParameterServerStrategy::new`](strategy::ParameterServerStrategy::new).
    #[doc(alias = "tfgnn.runner.ParameterServerStrategy")]
    #[doc(alias = "ParameterServerStrategy")]
    #[track_caller]
    #[expect(
        clippy::new_ret_no_self,
        reason = "the name is that of the documents; what is made is the one strategy there is"
    )]
    pub fn new(min_shard_bytes: Option<usize>) -> Result<strategy::ParameterServerStrategy> {
        let resolver = TfConfigClusterResolver::from_env()?;
        // GNN-1: before anything else is looked at.
        let servers = resolver.cluster_spec()?.num_tasks(&Job::Ps)?;
        let partitioner = MinSizePartitioner::new(min_shard_bytes.unwrap_or(256 << 10), servers.max(1))?;
        strategy::ParameterServerStrategy::new(resolver, partitioner)
    }
}
