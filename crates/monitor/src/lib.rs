//! The status of a running job, served over HTTP: a page for browsers, JSON, and metrics for Prometheus.
//!
//! A job reports its status through a [`Source`], which is asked twice a second. Clients cause no additional
//! load on the job.
//!
//! | module | contents |
//! |---|---|
//! | `report` | [`Report`]: the status of a job, as data |
//! | `history` | samples of a training of any length in bounded memory |
//! | `exposition` | a report in Prometheus' text format, a pure function |
//! | `table` | a report as lines for a terminal, a pure function |
//! | `board` | the latest report, and the thread that makes it |
//! | `server` | [`Server`]: connections, requests and responses |
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

/// The default address of a monitor.
pub const DEFAULT_ADDRESS: &str = "127.0.0.1:6070";
