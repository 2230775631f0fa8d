//! Who takes part, how long to wait for them, and who is to blame. Pure decisions: no thread, and no socket but that of a
//! feature.
//!
//! | module | what it is |
//! |---|---|
//! | [`deadline`] | [`Deadline`]: how long a wait may last. The only module that reads the clock |
//! | [`fingerprint`] | [`Fingerprint`]: what a member is doing, and whether two members do the same |
//! | [`standing`] | [`Standing`]: what a member is doing and has done |
//! | [`blame`], `blame_text` | [`Blame`]: who did not do what the others waited for, and what it says |
//! | [`flight_recorder`] | [`FlightRecorder`]: what a worker did last |
//! | [`places`] | [`Guests`](places::Guests), [`Seats`](places::Seats): who gets one of a limited number of places |
//! | [`world`] | [`World`]: how many take part, and which of them this process is |
//! | `spec`, `task`, `address` | [`ClusterSpec`]: the tasks of a cluster and where they listen; [`Job`], [`Task`], [`Address`] |
//! | `process` | [`Process`]: where a worker of a world is |
//! | `roles` | what follows for a task: its rank, how many work with it, who leads; the [`World`] of a cluster |
//! | `tf_config` | [`TfConfig`]: `TF_CONFIG`, read and written |
//! | [`resolver`] | [`ClusterResolver`](resolver::ClusterResolver): where the cluster is found out: `TF_CONFIG`, Slurm, MPI, … |
//! | [`environment`] | where resolvers look up environment variables |
//! | [`bounded`] | [`Budget`](bounded::Budget): the memory that what is decoded of a message may take |
//! | [`http`] | what resolvers that ask an API need; the client is behind the features `gce` and `kubernetes` |
//! | `error`, `malformed`, `words` | [`ClusterError`]: what is wrong with a cluster, and where |
//!
//! Members identify replicas by their global ids, and everything they tell each other can be serialized.
//!
//! ```
//! use distribute_cluster::{Blame, Fingerprint, Operation, Standing};
//! use std::panic::Location;
//!
//! let reduce = Fingerprint::new(Operation::AllReduce, "SUM float32[2]", Location::caller());
//! let gather = Fingerprint::new(Operation::AllGather, "axis 0 of float32[2]", Location::caller());
//! let blame = Blame::judge(7, &[Standing::waiting(0, reduce), Standing::waiting(1, gather)]);
//! assert!(blame.is_some_and(|b| b.to_string().contains("replica 1 called all_gather")));
//! ```

#![forbid(unsafe_code)]

mod address;
pub mod blame;
mod blame_text;
pub mod bounded;
pub mod deadline;
pub mod environment;
mod error;
pub mod fingerprint;
pub mod flight_recorder;
pub mod http;
mod json;
mod malformed;
pub mod places;
mod process;
pub mod resolver;
mod roles;
mod spec;
pub mod standing;
mod task;
mod tf_config;
mod words;
pub mod world;

pub use address::{Address, Host};
pub use blame::{Blame, Callers, Cause, Fault};
pub use deadline::{Deadline, Stopwatch, rounded};
pub use error::ClusterError;
pub use fingerprint::{CallSite, Fingerprint, Operation, fnv1a};
pub use flight_recorder::{FlightRecorder, Progress, RECORDED_CALLS, RecordedCall};
pub use malformed::Malformed;
pub use process::{Process, located};
#[doc(alias = "tf.train.ClusterSpec")]
pub use spec::ClusterSpec;
pub use standing::{Presence, Standing};
#[doc(alias = "task_type")]
pub use task::Job;
pub use task::{MAX_TASK_INDEX, OtherJob, Task};
pub use tf_config::{OwnTask, TF_CONFIG, TfConfig};
pub use world::{World, WorldError};
