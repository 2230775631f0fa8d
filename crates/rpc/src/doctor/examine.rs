//! Measurements of the links between all tasks of a cluster.

use super::link::{Link, State};
use super::measure::{NAME, exchange, reach};
use super::report::Report;
use super::service::Probe;
use crate::client::{Client, ClientBuilder};
use distribute_cluster::{ClusterSpec, Task};
use distribute_net::Message;
use std::time::Duration;

/// The maximum number of tasks between which all pairs are measured. Among more tasks, each measures only the link to
/// the next one.
const MAX_ALL_PAIRS: usize = 16;

/// The maximum number of tasks to which connections are established at the same time.
const MAX_CONCURRENT: usize = 32;

/// Measures the links between all tasks of a cluster.
///
/// Connects task `me` to the servers of all other tasks and measures these links. Then the tasks that could be reached
/// measure the links between each other: all pairs or, among more than 16 tasks, each the link to the next one.
///
/// Links are measured one after another, so that none affects another. Connecting to a task takes at most `patience`.
/// `seen` is called with the result of each link.
///
/// Tasks without a server can run `distribute doctor --listen`.
pub fn examine(
    clients: &ClientBuilder,
    cluster: &ClusterSpec,
    me: &Task,
    patience: Duration,
    seen: &mut dyn FnMut(&Link),
) -> Report {
    let clients = clients.clone().settings(super::settings()).any_job();
    let mut links = Vec::new();
    let mut tell = |from: &Task, to: &Task, state: State| {
        let address = cluster.task_address(&to.job, to.index).map(ToString::to_string).unwrap_or_default();
        let link = Link { from: from.clone(), to: to.clone(), address, state };
        seen(&link);
        links.push(link);
    };
    let tasks: Vec<Task> = cluster.tasks().map(|(task, _)| task).filter(|task| task != me).collect();
    let mut open = Vec::new();
    for some in tasks.chunks(MAX_CONCURRENT) {
        for (task, reached) in some.iter().zip(reach_all(&clients, some, patience)) {
            match reached {
                Ok(client) => {
                    let state = exchange(&client, patience);
                    if let State::Open { .. } = state {
                        open.push((task, client));
                    }
                    tell(me, task, state);
                }
                Err(state) => tell(me, task, state),
            }
        }
    }
    for (from, to) in pairs(open.len()) {
        if let (Some((from, client)), Some((to, _))) = (open.get(from), open.get(to)) {
            tell(from, to, probe(client, to, patience));
        }
    }
    Report::new(links)
}

/// Connects to all given tasks at the same time. If one cannot be reached, this takes the full `patience`.
fn reach_all(clients: &ClientBuilder, tasks: &[Task], patience: Duration) -> Vec<Result<Client, State>> {
    std::thread::scope(|scope| {
        let reach = |task| {
            let thread = std::thread::Builder::new().name("distribute-doctor".to_owned());
            thread.spawn_scoped(scope, move || reach(clients, task, patience))
        };
        let threads: Vec<_> = tasks.iter().map(reach).collect();
        let broken = |why: String| Err(State::Broken { why });
        let join = |thread: std::io::Result<std::thread::ScopedJoinHandle<'_, _>>| match thread {
            Ok(thread) => thread.join().unwrap_or_else(|_| broken("the measurement panicked".to_owned())),
            Err(error) => broken(format!("no thread for the measurement: {error}")),
        };
        threads.into_iter().map(join).collect()
    })
}

/// Makes a task measure its link to the task `to`, and returns the result.
fn probe(client: &Client, to: &Task, patience: Duration) -> State {
    let patience_ms = patience.as_millis().try_into().unwrap_or(u64::MAX);
    let broken = |why: String| State::Broken { why };
    let ask = match serde_json::to_vec(&Probe { probe: to.clone(), patience_ms }) {
        Ok(ask) => ask,
        Err(error) => return broken(error.to_string()),
    };
    // That task connects and makes some calls, each with this patience.
    match client.call(NAME, Message::new(ask, ""), patience.saturating_mul(4)) {
        Ok(answer) => serde_json::from_slice(&answer.body)
            .unwrap_or_else(|error| broken(format!("its answer cannot be decoded: {error}"))),
        Err(error) => broken(error.to_string()),
    }
}

/// Returns the pairs of tasks between which links are measured, by index, for the given number of tasks. The first task
/// of a pair calls the second.
fn pairs(tasks: usize) -> Vec<(usize, usize)> {
    if tasks <= MAX_ALL_PAIRS {
        (0..tasks).flat_map(|from| (from + 1..tasks).map(move |to| (from, to))).collect()
    } else {
        (0..tasks).map(|from| (from, (from + 1) % tasks)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_tasks_are_measured_by_pairs_and_many_in_a_ring() {
        assert_eq!(pairs(0), []);
        assert_eq!(pairs(1), []);
        assert_eq!(pairs(3), [(0, 1), (0, 2), (1, 2)]);
        let ring = pairs(20);
        assert_eq!((ring.len(), ring[19]), (20, (19, 0)));
    }
}
