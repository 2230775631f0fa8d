//! The measurement of the link to one task.

use super::link::State;
use crate::client::{Client, ClientBuilder};
use crate::error::CallError;
use distribute_cluster::{Stopwatch, Task};
use distribute_net::handshake::Reason;
use distribute_net::{ConnectError, Message, SharedMemory};
use std::time::Duration;

/// The name of the service that echoes messages and measures links.
pub(crate) const NAME: &str = "doctor";

/// The number of small messages whose round trip is measured.
const ROUND_TRIPS: usize = 50;
/// The number of small messages that are sent before the measured ones.
const WARM: usize = 5;

/// The sizes in bytes of the messages with which bandwidth is measured. A size is used only if the shortest round trip
/// of the previous size took at most [`SHORT`] seconds.
const SIZES: [usize; 3] = [64 << 10, 1 << 20, 8 << 20];
/// The maximum round trip in seconds after which the next size is still measured.
const SHORT: f64 = 0.1;

/// The number of messages of each size.
const TIMES: usize = 3;

/// Connects to a task, whose server must be running within `patience`. The connection never uses shared memory. If it
/// cannot be established, returns the [`State`] of the link.
pub(super) fn reach(clients: &ClientBuilder, to: &Task, patience: Duration) -> Result<Client, State> {
    // The network is measured, even if both tasks are on one machine.
    let clients = clients.clone().shared_memory(SharedMemory::Never);
    clients.connect(to, patience).map_err(|error| match error {
        CallError::Connect(error) => not_connected(*error),
        error => State::Refused { what: "setup".to_owned(), why: error.to_string() },
    })
}

/// Measures the link to a task. Each call takes at most `patience`.
pub(super) fn exchange(client: &Client, patience: Duration) -> State {
    let echo = |size: usize| {
        let waited = Stopwatch::start();
        client.call(NAME, Message::new("echo", vec![0; size]), patience).map(|_| waited.seconds())
    };
    let measured = || {
        let mut trips = Vec::with_capacity(ROUND_TRIPS);
        for at in 0..WARM + ROUND_TRIPS {
            let seconds = echo(8)?;
            if at >= WARM {
                trips.push(seconds);
            }
        }
        trips.sort_by(f64::total_cmp);
        let mut bandwidth: f64 = 0.;
        for size in SIZES {
            let mut shortest = f64::INFINITY;
            for _ in 0..TIMES {
                shortest = shortest.min(echo(size)?);
            }
            // The message goes there and back.
            bandwidth = bandwidth.max(2. * size as f64 / shortest.max(1e-9));
            if shortest > SHORT {
                break;
            }
        }
        Ok(State::Open { round_trip: trips[trips.len() / 2], bandwidth })
    };
    measured().unwrap_or_else(|error: CallError| State::Broken { why: error.to_string() })
}

fn not_connected(error: ConnectError) -> State {
    match error {
        ConnectError::Unreachable { last, .. } => {
            State::Closed { why: last.unwrap_or_else(|| "no answer".to_owned()) }
        }
        ConnectError::Refused { refusal, .. } if refusal.reason == Reason::Purpose => State::Training,
        ConnectError::Refused { refusal, .. } => {
            State::Refused { what: what(refusal.reason, &refusal.text).to_owned(), why: refusal.to_string() }
        }
        ConnectError::Policy { error, .. } => {
            State::Refused { what: "protection".to_owned(), why: error.to_string() }
        }
        other => State::Broken { why: other.to_string() },
    }
}

/// Returns the cause of a refusal as one word.
fn what(reason: Reason, text: &str) -> &'static str {
    match reason {
        Reason::Secret if text.starts_with("TLS") => "certificate",
        Reason::Secret => "secret",
        Reason::Version => "version",
        Reason::Job => "job",
        Reason::Certificate => "certificate",
        Reason::User => "user",
        Reason::Rank | Reason::Purpose => "address",
        Reason::Protocol => "protocol",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_cluster::Job;
    use distribute_net::handshake::Refusal;

    #[test]
    fn refusals_name_the_setting_to_check() {
        let of = |reason, text: &str| {
            let (task, address) = (Job::Ps.task(0), "a:1".to_owned());
            not_connected(ConnectError::Refused { task, address, refusal: Refusal::new(reason, text) })
        };
        for (reason, text, word) in [
            (Reason::Secret, "the secrets differ", "secret"),
            (Reason::Secret, "TLS: unknown issuer", "certificate"),
            (Reason::Certificate, "its certificate names ps/1", "certificate"),
            (Reason::User, "x", "user"),
            (Reason::Version, "x", "version"),
            (Reason::Rank, "it is ps 0, not ps 1", "address"),
            (Reason::Protocol, "x", "protocol"),
        ] {
            assert_eq!(of(reason, text), State::Refused { what: word.into(), why: text.into() });
        }
        assert_eq!(of(Reason::Purpose, "x"), State::Training);
    }
}
