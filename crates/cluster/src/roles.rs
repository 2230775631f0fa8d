//! The roles of tasks in their cluster: the chief, the leaders, and the ranks of workers.

use crate::address::Address;
use crate::error::ClusterError;
use crate::spec::ClusterSpec;
use crate::task::{Job, Task};
use crate::world::{ReplicaCount, World};
use std::collections::BTreeMap;

impl ClusterSpec {
    /// Checks that strategies can use the cluster, and that `task` is part of it. An evaluator need not be part
    /// of the cluster, because it does not participate in training.
    ///
    /// # Errors
    /// - [`ClusterError::DisallowedJob`]: a job of the cluster is not chief, worker, ps or evaluator.
    /// - [`ClusterError::DisallowedTask`]: the job of `task` is not one of these.
    /// - [`ClusterError::NotInCluster`]: the cluster does not contain the job of `task`.
    /// - [`ClusterError::Several`]: there are several chiefs or evaluators.
    /// - [`ClusterError::NoSuchIndex`]: the index of `task` is not less than the number of tasks of its job.
    pub fn validate(&self, task: &Task) -> Result<(), ClusterError> {
        // CL-2, in TensorFlow's order.
        if let Some(job) = self.jobs().find(|job| !job.is_known()) {
            return Err(ClusterError::DisallowedJob { job: job.clone() });
        }
        if !task.job.is_known() {
            return Err(ClusterError::DisallowedTask { task: task.clone() });
        }
        if !self.has_job(&task.job) && task.job != Job::Evaluator {
            let jobs = self.jobs().cloned().collect();
            return Err(ClusterError::NotInCluster { task: task.clone(), jobs });
        }
        for job in [Job::Chief, Job::Evaluator] {
            let count = self.count(&job);
            if count > 1 {
                return Err(ClusterError::Several { job, count });
            }
        }
        if self.has_job(&task.job) && task.index >= self.count(&task.job) {
            let indices = self.task_indices(&task.job)?;
            return Err(ClusterError::NoSuchIndex { task: task.clone(), indices });
        }
        Ok(())
    }

    /// Returns whether `task` does the work that only one task may do, such as writing checkpoints. Such a task is the
    /// chief, an evaluator, or worker 0 in a cluster without a chief.
    ///
    /// # Errors
    /// Returns the errors of [`validate`](Self::validate).
    pub fn is_chief(&self, task: &Task) -> Result<bool, ClusterError> {
        self.validate(task)?;
        Ok(match task.job {
            Job::Chief | Job::Evaluator => true,
            Job::Worker => task.index == 0 && !self.has_job(&Job::Chief),
            _ => false,
        })
    }

    /// Returns the number of tasks that train together: the chief and the workers, or 1 if `job` is the evaluator.
    ///
    /// # Errors
    /// - The errors of [`validate`](Self::validate) for task 0 of the job.
    /// - [`ClusterError::NoRank`]: the job is a parameter server.
    pub fn worker_count(&self, job: &Job) -> Result<usize, ClusterError> {
        self.validate(&job.clone().task(0))?;
        match job {
            Job::Chief | Job::Worker => Ok(self.count(&Job::Chief) + self.count(&Job::Worker)),
            Job::Evaluator => Ok(self.count(&Job::Evaluator).max(1)),
            _ => Err(ClusterError::NoRank { task: job.clone().task(0) }),
        }
    }

    /// Returns the rank of a task among those that train together: the chief has rank 0, and the workers follow. The
    /// rank of an evaluator is its index.
    ///
    /// # Errors
    /// - The errors of [`validate`](Self::validate).
    /// - [`ClusterError::NoRank`]: the task is a parameter server.
    pub fn id_in_cluster(&self, task: &Task) -> Result<usize, ClusterError> {
        self.validate(task)?;
        match task.job {
            Job::Chief => Ok(0),
            Job::Worker => Ok(task.index + self.count(&Job::Chief)),
            Job::Evaluator => Ok(task.index),
            _ => Err(ClusterError::NoRank { task: task.clone() }),
        }
    }

    /// Returns the leader of collective calls: the chief, or worker 0 if there is no chief. Returns `None` for an
    /// evaluator, which is alone, and for a cluster that has neither chief nor workers.
    ///
    /// # Errors
    /// Returns the errors of [`validate`](Self::validate), unless the cluster is empty.
    pub fn collective_leader(&self, task: &Task) -> Result<Option<Task>, ClusterError> {
        if self.is_empty() {
            return Ok(None);
        }
        self.validate(task)?;
        Ok(match task.job {
            Job::Evaluator => None,
            _ => self.first_of(&[Job::Chief, Job::Worker]),
        })
    }

    /// Returns the task with which all others register: parameter server 0, or else the chief, or else worker 0.
    /// Returns `None` if the cluster has none of these.
    pub fn coordination_leader(&self) -> Option<Task> {
        self.first_of(&[Job::Ps, Job::Chief, Job::Worker])
    }

    /// Returns the chief and the workers with their addresses, in the order of their ranks.
    pub fn workers(&self) -> Vec<(Task, &Address)> {
        let of = |job: Job| self.tasks().filter(move |(task, _)| task.job == job);
        of(Job::Chief).chain(of(Job::Worker)).collect()
    }

    /// Returns the world of a strategy that trains in lock step, with `task` as its own worker. It contains the
    /// chief and all workers, with `replicas` replicas each. An evaluator gets a world of one process.
    ///
    /// ```
    /// use distribute_cluster::{ClusterSpec, Job};
    /// let spec = ClusterSpec::from_lists([("chief", vec!["a:1"]), ("worker", vec!["b:1", "c:1"])])?;
    /// assert_eq!(spec.world(&Job::Worker.task(1), 2)?.to_string(), "worker 2 of 3, 2 replicas each");
    /// assert!(spec.world(&Job::Chief.task(0), 2)?.is_chief());
    /// # Ok::<(), distribute_cluster::ClusterError>(())
    /// ```
    ///
    /// # Errors
    /// - The errors of [`validate`](Self::validate).
    /// - [`ClusterError::NoRank`]: the task is a parameter server.
    /// - [`ClusterError::Gaps`]: the indices of the workers have gaps.
    /// - [`ClusterError::AddressTwice`]: two tasks have the same address.
    /// - [`ClusterError::World`]: `replicas` is 0 or too large.
    pub fn world(&self, task: &Task, replicas: usize) -> Result<World, ClusterError> {
        self.world_with(task, ReplicaCount::PerWorker(replicas))
    }

    /// Returns the world of the strategy of `task`. `replicas` is the number of replicas of each worker, as in
    /// [`world`](Self::world), or of all workers together. An evaluator gets a world of one process.
    ///
    /// # Errors
    /// Returns the errors of [`world`](Self::world), and of [`World::logical`].
    pub fn world_with(&self, task: &Task, replicas: ReplicaCount) -> Result<World, ClusterError> {
        // MW-5, MW-6
        let rank = self.id_in_cluster(task)?;
        if task.job == Job::Evaluator {
            return Ok(World::with_count(1, 0, replicas)?);
        }
        for job in [Job::Chief, Job::Worker].into_iter().filter(|job| self.has_job(job)) {
            let indices = self.task_indices(&job)?;
            if indices.last().is_some_and(|last| last + 1 != indices.len()) {
                return Err(ClusterError::Gaps { job, indices });
            }
        }
        self.check_addresses()?;
        Ok(World::with_count(self.worker_count(&task.job)?, rank, replicas)?)
    }

    /// Checks that the tasks can reach each other at their addresses. An unspecified address, such as `0.0.0.0`, is
    /// always an error. A loopback address, such as `localhost`, is an error if another task is on another host. If all
    /// addresses are loopback addresses, the cluster is assumed to be on one machine.
    ///
    /// # Errors
    /// - [`ClusterError::AddressTwice`]: two tasks have the same address.
    /// - [`ClusterError::Unspecified`]: an address is unspecified.
    /// - [`ClusterError::Loopback`]: some addresses are loopback addresses, but not all.
    pub fn check_hosts(&self) -> Result<(), ClusterError> {
        let address = |address: &Address| address.to_string();
        self.check_addresses()?;
        if let Some((task, at)) = self.tasks().find(|(_, at)| at.host().is_unspecified()) {
            return Err(ClusterError::Unspecified { task, address: address(at) });
        }
        let loopback = self.tasks().find(|(_, at)| at.host().is_loopback());
        let other = self.tasks().find(|(_, at)| !at.host().is_loopback());
        match (loopback, other) {
            (Some((task, at)), Some((other, _))) => {
                Err(ClusterError::Loopback { task, address: address(at), other })
            }
            _ => Ok(()),
        }
    }

    /// Returns an error if two tasks have the same address. Port 0 is exempt, because the system chooses a different
    /// port for each task.
    fn check_addresses(&self) -> Result<(), ClusterError> {
        let mut seen = BTreeMap::new();
        for (task, at) in self.tasks().filter(|(_, at)| at.port() != 0) {
            let address = at.to_string();
            if let Some(first) = seen.insert(address.clone(), task.clone()) {
                return Err(ClusterError::AddressTwice { task: first, other: task, address });
            }
        }
        Ok(())
    }

    /// Returns the number of tasks of a job, or 0 if the cluster does not contain the job.
    fn count(&self, job: &Job) -> usize {
        self.of(job).map_or(0, |tasks| tasks.len())
    }

    fn first_of(&self, jobs: &[Job]) -> Option<Task> {
        jobs.iter().find(|job| self.has_job(job)).map(|job| job.clone().task(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> ClusterSpec {
        text.parse().unwrap()
    }

    fn task(job: &str, index: usize) -> Task {
        Task::new(job, index)
    }

    const FULL: &str =
        r#"{"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1", "e:1"], "evaluator": ["f:1"]}"#;

    // CL-2: each cluster is refused for the first of its faults.
    #[test]
    fn cl_2_a_strategy_refuses_unusable_jobs_in_this_order() {
        for (cluster, own, says) in [
            (
                r#"{"boss": ["a:1"], "chief": ["b:1", "c:1"]}"#,
                task("none", 9),
                r#"the job "boss" is not one"#,
            ),
            (
                r#"{"chief": ["b:1", "c:1"]}"#,
                task("boss", 9),
                "this task is boss 9, but the tasks of strategies",
            ),
            (
                r#"{"chief": ["b:1", "c:1"]}"#,
                task("worker", 9),
                r#"the cluster has no job "worker", it has chief"#,
            ),
            (r#"{"chief": ["b:1", "c:1"]}"#, task("chief", 9), r#"there are 2 tasks of the job "chief""#),
            (
                r#"{"evaluator": ["b:1", "c:1"]}"#,
                task("evaluator", 9),
                r#"there are 2 tasks of the job "evaluator""#,
            ),
            (
                r#"{"worker": ["b:1", "c:1"]}"#,
                task("worker", 2),
                r#"this task is worker 2, but "worker" has tasks 0 to 1"#,
            ),
        ] {
            let error = spec(cluster).validate(&own).unwrap_err().to_string();
            assert!(error.contains(says), "{cluster}: {error}");
        }
        spec(r#"{"worker": ["a:1"]}"#).validate(&task("evaluator", 3)).unwrap();
        spec(FULL).validate(&task("ps", 1)).unwrap();
    }

    // CL-3, MW-6
    #[test]
    fn cl_3_ranks_go_from_the_chief_through_the_workers() {
        let full = spec(FULL);
        let rank = |job, index| full.id_in_cluster(&task(job, index)).unwrap();
        assert_eq!(
            [rank("chief", 0), rank("worker", 0), rank("worker", 1), rank("evaluator", 0)],
            [0, 1, 2, 0]
        );
        let count = |job| full.worker_count(&Job::from(job)).unwrap();
        assert_eq!([count("chief"), count("worker"), count("evaluator")], [3, 3, 1]);
        let ps = full.id_in_cluster(&task("ps", 1)).unwrap_err();
        assert!(
            ps.to_string().starts_with("ps 1 is a parameter server: it has no rank among the workers"),
            "{ps}"
        );
        assert!(ps.to_string().contains("call distribute::between_graph::serve"), "{ps}");
        assert!(matches!(full.worker_count(&Job::Ps), Err(ClusterError::NoRank { .. })));
        let chief = |spec: &ClusterSpec, job, index| spec.is_chief(&task(job, index)).unwrap();
        assert!(chief(&full, "chief", 0) && chief(&full, "evaluator", 0));
        assert!(!chief(&full, "worker", 0) && !chief(&full, "ps", 0));
        let workers = spec(r#"{"worker": ["b:1", "c:1"]}"#);
        assert!(chief(&workers, "worker", 0) && !chief(&workers, "worker", 1));
        let ranks: Vec<_> = full.workers().into_iter().map(|(task, at)| format!("{task} {at}")).collect();
        assert_eq!(ranks, ["chief 0 a:1", "worker 0 b:1", "worker 1 c:1"]);
    }

    // CL-4
    #[test]
    fn cl_4_there_is_one_leader() {
        let leader = |cluster: &str, job, index| {
            let leader = spec(cluster).collective_leader(&task(job, index)).unwrap();
            leader.map(|task| task.device_name())
        };
        assert_eq!(leader(FULL, "worker", 1).unwrap(), "/job:chief/replica:0/task:0");
        assert_eq!(leader(r#"{"worker": ["b:1"]}"#, "worker", 0).unwrap(), "/job:worker/replica:0/task:0");
        assert_eq!(leader(FULL, "evaluator", 0), None);
        assert_eq!(leader("{}", "worker", 0), None);
        assert_eq!(spec(FULL).coordination_leader(), Some(Job::Ps.task(0)));
        assert_eq!(
            spec(r#"{"chief": ["a:1"], "worker": ["b:1"]}"#).coordination_leader(),
            Some(Job::Chief.task(0))
        );
        assert_eq!(spec("{}").coordination_leader(), None);
    }

    // MW-5, MW-6
    #[test]
    fn mw_6_a_world_has_the_chief_first_and_the_evaluator_alone() {
        let full = spec(FULL);
        let world = |job, index| full.world(&task(job, index), 2).map(|world| world.to_string());
        assert_eq!(world("chief", 0).unwrap(), "worker 0 of 3, 2 replicas each");
        assert_eq!(world("worker", 1).unwrap(), "worker 2 of 3, 2 replicas each");
        assert_eq!(world("evaluator", 0).unwrap(), "2 replicas");
        assert!(matches!(world("ps", 0), Err(ClusterError::NoRank { .. })));
        let gaps = spec(r#"{"worker": {"0": "a:1", "2": "b:1"}}"#).world(&task("worker", 0), 1).unwrap_err();
        assert_eq!(
            gaps.to_string(),
            r#""worker" has tasks 0 and 2: workers of a strategy are numbered from 0 without gaps"#
        );
        assert!(matches!(full.world(&task("chief", 0), 0), Err(ClusterError::World(_))));
    }

    // A common mistake: one machine's TF_CONFIG is copied to all.
    #[test]
    fn loopback_is_refused_among_several_hosts() {
        let check = |cluster: &str| spec(cluster).check_hosts().map_err(|error| error.to_string());
        check(r#"{"worker": ["localhost:1", "127.0.0.1:2", "[::1]:3"]}"#).unwrap();
        check(r#"{"worker": ["10.0.0.1:1", "10.0.0.2:1"]}"#).unwrap();
        let error = check(r#"{"ps": ["10.0.0.1:1"], "worker": ["10.0.0.2:1", "localhost:1"]}"#).unwrap_err();
        assert_eq!(
            error,
            "worker 1 is at localhost:1, which means the local machine on every host, while ps 0 is on \
             another host; give the name or the address by which the others reach it"
        );
        assert!(check(r#"{"worker": ["0.0.0.0:1"]}"#).unwrap_err().contains("to which no task can connect"));
    }

    #[test]
    fn an_address_that_two_tasks_have_is_refused_with_both() {
        let twice = spec(r#"{"worker": ["a:1", "b:1", "a:1"], "ps": ["c:1"]}"#);
        let says = "worker 0 and worker 2 are both at a:1; give each task a separate address: another \
                    host, or another port";
        assert_eq!(twice.world(&task("worker", 1), 1).unwrap_err().to_string(), says);
        assert_eq!(twice.check_hosts().unwrap_err().to_string(), says);
        let among_jobs = spec(r#"{"worker": ["a:1"], "ps": ["a:1"]}"#);
        let error = among_jobs.world(&task("worker", 0), 1).unwrap_err().to_string();
        assert!(error.starts_with("ps 0 and worker 0 are both at a:1"), "{error}");
        spec(r#"{"worker": ["a:1", "a:2"]}"#).world(&task("worker", 0), 1).unwrap();
    }
}
