//! The items that most programs use.
//!
//! Traits whose methods have common names, such as `split`, are omitted, because they would shadow methods of `String`.

pub use crate::{
    Adam, AdamW, Checkpoint, Dataset, HostTensor, InputOptions, MirroredStrategy,
    MultiWorkerMirroredStrategy, Nest, OneDeviceStrategy, Optimizer, ParameterServerStrategy, PerReplica,
    ReduceOp, ReplicaContext, Replicated, Sgd, Strategy, Training, Variable, Variables,
};
