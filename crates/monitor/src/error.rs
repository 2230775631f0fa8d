//! What can go wrong.

use distribute_log::plain;
use std::io;

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a job cannot be watched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address cannot be listened at: it is taken, say.
    #[error(
        "monitor: cannot listen at {address}: {source}; give another address, or port 0 for any that is free"
    )]
    Listen {
        /// The address.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// The address is one that other machines reach.
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
        /// What the system said.
        source: io::Error,
    },
    /// Nobody tells what a job does there.
    #[error(
        "status: no job answers at http://{}: {}; is it running, and with a monitor at that address?",
        plain(address),
        plain(reason)
    )]
    NoAnswer {
        /// The address.
        address: String,
        /// What happened instead.
        reason: String,
    },
    /// Something else answers there, or a job of another version.
    #[error(
        "status: what answers at http://{} is no monitor of this version: {}",
        plain(address),
        plain(reason)
    )]
    NoReport {
        /// The address.
        address: String,
        /// What it is.
        reason: String,
    },
}
