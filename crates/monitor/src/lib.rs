//! What a running job does, for people: a page for browsers, JSON, and metrics for Prometheus, served over HTTP.
//!
//! A job says what it does by a [`Source`], which is asked twice a second; who looks at a page costs it nothing more.
//!
//! | module | what it is |
//! |---|---|
//! | `report` | [`Report`]: what is told of a job, as data |
//! | `history` | samples of a training of any length in bounded memory |
//! | `exposition` | a report in Prometheus' text format, a pure function |
//! | `table` | a report as lines for a terminal, a pure function |
//! | `board` | the latest report, and the thread that makes it |
//! | `server` | [`Server`]: connections, requests and answers |
//! | `error` | [`Error`] |

#![forbid(unsafe_code)]

mod board;
mod error;
mod exposition;
mod history;
mod report;
#[cfg(unix)]
mod server;
mod table;

pub use board::Source;
pub use error::{Error, Result};
pub use exposition::exposition;
pub use history::Sample;
pub use report::{
    Activity, Coordinator, FORMAT, ParameterServer, Progress, Replica, Report, Wait, Worker, World,
};
#[cfg(unix)]
pub use server::Server;
pub use table::table;

/// Where a job is watched, where nothing else is said.
pub const DEFAULT_ADDRESS: &str = "127.0.0.1:6070";
