//! The errors of the hub. Their messages contain the URL or the path, what was expected and found, and a remedy.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error while a file is requested from the hub, or from the cache.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A name that the program passed, a setting or an environment variable is invalid. No request was sent.
    #[error("{what} {value:?}: {reason}")]
    Invalid {
        /// The name or setting, such as `the file` or `HF_ENDPOINT`.
        what: &'static str,
        /// The invalid value. It is empty if it is secret.
        value: String,
        /// A description of the expected value.
        reason: String,
    },
    /// There was no complete response, after all attempts.
    #[error(
        "{url}: {reason}; check the network, HTTPS_PROXY and HF_ENDPOINT. A part that was downloaded is kept, and \
         the next call resumes it. With HF_HUB_OFFLINE=1 only the cache is used"
    )]
    Network {
        /// The URL, without its query.
        url: String,
        /// The reason for the failure.
        reason: String,
    },
    /// The server has refused the request.
    #[error("{url}: the server answered {status}{}; {advice}", said(message))]
    Status {
        /// The URL, without its query.
        url: String,
        /// The HTTP status, such as 404.
        status: u16,
        /// The text that the server sent with the status, shortened; empty if there was none.
        message: String,
        /// The time after which the server accepts requests again, if it sent one.
        retry_after: Option<Duration>,
        /// Advice on what to do.
        advice: String,
    },
    /// The response is not one that a hub sends. It was not used.
    #[error(
        "{url}: expected {expected}, found {found}; HF_ENDPOINT must be a hub, or a mirror that sends its headers"
    )]
    Response {
        /// The URL, without its query.
        url: String,
        /// A description of the expected header or redirect.
        expected: &'static str,
        /// The header or redirect that was found, shortened.
        found: String,
    },
    /// The file is larger than the limit. It was not downloaded.
    #[error("{url}: the file has {size} bytes, and the limit is {limit}: see Hub::max_size")]
    TooLarge {
        /// The URL of the file.
        url: String,
        /// The size of the file in bytes.
        size: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// The file that was downloaded has another hash than the hub announced. It was removed.
    #[error(
        "{url}: expected {algorithm} {expected}, found {found}; the file was removed. A proxy may have changed it: \
         download it again, or from another HF_ENDPOINT"
    )]
    Hash {
        /// The URL of the file.
        url: String,
        /// The name of the hash function.
        algorithm: &'static str,
        /// The hash that the hub announced.
        expected: String,
        /// The hash of the downloaded bytes.
        found: String,
    },
    /// The cache does not have the file, and no request may be sent.
    #[error(
        "{file} of {repository} at {revision} is not in {}, and HF_HUB_OFFLINE=1 or Hub::offline forbids requests; \
         download it once without it, or set HF_HUB_CACHE to the cache that has it",
        cache.display()
    )]
    Offline {
        /// The repository, such as `google-bert/bert-base-uncased`.
        repository: String,
        /// The branch, tag or commit.
        revision: String,
        /// The name of the file.
        file: String,
        /// The folder of the cache.
        cache: PathBuf,
    },
    /// Another process holds the lock of the file, and its download makes no progress.
    #[error(
        "{} is locked by another process, whose download has not grown for {waited:?}; see that process, or end it",
        lock.display()
    )]
    Busy {
        /// The path of the locked file.
        lock: PathBuf,
        /// The time without progress.
        waited: Duration,
    },
    /// An index of weights is malformed.
    #[error("{}: {reason}; an index has a \"weight_map\" from names to files", path.display())]
    Index {
        /// The path of the index.
        path: PathBuf,
        /// A description of the problem.
        reason: String,
    },
    /// An operation on a file or folder of the cache failed.
    #[error("{operation} {}: {source}; HF_HUB_CACHE sets the folder of the cache", path.display())]
    Io {
        /// The operation that failed, such as `writing`.
        operation: &'static str,
        /// The path of the file or folder.
        path: PathBuf,
        /// The error from the operating system.
        #[source]
        source: io::Error,
    },
}

impl Error {
    /// Returns a function for `map_err` that wraps an I/O error.
    pub(crate) fn io(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Io { operation, path: path.to_path_buf(), source }
    }

    /// Returns the message without advice, for warnings about requests that are repeated.
    pub(crate) fn brief(&self) -> String {
        match self {
            Error::Network { url, reason } => format!("{url}: {reason}"),
            Error::Status { url, status, .. } => format!("{url}: the server answered {status}"),
            other => other.to_string(),
        }
    }

    /// Returns `true` if the hub has no such file, revision or repository, or the offline cache lacks the file.
    pub(crate) fn is_absent(&self) -> bool {
        match self {
            Error::Status { status, .. } => *status == 404,
            Error::Offline { .. } => true,
            _ => false,
        }
    }

    /// Returns `true` if the same request may succeed later.
    pub(crate) fn is_temporary(&self) -> bool {
        match self {
            Error::Network { .. } => true,
            Error::Status { status, .. } => matches!(status, 408 | 429 | 500 | 502 | 503 | 504),
            _ => false,
        }
    }
}

fn said(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(" ({message})") }
}

/// Shortens a text from a server for an error, and replaces characters that would control a terminal.
pub(crate) fn shown(text: &str) -> String {
    const MAX: usize = 200;
    let mut shown: String =
        text.chars().take(MAX).map(|char| if char.is_control() { ' ' } else { char }).collect();
    if text.chars().nth(MAX).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_servers_are_short_and_control_no_terminal() {
        assert_eq!(shown("a\x1b[31mb\r\nc"), "a [31mb  c");
        assert_eq!(shown(&"é".repeat(300)).chars().count(), 201);
    }
}
