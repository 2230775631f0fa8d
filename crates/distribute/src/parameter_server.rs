//! Parameter servers: the strategy that stores variables on servers, the tasks that serve, partitioners and placement.
//!
//! A program with several tasks calls [`serve`] first. A [`LocalCluster`] has all its tasks in one process. A
//! [`Partitioner`] splits a variable into shards, and a [`PlacementPolicy`] chooses the server of each shard.
//! [`DynamicTable`] is a table whose ids are not known in advance.

#[doc(alias = "tf.distribute.ParameterServerStrategy")]
#[doc(alias = "tf.distribute.experimental.ParameterServerStrategy")]
#[doc(inline)]
pub use distribute_parameter_server::ParameterServerStrategy;
#[doc(inline)]
pub use distribute_parameter_server::{ParameterServerStrategyBuilder, Role, ServeBuilder, serve};
#[doc(inline)]
pub use distribute_ps_client::{HotRowUsage, HotRows, RowCacheOptions, RowCacheUsage};
#[doc(inline)]
pub use distribute_ps_client::{LocalCluster, LocalClusterResolver, ParameterServers};
#[doc(alias = "tfra.dynamic_embedding.Variable")]
#[doc(inline)]
pub use distribute_ps_tables::DynamicTable;
#[doc(inline)]
pub use distribute_ps_tables::Error as TableError;
#[doc(alias = "tf.distribute.experimental.partitioners.FixedShardsPartitioner")]
#[doc(inline)]
pub use distribute_ps_tables::FixedShardsPartitioner;
#[doc(alias = "tf.distribute.experimental.partitioners.MaxSizePartitioner")]
#[doc(inline)]
pub use distribute_ps_tables::MaxSizePartitioner;
#[doc(alias = "tf.distribute.experimental.partitioners.MinSizePartitioner")]
#[doc(inline)]
pub use distribute_ps_tables::MinSizePartitioner;
#[doc(alias = "tf.distribute.experimental.partitioners.Partitioner")]
#[doc(inline)]
pub use distribute_ps_tables::Partitioner;
#[doc(inline)]
pub use distribute_ps_tables::PrefetchUsage;
#[doc(inline)]
pub use distribute_ps_tables::{
    DynamicOptions, DynamicState, Eviction, Initializer, PartitionStrategy, PartitionerSpec, Placed,
    Placement, PlacementPolicy, PlacementSnapshot, RowReads, Usage, partition, shard_name,
};
