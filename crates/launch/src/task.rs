//! What a process is in a cluster. Stands in for cluster's until that is merged.

use std::fmt;

/// What the tasks of one name do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Job {
    /// A worker that also does what only one worker does.
    Chief,
    /// Trains.
    Worker,
    /// A parameter server.
    Ps,
    /// Evaluates checkpoints beside the training.
    Evaluator,
}

impl Job {
    /// The name of the job.
    pub fn as_str(&self) -> &str {
        match self {
            Job::Chief => "chief",
            Job::Worker => "worker",
            Job::Ps => "ps",
            Job::Evaluator => "evaluator",
        }
    }

    /// The task of this job with this number.
    pub fn task(self, index: usize) -> Task {
        Task { job: self, index }
    }
}

/// One process of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Task {
    /// What the task does.
    pub job: Job,
    /// Its number in the job, from 0.
    pub index: usize,
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.job.as_str(), self.index)
    }
}
