//! A fault-tolerant scheduler of functions on many workers.
//!
//! | module | contents |
//! |---|---|
//! | `call` | [`Call`]: a function and its arguments, as data; [`Origin`]: the closure that makes a change |
//! | `failure` | [`Failure`]: the failure of a call |
//! | `program` | [`Program`], [`Executor`]: the functions that workers run, called with bytes |
//! | `message` | the messages between a coordinator and its workers |
//! | [`dispatch`] | the assignment of work to workers, as pure functions |
//! | `worker` | [`Worker`]: the [`queue`] of one worker, and the thread that runs it |
//! | `link` | the connection to a worker: [`LocalWorker`], [`RemoteWorker`] |
//! | `coordinator` | [`Coordinator`]: the scheduler |

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
