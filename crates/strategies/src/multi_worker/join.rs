//! The rendezvous of the workers of a cluster, at the start and after a failure.

use super::table_options::TableOptions;
use super::tables::ServiceSettings;
use distribute_base::{Error, Result};
use distribute_cluster::deadline::DEFAULT_TIMEOUT;
use distribute_cluster::{Address, ClusterError, Deadline, Stopwatch, Task, World};
use distribute_collective::group::{Checksums, Group};
use distribute_core::strategy::StragglerPolicy;
use distribute_log::info_or_stderr;
use distribute_net::{Claim, Credentials, JoinError, Quorum, Rendezvous, SharedMemory};
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

/// The default time that a new worker of an elastic training run waits for the others.
const PATIENCE: Duration = Duration::from_secs(300);

const OPERATION: &str = "MultiWorkerMirroredStrategy";

/// The settings with which this process joins its cluster.
#[derive(Clone, Debug)]
pub(super) struct JoinSettings {
    /// The world that consists of all workers and spares of the cluster.
    pub all: World,
    /// The maximum number of workers with which to train. The others of the cluster are spares.
    pub max_workers: usize,
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
    /// The links on which messages have checksums, which must be the same on all workers.
    pub checksums: Checksums,
    pub timeout: Option<Duration>,
    /// The location of tables, which must be the same on all workers.
    pub tables: TableOptions,
    /// The reaction to stragglers, which must be the same on all workers.
    pub stragglers: StragglerPolicy,
}

impl JoinSettings {
    /// Waits until all workers have joined or, in an elastic training run, enough of them. Returns the group, in which
    /// this process has its rank. If a group is complete without this process, returns the group of a spare.
    ///
    /// # Errors
    /// - [`Error::Join`]: a worker is missing after the timeout, or rejects this worker.
    /// - [`Error::UnusedSpare`]: the training has ended, and there are spares.
    pub fn join(&self) -> Result<Group> {
        // A worker that joins a running training waits for the end of a step or of an evaluation there.
        let usual = if self.elastic().is_some() { PATIENCE } else { DEFAULT_TIMEOUT };
        let (started, deadline) = (Stopwatch::start(), Deadline::after(self.timeout.unwrap_or(usual)));
        let spare = self.world_of_spare()?;
        let join = |rendezvous: Rendezvous| {
            let group = match Group::join(self.all, rendezvous.returns_spare(true)) {
                Err(JoinError::Spare { generation }) => Group::spare(self.all, spare, generation),
                joined => joined?,
            };
            Ok(group.tasks(self.tasks.clone()).checksums(self.checksums))
        };
        let quorum = self.quorum((0..self.max_workers).collect(), BTreeSet::new());
        let joined = self.try_until(deadline, Claim::default(), &quorum, join);
        let group = joined.map_err(|error| error.with_spares(self.spares(), OPERATION))?;
        let what = match group.generation() {
            _ if group.is_spare() => "is a spare, and prepares its model,".to_owned(),
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
        if group.is_spare() {
            return self.wait_as_spare(group, group.generation(), patience);
        }
        let (started, deadline) = (Stopwatch::start(), Deadline::after(patience));
        // With a fixed number of workers, any process may take the position of a lost one. Otherwise the lost worker
        // itself is waited for, once.
        let is_fixed = self.min_workers == self.max_workers;
        let present = is_fixed || (once_more && self.elastic().is_some());
        let known = group.known_workers(present, leaving);
        let present = known.present.clone();
        let quorum = self.quorum(known.expected(self.max_workers), present);
        // After it has resigned, spares take precedence over it.
        let starts = group.is_supplanted() || group.has_resigned();
        let claim = if starts { Claim::default() } else { Claim::after(group.generation()) };
        let spare_of = self.try_until(deadline, claim, &quorum, |rendezvous| {
            match group.rejoin(rendezvous.returns_spare(true)) {
                Err(JoinError::Spare { generation }) => Ok(Some(generation)),
                rejoined => rejoined.map(|()| None),
            }
        })?;
        if let Some(generation) = spare_of {
            // The others have replaced this worker by a spare.
            return self.wait_as_spare(group, generation, patience);
        }
        let what = format!(
            "{}, as generation {},",
            self.replica_counts(group, "re-formed the group"),
            group.generation()
        );
        self.announce(group, &what, started.elapsed());
        Ok(())
    }

    /// Waits until the group re-forms with this spare of the world of a generation. Waits as long as the leader of a
    /// world holds the connection, and for at most `patience` while it cannot be reached.
    ///
    /// # Errors
    /// - [`Error::Join`]: the training has ended, the first worker cannot be reached, or a worker rejects this one.
    fn wait_as_spare(&self, group: &Group, generation: u64, patience: Duration) -> Result<()> {
        let started = Stopwatch::start();
        self.announce(group, "waits as a spare", started.elapsed());
        let mut claim = Claim::default();
        let quorum = self.quorum(BTreeSet::new(), BTreeSet::new());
        loop {
            let rendezvous = self.rendezvous(quorum.clone()).spare_of(generation);
            match group.rejoin(rendezvous.timeout(patience)) {
                Ok(()) => break,
                // The group that needs this spare has lost another worker, or its leader has.
                Err(error) => claim.failed(error)?,
            }
        }
        let what = format!("a spare that takes part from now on, as generation {},", group.generation());
        self.announce(group, &what, started.elapsed());
        Ok(())
    }

    /// Returns the world that a spare assumes until it has joined one. The spare is never its chief.
    fn world_of_spare(&self) -> Result<World> {
        let workers = self.max_workers;
        Ok(World::with_count(workers, workers.saturating_sub(1), self.all.count())
            .map_err(ClusterError::from)?)
    }

    /// Returns the number of spares of the cluster.
    pub fn spares(&self) -> usize {
        self.all.workers().saturating_sub(self.max_workers)
    }

    /// Returns the settings of the service through which other workers access the tables that this worker stores.
    ///
    /// # Errors
    /// - [`Error::Cluster`]: the address of this worker, or the one to listen on, is malformed.
    pub fn table_service(&self) -> Result<ServiceSettings> {
        let host = |address: &str| Ok::<_, Error>(Address::from_str(address)?.host().clone());
        let own = self.addresses.get(self.all.worker());
        Ok(ServiceSettings {
            host: own.map(|address| host(address)).transpose()?,
            listen: self.listen.as_deref().map(host).transpose()?,
            credentials: self.credentials.clone().job(self.job.clone()),
        })
    }

    /// Returns the range of permitted numbers of workers; `None` if the training run is not elastic. With spares it is
    /// elastic even if the number is fixed: ranks change, so no worker may have state that the others lack.
    pub fn elastic(&self) -> Option<RangeInclusive<usize>> {
        (self.min_workers < self.all.workers()).then_some(self.min_workers..=self.max_workers)
    }

    /// Repeats the rendezvous until one succeeds or the deadline has passed.
    fn try_until<R>(
        &self,
        deadline: Deadline,
        mut claim: Claim,
        quorum: &Quorum,
        join: impl Fn(Rendezvous) -> std::result::Result<R, JoinError>,
    ) -> Result<R> {
        loop {
            let rendezvous = self.rendezvous(quorum.clone()).generation(claim.generation());
            match join(rendezvous.timeout(deadline.remaining())) {
                Ok(joined) => return Ok(joined),
                Err(error) if deadline.has_passed() => return Err(Error::from(error)),
                Err(error) => claim.failed(error)?,
            }
        }
    }

    /// Returns the quorum of a rendezvous. The workers at the positions `expected` are expected, and those in `present`
    /// are not known to be lost.
    fn quorum(&self, expected: BTreeSet<usize>, present: BTreeSet<usize>) -> Quorum {
        let (minimum, maximum, grace) = (self.min_workers, self.max_workers, self.shrink_after);
        Quorum { minimum, maximum, expected, present, grace }
    }

    fn rendezvous(&self, quorum: Quorum) -> Rendezvous {
        let (minimum, tables, version) = (self.min_workers, &self.tables, env!("CARGO_PKG_VERSION"));
        let (replicas, spares, checksums) = (self.all.count(), self.spares(), self.checksums);
        let mut rendezvous = Rendezvous::new(self.all, self.addresses.clone())
            .tasks(self.tasks.clone())
            .job(self.job.clone())
            .agree_on(
                format!(
                    "{version}, {minimum} at least, {spares} spares, {tables:?}, {replicas:?}, checksums {checksums}, \
                     {:?}",
                    self.stragglers
                )
                .as_bytes(),
            )
            .quorum(quorum)
            .credentials(self.credentials.clone())
            .shared_memory(self.shared_memory)
            .on_progress(|progress| info_or_stderr(|| tracing::info!("{progress}")));
        if let Some(address) = &self.listen {
            rendezvous = rendezvous.listen(address.clone());
        }
        rendezvous
    }

    fn replica_counts(&self, group: &Group, have: &str) -> String {
        match (group.world().workers(), self.max_workers) {
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
