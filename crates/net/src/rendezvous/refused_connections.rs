//! A log of rejected connections.

use super::handshake_stream::HandshakeError;
use crate::handshake::{Reason, Refusal};
use distribute_cluster::Stopwatch;
use distribute_log::{Repeats, warn_or_stderr};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// The interval between two log messages that count the rejected connections of one kind.
const COUNT_INTERVAL: Duration = Duration::from_secs(10);

/// The maximum number of rejected connections that are kept for the error at the deadline.
const MAX_KEPT: usize = 4;

/// A log of rejected connections. It logs the first one of each kind with the reason, and then only the number of
/// others of that kind.
#[derive(Debug)]
pub(super) struct RefusedConnections {
    repeats: Repeats<LogKind>,
    began: Stopwatch,
    /// The latest refusals, one for each kind and IP address, oldest first.
    refused: Vec<(SocketAddr, Refusal)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum LogKind {
    Refused(Reason),
    Broken,
    Failed,
}

impl Default for RefusedConnections {
    fn default() -> Self {
        Self { repeats: Repeats::new(COUNT_INTERVAL), began: Stopwatch::start(), refused: Vec::new() }
    }
}

impl RefusedConnections {
    /// Logs a failed handshake, at a limited rate. If the connection was rejected for a reason that may identify a
    /// worker, it is kept for the error at the deadline.
    pub fn log(&mut self, from: SocketAddr, handshake_error: &HandshakeError) {
        match handshake_error {
            // The process tries again, and will be accepted soon, here or by the leader.
            HandshakeError::Refused(refusal)
                if matches!(refusal.reason, Reason::Early | Reason::Elsewhere | Reason::Busy) =>
            {
                tracing::debug!(address = %from, "a connection was refused for now: {refusal}");
            }
            HandshakeError::Refused(refusal) => {
                self.keep(from, refusal);
                self.warn(LogKind::Refused(refusal.reason), || {
                    tracing::warn!(address = %from, "a connection was refused: {refusal}");
                });
            }
            HandshakeError::Broken(reason) => self.warn(LogKind::Broken, || {
                tracing::warn!(address = %from, "a connection was closed before its handshake: {reason}");
            }),
        }
    }

    /// Returns the latest connections that were rejected, as texts with address and reason. A missing worker may be
    /// among them.
    pub fn refused(&self) -> Vec<String> {
        self.refused.iter().map(|(from, refusal)| format!("{from} ({refusal})")).collect()
    }

    fn keep(&mut self, from: SocketAddr, refusal: &Refusal) {
        // These reasons do not identify a worker.
        if matches!(refusal.reason, Reason::Crowded | Reason::Late | Reason::Replaced) {
            return;
        }
        self.refused.retain(|(other, known)| (other.ip(), known.reason) != (from.ip(), refusal.reason));
        if self.refused.len() == MAX_KEPT {
            self.refused.remove(0);
        }
        self.refused.push((from, refusal.clone()));
    }

    /// Logs that accepting a connection has failed.
    pub fn fail(&mut self, error: &io::Error) {
        self.warn(LogKind::Failed, || tracing::warn!(%error, "a connection cannot be accepted"));
    }

    /// Logs the number of unlogged connections of each kind if the next count is due. Call this regularly.
    pub fn look(&mut self) {
        for (kind, count) in self.repeats.due(self.began.elapsed()) {
            let seconds = COUNT_INTERVAL.as_secs();
            warn_or_stderr(|| tracing::warn!("{count} more within {seconds} s: {kind}"));
        }
    }

    fn warn(&mut self, kind: LogKind, words: impl FnOnce()) {
        if self.repeats.record(kind, self.began.elapsed()) {
            warn_or_stderr(words);
        }
    }
}

impl fmt::Display for LogKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogKind::Refused(Reason::Crowded) => {
                f.write_str("connections that had not authenticated were closed in favor of newer ones")
            }
            LogKind::Refused(reason) => write!(f, "connections were refused ({reason:?})"),
            LogKind::Broken => f.write_str("connections were closed before their handshake"),
            LogKind::Failed => f.write_str("connections could not be accepted"),
        }
    }
}
