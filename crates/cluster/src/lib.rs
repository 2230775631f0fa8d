//! Cluster membership, deadlines, and the decision which replicas caused an error. This crate starts no thread, and
//! opens a socket only with the feature `gce` or `kubernetes`. Most modules use neither the clock, nor environment
//! variables, nor the network.
//!
//! | module | contents |
//! |---|---|
//! | [`deadline`] | [`Deadline`]: a limit on the time of a wait. The only module that reads the clock |
//! | [`fingerprint`] | [`Fingerprint`]: the call that a member makes, and whether two members make the same one |
//! | [`status`] | [`ReplicaStatus`]: the current state and the past calls of a member |
//! | [`blame`], `blame_text` | [`Blame`]: the members that prevented a call from completing, and the text of that error |
//! | `corruption` | [`Corruption`]: data that changed on its way between workers |
//! | [`flight_recorder`] | [`FlightRecorder`]: the last calls of a worker |
//! | [`admission`] | [`Guests`](admission::Guests), [`Seats`](admission::Seats): the assignment of a limited number of places |
//! | [`world`] | [`World`]: the numbers of workers and replicas, and the rank of this process |
//! | `spec`, `task`, `address` | [`ClusterSpec`]: the tasks of a cluster; [`Job`], [`Task`], [`Address`] |
//! | `process` | [`Process`]: the task and the address of a worker |
//! | `roles` | the role of a task: its rank, the number of workers, the leader; the [`World`] of a cluster |
//! | `tf_config` | [`TfConfig`]: the contents of `TF_CONFIG`, parsed and printed |
//! | [`resolver`] | [`ClusterResolver`](resolver::ClusterResolver): finds the cluster from `TF_CONFIG`, Slurm, MPI, … |
//! | [`environment`] | the environment variables that resolvers read |
//! | [`bounded`] | [`Budget`](bounded::Budget): a limit on the memory that a decoded message may take |
//! | [`http`] | HTTP requests of resolvers that call an API; the client requires the feature `gce` or `kubernetes` |
//! | `error`, `malformed`, `words` | [`ClusterError`]: an error in a cluster, and its location |
//! | `json` | JSON values from other programs, with their paths |
//!
//! The *members* of a collective call are the replicas, identified by their global ids. Everything that members send to
//! each other can be serialized.

#![forbid(unsafe_code)]

mod address;
pub mod admission;
pub mod blame;
mod blame_text;
pub mod bounded;
mod corruption;
pub mod deadline;
pub mod environment;
mod error;
pub mod fingerprint;
pub mod flight_recorder;
pub mod http;
mod json;
mod malformed;
mod process;
pub mod resolver;
mod roles;
mod spec;
pub mod status;
mod task;
mod tf_config;
mod words;
pub mod world;

pub use address::{Address, Host};
pub use blame::{Blame, Callers, Cause, Fault};
pub use corruption::Corruption;
pub use deadline::{Deadline, Stopwatch, processor_time, rounded};
pub use error::ClusterError;
pub use fingerprint::{CallSite, Fingerprint, Operation, fnv1a};
pub use flight_recorder::{FlightRecorder, Progress, RECORDED_CALLS, RecordedCall};
pub use malformed::Malformed;
pub use process::{Process, locations};
#[doc(alias = "tf.train.ClusterSpec")]
pub use spec::ClusterSpec;
pub use status::{Presence, ReplicaStatus};
#[doc(alias = "task_type")]
pub use task::Job;
pub use task::{MAX_TASK_INDEX, OtherJob, Task};
pub use tf_config::{OwnTask, TF_CONFIG, TfConfig};
pub use world::{ReplicaCount, World, WorldError};

/// Items for other crates of this project. They are not part of the public interface and may change at any time.
#[doc(hidden)]
pub mod internal {
    pub use crate::resolver::port_blocks::first_port_in_shell;
}
