//! Checkpoints of a training run: several components that are saved and restored together.

#[doc(inline)]
pub use distribute_core::checkpoint::{
    Checkpoint, CheckpointError, CheckpointManager, Checkpointed, Description, Metadata, Reader, Restore,
    RestoreFilter, RestoreReport, Unrestored, Value, Writer,
};
