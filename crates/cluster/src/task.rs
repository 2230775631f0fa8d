//! The jobs and tasks of a cluster.

use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

/// The maximum index of a task in its job. Lists of tasks contain an entry for each gap, so a typo in a larger index
/// could exhaust the memory.
pub const MAX_TASK_INDEX: usize = 65_535;

/// A job: a named group of tasks with the same role.
///
/// A cluster spec may have jobs with any name. Strategies use the four that have their own variant. Two jobs are
/// equal if their names are equal.
#[doc(alias = "task_type")]
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Job {
    /// A worker that also does the work that only one worker may do, such as writing checkpoints.
    Chief,
    /// A worker, which trains.
    Worker,
    /// A parameter server, which stores variables.
    Ps,
    /// An evaluator, which evaluates checkpoints while the other tasks train. It does not participate in
    /// training.
    Evaluator,
    /// A job with any other name, which no strategy uses.
    Other(OtherJob),
}

/// The name of a job that strategies do not use. It is created by [`Job::from`].
#[derive(Clone, Debug)]
pub struct OtherJob(Box<str>);

impl OtherJob {
    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Job {
    /// Returns the name of the job.
    pub fn as_str(&self) -> &str {
        match self {
            Job::Chief => "chief",
            Job::Worker => "worker",
            Job::Ps => "ps",
            Job::Evaluator => "evaluator",
            Job::Other(other) => &other.0,
        }
    }

    /// Returns whether this is one of the four jobs that strategies use.
    pub fn is_known(&self) -> bool {
        !matches!(self, Job::Other(_))
    }

    /// Returns the task with the given index in this job.
    pub fn task(self, index: usize) -> Task {
        Task { job: self, index }
    }
}

impl From<&str> for Job {
    fn from(name: &str) -> Self {
        match name {
            "chief" => Job::Chief,
            "worker" => Job::Worker,
            "ps" => Job::Ps,
            "evaluator" => Job::Evaluator,
            other => Job::Other(OtherJob(other.into())),
        }
    }
}

impl From<String> for Job {
    fn from(name: String) -> Self {
        Self::from(name.as_str())
    }
}

impl From<Job> for String {
    fn from(job: Job) -> Self {
        job.as_str().into()
    }
}

impl PartialEq for Job {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Job {}

impl PartialOrd for Job {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Job {
    /// Compares the names of jobs, as TensorFlow does to sort them.
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl Hash for Job {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// One process of a cluster: its job, and its index in the job, from 0.
///
/// ```
/// use distribute_cluster::{Job, Task};
/// let task = Task::new("worker", 1);
/// assert_eq!(task, Job::Worker.task(1));
/// assert_eq!(task.to_string(), "worker 1");
/// assert_eq!(task.device_name(), "/job:worker/replica:0/task:1");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Task {
    /// The job to which the task belongs.
    #[serde(rename = "type")]
    pub job: Job,
    /// The index of the task in its job, from 0.
    #[doc(alias = "task_id")]
    pub index: usize,
}

impl Task {
    /// Creates the task with the given index in a job.
    pub fn new(job: impl Into<Job>, index: usize) -> Self {
        Self { job: job.into(), index }
    }

    /// Returns the device name of the task, as in TensorFlow: `/job:worker/replica:0/task:1`.
    pub fn device_name(&self) -> String {
        format!("/job:{}/replica:0/task:{}", self.job, self.index)
    }
}

impl fmt::Display for Task {
    /// Formats the task as `worker 1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.job, self.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_its_name() {
        for job in [Job::Chief, Job::Worker, Job::Ps, Job::Evaluator] {
            assert_eq!(Job::from(job.as_str()), job);
            assert!(job.is_known());
        }
        let other = Job::from("boss");
        assert!(!other.is_known() && other == Job::from(String::from("boss")) && other != Job::Chief);
        let mut jobs = [Job::Worker, Job::Ps, Job::from("boss"), Job::Chief, Job::Evaluator];
        jobs.sort();
        let names: Vec<_> = jobs.iter().map(Job::as_str).collect();
        assert_eq!(names, ["boss", "chief", "evaluator", "ps", "worker"]);
    }

    #[test]
    fn a_task_is_written_as_tf_config_has_it() {
        let json = serde_json::to_string(&Task::new("worker", 1)).unwrap();
        assert_eq!(json, r#"{"type":"worker","index":1}"#);
        assert_eq!(serde_json::from_str::<Task>(&json).unwrap(), Job::Worker.task(1));
    }
}
