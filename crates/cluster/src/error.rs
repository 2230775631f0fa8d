//! What can be wrong with a cluster, and what to do about it.

use crate::task::{Job, Task};
use crate::world::WorldError;
use std::fmt;

/// What is wrong with a cluster, or with what describes it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// A value is not what it should be, in a text that describes the cluster.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// What is wrong with the cluster, and where that stands.
    #[error("{origin}: {path}: {error}")]
    At {
        /// What holds it, such as the environment variable.
        origin: &'static str,
        /// Where in it: `task.index`.
        path: String,
        /// What is wrong.
        error: Box<ClusterError>,
    },
    /// A text is no address.
    #[error("expected \"host:port\", found {found:?}: {why}")]
    Address {
        /// The text.
        found: String,
        /// What is wrong with it.
        why: String,
    },
    /// The cluster has no job of this name.
    #[error("the cluster has no job {job:?}, it has {}", names(jobs), job = job.as_str())]
    NoSuchJob {
        /// The job that was asked for.
        job: Job,
        /// The jobs that it has.
        jobs: Vec<Job>,
    },
    /// The job has no task of this number.
    #[error("the cluster has no {task}: {job:?} has {}", tasks(indices), job = task.job.as_str())]
    NoSuchTask {
        /// The task that was asked for.
        task: Task,
        /// The numbers that its job has.
        indices: Vec<usize>,
    },
    /// Two addresses for one task.
    #[error("{task} is there twice, at {addresses}")]
    Duplicate {
        /// The task.
        task: Task,
        /// Both addresses.
        addresses: String,
    },
    /// The number of a task is too large to be one.
    #[error("{task} is there, but tasks are numbered from 0 to {}", crate::MAX_TASK_INDEX)]
    TooLarge {
        /// The task.
        task: Task,
    },
    /// Strategies don't use a job of this name.
    #[error("the job {job:?} is none that a strategy uses: chief, worker, ps, evaluator", job = job.as_str())]
    DisallowedJob {
        /// The job.
        job: Job,
    },
    /// This process's own job is none that a strategy uses.
    #[error("this task is {task}, but the tasks of strategies are chief, worker, ps and evaluator")]
    DisallowedTask {
        /// This process.
        task: Task,
    },
    /// This process's job is not part of the cluster.
    #[error("this task is {task}, but the cluster has no job {job:?}, it has {}", names(jobs), job = task.job.as_str())]
    NotInCluster {
        /// This process.
        task: Task,
        /// The jobs of the cluster.
        jobs: Vec<Job>,
    },
    /// More than one chief, or more than one evaluator.
    #[error("there are {count} tasks of the job {job:?}, where there can be one", job = job.as_str())]
    Several {
        /// The job.
        job: Job,
        /// How many tasks it has.
        count: usize,
    },
    /// This process's number is not below the number of tasks of its job.
    #[error("this task is {task}, but {job:?} has {}", tasks(indices), job = task.job.as_str())]
    NoSuchIndex {
        /// This process.
        task: Task,
        /// The numbers that its job has.
        indices: Vec<usize>,
    },
    /// Workers are numbered with gaps.
    #[error("{job:?} has {}: workers of a strategy are numbered from 0 without gaps", tasks(indices), job = job.as_str())]
    Gaps {
        /// The job.
        job: Job,
        /// The numbers that it has.
        indices: Vec<usize>,
    },
    /// A parameter server is no worker: it has no rank, and counts no workers.
    #[error("{task} is a parameter server: it has no rank among the workers")]
    NoRank {
        /// The task.
        task: Task,
    },
    /// There is a cluster, but which of its tasks this process is isn't known.
    #[error("there is a cluster of {tasks} tasks, but {missing} of this process is not given; {remedy}")]
    NoTask {
        /// How many tasks the cluster has.
        tasks: usize,
        /// What is missing: the job, the index, or both.
        missing: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// An address that each host takes for itself, in a cluster of several hosts.
    #[error(
        "{task} is at {address}, which every host takes for itself, while {other} is on another host; give the name or \
         the address by which the others reach it"
    )]
    Loopback {
        /// The task.
        task: Task,
        /// Its address.
        address: String,
        /// A task with an address of another host.
        other: Task,
    },
    /// An address to listen at, to which nobody can connect.
    #[error(
        "{task} is at {address}, to which nobody can connect; give the name or the address by which the others reach it"
    )]
    Unspecified {
        /// The task.
        task: Task,
        /// Its address.
        address: String,
    },
    /// The tasks don't make a world.
    #[error(transparent)]
    World(#[from] WorldError),
}

/// A value that is not what it should be: where, what was expected, what is there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{origin}: {}expected {expected}, found {found}{}", At(path), Help(help))]
pub struct Malformed {
    /// What holds the value: the name of an environment variable, or of an answer from elsewhere.
    pub origin: String,
    /// Where in it: `cluster.worker[1]`. Empty for the whole.
    pub path: String,
    /// What should be there.
    pub expected: String,
    /// What is there.
    pub found: String,
    /// What to do, where that is not clear from what was expected. Empty if it is.
    pub help: &'static str,
}

/// What to do, behind the rest.
struct Help(&'static str);

impl fmt::Display for Help {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            "" => Ok(()),
            help => write!(f, "; {help}"),
        }
    }
}

/// A path with the colon behind it, if there is one.
struct At<'a>(&'a str);

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            "" => Ok(()),
            path => write!(f, "{path}: "),
        }
    }
}

/// `chief, ps and worker`
fn names(jobs: &[Job]) -> String {
    list(&jobs.iter().map(Job::as_str).collect::<Vec<_>>())
}

/// `tasks 0 to 3`, `tasks 0, 2 and 5`, `no task`
fn tasks(indices: &[usize]) -> String {
    match indices {
        [] => "no task".into(),
        [one] => format!("task {one} alone"),
        [0, .., last] if *last == indices.len() - 1 => format!("tasks 0 to {last}"),
        some => {
            // Enough to see the gaps.
            let shown: Vec<String> = some.iter().take(8).map(usize::to_string).collect();
            let more = some.len() - shown.len();
            let end = if more > 0 { format!(" and {more} more") } else { String::new() };
            format!("tasks {}{end}", if more > 0 { shown.join(", ") } else { list(&shown) })
        }
    }
}

/// `a, b and c`
fn list<T: AsRef<str>>(items: &[T]) -> String {
    match items {
        [] => "none".into(),
        [one] => one.as_ref().into(),
        [first @ .., last] => {
            format!("{} and {}", first.iter().map(T::as_ref).collect::<Vec<_>>().join(", "), last.as_ref())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_job_has_is_said_in_few_words() {
        assert_eq!(tasks(&[]), "no task");
        assert_eq!(tasks(&[0]), "task 0 alone");
        assert_eq!(tasks(&[0, 1, 2]), "tasks 0 to 2");
        assert_eq!(tasks(&[0, 2]), "tasks 0 and 2");
        let many: Vec<usize> = (1..=10).collect();
        assert_eq!(tasks(&many), "tasks 1, 2, 3, 4, 5, 6, 7, 8 and 2 more");
        assert_eq!(names(&[]), "none");
    }
}
