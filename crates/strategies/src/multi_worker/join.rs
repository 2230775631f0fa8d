//! The rendezvous of the workers of a cluster, at the start and after a failure.

use super::table_options::TableOptions;
use super::tables::ServiceSettings;
use distribute_base::{Error, Result};
use distribute_cluster::deadline::DEFAULT_TIMEOUT;
use distribute_cluster::{Address, Deadline, Stopwatch, Task, World};
use distribute_collective::group::Group;
use distribute_log::info_or_stderr;
use distribute_net::{Claim, Credentials, JoinError, Quorum, Rendezvous, SharedMemory};
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

/// The default time that a new worker of an elastic training run waits for the others.
const PATIENCE: Duration = Duration::from_secs(300);

/// The settings with which this process joins its cluster.
#[derive(Clone, Debug)]
pub(super) struct JoinSettings {
    /// The world that consists of all workers of the cluster.
    pub all: World,
    /// The name of the job, which must be the same on all workers.
    pub job: String,
    /// The minimum number of workers with which to train.
    pub min_workers: usize,
    /// The time to wait for more workers after `min_workers` workers have joined.
    pub shrink_after: Duration,
    pub task: Task,
    pub addresses: Vec<String>,
    pub tasks: Vec<Task>,
    pub credentials: Credentials,
    pub listen: Option<String>,
    pub shared_memory: SharedMemory,
    pub timeout: Option<Duration>,
    /// The location of tables, which must be the same on all workers.
    pub tables: TableOptions,
}

impl JoinSettings {
    /// Waits until all workers have joined or, in an elastic training run, enough of them. Returns the group, in which
    /// this process has its rank.
    ///
    /// # Errors
    /// - [`Error::Join`]: a worker is missing after the timeout, or rejects this worker.
    pub fn join(&self) -> Result<Group> {
        // A worker that joins a running training waits for the end of a step or of an evaluation there.
        let usual = if self.elastic().is_some() { PATIENCE } else { DEFAULT_TIMEOUT };
        let (started, deadline) = (Stopwatch::start(), Deadline::after(self.timeout.unwrap_or(usual)));
        let join = |rendezvous| Ok(Group::join(self.all, rendezvous)?.tasks(self.tasks.clone()));
        let everybody = (0..self.all.workers()).collect();
        let group = self.try_until(deadline, Claim::default(), &everybody, join)?;
        let what = match group.generation() {
            1 => self.replica_counts(&group, "joined"),
            generation => format!("joins a running training, as generation {generation},"),
        };
        self.announce(&group, &what, started.elapsed());
        Ok(group)
    }

    /// Waits for at most `patience` until the group has re-formed from the remaining workers, replacements of failed
    /// workers, and new workers. Does not wait for the ranks in `leaving`. `once_more` is `true` if the previous
    /// rendezvous lost a worker. If the training run is elastic, that worker is then not waited for.
    ///
    /// # Errors
    /// - [`Error::Join`]: a worker is missing after `patience`, or rejects this worker.
    pub fn rejoin(
        &self,
        group: &Group,
        patience: Duration,
        leaving: &[usize],
        once_more: bool,
    ) -> Result<()> {
        let (started, deadline) = (Stopwatch::start(), Deadline::after(patience));
        let expected = group.expected(once_more && self.elastic().is_some(), leaving);
        let claim = if group.is_supplanted() { Claim::default() } else { Claim::after(group.generation()) };
        self.try_until(deadline, claim, &expected, |rendezvous| group.rejoin(rendezvous))?;
        let what = format!(
            "{}, as generation {},",
            self.replica_counts(group, "re-formed the group"),
            group.generation()
        );
        self.announce(group, &what, started.elapsed());
        Ok(())
    }

    /// Returns the settings of the service with which this worker offers tables, at its own host.
    pub fn table_service(&self) -> Result<ServiceSettings> {
        let host = |address: &str| Ok::<_, Error>(Address::from_str(address)?.host().clone());
        let own = self.addresses.get(self.all.worker());
        Ok(ServiceSettings {
            host: own.map(|address| host(address)).transpose()?,
            listen: self.listen.as_deref().map(host).transpose()?,
            credentials: self.credentials.clone().job(self.job.clone()),
        })
    }

    /// Returns the range of permitted numbers of workers; `None` if the training run is not elastic.
    pub fn elastic(&self) -> Option<RangeInclusive<usize>> {
        (self.min_workers < self.all.workers()).then(|| self.min_workers..=self.all.workers())
    }

    /// Repeats the rendezvous until one succeeds or the deadline has passed.
    fn try_until<R>(
        &self,
        deadline: Deadline,
        mut claim: Claim,
        expected: &BTreeSet<usize>,
        join: impl Fn(Rendezvous) -> std::result::Result<R, JoinError>,
    ) -> Result<R> {
        loop {
            let rendezvous = self.rendezvous(expected.clone()).generation(claim.generation());
            match join(rendezvous.timeout(deadline.remaining())) {
                Ok(joined) => return Ok(joined),
                Err(error) if deadline.has_passed() => return Err(Error::from(error)),
                Err(error) => claim.failed(error)?,
            }
        }
    }

    fn rendezvous(&self, expected: BTreeSet<usize>) -> Rendezvous {
        let (minimum, tables, version) = (self.min_workers, self.tables, env!("CARGO_PKG_VERSION"));
        let replicas = self.all.count();
        let mut rendezvous = Rendezvous::new(self.all, self.addresses.clone())
            .tasks(self.tasks.clone())
            .job(self.job.clone())
            .agree_on(format!("{version}, {minimum} at least, {tables:?}, {replicas:?}").as_bytes())
            .quorum(Quorum { minimum, expected, grace: self.shrink_after })
            .credentials(self.credentials.clone())
            .shared_memory(self.shared_memory)
            .on_progress(|progress| info_or_stderr(|| tracing::info!("{progress}")));
        if let Some(address) = &self.listen {
            rendezvous = rendezvous.listen(address.clone());
        }
        rendezvous
    }

    fn replica_counts(&self, group: &Group, have: &str) -> String {
        match (group.world().workers(), self.all.workers()) {
            (there, all) if there == all => format!("all have {have}"),
            (there, all) => format!("{there} of {all} have {have}"),
        }
    }

    fn announce(&self, group: &Group, what: &str, waited: Duration) {
        let (world, task, seconds) = (group.world(), &self.task, waited.as_secs_f64());
        let all = world.num_replicas_in_sync();
        info_or_stderr(|| {
            tracing::info!("{world}: {all} replicas in sync; this is {task}, {what} after {seconds:.1} s")
        });
    }
}
