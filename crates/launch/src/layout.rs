//! [`Layout`]: the tasks of a job, and their hosts.

use crate::{Error, Job, RemoteHost, Result, Task};
use std::collections::HashSet;

/// The maximum number of tasks that one launcher starts.
const MAX: usize = 4096;

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
#[must_use]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// The number of worker tasks, including spares.
    pub(crate) workers: usize,
    pub(crate) spares: usize,
    pub(crate) chief: bool,
    pub(crate) ps: usize,
    pub(crate) evaluator: bool,
    pub(crate) hosts: Vec<RemoteHost>,
}

impl Layout {
    /// Creates a layout with the given number of workers on this machine.
    pub fn new(workers: usize) -> Self {
        Self { workers, ..Self::default() }
    }

    /// Sets the number of spares: additional workers that wait until a worker is lost, and then take its position. Each
    /// has a task and an address like a worker.
    pub fn spares(mut self, spares: usize) -> Self {
        self.workers = (self.workers - self.spares).saturating_add(spares);
        self.spares = spares;
        self
    }

    /// Adds a chief, which trains in addition to the workers.
    pub fn with_chief(mut self) -> Self {
        self.chief = true;
        self
    }

    /// Sets the number of parameter servers.
    pub fn ps(mut self, ps: usize) -> Self {
        self.ps = ps;
        self
    }

    /// Adds an evaluator, which is not part of the other tasks' cluster.
    pub fn with_evaluator(mut self) -> Self {
        self.evaluator = true;
        self
    }

    /// Sets the hosts over which the tasks are distributed. With an empty list, all tasks run on this machine.
    pub fn hosts(mut self, hosts: Vec<RemoteHost>) -> Self {
        self.hosts = hosts;
        self
    }

    /// Returns all tasks, each with the index of its host in the list of hosts; `None` means this machine. The chief
    /// and the workers are distributed over the hosts in contiguous blocks of nearly equal length. So are the parameter
    /// servers. The evaluator is on the last host.
    pub fn tasks(&self) -> Vec<(Task, Option<usize>)> {
        let training = usize::from(self.chief) + self.workers;
        let trains = self.chief.then(|| Job::Chief.task(0)).into_iter();
        let trains = trains.chain((0..self.workers).map(|index| Job::Worker.task(index)));
        let trains = trains.enumerate().map(|(k, task)| (task, self.host(k, training)));
        let ps = (0..self.ps).map(|index| (Job::Ps.task(index), self.host(index, self.ps)));
        let evaluator = self.evaluator.then(|| (Job::Evaluator.task(0), self.hosts.len().checked_sub(1)));
        trains.chain(ps).chain(evaluator).collect()
    }

    /// Returns the index of the host of the `k`-th of `n` tasks; `None` means this machine.
    fn host(&self, k: usize, n: usize) -> Option<usize> {
        let hosts = self.hosts.len();
        let (each, more) = (n.checked_div(hosts)?, n % hosts);
        let in_longer = more * (each + 1);
        Some(if k < in_longer { k / (each + 1) } else { more + (k - in_longer) / each })
    }

    /// Checks that the layout can be launched.
    ///
    /// # Errors
    /// - [`Error::NoWorkers`]: there is neither a worker nor a chief.
    /// - [`Error::Option`]: there are spares although there are fewer than two workers, or parameter servers.
    /// - [`Error::TooManyTasks`]: there are more tasks than one launcher can start.
    /// - [`Error::Host`]: a host is listed twice.
    /// - [`Error::Loopback`]: one of several hosts is a loopback address.
    pub fn check(&self) -> Result<()> {
        if self.workers == 0 && !self.chief {
            return Err(Error::NoWorkers);
        }
        if self.spares > 0 && (self.ps > 0 || self.trained() < 2) {
            let expected = "two workers or more, including the chief, and no parameter servers: a spare cannot take the \
                            place of the first worker, to whose address all connect";
            return Err(Error::Option { option: "--spares", value: self.spares.to_string(), expected });
        }
        let others = usize::from(self.chief) + usize::from(self.evaluator);
        let tasks = self.workers.saturating_add(self.ps).saturating_add(others);
        if tasks > MAX {
            return Err(Error::TooManyTasks { tasks, max: MAX });
        }
        let mut seen = HashSet::new();
        if let Some(twice) = self.hosts.iter().find(|host| !seen.insert(host.host())) {
            let problem = "it is listed twice; tasks are distributed evenly, so list each host once";
            return Err(Error::Host { host: twice.host().to_string(), problem });
        }
        match self.hosts.iter().find(|host| self.hosts.len() > 1 && host.is_loopback()) {
            Some(host) => Err(Error::Loopback { host: host.host().to_string() }),
            None => Ok(()),
        }
    }

    /// Returns the number of spares.
    pub fn number_of_spares(&self) -> usize {
        self.spares
    }

    /// Returns the number of workers that train at the same time, including the chief.
    pub(crate) fn trained(&self) -> usize {
        usize::from(self.chief) + self.workers - self.spares
    }

    /// Returns whether tasks of this job run the program to its end. In a cluster with a chief and parameter servers,
    /// workers only serve.
    pub(crate) fn completes(&self, job: &Job) -> bool {
        match job {
            Job::Chief => true,
            Job::Worker => !(self.chief && self.ps > 0),
            _ => false,
        }
    }
}

/// Returns whether a task trains: chiefs and workers do. The job ends when all such tasks have exited.
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
        let all = Layout::new(2).with_chief().ps(1).with_evaluator();
        assert_eq!(placed(&all), "chief 0, worker 0, worker 1, ps 0, evaluator 0");
        assert_eq!(placed(&Layout::new(1)), "worker 0");
    }

    #[test]
    fn spares_are_workers_after_the_others() {
        let layout = Layout::new(3).spares(2).spares(1);
        assert_eq!(placed(&layout), "worker 0, worker 1, worker 2, worker 3");
        assert_eq!((layout.trained(), layout.check().is_ok()), (3, true));
        assert_eq!(Layout::new(1).with_chief().spares(1).trained(), 2);
        for layout in [Layout::new(1).spares(1), Layout::new(3).ps(1).spares(1)] {
            let error = layout.check().unwrap_err();
            assert!(matches!(error, Error::Option { option: "--spares", .. }), "{error}");
        }
    }

    #[test]
    fn tasks_are_spread_over_hosts_in_blocks() {
        let hosts = || parse_hosts("a,b,c").unwrap();
        let layout = Layout::new(4).with_chief().ps(2).with_evaluator().hosts(hosts());
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
    fn impossible_layouts_are_refused() {
        assert!(matches!(Layout::new(0).ps(3).check(), Err(Error::NoWorkers)));
        assert!(matches!(Layout::new(usize::MAX).ps(usize::MAX).check(), Err(Error::TooManyTasks { .. })));
        assert!(matches!(Layout::new(MAX + 1).check(), Err(Error::TooManyTasks { tasks: 4097, .. })));
        Layout::new(MAX).check().unwrap();
        let more = [Layout::new(MAX).with_chief(), Layout::new(MAX).with_evaluator(), Layout::new(MAX).ps(1)];
        for more in more {
            assert!(matches!(more.check(), Err(Error::TooManyTasks { tasks: 4097, max: 4096 })), "{more:?}");
        }
        let all = |workers| Layout::new(workers).with_chief().with_evaluator().ps(1);
        assert!(matches!(all(MAX - 2).check(), Err(Error::TooManyTasks { tasks: 4097, .. })));
        all(MAX - 3).check().unwrap();
        Layout::new(0).with_chief().check().unwrap();
        let on = |hosts| Layout::new(2).hosts(parse_hosts(hosts).unwrap());
        assert!(matches!(on("a,localhost").check(), Err(Error::Loopback { host }) if host == "localhost"));
        assert!(matches!(on("a,me@a").check(), Err(Error::Host { .. })));
        on("localhost").check().unwrap();
        on("a,b").check().unwrap();
    }
}
