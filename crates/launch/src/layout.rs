//! The tasks of a job, and their hosts.

use crate::{Error, Job, RemoteHost, Result, Task};
use std::collections::HashSet;

/// The maximum number of tasks of one launcher.
const MOST: usize = 4096;

/// The tasks of a job, and the hosts on which they run.
///
/// ```
/// use distribute_launch::{Layout, parse_hosts};
/// let layout = Layout::new(4).ps(2).hosts(parse_hosts("a,b")?);
/// let tasks = layout.tasks();
/// let placed = tasks.iter().map(|(task, host)| format!("{task} on {}", ["a", "b"][host.unwrap_or(0)]));
/// let placed: Vec<_> = placed.collect();
/// assert_eq!(placed, ["worker 0 on a", "worker 1 on a", "worker 2 on b", "worker 3 on b", "ps 0 on a", "ps 1 on b"]);
/// # Ok::<(), distribute_launch::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    pub(crate) workers: usize,
    pub(crate) chief: bool,
    pub(crate) ps: usize,
    pub(crate) evaluator: bool,
    pub(crate) hosts: Vec<RemoteHost>,
}

impl Layout {
    /// Creates a layout of workers on this machine.
    pub fn new(workers: usize) -> Self {
        Self { workers, ..Self::default() }
    }

    /// Sets whether there is a chief in addition to the workers.
    pub fn chief(mut self, chief: bool) -> Self {
        self.chief = chief;
        self
    }

    /// Sets the number of parameter servers.
    pub fn ps(mut self, ps: usize) -> Self {
        self.ps = ps;
        self
    }

    /// Sets whether there is an evaluator, which is not part of the cluster of the other tasks.
    pub fn evaluator(mut self, evaluator: bool) -> Self {
        self.evaluator = evaluator;
        self
    }

    /// Sets the hosts; if there are none, tasks run on this machine.
    pub fn hosts(mut self, hosts: Vec<RemoteHost>) -> Self {
        self.hosts = hosts;
        self
    }

    /// Returns all tasks, each with the index of its host; `None` means this machine. Chief and workers are
    /// distributed over the hosts in blocks of nearly equal length, and so are parameter servers. The evaluator
    /// is on the last host.
    pub fn tasks(&self) -> Vec<(Task, Option<usize>)> {
        let training = usize::from(self.chief) + self.workers;
        let trains = self.chief.then(|| Job::Chief.task(0)).into_iter();
        let trains = trains.chain((0..self.workers).map(|index| Job::Worker.task(index)));
        let trains = trains.enumerate().map(|(k, task)| (task, self.host(k, training)));
        let ps = (0..self.ps).map(|index| (Job::Ps.task(index), self.host(index, self.ps)));
        let evaluator = self.evaluator.then(|| (Job::Evaluator.task(0), self.hosts.len().checked_sub(1)));
        trains.chain(ps).chain(evaluator).collect()
    }

    /// Returns the host of the `k`-th of `n` tasks.
    fn host(&self, k: usize, n: usize) -> Option<usize> {
        let hosts = self.hosts.len();
        let (each, more) = (n.checked_div(hosts)?, n % hosts);
        let in_longer = more * (each + 1);
        Some(if k < in_longer { k / (each + 1) } else { more + (k - in_longer) / each })
    }

    /// Checks the layout.
    ///
    /// # Errors
    /// - [`Error::NoWorkers`]: no task trains.
    /// - [`Error::TooManyTasks`]: there are too many tasks.
    /// - [`Error::Host`]: a host is given twice.
    /// - [`Error::Loopback`]: a host is a loopback address, and there are several hosts.
    pub fn check(&self) -> Result<()> {
        if self.workers == 0 && !self.chief {
            return Err(Error::NoWorkers);
        }
        let tasks = self.workers.saturating_add(self.ps).saturating_add(2);
        if tasks > MOST + 2 {
            return Err(Error::TooManyTasks { tasks: tasks - 2, most: MOST });
        }
        let mut seen = HashSet::new();
        if let Some(twice) = self.hosts.iter().find(|host| !seen.insert(host.host())) {
            let problem = "it is given twice; tasks are spread evenly, give each host once";
            return Err(Error::Host { host: twice.host().to_string(), problem });
        }
        match self.hosts.iter().find(|host| self.hosts.len() > 1 && host.is_loopback()) {
            Some(host) => Err(Error::Loopback { host: host.host().to_string() }),
            None => Ok(()),
        }
    }
}

/// Returns whether a task trains. The job ends when all such tasks have exited.
pub(crate) fn trains(task: &Task) -> bool {
    matches!(task.job, Job::Chief | Job::Worker)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse_hosts;

    fn placed(layout: &Layout) -> String {
        let tasks = layout.tasks();
        let shown = tasks.iter().map(|(task, host)| match host {
            Some(host) => format!("{task}@{}", layout.hosts[*host].host()),
            None => task.to_string(),
        });
        shown.collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn tasks_are_numbered_by_job_on_this_machine() {
        let all = Layout::new(2).chief(true).ps(1).evaluator(true);
        assert_eq!(placed(&all), "chief 0, worker 0, worker 1, ps 0, evaluator 0");
        assert_eq!(placed(&Layout::new(1)), "worker 0");
    }

    #[test]
    fn tasks_are_spread_over_hosts_in_blocks() {
        let hosts = || parse_hosts("a,b,c").unwrap();
        let layout = Layout::new(4).chief(true).ps(2).evaluator(true).hosts(hosts());
        let expected =
            "chief 0@a, worker 0@a, worker 1@b, worker 2@b, worker 3@c, ps 0@a, ps 1@b, evaluator 0@c";
        assert_eq!(placed(&layout), expected);
        assert_eq!(placed(&Layout::new(2).hosts(hosts())), "worker 0@a, worker 1@b");
        for workers in 1..40 {
            for hosts in 1..9 {
                let names: Vec<_> = (0..hosts).map(|h| format!("h{h}")).collect();
                let layout = Layout::new(workers).hosts(parse_hosts(&names.join(",")).unwrap());
                let on: Vec<_> = layout.tasks().iter().map(|(_, host)| host.unwrap()).collect();
                assert!(on.is_sorted() && on.iter().all(|host| *host < hosts));
                let count = |host| on.iter().filter(|on| **on == host).count();
                assert!((0..hosts).all(|host| count(host).abs_diff(workers / hosts) <= 1));
            }
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert!(matches!(Layout::new(0).ps(3).check(), Err(Error::NoWorkers)));
        assert!(matches!(Layout::new(usize::MAX).ps(usize::MAX).check(), Err(Error::TooManyTasks { .. })));
        assert!(matches!(Layout::new(MOST + 1).check(), Err(Error::TooManyTasks { tasks: 4097, .. })));
        Layout::new(MOST).check().unwrap();
        Layout::new(0).chief(true).check().unwrap();
        let on = |hosts| Layout::new(2).hosts(parse_hosts(hosts).unwrap());
        assert!(matches!(on("a,localhost").check(), Err(Error::Loopback { host }) if host == "localhost"));
        assert!(matches!(on("a,me@a").check(), Err(Error::Host { .. })));
        on("localhost").check().unwrap();
        on("a,b").check().unwrap();
    }
}
