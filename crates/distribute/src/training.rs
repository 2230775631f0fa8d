//! Training runs that survive the loss of a worker, and shut down gracefully when a scheduler sends a notice.

#[doc(alias = "tf.distribute.experimental.PreemptionCheckpointHandler")]
#[doc(alias = "PreemptionCheckpointHandler")]
#[doc(alias = "tf.distribute.experimental.TerminationConfig")]
#[doc(alias = "TerminationConfig")]
#[doc(alias = "tf.distribute.experimental.PreemptionWatcher")]
#[doc(alias = "PreemptionWatcher")]
#[doc(inline)]
pub use distribute_train::Preemption;
#[doc(inline)]
pub use distribute_train::{Training, TrainingBuilder};
