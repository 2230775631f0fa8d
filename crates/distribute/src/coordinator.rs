//! The coordinator of a training run with parameter servers, which schedules functions on workers.
//!
//! The functions are [`remote`](mod@crate::remote) functions.

#[doc(alias = "tf.distribute.experimental.coordinator.ClusterCoordinator")]
#[doc(alias = "tf.distribute.coordinator.ClusterCoordinator")]
#[doc(inline)]
pub use distribute_parameter_server::ClusterCoordinator;
#[doc(inline)]
pub use distribute_parameter_server::{ClusterCoordinatorBuilder, Fetch, Status, WorkerStatus};
#[doc(inline)]
pub use distribute_ps_client::RunningClosure;
