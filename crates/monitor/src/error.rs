//! Errors of monitors.

use distribute_log::plain;
use std::io;

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a monitor, or of a request to a monitor.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server cannot listen on the address, for example because it is in use.
    #[error(
        "monitor: cannot listen at {address}: {source}; choose another address, or port 0 for any free port"
    )]
    Listen {
        /// The address on which the server should listen.
        address: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The address can be reached from other machines, which was not permitted.
    #[error(
        "monitor: {address} can be reached by other machines, which could read the status of the job; \
         listen at 127.0.0.1 and forward the port (ssh -L), or call allow_plain_text_on_the_network()"
    )]
    Network {
        /// The address on which the server should listen.
        address: String,
    },
    /// A thread cannot be started.
    #[error("monitor: cannot start a thread: {source}")]
    Thread {
        /// The error of the operating system.
        source: io::Error,
    },
    /// No monitor responds at the address.
    #[error(
        "status: no job answers at http://{}: {}; is it running, and with a monitor at that address?",
        plain(address),
        plain(reason)
    )]
    NoAnswer {
        /// The address to which the request was sent.
        address: String,
        /// The reason why there is no response.
        reason: String,
    },
    /// The response was not sent by a monitor of this version.
    #[error(
        "status: the server at http://{} is not a monitor of this version: {}",
        plain(address),
        plain(reason)
    )]
    NoReport {
        /// The address to which the request was sent.
        address: String,
        /// The reason why the response is not a report.
        reason: String,
    },
}
