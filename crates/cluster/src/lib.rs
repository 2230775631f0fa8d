//! Who takes part, how long to wait for them, and who is to blame. Pure decisions: no socket, no thread.
//!
//! | module | what it is |
//! |---|---|
//! | [`deadline`] | [`Deadline`]: how long a wait may last. The only module that reads the clock |
//! | [`fingerprint`] | [`Fingerprint`]: what a member is doing, and whether two members do the same |
//! | [`standing`] | [`Standing`]: what a member is doing and has done |
//! | [`blame`] | [`Blame`]: who did not do what the others waited for |
//! | [`world`] | [`World`]: how many take part, and which of them this process is |
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

pub mod blame;
pub mod deadline;
pub mod fingerprint;
pub mod standing;
pub mod world;

pub use blame::{Blame, Callers, Cause, Fault};
pub use deadline::{Deadline, Stopwatch};
pub use fingerprint::{CallSite, Fingerprint, Operation, fnv1a};
pub use standing::{Presence, Standing};
pub use world::{World, WorldError};
