//! The layout of ranks over hosts, for schedulers that give each process a rank.

use crate::address::{Address, Host};
use crate::error::ClusterError;
use crate::spec::ClusterSpec;
use crate::task::{Job, Task};
use std::collections::{BTreeMap, BTreeSet};

/// A layout of ranks over hosts. Each host gets its number of consecutive ranks, and so does each job, in the order of
/// the jobs' names.
pub(super) struct Layout<'a> {
    /// The hosts in order, with the number of tasks on each.
    pub hosts: &'a [(String, usize)],
    /// The number of tasks of each job.
    pub jobs: &'a BTreeMap<Job, usize>,
    /// The port of the first task on each host. Further tasks on the host have the next ports.
    pub port_base: u16,
}

/// A cluster, and the position of one rank in it.
#[derive(Debug)]
pub(super) struct Placed {
    pub spec: ClusterSpec,
    pub task: Task,
    /// The index of the host of the rank.
    pub node: usize,
    /// The index of the task among the tasks on this host.
    pub local: usize,
}

impl Layout<'_> {
    /// Returns the cluster, and the position of `rank` in it.
    ///
    /// # Errors
    /// - [`ClusterError::TaskCount`]: the hosts do not have as many tasks as the jobs.
    /// - [`ClusterError::NoSuchRank`]: `rank` is not less than the number of tasks.
    /// - [`ClusterError::HostTwice`]: a host is listed twice.
    /// - [`ClusterError::Ports`]: a task would have a port above 65535.
    /// - [`ClusterError::Host`]: the name of a host is not valid.
    /// - [`ClusterError::TooLarge`]: a job has too many tasks.
    pub fn place(&self, rank: usize) -> Result<Placed, ClusterError> {
        let started: usize = self.hosts.iter().fold(0, |sum, (_, tasks)| sum.saturating_add(*tasks));
        let wanted = self.jobs.values().fold(0, |sum: usize, count| sum.saturating_add(*count));
        if started != wanted {
            return Err(ClusterError::TaskCount { wanted, started });
        }
        if rank >= started {
            return Err(ClusterError::NoSuchRank { rank, started });
        }
        let mut names = BTreeSet::new();
        if let Some((host, _)) = self.hosts.iter().find(|(host, _)| !names.insert(host)) {
            return Err(ClusterError::HostTwice { host: host.clone() });
        }
        let mut positions = self
            .hosts
            .iter()
            .enumerate()
            .flat_map(|(node, (host, tasks))| (0..*tasks).map(move |local| (node, host, local)));
        let mut ranks =
            self.jobs.iter().flat_map(|(job, count)| (0..*count).map(|index| job.clone().task(index)));
        let (mut spec, mut own) = (ClusterSpec::new(), None);
        self.jobs.keys().for_each(|job| spec.add_job(job.clone()));
        for at in 0..started {
            let (Some((node, host, local)), Some(task)) = (positions.next(), ranks.next()) else { break };
            let port = u16::try_from(local).ok().and_then(|local| self.port_base.checked_add(local));
            let port = port.ok_or(ClusterError::Ports { port_base: self.port_base, tasks: local + 1 })?;
            let parsed = host.parse::<Host>();
            let parsed = parsed.map_err(|why| ClusterError::Host { found: host.clone(), why: why.into() })?;
            spec.insert(task.clone(), Address::new(parsed, port))?;
            if at == rank {
                own = Some((task, node, local));
            }
        }
        let (task, node, local) = own.ok_or(ClusterError::NoSuchRank { rank, started })?;
        Ok(Placed { spec, task, node, local })
    }
}

impl Placed {
    /// Checks that the scheduler put `rank` on host `node`, as task `local` of that host. A value of `None` is not
    /// checked. With another distribution of ranks, tasks would connect to the wrong processes.
    ///
    /// # Errors
    /// Returns [`ClusterError::Dealt`] if a value differs.
    pub fn check(&self, rank: usize, node: Option<usize>, local: Option<usize>) -> Result<(), ClusterError> {
        let (node, local) = (node.unwrap_or(self.node), local.unwrap_or(self.local));
        if (node, local) == (self.node, self.local) {
            return Ok(());
        }
        let (expected, found) = ((self.node, self.local), (node, local));
        Err(ClusterError::Dealt { rank, expected, found })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(hosts: &[(&str, usize)], jobs: &[(&str, usize)], rank: usize) -> Result<Placed, String> {
        let hosts: Vec<_> = hosts.iter().map(|(host, tasks)| (host.to_string(), *tasks)).collect();
        let jobs = jobs.iter().map(|(job, count)| (Job::from(*job), *count)).collect();
        let layout = Layout { hosts: &hosts, jobs: &jobs, port_base: 8888 };
        layout.place(rank).map_err(|error| error.to_string())
    }

    // RES-3
    #[test]
    fn res_3_ranks_go_through_hosts_and_jobs() {
        let placed = place(&[("n01", 2), ("n02", 1)], &[("ps", 1), ("worker", 2)], 1).unwrap();
        assert_eq!(placed.spec.to_string(), r#"{"ps":["n01:8888"],"worker":["n01:8889","n02:8888"]}"#);
        assert_eq!((placed.task, placed.node, placed.local), (Job::Worker.task(0), 0, 1));
    }

    #[test]
    fn a_layout_that_does_not_fit_is_refused() {
        let refused =
            |hosts: &[(&str, usize)], jobs: &[(&str, usize)], rank| place(hosts, jobs, rank).unwrap_err();
        assert_eq!(
            refused(&[("a", 2)], &[("worker", 3)], 0),
            "the jobs have 3 tasks, but 2 were started; ask the scheduler for 3, or give the jobs 2"
        );
        assert!(refused(&[("a", 2)], &[("worker", 2)], 2).contains("this process has rank 2"));
        assert!(refused(&[("a", 1), ("a", 1)], &[("worker", 2)], 0).contains("\"a\" is listed twice"));
        assert!(refused(&[("a b", 1)], &[("worker", 1)], 0).contains("a host name consists of letters"));
        assert!(refused(&[("a", 60_000)], &[("worker", 60_000)], 0).contains("ports"));
        assert!(
            refused(&[("a", usize::MAX), ("b", 9)], &[("worker", 1)], 0).contains("the jobs have 1 tasks")
        );
    }

    #[test]
    fn ranks_that_were_dealt_in_turn_are_noticed() {
        let placed = place(&[("a", 2), ("b", 2)], &[("worker", 4)], 1).unwrap();
        placed.check(1, Some(0), Some(1)).unwrap();
        placed.check(1, None, None).unwrap();
        let error = placed.check(1, Some(1), Some(0)).unwrap_err().to_string();
        assert_eq!(
            error,
            "rank 1 should be task 1 of host 0, but is task 0 of host 1: have the scheduler fill one host after the other \
             (Slurm: --distribution=block; Open MPI: --map-by slot)"
        );
    }
}
