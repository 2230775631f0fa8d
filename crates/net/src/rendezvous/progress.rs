//! The progress of a rendezvous that waits for workers.

use distribute_cluster::Task;
use std::fmt;
use std::time::Duration;

/// The progress of a rendezvous, which is reported once a second. Its text is, for example, `3 of 4 workers joined
/// after 12 s, missing worker 2 at 10.0.0.7:2222`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The number of workers in the cluster.
    pub workers: usize,
    /// The time that this worker has waited.
    pub waited: Duration,
    /// The workers that have not connected yet.
    pub missing: Vec<Missing>,
    /// The latest connections that the leader has rejected, each with its address and the reason.
    pub refused: Vec<String>,
}

/// A worker that has not connected yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The rank of the worker.
    pub worker: usize,
    /// The task of the worker.
    pub task: Task,
    /// The address at which the worker is expected.
    pub address: String,
    /// The reason why the worker could not be reached so far, or the state of the connection to it. `None` if neither
    /// is known.
    pub last: Option<String>,
}

/// The maximum number of missing workers in a message.
const NAMED: usize = 8;

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (joined, seconds) = (self.workers.saturating_sub(self.missing.len()), self.waited.as_secs());
        write!(f, "{joined} of {} workers joined after {seconds} s", self.workers)?;
        if self.missing.is_empty() { Ok(()) } else { write!(f, ", missing {}", list(&self.missing)) }
    }
}

/// Formats the missing workers: the first ones, and the number of the others.
pub(super) fn list(missing: &[Missing]) -> String {
    let name = |missing: &Missing| {
        let last = missing.last.as_ref().map(|last| format!(" ({last})")).unwrap_or_default();
        format!("{} at {}{last}", missing.task, missing.address)
    };
    let mut names: Vec<_> = missing.iter().take(NAMED).map(name).collect();
    if missing.len() > NAMED {
        names.push(format!("and {} more", missing.len() - NAMED));
    }
    names.join(", ")
}

/// Formats the rejected connections, as the continuation of a text about missing workers.
pub(super) fn also_refused(refused: &[String]) -> String {
    // Some reasons are from other processes.
    let refused: Vec<_> = refused.iter().map(|text| distribute_log::plain(text)).collect();
    if refused.is_empty() {
        String::new()
    } else {
        format!("; these connections were refused: {}", refused.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_who_is_missing_and_where() {
        let task = |worker| distribute_cluster::Job::Worker.task(worker);
        let missing = |worker| {
            let address = format!("10.0.0.{worker}:2222");
            Missing { worker, task: task(worker), address, last: None }
        };
        let waited = Duration::from_millis(12_900);
        let mut progress = Progress { workers: 4, waited, missing: vec![missing(2)], refused: vec![] };
        let text = "3 of 4 workers joined after 12 s, missing worker 2 at 10.0.0.2:2222";
        assert_eq!(progress.to_string(), text);
        progress.missing[0].last = Some("connection refused".into());
        assert_eq!(progress.to_string(), format!("{text} (connection refused)"));
        progress.missing = (1..=12).map(missing).collect();
        progress.workers = 13;
        assert!(progress.to_string().ends_with("worker 8 at 10.0.0.8:2222, and 4 more"), "{progress}");
        progress.missing = vec![Missing { task: distribute_cluster::Job::Chief.task(0), ..missing(1) }];
        assert!(progress.to_string().ends_with("missing chief 0 at 10.0.0.1:2222"), "{progress}");
        progress.missing.clear();
        assert_eq!(progress.to_string(), "13 of 13 workers joined after 12 s");
    }
}
