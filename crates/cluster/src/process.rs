//! Where the workers of a world are, for people who look for one.

use crate::{Address, Task};
use std::fmt;

/// A worker of a world as the process that it is. In a world of some tasks of a cluster it has another number than its task.
///
/// ```
/// use distribute_cluster::{Job, Process};
/// let process = Process { task: Job::Worker.task(3), address: "node-3:2222".parse()? };
/// assert_eq!(process.to_string(), "task worker 3 at node-3:2222");
/// # Ok::<(), distribute_cluster::ClusterError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// What it is in the cluster.
    pub task: Task,
    /// Where the others reach it.
    pub address: Address,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task {} at {}", self.task, self.address)
    }
}

/// Of so many workers it is told where they are.
const LOCATED: usize = 4;

/// What an error adds of the workers that it names by their numbers: `; worker 1 is task worker 3 at node-3:2222`, or nothing of
/// nobody.
pub fn located(workers: &[(usize, Process)]) -> String {
    let each = workers.iter().take(LOCATED).map(|(worker, process)| format!("worker {worker} is {process}"));
    let more = workers.len().checked_sub(LOCATED + 1).map(|more| format!("and {} more", more + 1));
    let all: Vec<_> = each.chain(more).collect();
    if all.is_empty() { String::new() } else { format!("; {}", all.join(", ")) }
}
