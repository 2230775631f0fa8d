//! The tasks of a cluster and their addresses.

use crate::Malformed;
use crate::address::Address;
use crate::error::ClusterError;
use crate::json::{self, Json};
use crate::malformed::shown;
use crate::task::{Job, MAX_TASK_INDEX, Task};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// The description of a cluster: its jobs, and the addresses of the tasks of each job.
///
/// The tasks of a job have indices from 0. The indices may have gaps, except those of a strategy's workers.
///
/// The JSON form is the same as in `TF_CONFIG`: a list of addresses for a job without gaps, otherwise a map from
/// indices to addresses.
///
/// ```
/// use distribute_cluster::{ClusterSpec, Job};
/// let spec: ClusterSpec = r#"{"worker": ["10.0.0.1:2222", "10.0.0.2:2222"], "ps": {"1": "10.0.0.3:2222"}}"#.parse()?;
/// assert_eq!(spec.jobs().collect::<Vec<_>>(), [&Job::Ps, &Job::Worker]);
/// assert_eq!(spec.num_tasks(&Job::Worker)?, 2);
/// assert_eq!(spec.task_indices(&Job::Ps)?, [1]);
/// assert_eq!(spec.task_address(&Job::Worker, 1)?.to_string(), "10.0.0.2:2222");
/// assert_eq!(spec.to_string(), r#"{"ps":{"1":"10.0.0.3:2222"},"worker":["10.0.0.1:2222","10.0.0.2:2222"]}"#);
/// # Ok::<(), distribute_cluster::ClusterError>(())
/// ```
#[doc(alias = "tf.train.ClusterSpec")]
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "serde_json::Value")]
pub struct ClusterSpec {
    jobs: BTreeMap<Job, BTreeMap<usize, Address>>,
}

impl ClusterSpec {
    /// Creates a cluster without jobs.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a cluster from a list of addresses for each job.
    ///
    /// ```
    /// use distribute_cluster::ClusterSpec;
    /// let spec = ClusterSpec::from_lists([("chief", vec!["a:1"]), ("worker", vec!["b:1", "c:1"])])?;
    /// assert_eq!(spec.total_tasks(), 3);
    /// # Ok::<(), distribute_cluster::ClusterError>(())
    /// ```
    ///
    /// # Errors
    /// - [`ClusterError::Address`]: a string is not a valid address.
    /// - [`ClusterError::Duplicate`]: a job occurs twice.
    /// - [`ClusterError::TooLarge`]: a job has too many tasks.
    pub fn from_lists<J, L>(jobs: impl IntoIterator<Item = (J, L)>) -> Result<Self, ClusterError>
    where
        J: Into<Job>,
        L: IntoIterator<Item: AsRef<str>>,
    {
        let mut spec = Self::new();
        for (job, addresses) in jobs {
            let job = job.into();
            spec.add_job(job.clone());
            for (index, address) in addresses.into_iter().enumerate() {
                spec.insert(job.clone().task(index), address.as_ref().parse()?)?;
            }
        }
        Ok(spec)
    }

    /// Adds a job without tasks. Has no effect if the cluster already contains the job.
    pub fn add_job(&mut self, job: Job) {
        self.jobs.entry(job).or_default();
    }

    /// Adds a task and its address, and the task's job if necessary.
    ///
    /// # Errors
    /// - [`ClusterError::Duplicate`]: the cluster already contains the task.
    /// - [`ClusterError::TooLarge`]: the index is larger than [`MAX_TASK_INDEX`].
    pub fn insert(&mut self, task: Task, address: Address) -> Result<(), ClusterError> {
        if task.index > MAX_TASK_INDEX {
            return Err(ClusterError::TooLarge { task });
        }
        let tasks = self.jobs.entry(task.job.clone()).or_default();
        if let Some(there) = tasks.get(&task.index) {
            return Err(ClusterError::Duplicate { task, addresses: format!("{there} and {address}") });
        }
        tasks.insert(task.index, address);
        Ok(())
    }

    /// Returns whether the cluster has no jobs.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Returns the total number of tasks of all jobs.
    pub fn total_tasks(&self) -> usize {
        self.jobs.values().map(BTreeMap::len).sum()
    }

    /// Returns the jobs, sorted by name.
    pub fn jobs(&self) -> impl ExactSizeIterator<Item = &Job> {
        self.jobs.keys()
    }

    /// Returns whether the given job is in the cluster, even if it has no tasks.
    pub fn has_job(&self, job: &Job) -> bool {
        self.jobs.contains_key(job)
    }

    /// Returns the number of tasks of a job.
    ///
    /// # Errors
    /// Returns [`ClusterError::NoSuchJob`] if the cluster does not contain the job.
    pub fn num_tasks(&self, job: &Job) -> Result<usize, ClusterError> {
        self.of(job).map(BTreeMap::len)
    }

    /// Returns the indices of a job's tasks, sorted.
    ///
    /// # Errors
    /// Returns [`ClusterError::NoSuchJob`] if the cluster does not contain the job.
    pub fn task_indices(&self, job: &Job) -> Result<Vec<usize>, ClusterError> {
        Ok(self.of(job)?.keys().copied().collect())
    }

    /// Returns the address of a task.
    ///
    /// # Errors
    /// - [`ClusterError::NoSuchJob`]: the cluster does not contain the job.
    /// - [`ClusterError::NoSuchTask`]: the job does not have the task.
    pub fn task_address(&self, job: &Job, index: usize) -> Result<&Address, ClusterError> {
        let tasks = self.of(job)?;
        tasks.get(&index).ok_or_else(|| ClusterError::NoSuchTask {
            task: job.clone().task(index),
            indices: tasks.keys().copied().collect(),
        })
    }

    /// Returns the addresses of a job's tasks by index, with `None` for each gap.
    ///
    /// # Errors
    /// Returns [`ClusterError::NoSuchJob`] if the cluster does not contain the job.
    pub fn job_tasks(&self, job: &Job) -> Result<Vec<Option<&Address>>, ClusterError> {
        let tasks = self.of(job)?;
        let end = tasks.keys().next_back().map_or(0, |last| last + 1);
        Ok((0..end).map(|index| tasks.get(&index)).collect())
    }

    /// Returns all tasks and their addresses, sorted by job and index.
    pub fn tasks(&self) -> impl Iterator<Item = (Task, &Address)> {
        self.jobs
            .iter()
            .flat_map(|(job, tasks)| tasks.iter().map(|(index, address)| (job.clone().task(*index), address)))
    }

    /// Returns the addresses of a job's tasks, by index. Returns [`ClusterError::NoSuchJob`] if the cluster does not
    /// contain the job.
    pub(crate) fn of(&self, job: &Job) -> Result<&BTreeMap<usize, Address>, ClusterError> {
        let unknown = || ClusterError::NoSuchJob { job: job.clone(), jobs: self.jobs().cloned().collect() };
        self.jobs.get(job).ok_or_else(unknown)
    }

    /// Parses a cluster from its JSON form.
    ///
    /// # Errors
    /// Returns an error with the location of the first value that is not as expected.
    pub(crate) fn read(json: &Json<'_>) -> Result<Self, Malformed> {
        let mut spec = Self::new();
        for (name, tasks) in json.entries("a map from jobs to addresses")? {
            let job = Job::from(name);
            spec.add_job(job.clone());
            let add = |spec: &mut Self, index, at: &Json<'_>| {
                let address = at.address()?;
                let new = spec.insert(job.clone().task(index), address);
                new.map_err(|error| at.wrong("each task once", error.to_string()))
            };
            if tasks.value().is_array() {
                for (index, at) in tasks.items("")?.iter().enumerate() {
                    if index > MAX_TASK_INDEX {
                        return Err(at.wrong(format!("at most {} tasks", MAX_TASK_INDEX + 1), "more"));
                    }
                    add(&mut spec, index, at)?;
                }
            } else {
                for (key, at) in tasks.entries("a list of addresses, or a map from numbers to addresses")? {
                    let index = key.trim().parse().ok().filter(|index| *index <= MAX_TASK_INDEX);
                    let index = index.ok_or_else(|| {
                        tasks.wrong(
                            format!("numbers of tasks from 0 to {MAX_TASK_INDEX} as keys"),
                            shown(&format_args!("{key:?}")),
                        )
                    })?;
                    add(&mut spec, index, &at)?;
                }
            }
        }
        Ok(spec)
    }
}

impl FromStr for ClusterSpec {
    type Err = ClusterError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const ORIGIN: &str = "cluster spec";
        Ok(Self::read(&Json::new(ORIGIN, &json::parse(ORIGIN, text)?))?)
    }
}

impl TryFrom<serde_json::Value> for ClusterSpec {
    type Error = ClusterError;

    fn try_from(value: serde_json::Value) -> Result<Self, Self::Error> {
        Ok(Self::read(&Json::new("cluster spec", &value))?)
    }
}

impl Serialize for ClusterSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.jobs.len()))?;
        for (job, tasks) in &self.jobs {
            match tasks.keys().next_back() {
                // TensorFlow also writes a job without tasks as a map.
                Some(last) if last + 1 == tasks.len() => {
                    map.serialize_entry(job.as_str(), &tasks.values().collect::<Vec<_>>())?;
                }
                _ => map.serialize_entry(job.as_str(), tasks)?,
            }
        }
        map.end()
    }
}

impl fmt::Display for ClusterSpec {
    /// Formats the cluster as JSON.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> Result<ClusterSpec, String> {
        text.parse().map_err(|error: ClusterError| error.to_string())
    }

    // CL-1
    #[test]
    fn cl_1_a_spec_answers_for_lists_and_maps() {
        let spec = spec(r#"{"worker": ["a:1", "b:1"], "ps": {"3": "c:1"}, "empty": []}"#).unwrap();
        let (worker, ps, empty) = (Job::Worker, Job::Ps, Job::from("empty"));
        assert_eq!(spec.jobs().map(Job::as_str).collect::<Vec<_>>(), ["empty", "ps", "worker"]);
        let count = |job| spec.num_tasks(job).unwrap();
        assert_eq!((count(&worker), count(&ps), count(&empty)), (2, 1, 0));
        assert_eq!(spec.task_indices(&ps).unwrap(), [3]);
        let tasks = spec.job_tasks(&ps).unwrap();
        assert_eq!(tasks.iter().map(Option::is_some).collect::<Vec<_>>(), [false, false, false, true]);
        assert_eq!(spec.to_string(), r#"{"empty":{},"ps":{"3":"c:1"},"worker":["a:1","b:1"]}"#);
        assert!(!spec.is_empty() && spec.total_tasks() == 3);
        assert!(ClusterSpec::new().is_empty());
    }

    // CL-1
    #[test]
    fn cl_1_a_missing_job_or_task_is_named() {
        let spec = spec(r#"{"worker": ["a:1", "b:1"], "ps": {"3": "c:1"}}"#).unwrap();
        let error = spec.num_tasks(&Job::from("nope")).unwrap_err().to_string();
        assert_eq!(error, r#"the cluster has no job "nope", it has ps and worker"#);
        let error = spec.task_address(&Job::Worker, 9).unwrap_err().to_string();
        assert_eq!(error, r#"the cluster has no worker 9: "worker" has tasks 0 to 1"#);
        let error = spec.task_address(&Job::Ps, 0).unwrap_err().to_string();
        assert_eq!(error, r#"the cluster has no ps 0: "ps" has task 3 alone"#);
    }

    // CL-1
    #[test]
    fn cl_1_an_error_of_an_invalid_spec_has_its_position() {
        for (text, says) in [
            ("[]", "cluster spec: expected a map from jobs to addresses, found []"),
            (r#"{"worker": "h:1"}"#, r#"cluster spec: worker: expected a list of addresses, or a map"#),
            (r#"{"worker": 5}"#, "worker: expected a list"),
            (r#"{"worker": [1]}"#, r#"worker[0]: expected "host:port", found 1"#),
            (r#"{"worker": ["h"]}"#, r#"worker[0]: expected "host:port", found "h" (no port)"#),
            (
                r#"{"worker": {"a": "h:1"}}"#,
                r#"worker: expected numbers of tasks from 0 to 65535 as keys, found "a""#,
            ),
            (r#"{"worker": {"-1": "h:1"}}"#, r#"found "-1""#),
            (r#"{"worker": {"99999999999": "h:1"}}"#, r#"found "99999999999""#),
            (
                r#"{"ps": {"1": "h:1", "01": "h:2"}}"#,
                "expected each task once, found ps 1 is listed twice, at",
            ),
        ] {
            let error = spec(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn it_round_trips_through_json() {
        let spec =
            ClusterSpec::from_lists([("worker", ["a:1", "[::1]:2"]), ("boss", ["c:3", "d:4"])]).unwrap();
        assert_eq!(spec.to_string().parse::<ClusterSpec>().unwrap(), spec);
        let value = serde_json::to_value(&spec).unwrap();
        assert_eq!(serde_json::from_value::<ClusterSpec>(value).unwrap(), spec);
        let error = ClusterSpec::from_lists([("worker", ["a:1"]), ("worker", ["b:1"])]).unwrap_err();
        assert_eq!(error.to_string(), "worker 0 is listed twice, at a:1 and b:1");
    }
}
