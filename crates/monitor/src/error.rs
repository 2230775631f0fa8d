//! Errors of monitors.

use distribute_log::plain;
use std::io;

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a monitor, or of a request to one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address cannot be listened on, for example because it is in use.
    #[error(
        "monitor: cannot listen at {address}: {source}; give another address, or port 0 for any that is free"
    )]
    Listen {
        /// The address.
        address: String,
        /// The error of the system.
        source: io::Error,
    },
    /// Other machines can reach the address.
    #[error(
        "monitor: {address} is no address of this machine alone, and whoever reaches it could read what the job does; listen at 127.0.0.1 \
         and forward the port (ssh -L), or call allow_plain_text_on_the_network()"
    )]
    Network {
        /// The address.
        address: String,
    },
    /// The system refuses a thread.
    #[error("monitor: no thread to serve from: {source}")]
    Thread {
        /// The error of the system.
        source: io::Error,
    },
    /// No monitor responds at the address.
    #[error(
        "status: no job answers at http://{}: {}; is it running, and with a monitor at that address?",
        plain(address),
        plain(reason)
    )]
    NoAnswer {
        /// The address.
        address: String,
        /// The reason, as text.
        reason: String,
    },
    /// The response is not from a monitor of this version.
    #[error(
        "status: what answers at http://{} is no monitor of this version: {}",
        plain(address),
        plain(reason)
    )]
    NoReport {
        /// The address.
        address: String,
        /// The reason, as text.
        reason: String,
    },
}
