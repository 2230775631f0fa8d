//! The tasks and addresses of workers, for error messages.

use crate::{Address, Task};
use std::fmt;

/// The task and the address of a worker of a world. If only some tasks of a cluster participate, the rank of a
/// worker in the world may differ from the index of its task.
///
/// ```
/// use distribute_cluster::{Job, Process};
/// let process = Process { task: Job::Worker.task(3), address: "node-3:2222".parse()? };
/// assert_eq!(process.to_string(), "task worker 3 at node-3:2222");
/// # Ok::<(), distribute_cluster::ClusterError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// The task of the worker in the cluster.
    pub task: Task,
    /// The address at which other workers reach this worker.
    pub address: Address,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task {} at {}", self.task, self.address)
    }
}

/// The maximum number of workers whose locations an error message contains.
const MAX_LOCATIONS: usize = 4;

/// Returns the text to append to an error message that identifies workers by rank, such as `; worker 1 is task worker 3
/// at node-3:2222`. The text is empty if `workers` is empty.
pub fn locations(workers: &[(usize, Process)]) -> String {
    let each =
        workers.iter().take(MAX_LOCATIONS).map(|(worker, process)| format!("worker {worker} is {process}"));
    let more = workers.len().checked_sub(MAX_LOCATIONS + 1).map(|more| format!("and {} more", more + 1));
    let all: Vec<_> = each.chain(more).collect();
    if all.is_empty() { String::new() } else { format!("; {}", all.join(", ")) }
}
