//! Runs the doctor as a task of the cluster: each task listens, and the leader measures all links.

use super::examine::examine;
use super::link::{Link, State};
use super::report::Report;
use crate::builder::ServerBuilder;
use crate::client::ClientBuilder;
use crate::error::ServerError;
use crate::own_task::may_stop_servers;
use crate::server::Server;
use distribute_cluster::{ClusterSpec, Task};
use std::time::Duration;

/// The maximum time in addition to `patience` for which other tasks wait until the leader ends them.
const LONGEST: Duration = Duration::from_secs(600);

/// Runs the server that `builder` configures as one of the cluster's tasks, all of which call this function. The leader
/// is the chief, or worker 0 if there is no chief, or the first task if there is neither. It waits at most `patience`
/// for the others, measures all links, ends the other servers, and returns the report. The other tasks return `None`
/// when their servers end.
///
/// # Errors
/// Returns the errors of [`ServerBuilder::start`], and [`ServerError::Broken`] if the server failed, or if the leader
/// has not ended it within `patience` and ten more minutes.
pub fn participate(
    builder: ServerBuilder,
    clients: &ClientBuilder,
    task: &Task,
    patience: Duration,
    seen: &mut dyn FnMut(&Link),
) -> Result<Option<Report>, ServerError> {
    let server = builder.start()?;
    if leader(server.cluster()).as_ref() != Some(task) {
        return wait(&server, patience.saturating_add(LONGEST)).map(|()| None);
    }
    let report = examine(clients, server.cluster(), task, patience, seen);
    for link in report.links.iter().filter(|link| link.from == *task) {
        if let State::Open { .. } = link.state {
            // A server that does not receive this has already ended, or times out.
            let ended = clients.connect(&link.to, patience).and_then(|client| client.stop_server(patience));
            if let Err(error) = ended {
                tracing::debug!(%error, "a server could not be ended");
            }
        }
    }
    Ok(Some(report))
}

fn wait(server: &Server, timeout: Duration) -> Result<(), ServerError> {
    match server.join_timeout(timeout)? {
        Some(_) => Ok(()),
        None => Err(ServerError::Broken {
            task: server.task().clone(),
            address: server.address().to_string(),
            reason: format!(
                "the links were not measured within {} s; check that the chief or, without one, worker 0 \
                 runs",
                timeout.as_secs()
            ),
        }),
    }
}

/// Returns the task that measures, which is the first one that may end the other servers. Returns `None` if the cluster
/// is empty.
fn leader(cluster: &ClusterSpec) -> Option<Task> {
    cluster.tasks().map(|(task, _)| task).find(|task| may_stop_servers(cluster, task))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_task_leads() {
        let of = |text: &str| leader(&text.parse().unwrap()).map(|task| task.to_string());
        assert_eq!(of(r#"{"ps": ["a:1"], "worker": ["b:1", "c:1"]}"#).as_deref(), Some("worker 0"));
        assert_eq!(of(r#"{"chief": ["a:1"], "worker": ["b:1"]}"#).as_deref(), Some("chief 0"));
        assert_eq!(of(r#"{"ps": ["a:1", "b:1"]}"#).as_deref(), Some("ps 0"));
        assert_eq!(of("{}"), None);
    }
}
