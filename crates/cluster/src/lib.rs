//! Membership, deadlines and blame: pure decisions. There is no thread, and no socket except behind a
//! feature.
//!
//! | module | contents |
//! |---|---|
//! | [`deadline`] | [`Deadline`]: how long a wait may last. The only module that reads the clock |
//! | [`fingerprint`] | [`Fingerprint`]: the call that a member makes, and whether two members make the same one |
//! | [`standing`] | [`Standing`]: the current state and the past calls of a member |
//! | [`blame`], `blame_text` | [`Blame`]: the member that did not do its part, and the text of that error |
//! | [`flight_recorder`] | [`FlightRecorder`]: the last calls of a worker |
//! | [`places`] | [`Guests`](places::Guests), [`Seats`](places::Seats): the assignment of a limited number of places |
//! | [`world`] | [`World`]: the number of workers and replicas, and the worker that this process is |
//! | `spec`, `task`, `address` | [`ClusterSpec`]: the tasks of a cluster; [`Job`], [`Task`], [`Address`] |
//! | `process` | [`Process`]: the task and the address of a worker |
//! | `roles` | the role of a task: its rank, the number of workers, the leader; the [`World`] of a cluster |
//! | `tf_config` | [`TfConfig`]: `TF_CONFIG`, read and written |
//! | [`resolver`] | [`ClusterResolver`](resolver::ClusterResolver): finds the cluster from `TF_CONFIG`, Slurm, MPI, … |
//! | [`environment`] | the environment variables that resolvers read |
//! | [`bounded`] | [`Budget`](bounded::Budget): the memory that a decoded message may take |
//! | [`http`] | requests of resolvers that call an API; the client is behind the features `gce` and `kubernetes` |
//! | `error`, `malformed`, `words` | [`ClusterError`]: an error in a cluster, and its location |
//!
//! Members identify replicas by their global ids. Everything that members send each other can be serialized.

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
