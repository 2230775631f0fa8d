//! Log messages about refused connections.

use super::conversation::Trouble;
use crate::handshake::{Reason, Refusal};
use distribute_cluster::Stopwatch;
use distribute_log::{Repeats, heard};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// The interval between two counts of one kind.
const EVERY: Duration = Duration::from_secs(10);

/// The number of refused connections to keep for the error at the deadline.
const KEPT: usize = 4;

/// A log of refused connections: the first of each kind with the reason, and then their number.
#[derive(Debug)]
pub(super) struct Strangers {
    repeats: Repeats<Kind>,
    began: Stopwatch,
    /// The latest refusals, one of each kind and address.
    refused: Vec<(SocketAddr, Refusal)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Refused(Reason),
    Broken,
    Failed,
}

impl Default for Strangers {
    fn default() -> Self {
        Self { repeats: Repeats::new(EVERY), began: Stopwatch::start(), refused: Vec::new() }
    }
}

impl Strangers {
    /// Logs a refused connection.
    pub fn tell(&mut self, from: SocketAddr, trouble: &Trouble) {
        match trouble {
            // It will be accepted soon.
            Trouble::Refused(refusal) if refusal.reason == Reason::Early => {
                tracing::debug!(address = %from, "a connection was refused for now: {refusal}");
            }
            Trouble::Refused(refusal) => {
                self.keep(from, refusal);
                self.warn(Kind::Refused(refusal.reason), || {
                    tracing::warn!(address = %from, "a connection was refused: {refusal}");
                });
            }
            Trouble::Broken(reason) => self.warn(Kind::Broken, || {
                tracing::warn!(address = %from, "a connection ended before its handshake: {reason}");
            }),
        }
    }

    /// Returns the latest connections that were refused, with the reasons. One of them may be that of a
    /// missing worker.
    pub fn refused(&self) -> Vec<String> {
        self.refused.iter().map(|(from, refusal)| format!("{from} ({refusal})")).collect()
    }

    fn keep(&mut self, from: SocketAddr, refusal: &Refusal) {
        // These reasons do not identify a worker.
        if matches!(refusal.reason, Reason::Crowded | Reason::Late | Reason::Replaced) {
            return;
        }
        self.refused.retain(|(other, known)| (other.ip(), known.reason) != (from.ip(), refusal.reason));
        if self.refused.len() == KEPT {
            self.refused.remove(0);
        }
        self.refused.push((from, refusal.clone()));
    }

    /// Logs that the system cannot accept a connection.
    pub fn fail(&mut self, error: &io::Error) {
        self.warn(Kind::Failed, || tracing::warn!(%error, "a connection cannot be accepted"));
    }

    /// Logs the number of unlogged connections of each kind if it is time to. To be called regularly.
    pub fn look(&mut self) {
        for (kind, count) in self.repeats.due(self.began.elapsed()) {
            let seconds = EVERY.as_secs();
            heard(|| tracing::warn!("{count} more within {seconds} s: {kind}"));
        }
    }

    fn warn(&mut self, kind: Kind, words: impl FnOnce()) {
        if self.repeats.come(kind, self.began.elapsed()) {
            heard(words);
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Refused(Reason::Crowded) => {
                f.write_str("connections that had not said who they are have made room for newer ones")
            }
            Kind::Refused(reason) => write!(f, "connections were refused ({reason:?})"),
            Kind::Broken => f.write_str("connections ended before their handshake"),
            Kind::Failed => f.write_str("connections could not be accepted"),
        }
    }
}
