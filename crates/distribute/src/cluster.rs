//! Clusters, resolvers, deadlines, and the errors of collectives.

// By items, so that these docs include them without building those of other crates.
#[doc(alias = "tf.train.ClusterSpec")]
#[doc(inline)]
pub use distribute_cluster::ClusterSpec;
#[doc(alias = "task_type")]
#[doc(inline)]
pub use distribute_cluster::Job;
#[doc(inline)]
pub use distribute_cluster::*;
