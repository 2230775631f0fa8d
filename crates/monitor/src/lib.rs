//! The status of a running job, served over HTTP: a page for browsers, JSON, and metrics for Prometheus.
//!
//! A job reports its status through a [`Source`], from which a report is requested twice a second. Clients cause no
//! additional load on the job. This crate does not depend on strategies.
//!
//! | module | contents |
//! |---|---|
//! | `report` | [`Report`]: the status of a job, as data |
//! | `history` | samples of a training of any length in bounded memory |
//! | `exposition` | a report in Prometheus' text format, a pure function |
//! | `table` | a report as lines for a terminal, a pure function |
//! | `health` | whether a process is alive, and a job is ready: pure functions for probes |
//! | `board` | the latest report, and the thread that makes it |
//! | `server` | [`Server`]: connections, requests and responses |
//! | `error` | [`Error`] |

// - **INV-62** Watching a job never blocks it, and text is treated as text: it is queried only on a thread of the
//   monitor, twice a second, for any number of clients. Connections are bounded and have deadlines. The page
//   creates no HTML from names of a job, and text of another process sends no control characters to a terminal
//   (`distribute_log::plain`). An address for health reports nothing of a job except whether it is well. Tests:
//   `monitor/src/server/tests.rs`, `monitor/src/server/respond.rs`, `monitor/src/table.rs`, `log/src/plain.rs`.

#![forbid(unsafe_code)]

mod board;
mod error;
mod exposition;
#[cfg(unix)]
mod health;
mod history;
mod report;
#[cfg(unix)]
mod server;
mod table;

pub use board::Source;
pub use error::{Error, Result};
pub use exposition::exposition;
pub use report::{
    Activity, Coordinator, FORMAT, HotRows, ParameterServer, Prefetch, Progress, Replacements, Replica,
    Report, RowCache, Sample, Shard, StepTimes, Straggler, Wait, Worker, World,
};
#[cfg(unix)]
pub use server::Server;
pub use table::table;

/// The default address of a monitor.
pub const DEFAULT_ADDRESS: &str = "127.0.0.1:6070";
