//! A strategy's traffic with the other workers: at the beginning of a step, and in calls that are made once for all local
//! replicas.

use super::drift::{Digest, Mirrored};
use super::{Strategy, record};
use crate::{context::failure, context::merging};
use distribute_base::internal::lock;
use distribute_base::{Error, Result};
use distribute_cluster::resolver::ClusterResolver;
use distribute_cluster::{Fingerprint, Operation, Presence, Standing, World};
use distribute_collective::Failure;
use distribute_collective::group::{Calling, Group, Session};
use serde::{Deserialize, Serialize};
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, TryLockError};

/// The sessions of steps.
const RUN: &str = "run";

/// The traffic of one strategy with the other workers.
#[derive(Debug, Default)]
pub(super) struct Workers {
    /// Held during a step, because concurrent steps could run in a different order on each worker.
    step: Mutex<()>,
    /// The session of calls made between steps.
    between: Mutex<Option<Arc<Session>>>,
    /// Whether this process takes, or may take, the place of another in a training that goes on, and does not yet make calls
    /// with the others.
    settling: AtomicBool,
    /// Whether this process has left a training that the others go on with.
    left: AtomicBool,
    /// Whether the training goes on when a worker is lost.
    survives: AtomicBool,
    /// What is compared with theirs.
    pub(super) mirrored: Mirrored,
}

/// A step that has begun on all workers. Dropped before its replicas have run, it tells the others so.
pub(super) struct Begun {
    session: Arc<Session>,
    handed_over: bool,
}

impl Workers {
    pub(super) fn is_settling(&self) -> bool {
        self.settling.load(Ordering::Relaxed)
    }

    /// No calls are made with the others. The session that there was is over.
    pub(super) fn unsettle(&self) {
        self.settling.store(true, Ordering::Relaxed);
        *lock(&self.between) = None;
    }

    /// Calls are made with the others again.
    pub(super) fn settle(&self) {
        self.settling.store(false, Ordering::Relaxed);
    }

    pub(super) fn has_left(&self) -> bool {
        self.left.load(Ordering::Relaxed)
    }

    /// No calls are made with the others any more.
    pub(super) fn leave(&self) {
        self.left.store(true, Ordering::Relaxed);
        *lock(&self.between) = None;
    }

    pub(super) fn survives(&self) -> bool {
        self.survives.load(Ordering::Relaxed)
    }

    pub(super) fn set_survives(&self, survives: bool) {
        self.survives.store(survives, Ordering::Relaxed);
    }
}

impl Strategy {
    /// The workers that train together, which of them this process is, and their replicas. It answers every question about
    /// numbers and ids. Where not all have to be there, it is another one when the
    /// workers have met again.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// let world = MirroredStrategy::cpus(2)?.world();
    /// assert_eq!((world.workers(), world.local_replicas()), (1, 0..2));
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[inline]
    pub fn world(&self) -> World {
        if self.0.has_group { self.world_of_group() } else { self.0.alone }
    }

    /// Where the cluster that this strategy trains in was found out, and what this process is in it; `None` for strategies of
    /// one process.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use distribute::cluster::Job;
    /// fn is_evaluator(strategy: &Strategy) -> bool {
    ///     strategy.cluster_resolver().and_then(|resolver| resolver.task_type()) == Some(Job::Evaluator)
    /// }
    /// let strategy = MirroredStrategy::cpus(2)?;
    /// assert!(!is_evaluator(&strategy));
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "tf.distribute.Strategy.cluster_resolver")]
    pub fn cluster_resolver(&self) -> Option<&dyn ClusterResolver> {
        self.extended().cluster_resolver()
    }

    /// Whether this process does what one of the job does for all: of several workers the chief, or the first where there is no chief.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// assert!(MirroredStrategy::cpus(2)?.is_chief());
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "experimental_should_init")]
    pub fn is_chief(&self) -> bool {
        self.extended().independent().map_or_else(|| self.world().is_chief(), |of| of.worker == 0)
    }

    /// Whether this process writes checkpoints. With several workers, only the chief does.
    #[doc(alias = "tf.distribute.StrategyExtended.should_checkpoint")]
    pub fn should_checkpoint(&self) -> bool {
        self.is_chief()
    }

    /// Whether this process writes logs and figures of the training. With several workers, only the chief does.
    #[doc(alias = "tf.distribute.StrategyExtended.should_save_summary")]
    pub fn should_save_summary(&self) -> bool {
        self.is_chief()
    }

    /// The other workers, if there are some and calls are made with them.
    fn group(&self) -> Option<&Group> {
        self.all_workers().filter(|_| !self.0.workers.is_settling() && !self.0.workers.has_left())
    }

    /// The other workers, if there are some.
    pub(super) fn all_workers(&self) -> Option<&Group> {
        self.possible_group().filter(|group| group.world().is_multi_worker())
    }

    fn world_of_group(&self) -> World {
        self.extended().group().map_or(self.0.alone, Group::world)
    }

    /// The other workers, if there are some or may come.
    fn possible_group(&self) -> Option<&Group> {
        if self.0.has_group { self.extended().group() } else { None }
    }

    /// Refuses a second concurrent step if there are several workers.
    pub(super) fn one_step_at_a_time(&self) -> Result<Option<std::sync::MutexGuard<'_, ()>>> {
        if self.group().is_none() {
            return Ok(None);
        }
        match self.0.workers.step.try_lock() {
            Ok(guard) => Ok(Some(guard)),
            Err(TryLockError::Poisoned(poisoned)) => Ok(Some(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => {
                let reason = "a run of this strategy is in progress, on another thread or around this merge function; over several \
                              workers one step goes after another, because each worker could take them in an order of its \
                              own";
                Err(Error::invalid("run", reason))
            }
        }
    }

    /// Begins the next step, on all workers if there are several. `rows` is the number of rows of this worker's pieces of a
    /// batch, if known. Returns its number, and how many rows the workers before this one have.
    ///
    /// That is a call between steps, so that a worker which makes another one is told at once; the step has a session of its
    /// own from then on. A step that has not begun on all is not counted. Nor does one begin whose workers have variables that
    /// drifted apart, or to which others have come that wait to take part. Behind it all know whether one of them has been told to end.
    pub(super) fn begin(
        &self,
        rows: Option<usize>,
        at: &'static Location<'static>,
    ) -> Result<(u64, Option<Begun>, Option<usize>)> {
        if !self.0.has_group {
            return Ok((self.next_step(), None, Some(0)));
        }
        self.require_settled("run")?;
        self.begin_updates();
        let waiting = self.possible_group().map_or(0, Group::waiting);
        let Some(group) = self.group() else {
            self.require_nobody_waits(waiting)?;
            return Ok((self.next_step(), None, Some(0)));
        };
        let variables = self.or_tell_workers(self.drift_digest())?;
        let (session, noticed) = (group.next_number(RUN), self.notice().is_given());
        let mine = Start { step: self.steps(), session, rows, variables, noticed, waiting };
        let call = || Fingerprint::new(Operation::Run, "", at);
        let said = self.among_workers("run", call, |mut calling| calling.records(record::encode(&mine)))?;
        let all: Vec<Start> =
            record::decode_all("run", &said.unwrap_or_default()).map_err(|error| self.located(error))?;
        // A worker that has missed a step is told once. From then on all count alike.
        let latest = all.iter().map(|start| start.step).max().unwrap_or(mine.step);
        if all.iter().any(|start| start.step != latest) {
            self.0.steps.store(latest, Ordering::Relaxed);
            return Err(Error::invalid("run", differ(&all, latest)));
        }
        let variables: Vec<_> = all.iter().map(|start| start.variables).collect();
        self.require_no_drift(&variables, at)?;
        self.require_nobody_waits(all.iter().map(|start| start.waiting).sum())?;
        self.notice().hear(all.iter().map(|start| start.noticed), self.least_that_go_on());
        let (step, number) = (self.next_step(), all.iter().map(|start| start.session).max());
        let session = group.open_at(RUN, number.unwrap_or(mine.session), step);
        let mut before = all.iter().take(self.world().worker()).map(|start| start.rows);
        let before = before.try_fold(0usize, |sum, rows| sum.checked_add(rows?));
        Ok((step, Some(Begun { session: Arc::new(session), handed_over: false }), before))
    }

    /// Refuses to begin a step while workers wait to take part.
    fn require_nobody_waits(&self, waiting: usize) -> Result<()> {
        match waiting {
            0 => Ok(()),
            _ => Err(Error::WorkersWaiting { step: self.steps() + 1, waiting }),
        }
    }

    /// Makes a call together with the other workers, once for all of this one's replicas; `None` if there is only one
    /// worker. In a merge function, the call belongs to the session of its step.
    ///
    /// # Errors
    /// The same on all workers, if they make other calls, or one is lost or late.
    #[doc(hidden)]
    pub fn among_workers<R>(
        &self,
        operation: &'static str,
        call: impl FnOnce() -> Fingerprint,
        make: impl FnOnce(Calling<'_>) -> Result<R, Failure>,
    ) -> Result<Option<R>> {
        if self.group().is_none() {
            return Ok(None);
        }
        let call = call();
        self.among_replicas(operation, |_| call.clone(), make)
    }

    /// Like [`among_workers`](Self::among_workers), for calls in which local replicas may differ: `call` gives the
    /// fingerprint of each.
    ///
    /// # Errors
    /// Those of [`among_workers`](Self::among_workers).
    pub(super) fn among_replicas<R>(
        &self,
        operation: &'static str,
        call: impl Fn(usize) -> Fingerprint,
        make: impl FnOnce(Calling<'_>) -> Result<R, Failure>,
    ) -> Result<Option<R>> {
        let Some(group) = self.group() else { return Ok(None) };
        if let Some(member) = merging(self) {
            return member.speak(call, make).transpose().map_err(failure(operation));
        }
        let mut between = lock(&self.0.workers.between);
        let session = self.between(group, &mut between);
        let waiting = |local| {
            Standing::waiting(self.world().global(local), Fingerprint { continues: false, ..call(local) })
        };
        let standings = (0..self.world().replicas()).map(waiting).collect();
        let made = make(Calling::new(&session, standings, self.extended().timeout()));
        made.map(Some).map_err(failure(operation))
    }

    /// If `prepared` is an error of this worker alone, tells the other workers, if there are any, that it does not make their
    /// next call: they get an error that names it, once, and all go on after that. Returns `prepared`.
    pub(crate) fn or_tell_workers<T>(&self, prepared: Result<T>) -> Result<T> {
        // An error of a call in which all took part is known to all.
        if prepared.as_ref().is_err_and(|error| error.blame().is_none())
            && let Some(group) = self.group()
        {
            match merging(self) {
                Some(member) => member.decline(),
                None => {
                    let mut between = lock(&self.0.workers.between);
                    let standings = self.world().local_replicas().map(Standing::running).collect();
                    self.between(group, &mut between).decline(standings, self.extended().timeout());
                }
            }
        }
        prepared
    }

    /// The session for calls between steps; a new one if a worker was late or lost in the previous one.
    fn between(&self, group: &Group, open: &mut Option<Arc<Session>>) -> Arc<Session> {
        match open {
            Some(session) if !session.is_over() => {
                session.set_step(self.steps());
                session.clone()
            }
            _ => open.insert(Arc::new(group.open("between steps", self.steps()))).clone(),
        }
    }
}

impl Begun {
    /// What the replicas talk to the others in.
    pub(super) fn session(&self) -> Arc<Session> {
        self.session.clone()
    }

    /// The replicas have run, and left the session by themselves.
    pub(super) fn hand_over(mut self) {
        self.handed_over = true;
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if !self.handed_over {
            self.session.leave(failed(self.session.world()));
        }
    }
}

/// What a worker says of itself when a step begins.
#[derive(Serialize, Deserialize)]
struct Start {
    /// The number of the step before.
    step: u64,
    /// The number that the step's session has, unless another worker has opened more of them.
    session: u64,
    /// How many rows it has, if that is known.
    rows: Option<usize>,
    /// A part of its variables, where they are compared.
    variables: Option<Digest>,
    /// Whether it has been told to end.
    noticed: bool,
    /// How many workers have come to it that take part when all meet again.
    waiting: usize,
}

fn differ(all: &[Start], latest: u64) -> String {
    let each: Vec<_> = all.iter().map(|start| start.step.to_string()).collect();
    format!(
        "the workers have made {} steps; all have to make the same calls of run, or restore the same number of steps. \
         All go on after step {latest}",
        each.join(", ")
    )
}

/// The standings of this worker's replicas when all of them have failed without a call.
fn failed(world: World) -> Vec<Standing> {
    let failed = |replica| Standing { presence: Presence::Failed, ..Standing::running(replica) };
    world.local_replicas().map(failed).collect()
}
