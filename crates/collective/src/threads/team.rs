//! A rendezvous and the threads that one `run` borrows, one for each local replica.

use super::member::Member;
use super::worker::{self, Kind, Worker};
use super::{Crew, Payload, Rendezvous};
use crate::group::Session;
use crate::sync::{AtomicBool, Mutex, Ordering};
use distribute_cluster::Standing;
use distribute_log::heard;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// N members that run one closure at once: member 0 on the caller's thread, the others on threads of the team.
pub struct Team {
    pub(super) size: usize,
    /// The number of threads of each member.
    pub(super) threads: usize,
    /// The members' threads, which serve as long as the team lives.
    pub(super) crew: Arc<Crew>,
    pub(super) rendezvous: Rendezvous,
    /// Parked members lend their cores to member 0 here.
    pub(super) helpers: Crew,
    /// The result of the last [`Member::run_on_leader_with_helpers`], which the other members read.
    pub(super) result: Mutex<Option<Payload>>,
    pub(super) workers: Vec<Worker>,
    /// The thread for runs that must not use their caller's thread; started on first use.
    #[cfg(not(shuttle))]
    pub(super) host: OnceLock<super::host::Host>,
    /// Whether a run is in progress.
    pub(super) busy: AtomicBool,
}

impl Team {
    /// A team of `size` members with its own threads, named `replica 1`, `replica 2`, …
    ///
    /// # Errors
    /// If the system refuses a thread, or these would be more than [`MOST_THREADS`](worker::MOST_THREADS).
    ///
    /// # Panics
    /// If `size` is 0.
    pub fn new(size: usize) -> io::Result<Self> {
        Self::of(size, &Kind::PLAIN)
    }

    pub(super) fn of(size: usize, kind: &Kind) -> io::Result<Self> {
        let threads = size.saturating_mul(kind.threads);
        if threads > worker::MOST_THREADS {
            let reason = format!("{threads} threads, where a team has {} at most", worker::MOST_THREADS);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        let mut team = Self::without_workers(size, kind.threads);
        for rank in 1..size {
            let crew = team.crew.clone();
            team.workers.push(Worker::start(rank, kind, move || crew.serve(rank))?);
        }
        Ok(team)
    }

    pub(super) fn without_workers(size: usize, threads: usize) -> Self {
        Self {
            size,
            threads,
            crew: Arc::new(Crew::new(size - 1)),
            rendezvous: Rendezvous::new(size),
            helpers: Crew::new(size - 1),
            result: Mutex::new(None),
            workers: Vec::with_capacity(size - 1),
            #[cfg(not(shuttle))]
            host: OnceLock::new(),
            busy: AtomicBool::new(false),
        }
    }

    /// Runs `work` on a thread of this team; member 0 of a run inside of it is on that thread.
    ///
    /// # Errors
    /// If the system refuses the thread.
    #[cfg(not(shuttle))]
    pub(super) fn hosted<R: Send>(&self, kind: &Kind, work: impl FnOnce() -> R + Send) -> io::Result<R> {
        let host = match self.host.get() {
            Some(host) => host,
            None => {
                let host = super::host::Host::start(kind)?;
                self.host.get_or_init(|| host)
            }
        };
        host.run(work).ok_or_else(|| io::Error::other("the team's thread has ended"))
    }

    /// Returns the number of its threads.
    #[cfg(not(shuttle))]
    pub(super) fn threads(&self) -> usize {
        (self.workers.len() + usize::from(self.host.get().is_some())) * self.threads
    }

    /// Returns the number of members.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The standing of each member, for logs.
    pub fn standings(&self) -> Vec<Standing> {
        self.rendezvous.standings()
    }

    /// Runs `body` once for every member, all at the same time, as step number `step`. `body` returns whether it
    /// succeeded. This returns when all members have; a panic of `body` is then resumed here.
    ///
    /// No call of a member waits longer than `timeout` for the others. A member that is still in `body` that long after
    /// member 0 has returned is logged with its last call, repeatedly.
    ///
    /// # Panics
    /// If `body` panics, or if this team is already running.
    pub fn run(self: &Arc<Self>, step: u64, timeout: Duration, body: &(dyn Fn(Member) -> bool + Sync)) {
        self.run_among(step, timeout, None, body);
    }

    /// Like [`Team::run`], together with the processes of `session`, which run the same: calls of
    /// [`Member::all_gather_with_group`] meet theirs.
    ///
    /// # Panics
    /// As [`Team::run`].
    pub fn run_among(
        self: &Arc<Self>,
        step: u64,
        timeout: Duration,
        session: Option<Arc<Session>>,
        body: &(dyn Fn(Member) -> bool + Sync),
    ) {
        let _busy = Busy::new(&self.busy);
        let first = session.as_ref().map_or(0, |session| session.world().global(0));
        self.rendezvous.open(step, first, session.clone());
        let work = |rank| {
            let mut leave = Leave { team: self, rank, failed: true };
            let session = session.clone();
            leave.failed = !body(Member { team: self.clone(), step, rank, first, session, timeout });
            drop(leave);
            worker::do_spawned();
        };
        let overdue = || {
            let standings = self.rendezvous.standings();
            for (rank, standing) in standings.iter().enumerate().filter(|(_, s)| !s.is_settled()) {
                let last = standing.last.as_ref().map_or("none".to_string(), ToString::to_string);
                heard(
                    || tracing::error!(replica = rank, step, last_call = %last, "{timeout:?} after replica 0 returned, still running"),
                );
            }
        };
        self.crew.broadcast(&work, timeout, &overdue);
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        // The workers serve until then and catch panics, so they end.
        self.crew.dismiss();
    }
}

/// Refuses a second run while one is in progress.
struct Busy<'a>(&'a AtomicBool);

impl<'a> Busy<'a> {
    fn new(busy: &'a AtomicBool) -> Self {
        assert!(!busy.swap(true, Ordering::AcqRel), "this team is running; Teams::borrow gives another");
        Self(busy)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Tells the others that a member is gone, even if it panics.
struct Leave<'a> {
    team: &'a Team,
    rank: usize,
    failed: bool,
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.team.rendezvous.leave(self.rank, self.failed);
    }
}
