//! A fault-tolerant scheduler that calls functions on many workers.
//!
//! Functions, arguments and results are bytes: this crate does not depend on variables or models. The crate
//! `distribute-parameter-server` implements [`Program`] for functions with types.
//!
//! A call goes from [`Coordinator`] to `Dispatch`, which assigns it to a worker. It continues over a [`Link`] to the
//! worker's session, whose queue orders it, and to an [`Executor`]. It returns as [`Done`] to `Dispatch`, which
//! resolves the value for which the program waits.
//!
//! | module | contents |
//! |---|---|
//! | `call` | [`Call`]: a function and its arguments, as data; [`Origin`]: the closure that makes a change |
//! | `failure` | [`Failure`]: the failure of a call |
//! | `program` | [`Program`], [`Executor`]: the functions of a program, which workers call |
//! | `message` | the messages between a coordinator and its workers |
//! | [`dispatch`] | the assignment of work to workers, without threads, connections or clocks |
//! | `worker` | [`Worker`]: the [`queue`] of one worker, and the thread that runs it |
//! | `link` | [`LocalWorker`], [`RemoteWorker`]: connections to a worker |
//! | `coordinator`, `error` | [`Coordinator`]: the scheduler; [`Error`] |
//!
//! To add a decision, add a method to `Dispatch`, and a test without threads. To add a message to a worker, add a
//! variant to [`Work`].

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
pub use coordinator::{Coordinator, Options, ResultHandle, Status, WorkerStatus};
pub use error::Error;
pub use failure::{Failure, FailureKind, FailureLocation};
pub use link::{Connect, Disconnected, Link, LocalWorker, NotConnected, RemoteWorker};
pub use message::{Batch, Done, Hello, Work};
pub use program::{CallContext, Cancellation, Executor, Program};
pub use worker::{SERVICE, Worker, queue};
