//! The progress of a coordinator's workers and servers: steps per second, queue, staleness of values, rows
//! per second.

use super::progress::thousands;
use distribute::cluster::deadline::Stopwatch;
use distribute::params::Usage;
use distribute::{ClusterCoordinator, Status};
use std::time::Duration;

/// The interval between requests to servers.
const LOOK: Duration = Duration::from_millis(500);

/// The figures of the last half second.
pub struct Fleet {
    coordinator: ClusterCoordinator,
    since: Stopwatch,
    status: Status,
    usage: Vec<Usage>,
    text: String,
}

impl Fleet {
    pub fn new(coordinator: &ClusterCoordinator) -> distribute::Result<Self> {
        let (status, usage) = (coordinator.status(), coordinator.strategy().server_usage()?);
        Ok(Self {
            coordinator: coordinator.clone(),
            since: Stopwatch::start(),
            status,
            usage,
            text: String::new(),
        })
    }

    /// Returns a title: `2 workers, 2 servers`.
    pub fn title(&self) -> String {
        let many = |count: usize, what| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        format!("{}, {}", many(self.status.workers.len(), "worker"), many(self.usage.len(), "server"))
    }

    /// Returns the figures of the last half second.
    pub fn text(&mut self) -> distribute::Result<&str> {
        if self.since.elapsed() < LOOK {
            return Ok(&self.text);
        }
        let (status, usage) = (self.coordinator.status(), self.coordinator.strategy().server_usage()?);
        let seconds = self.since.seconds();
        let steps = (status.ended - self.status.ended) as f64 / seconds;
        let staleness = status.staleness_since(&self.status);
        let staleness = staleness.map_or("-".to_owned(), |staleness| format!("{staleness:.1}"));
        let rows = |(now, before): (&Usage, &Usage)| {
            // A restarted server counts from 0.
            let rows = |usage: &Usage| usage.rows_read + usage.rows_pushed;
            thousands(rows(now).saturating_sub(rows(before)) as f64 / seconds)
        };
        let rows: Vec<_> = usage.iter().zip(&self.usage).map(rows).collect();
        self.text = format!(
            ", {} steps/s, {} queued, staleness {staleness}, rows/s of servers {}",
            thousands(steps),
            status.queued,
            rows.join(" + ")
        );
        (self.since, self.status, self.usage) = (Stopwatch::start(), status, usage);
        Ok(&self.text)
    }
}
