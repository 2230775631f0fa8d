//! [`Team`]: the threads of a run's local replicas, and their rendezvous.

use super::member::Member;
use super::worker::{self, ThreadSettings, Worker};
use super::{BroadcastPool, Payload, Rendezvous};
use crate::group::Session;
use crate::sync::{AtomicBool, Mutex, Ordering};
use distribute_cluster::ReplicaStatus;
use distribute_log::warn_or_stderr;
use std::io;
use std::sync::Arc;
#[cfg(not(shuttle))]
use std::sync::OnceLock;
use std::time::Duration;

/// A fixed number of members that run one closure at the same time: member 0 on the caller's thread, the others on
/// threads of the team.
pub struct Team {
    pub(super) size: usize,
    /// The number of threads of each member.
    #[cfg_attr(
        shuttle,
        expect(dead_code, reason = "it is reported by TeamPool, which shuttle does not have")
    )]
    pub(super) threads: usize,
    /// The threads of the members, which serve until the team is dropped.
    pub(super) broadcast_pool: Arc<BroadcastPool>,
    pub(super) rendezvous: Rendezvous,
    /// The pool in which waiting members run the closures that member 0 broadcasts.
    pub(super) helpers: BroadcastPool,
    /// The result of the last [`Member::run_on_leader_with_helpers`], which the other members read.
    pub(super) result: Mutex<Option<Payload>>,
    pub(super) workers: Vec<Worker>,
    /// The thread for runs that must not use their caller's thread, started at first use.
    #[cfg(not(shuttle))]
    pub(super) offload: OnceLock<super::offload_thread::OffloadThread>,
    /// Whether a run is in progress.
    pub(super) busy: AtomicBool,
}

impl Team {
    /// Creates a team of `size` members with its own threads, named `replica 1`, `replica 2`, …
    ///
    /// # Errors
    /// Returns an error if the system cannot start a thread, or if the team would need more than
    /// [`MAX_THREADS`](worker::MAX_THREADS) threads.
    ///
    /// # Panics
    /// Panics if `size` is 0.
    pub fn new(size: usize) -> io::Result<Self> {
        Self::with_settings(size, &ThreadSettings::PLAIN)
    }

    pub(super) fn with_settings(size: usize, settings: &ThreadSettings) -> io::Result<Self> {
        let threads = size.saturating_mul(settings.threads);
        if threads > worker::MAX_THREADS {
            let reason = format!("{threads} threads, but a team has at most {}", worker::MAX_THREADS);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        let mut team = Self::without_threads(size, settings.threads);
        for rank in 1..size {
            let broadcast_pool = team.broadcast_pool.clone();
            team.workers.push(Worker::start(rank, settings, move || broadcast_pool.serve(rank))?);
        }
        Ok(team)
    }

    pub(super) fn without_threads(size: usize, threads: usize) -> Self {
        Self {
            size,
            threads,
            broadcast_pool: Arc::new(BroadcastPool::new(size - 1)),
            rendezvous: Rendezvous::new(size),
            helpers: BroadcastPool::new(size - 1),
            result: Mutex::new(None),
            workers: Vec::with_capacity(size - 1),
            #[cfg(not(shuttle))]
            offload: OnceLock::new(),
            busy: AtomicBool::new(false),
        }
    }

    /// Runs `work` on a thread of this team. If `work` starts a run, member 0 of that run uses the same thread.
    ///
    /// # Errors
    /// Returns an error if the system cannot start the thread.
    #[cfg(not(shuttle))]
    pub(super) fn run_offloaded<R: Send>(
        &self,
        settings: &ThreadSettings,
        work: impl FnOnce() -> R + Send,
    ) -> io::Result<R> {
        let offload = match self.offload.get() {
            Some(offload) => offload,
            None => {
                let offload = super::offload_thread::OffloadThread::start(settings)?;
                self.offload.get_or_init(|| offload)
            }
        };
        offload.run(work).ok_or_else(|| io::Error::other("the team's thread has exited"))
    }

    /// Returns the number of threads that the team has started.
    #[cfg(not(shuttle))]
    pub(super) fn threads(&self) -> usize {
        (self.workers.len() + usize::from(self.offload.get().is_some())) * self.threads
    }

    /// Returns the number of members.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns the status of each member, for logs.
    pub fn statuses(&self) -> Vec<ReplicaStatus> {
        self.rendezvous.statuses()
    }

    /// Runs `body` once for every member, all at the same time, as step `step`. `body` returns whether it succeeded.
    /// Returns when all calls have returned. If `body` panicked, this thread then resumes the panic.
    ///
    /// No call of a member waits for the others longer than `timeout`. A member that is still running `body` when this
    /// time has passed since member 0 returned is logged repeatedly, with its last call.
    ///
    /// # Panics
    /// Panics if `body` panics, or if this team is already running.
    pub fn run(self: &Arc<Self>, step: u64, timeout: Duration, body: &(dyn Fn(Member) -> bool + Sync)) {
        self.run_with_session(step, timeout, None, body);
    }

    /// Equivalent to [`run`](Self::run), except that the processes of `session`, if it is given, take part: they run
    /// the same closure. Calls of [`Member::all_gather_with_group`] include these processes.
    ///
    /// # Panics
    /// Panics in the same cases as [`run`](Self::run).
    pub fn run_with_session(
        self: &Arc<Self>,
        step: u64,
        timeout: Duration,
        session: Option<Arc<Session>>,
        body: &(dyn Fn(Member) -> bool + Sync),
    ) {
        let _busy = BusyGuard::new(&self.busy);
        let first = session.as_ref().map_or(0, |session| session.world().global(0));
        self.rendezvous.open(step, first, session.clone());
        let work = |rank| {
            let mut leave = LeaveOnDrop { team: self, rank, failed: true };
            let session = session.clone();
            leave.failed = !body(Member { team: self.clone(), step, rank, first, session, timeout });
            drop(leave);
            worker::run_spawned_tasks();
        };
        let overdue = || {
            let statuses = self.rendezvous.statuses();
            for (rank, status) in statuses.iter().enumerate().filter(|(_, s)| !s.is_blocked_or_done()) {
                let last = status.last.as_ref().map_or("none".to_string(), ToString::to_string);
                warn_or_stderr(|| {
                    tracing::error!(
                        replica = rank, step, last_call = %last,
                        "still running {timeout:?} after replica 0 returned"
                    )
                });
            }
        };
        self.broadcast_pool.broadcast(&work, timeout, &overdue);
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        // The workers serve until then and catch panics, so they end.
        self.broadcast_pool.dismiss();
    }
}

/// A guard that marks a run as in progress. While it exists, a second run panics.
struct BusyGuard<'a>(&'a AtomicBool);

impl<'a> BusyGuard<'a> {
    fn new(busy: &'a AtomicBool) -> Self {
        assert!(
            !busy.swap(true, Ordering::AcqRel),
            "this team is already running; TeamPool::with_team returns another one"
        );
        Self(busy)
    }
}

impl Drop for BusyGuard<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// A guard that reports to the other members that this member has exited, even if it panics.
struct LeaveOnDrop<'a> {
    team: &'a Team,
    rank: usize,
    failed: bool,
}

impl Drop for LeaveOnDrop<'_> {
    fn drop(&mut self) {
        self.team.rendezvous.leave(self.rank, self.failed);
    }
}
