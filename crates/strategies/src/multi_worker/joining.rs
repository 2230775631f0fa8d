//! The rendezvous of the workers of a cluster, at the start and again.

use distribute_base::{Error, Result};
use distribute_cluster::deadline::DEFAULT_TIMEOUT;
use distribute_cluster::{Deadline, Stopwatch, Task, World};
use distribute_collective::group::Group;
use distribute_log::told;
use distribute_net::{Claim, Credentials, JoinError, Quorum, Rendezvous, SharedMemory};
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::Duration;

/// The default time that a new worker of an elastic training waits for the others.
const PATIENCE: Duration = Duration::from_secs(300);

/// The cluster, and the way in which this process joins it.
#[derive(Clone, Debug)]
pub(super) struct Joining {
    /// The world in which all of the cluster are.
    pub all: World,
    /// The name of the job.
    pub job: String,
    /// The minimum number of workers.
    pub least: usize,
    /// The time to wait for more workers.
    pub shrink_after: Duration,
    pub task: Task,
    pub addresses: Vec<String>,
    pub tasks: Vec<Task>,
    pub credentials: Credentials,
    pub listen: Option<String>,
    pub shared_memory: SharedMemory,
    pub timeout: Option<Duration>,
}

impl Joining {
    /// Waits until all workers have joined, and says which one this is.
    ///
    /// # Errors
    /// [`Error::Join`].
    pub fn join(&self) -> Result<Group> {
        // One that comes to a training that goes on waits for the end of a step there, or of an evaluation.
        let usual = if self.elastic().is_some() { PATIENCE } else { DEFAULT_TIMEOUT };
        let (started, deadline) = (Stopwatch::start(), Deadline::after(self.timeout.unwrap_or(usual)));
        let join = |rendezvous| Ok(Group::join(self.all, rendezvous)?.tasks(self.tasks.clone()));
        let everybody = (0..self.all.workers()).collect();
        let group = self.try_until(deadline, Claim::default(), &everybody, join)?;
        let what = match group.generation() {
            1 => self.how_many(&group, "joined"),
            generation => format!("takes a place in a training that goes on, as generation {generation},"),
        };
        self.announce(&group, &what, started.elapsed());
        Ok(group)
    }

    /// Waits, at most for `patience`, until the group has re-formed: with the remaining workers, a replacement of a
    /// failed one, and new ones. The ranks in `leaving` are not waited for. With `once_more`, this rendezvous repeats
    /// one that lost a worker, which is then not waited for if the training is elastic.
    ///
    /// # Errors
    /// [`Error::Join`].
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
        let what = format!("{}, as generation {},", self.how_many(group, "met again"), group.generation());
        self.announce(group, &what, started.elapsed());
        Ok(())
    }

    /// Returns the allowed numbers of workers, if the training is elastic.
    pub fn elastic(&self) -> Option<RangeInclusive<usize>> {
        (self.least < self.all.workers()).then(|| self.least..=self.all.workers())
    }

    /// Tries one rendezvous after another, until one succeeds.
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
        let least = self.least;
        let mut rendezvous = Rendezvous::new(self.all, self.addresses.clone())
            .tasks(self.tasks.clone())
            .job(self.job.clone())
            .agree_on(format!("{}, {least} at least", env!("CARGO_PKG_VERSION")).as_bytes())
            .quorum(Quorum { least, expected, grace: self.shrink_after })
            .credentials(self.credentials.clone())
            .shared_memory(self.shared_memory)
            .on_progress(|progress| told(|| tracing::info!("{progress}")));
        if let Some(address) = &self.listen {
            rendezvous = rendezvous.listen(address.clone());
        }
        rendezvous
    }

    fn how_many(&self, group: &Group, have: &str) -> String {
        match (group.world().workers(), self.all.workers()) {
            (there, all) if there == all => format!("all have {have}"),
            (there, all) => format!("{there} of {all} have {have}"),
        }
    }

    fn announce(&self, group: &Group, what: &str, waited: Duration) {
        let (world, task, seconds) = (group.world(), &self.task, waited.as_secs_f64());
        let all = world.num_replicas_in_sync();
        told(|| {
            tracing::info!("{world}: {all} replicas in sync; this is {task}, {what} after {seconds:.1} s")
        });
    }
}
