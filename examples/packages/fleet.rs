//! The state of a coordinator's workers and servers, for the end of a line: steps per second, queue, staleness of
//! values, rows per second.

use crate::report::thousands;
use distribute::ClusterCoordinator;
use distribute::cluster::deadline::Stopwatch;
use distribute::coordinator::Status;
use distribute::parameter_server::Usage;

pub struct Fleet {
    coordinator: ClusterCoordinator,
    /// The time since the last line, and the state when it was printed.
    since: Stopwatch,
    status: Status,
    usage: Vec<Usage>,
}

impl Fleet {
    pub fn new(coordinator: &ClusterCoordinator) -> distribute::Result<Self> {
        let (status, usage) = (coordinator.status(), coordinator.strategy().server_usage()?);
        Ok(Self { coordinator: coordinator.clone(), since: Stopwatch::start(), status, usage })
    }

    /// Returns the numbers of workers and servers, such as `2 workers, 2 servers`.
    pub fn title(&self) -> String {
        let many = |count: usize, what| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        format!("{}, {}", many(self.status.workers.len(), "worker"), many(self.usage.len(), "server"))
    }

    /// Returns the state, with the rates since the last call.
    pub fn text(&mut self) -> distribute::Result<String> {
        let (status, usage) = (self.coordinator.status(), self.coordinator.strategy().server_usage()?);
        let seconds = self.since.seconds();
        let steps = (status.ended - self.status.ended) as f64 / seconds;
        let staleness = status.staleness_since(&self.status);
        let staleness = staleness.map_or("-".to_owned(), |staleness| format!("{staleness:.1}"));
        let rows = |(now, before): (&Usage, &Usage)| {
            // A restarted server counts from 0 again.
            let rows = |usage: &Usage| usage.rows_read + usage.rows_pushed;
            thousands(rows(now).saturating_sub(rows(before)) as f64 / seconds)
        };
        let rows: Vec<_> = usage.iter().zip(&self.usage).map(rows).collect();
        let text = format!(
            ", {} steps/s, {} queued, staleness {staleness}, rows/s of servers {}",
            thousands(steps),
            status.queued,
            rows.join(" + ")
        );
        (self.since, self.status, self.usage) = (Stopwatch::start(), status, usage);
        Ok(text)
    }
}
