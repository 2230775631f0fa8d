//! The members of a training run, and checks of the cluster when a strategy is created. This module does no I/O.

use super::OPERATION;
use distribute_base::{Error, Result};
use distribute_cluster::resolver::ClusterResolver;
use distribute_cluster::{Address, ClusterError, ClusterSpec, Job, Task};
use distribute_ps_client::internal::{CreationPolicy, local_channel};

/// The members of a training run with parameter servers.
#[derive(Debug)]
pub struct Members {
    /// The addresses of the parameter servers.
    pub(super) servers: Vec<Address>,
    pub(super) workers: usize,
    /// All tasks of the cluster.
    pub(super) spec: ClusterSpec,
    /// The task of this process, if the resolver reports one.
    pub(super) task: Option<Task>,
}

impl Members {
    /// Returns the members of the cluster that a resolver describes.
    pub(super) fn of(resolver: &dyn ClusterResolver) -> Result<Self> {
        let task = match (resolver.task_type(), resolver.task_id()) {
            (None, _) => None,
            // A coordinator needs no number because there is only one.
            (Some(job), id) => Some(job.task(id.unwrap_or(0))),
        };
        Self::checked(&resolver.cluster_spec()?, task)
    }

    // PSV2-2
    fn checked(spec: &ClusterSpec, task: Option<Task>) -> Result<Self> {
        if spec.is_empty() {
            let reason = "the cluster is empty: it needs at least one task of the job ps and one of the job worker; \
                          set TF_CONFIG, pass a resolver that knows the tasks, or use LocalCluster::new(2, 2) in one process";
            return Err(Error::invalid(OPERATION, reason));
        }
        // Neither the coordinator nor an evaluator has to be one of the tasks.
        let checked = match &task {
            Some(task) if task.job == Job::Chief && !spec.has_job(&Job::Chief) => None,
            task => task.as_ref(),
        };
        spec.validate(checked.unwrap_or(&Job::Evaluator.task(0)))?;
        for job in [Job::Ps, Job::Worker] {
            if !spec.has_job(&job) || spec.num_tasks(&job)? == 0 {
                return Err(ClusterError::NoSuchJob { job, jobs: spec.jobs().cloned().collect() }.into());
            }
        }
        if let Some(task) = task.as_ref().filter(|task| matches!(task.job, Job::Ps | Job::Evaluator)) {
            // GNN-2
            let what = match task.job {
                Job::Ps => {
                    "a parameter server, which serves variables and trains nothing; call distribute::serve before the \
                     strategy is created, and exit if the role that it returns has served"
                }
                _ => {
                    "an evaluator, which does not take part in the training; it reads checkpoints with a separate strategy"
                }
            };
            return Err(Error::invalid(OPERATION, format!("this process is {task}, {what}")));
        }
        Ok(Self {
            servers: addresses(spec)?,
            workers: spec.num_tasks(&Job::Worker)?,
            spec: spec.clone(),
            task,
        })
    }

    /// Returns the members of the cluster `spec` in the view of `task`, one of `workers` independent workers.
    pub fn of_worker(spec: ClusterSpec, task: Task, workers: usize) -> Result<Self> {
        Ok(Self { servers: addresses(&spec)?, workers, spec, task: Some(task) })
    }

    /// Returns all tasks of the given jobs, except for this process.
    pub(super) fn others(&self, jobs: &[Job]) -> Vec<Task> {
        let of = |job: Job| {
            let indices = self.spec.task_indices(&job).unwrap_or_default();
            indices.into_iter().map(move |index| job.clone().task(index))
        };
        jobs.iter().cloned().flat_map(of).filter(|task| Some(task) != self.task.as_ref()).collect()
    }

    /// Returns `true` if any parameter server is in another process.
    pub(super) fn are_remote(&self) -> bool {
        self.servers.iter().enumerate().any(|(number, address)| local_channel(number, address).is_none())
    }

    /// Returns the policy that determines whether this process creates missing variables. Workers wait for the
    /// variables of the coordinator, because only the coordinator decides where variables are stored. In a remote call,
    /// the coordinator may let one worker create variables.
    pub(super) fn creation_policy(&self) -> CreationPolicy {
        match &self.task {
            Some(task) if task.job == Job::Worker => CreationPolicy::Wait,
            _ => CreationPolicy::CreateMissing,
        }
    }
}

/// Returns the addresses of the parameter servers.
fn addresses(spec: &ClusterSpec) -> Result<Vec<Address>> {
    let address = |(number, address): (usize, Option<&Address>)| {
        let missing = || ClusterError::NoSuchTask {
            task: Job::Ps.task(number),
            indices: spec.task_indices(&Job::Ps).unwrap_or_default(),
        };
        Ok(address.ok_or_else(missing)?.clone())
    };
    spec.job_tasks(&Job::Ps)?.into_iter().enumerate().map(address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(spec: &str, task: Option<(&str, usize)>) -> Result<Members> {
        Members::checked(&spec.parse().unwrap(), task.map(|(job, index)| Task::new(job, index)))
    }

    #[test]
    fn psv2_1_the_coordinator_may_be_absent_from_the_cluster() {
        let spec = r#"{"worker": ["a:1", "b:1"], "ps": ["c:1", "d:1", "e:1"]}"#;
        for task in [None, Some(("chief", 0)), Some(("worker", 1))] {
            let members = members(spec, task).unwrap();
            assert_eq!((members.servers.len(), members.workers), (3, 2));
            let expected = if task == Some(("worker", 1)) {
                CreationPolicy::Wait
            } else {
                CreationPolicy::CreateMissing
            };
            assert_eq!(members.creation_policy(), expected);
        }
        let chief = r#"{"chief": ["z:1"], "worker": ["a:1"], "ps": ["c:1"], "evaluator": ["y:1"]}"#;
        assert_eq!(members(chief, Some(("chief", 0))).unwrap().workers, 1);
    }

    #[test]
    fn psv2_2_the_constructor_refuses_invalid_clusters() {
        let both = r#"{"worker": ["a:1"], "ps": ["c:1"]}"#;
        for (spec, task, why) in [
            ("{}", None, "the cluster is empty"),
            (r#"{"worker": ["a:1"], "ps": ["c:1"], "tpu": ["d:1"]}"#, None, "the job \"tpu\" is not one"),
            (both, Some(("tpu", 0)), "this task is tpu 0"),
            (both, Some(("worker", 1)), "\"worker\" has"),
            (
                r#"{"worker": ["a:1"], "ps": ["c:1"], "chief": ["d:1", "e:1"]}"#,
                None,
                "2 tasks of the job \"chief\"",
            ),
            (
                r#"{"worker": ["a:1"], "ps": ["c:1"], "evaluator": ["d:1", "e:1"]}"#,
                None,
                "2 tasks of the job \"evaluator\"",
            ),
            (r#"{"worker": ["a:1"]}"#, None, "no job \"ps\""),
            (r#"{"worker": ["a:1"], "ps": []}"#, None, "no job \"ps\""),
            (r#"{"ps": ["a:1"]}"#, None, "no job \"worker\""),
            (r#"{"worker": ["a:1"], "ps": {"1": "c:1"}}"#, None, "no ps 0"),
            (both, Some(("ps", 0)), "parameter server"),
            (both, Some(("evaluator", 0)), "evaluator"),
        ] {
            let error = members(spec, task).unwrap_err().to_string();
            assert!(error.contains(why), "{spec}: {error}");
        }
    }
}
