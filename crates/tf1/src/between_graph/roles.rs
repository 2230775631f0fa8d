//! The role of a process in a training between graphs: a pure function of the cluster.

use super::KIND;
use distribute_base::{Error, Result};
use distribute_cluster::{ClusterError, ClusterSpec, Job, Task};
use distribute_core::IndependentWorker;

/// The role of this process.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// There is no cluster: the process trains alone.
    Local,
    /// The process trains with parameter servers, as one of several workers.
    Worker(Task, IndependentWorker),
}

impl Role {
    // PSV1-1, PSV1-2, CL-2, CL-3
    /// Returns the role of `task` in a cluster.
    pub(super) fn of(spec: &ClusterSpec, task: Option<Task>) -> Result<Self> {
        if spec.is_empty() {
            return Ok(Role::Local);
        }
        let Some(task) = task else {
            let reason = format!(
                "there is a cluster ({spec}), but it is not known which of its tasks this process is; give the resolver its task_type \
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
                "a parameter server: it serves variables, and trains nothing; call between_graph::serve before the strategy is made"
            }
            Job::Evaluator => {
                "an evaluator: it takes no part in the training, and reads checkpoints with a strategy of its own"
            }
            _ => {
                let (workers, worker) = (spec.worker_count(&task.job)?, spec.id_in_cluster(&task)?);
                return Ok(Role::Worker(task, IndependentWorker { workers, worker }));
            }
        };
        Err(Error::invalid(KIND, format!("this process is {task}, {what}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role(spec: &str, task: Option<(&str, usize)>) -> Result<Role> {
        Role::of(&spec.parse().unwrap(), task.map(|(job, index)| Task::new(job, index)))
    }

    fn worker(role: Result<Role>) -> (usize, usize) {
        match role.unwrap() {
            Role::Worker(_, IndependentWorker { workers, worker }) => (workers, worker),
            Role::Local => panic!("it is alone"),
        }
    }

    #[test]
    fn psv1_1_without_a_cluster_a_process_trains_alone() {
        assert_eq!(role("{}", None).unwrap(), Role::Local);
        assert_eq!(role("{}", Some(("worker", 3))).unwrap(), Role::Local);
    }

    // PSV1-11
    #[test]
    fn the_chief_is_the_first_worker_or_a_task_of_its_own_that_trains_too() {
        let two = r#"{"worker": ["a:1", "b:1"], "ps": ["c:1"]}"#;
        assert_eq!([0, 1].map(|index| worker(role(two, Some(("worker", index))))), [(2, 0), (2, 1)]);
        let led = r#"{"chief": ["z:1"], "worker": ["a:1", "b:1"], "ps": ["c:1"]}"#;
        assert_eq!([0, 1].map(|index| worker(role(led, Some(("worker", index))))), [(3, 1), (3, 2)]);
        assert_eq!(worker(role(led, Some(("chief", 0)))), (3, 0));
        // A chief is enough, without workers.
        assert_eq!(worker(role(r#"{"chief": ["z:1"], "ps": ["c:1"]}"#, Some(("chief", 0)))), (1, 0));
    }

    #[test]
    fn psv1_2_what_the_constructor_refuses() {
        let both = r#"{"worker": ["a:1"], "ps": ["c:1"]}"#;
        for (spec, task, why) in [
            (both, None, "which of its tasks this process is"),
            (r#"{"worker": ["a:1"]}"#, Some(("worker", 0)), "no job \"ps\""),
            (r#"{"worker": ["a:1"], "ps": []}"#, Some(("worker", 0)), "no job \"ps\""),
            (both, Some(("worker", 1)), "\"worker\" has"),
            (both, Some(("tpu", 0)), "this task is tpu 0"),
            (
                r#"{"worker": ["a:1"], "ps": ["c:1"], "tpu": ["d:1"]}"#,
                Some(("worker", 0)),
                "the job \"tpu\" is none",
            ),
            (both, Some(("ps", 0)), "between_graph::serve"),
            (both, Some(("evaluator", 0)), "an evaluator"),
        ] {
            let error = role(spec, task).unwrap_err().to_string();
            assert!(error.contains(why), "{spec}: {error}");
        }
    }
}
