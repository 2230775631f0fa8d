//! One program that schedules functions on many workers, and loses none of them.
//!
//! | module | what it is |
//! |---|---|
//! | `call` | [`Call`]: a function and its arguments, as data; [`Origin`] of what it changes |
//! | `failure` | [`Failure`]: why a call has no result |
//! | `program` | [`Program`], [`Executor`]: what workers run, behind calls as bytes |
//! | `message` | what coordinator and workers send each other |
//! | [`dispatch`] | which worker does what: pure |
//! | `worker` | [`Worker`]: the [`queue`] of one worker, and the thread that runs it |
//! | `link` | the way to a worker: [`LocalWorker`], [`RemoteWorker`] |
//! | `coordinator` | [`Coordinator`]: what a program schedules with |

#![forbid(unsafe_code)]

mod call;
mod coordinator;
pub mod dispatch;
mod error;
mod failure;
mod link;
mod message;
mod program;
mod worker;

pub use call::{Argument, Call, ClosureId, FunctionId, Origin, ResourceId};
pub use coordinator::{Coordinator, Options, Remote, Status, WorkerStatus};
pub use error::Error;
pub use failure::{Failure, FailureKind, Place};
pub use link::{Connect, Link, LocalWorker, Lost, NotConnected, RemoteWorker};
pub use message::{Batch, Done, Hello, Work};
pub use program::{CallContext, Cancellation, Executor, Program};
pub use worker::{SERVICE, Worker, queue};
