//! Checkpoints of a training run: several components that are saved and restored together.

#[doc(inline)]
pub use distribute_core::checkpoint::{
    Checkpoint, CheckpointError, CheckpointManager, Checkpointed, Description, HeldTensors, LiveTensors,
    Metadata, PendingSave, Reader, Restore, RestoreFilter, RestoreReport, RowPosition, SaveHandle,
    SourceError, Unrestored, Value, Writer,
};

#[cfg(feature = "tensorflow-checkpoints")]
pub mod tensorflow {
    //! TensorFlow's checkpoints and the variables of SavedModels, read without TensorFlow.

    #[doc(inline)]
    #[doc(alias = "tf.train.load_checkpoint")]
    #[doc(alias = "tf.train.load_variable")]
    #[doc(alias = "tf.train.list_variables")]
    pub use distribute_tf_checkpoint::TfCheckpoint;
    #[doc(inline)]
    pub use distribute_tf_checkpoint::{Mapping, ObjectPath};
}
