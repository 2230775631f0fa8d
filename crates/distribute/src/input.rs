//! Datasets that are distributed over replicas, with one per-replica batch for each replica in each step.

#[doc(alias = "tf.distribute.DistributedDataset")]
#[doc(inline)]
pub use distribute_core::DistributedDataset;
#[doc(alias = "tf.distribute.DistributedIterator")]
#[doc(alias = "tf.distribute.DistributedIterator.get_next")]
#[doc(alias = "tf.distribute.DistributedIterator.get_next_as_optional")]
#[doc(inline)]
pub use distribute_core::DistributedIterator;
#[doc(alias = "tf.distribute.InputOptions")]
#[doc(inline)]
pub use distribute_core::InputOptions;
#[doc(alias = "tf.distribute.InputReplicationMode")]
#[doc(inline)]
pub use distribute_core::InputReplicationMode;
#[doc(inline)]
pub use distribute_core::LookAhead;
