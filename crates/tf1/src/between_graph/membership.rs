//! The role of a process in between-graph training, determined only by the cluster.

use super::KIND;
use distribute_base::{Error, Result};
use distribute_cluster::{ClusterError, ClusterSpec, Job, Task};
use distribute_core::IndependentWorker;

/// The role of this process: training alone, or as one of several workers.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Membership {
    /// There is no cluster, so the process trains alone.
    Local,
    /// The process is a worker that trains with parameter servers. There may be other workers.
    Worker(Task, IndependentWorker),
}

impl Membership {
    // PSV1-1, PSV1-2, CL-2, CL-3
    /// Returns the role of `task` in a cluster.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: there is a cluster, but `task` is unknown, a parameter server or an evaluator.
    /// - [`Error::Cluster`]: the cluster has no parameter servers, has unexpected tasks, or does not contain `task`.
    pub(super) fn of(spec: &ClusterSpec, task: Option<Task>) -> Result<Self> {
        if spec.is_empty() {
            return Ok(Membership::Local);
        }
        let Some(task) = task else {
            let reason = format!(
                "there is a cluster ({spec}), but the task of this process is unknown; set the resolver's task_type \
                 and task_id, or leave the cluster out to train in this process alone"
            );
            return Err(Error::invalid(KIND, reason));
        };
        spec.validate(&task)?;
        if !spec.has_job(&Job::Ps) || spec.num_tasks(&Job::Ps)? == 0 {
            return Err(ClusterError::NoSuchJob { job: Job::Ps, jobs: spec.jobs().cloned().collect() }.into());
        }
        let what = match &task.job {
            Job::Ps => {
                "a parameter server, which serves variables and trains nothing; call between_graph::serve before the \
                 strategy is created"
            }
            Job::Evaluator => {
                "an evaluator, which does not take part in the training; it reads checkpoints with a separate strategy"
            }
            _ => {
                let (workers, worker) = (spec.worker_count(&task.job)?, spec.id_in_cluster(&task)?);
                return Ok(Membership::Worker(task, IndependentWorker { workers, worker }));
            }
        };
        Err(Error::invalid(KIND, format!("this process is {task}, {what}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn membership(spec: &str, task: Option<(&str, usize)>) -> Result<Membership> {
        Membership::of(&spec.parse().unwrap(), task.map(|(job, index)| Task::new(job, index)))
    }

    fn worker(membership: Result<Membership>) -> (usize, usize) {
        match membership.unwrap() {
            Membership::Worker(_, IndependentWorker { workers, worker }) => (workers, worker),
            Membership::Local => panic!("it is alone"),
        }
    }

    #[test]
    fn psv1_1_without_a_cluster_a_process_trains_alone() {
        assert_eq!(membership("{}", None).unwrap(), Membership::Local);
        assert_eq!(membership("{}", Some(("worker", 3))).unwrap(), Membership::Local);
    }

    // PSV1-11
    #[test]
    fn the_chief_is_the_first_worker_or_a_task_of_its_own_that_trains_too() {
        let two = r#"{"worker": ["a:1", "b:1"], "ps": ["c:1"]}"#;
        assert_eq!([0, 1].map(|index| worker(membership(two, Some(("worker", index))))), [(2, 0), (2, 1)]);
        let led = r#"{"chief": ["z:1"], "worker": ["a:1", "b:1"], "ps": ["c:1"]}"#;
        assert_eq!([0, 1].map(|index| worker(membership(led, Some(("worker", index))))), [(3, 1), (3, 2)]);
        assert_eq!(worker(membership(led, Some(("chief", 0)))), (3, 0));
        // A chief is enough, without workers.
        assert_eq!(worker(membership(r#"{"chief": ["z:1"], "ps": ["c:1"]}"#, Some(("chief", 0)))), (1, 0));
    }

    #[test]
    fn psv1_2_the_constructor_refuses_invalid_clusters() {
        let both = r#"{"worker": ["a:1"], "ps": ["c:1"]}"#;
        for (spec, task, why) in [
            (both, None, "the task of this process is unknown"),
            (r#"{"worker": ["a:1"]}"#, Some(("worker", 0)), "no job \"ps\""),
            (r#"{"worker": ["a:1"], "ps": []}"#, Some(("worker", 0)), "no job \"ps\""),
            (both, Some(("worker", 1)), "\"worker\" has"),
            (both, Some(("tpu", 0)), "this task is tpu 0"),
            (
                r#"{"worker": ["a:1"], "ps": ["c:1"], "tpu": ["d:1"]}"#,
                Some(("worker", 0)),
                "the job \"tpu\" is not one",
            ),
            (both, Some(("ps", 0)), "between_graph::serve"),
            (both, Some(("evaluator", 0)), "an evaluator"),
        ] {
            let error = membership(spec, task).unwrap_err().to_string();
            assert!(error.contains(why), "{spec}: {error}");
        }
    }
}
