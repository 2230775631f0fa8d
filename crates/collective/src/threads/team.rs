//! A meeting and the threads that one `run` borrows, one for each local replica.

use super::worker::{self, Kind, Worker};
use super::{Crew, Meeting, Offer};
use crate::Failure;
use crate::group::{Calling, Session};
use crate::sync::{AtomicBool, Mutex, Ordering, lock};
use distribute_cluster::{Blame, Fingerprint, Presence, Standing};
use distribute_log::heard;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// N members that run one closure at once: member 0 on the caller's thread, the others on threads of the team.
pub struct Team {
    size: usize,
    /// Of each member.
    threads: usize,
    /// The threads, which serve as long as the team lives.
    crew: Arc<Crew>,
    meeting: Meeting,
    /// Parked members lend their cores to member 0 here.
    helpers: Crew,
    /// What member 0 made of the last cooperation, for the others.
    result: Mutex<Option<Offer>>,
    workers: Vec<Worker>,
    /// Where a run goes that is not for its caller's thread; started with the first.
    #[cfg(not(shuttle))]
    host: OnceLock<super::host::Host>,
    /// A run lasts.
    busy: AtomicBool,
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

    fn without_workers(size: usize, threads: usize) -> Self {
        Self {
            size,
            threads,
            crew: Arc::new(Crew::new(size - 1)),
            meeting: Meeting::new(size),
            helpers: Crew::new(size - 1),
            result: Mutex::new(None),
            workers: Vec::with_capacity(size - 1),
            #[cfg(not(shuttle))]
            host: OnceLock::new(),
            busy: AtomicBool::new(false),
        }
    }

    /// Does `work` on a thread of this team, on which member 0 of a run in it then is.
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

    /// How many threads it has.
    #[cfg(not(shuttle))]
    pub(super) fn threads(&self) -> usize {
        (self.workers.len() + usize::from(self.host.get().is_some())) * self.threads
    }

    /// How many members there are.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Where everybody stands, for the log.
    pub fn standings(&self) -> Vec<Standing> {
        self.meeting.standings()
    }

    /// Runs `body` once for every member, all at once, as step number `step`. `body` tells whether it succeeded.
    /// Returns when all have returned; a panic of `body` is resumed here after that.
    ///
    /// No call of a member waits longer than `timeout` for the others. A member that is still in `body` so long after
    /// member 0 has returned is logged with its last call, again and again.
    ///
    /// # Panics
    /// As `body`; and where this team is running already, whose meeting this would confuse.
    pub fn run(self: &Arc<Self>, step: u64, timeout: Duration, body: &(dyn Fn(Member) -> bool + Sync)) {
        self.run_among(step, timeout, None, body);
    }

    /// As [`Team::run`], where the processes of `session` run the same: calls of [`Member::together`] meet theirs.
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
        self.meeting.open(step, first, session.clone());
        let _close = session.is_some().then(|| Close(&self.meeting));
        let work = |rank| {
            let mut leave = Leave { team: self, rank, failed: true };
            let session = session.clone();
            leave.failed = !body(Member { team: self.clone(), step, rank, first, session, timeout });
            drop(leave);
            worker::do_spawned();
        };
        let overdue = || {
            let standings = self.meeting.standings();
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
        // Its workers serve until then, and catch panics: they end.
        self.crew.dismiss();
    }
}

/// Lets go of the traffic with other processes when a run is over: an idle team would keep their connections.
struct Close<'a>(&'a Meeting);

impl Drop for Close<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Keeps a second run out while one lasts.
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

/// Tells the others that a member is gone, also when it panics.
struct Leave<'a> {
    team: &'a Team,
    rank: usize,
    failed: bool,
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.team.meeting.leave(self.rank, self.failed);
    }
}

/// One member of a [`Team`] during a run.
#[derive(Clone)]
pub struct Member {
    team: Arc<Team>,
    step: u64,
    rank: usize,
    /// The global id of member 0.
    first: usize,
    /// The traffic with the other processes, where there are any.
    session: Option<Arc<Session>>,
    timeout: Duration,
}

impl Member {
    /// The only member of a world of one: it waits for nobody, and no call of it fails but by what it does itself.
    pub fn alone(step: u64) -> Self {
        static ALONE: OnceLock<Arc<Team>> = OnceLock::new();
        let team = ALONE.get_or_init(|| Arc::new(Team::without_workers(1, 1)));
        Self { team: team.clone(), step, rank: 0, first: 0, session: None, timeout: Duration::MAX }
    }

    /// Whether it is the only one of its world.
    pub fn is_alone(&self) -> bool {
        self.team.size == 1 && self.session.is_none()
    }

    /// The traffic with the other processes of this run, where there are any.
    pub fn session(&self) -> Option<&Arc<Session>> {
        self.session.as_ref()
    }

    /// Makes a call with the other processes for all members of this one, where there are other processes: after these have
    /// agreed on it, and while they wait for this one. `call` says what each of them does, by rank.
    ///
    /// The others wait as long as this lasts, beyond their own timeouts: it has deadlines of its own.
    pub fn speak<R>(
        &self,
        call: impl Fn(usize) -> Fingerprint,
        make: impl FnOnce(Calling<'_>) -> R,
    ) -> Option<R> {
        let _speaking = self.session.as_ref().map(|_| self.team.meeting.speaking());
        self.calls(call).map(make)
    }

    /// As [`Member::speak`], in [`Member::lead`], where those who wait have no deadline.
    pub fn calling(&self, call: &Fingerprint) -> Option<Calling<'_>> {
        self.calls(|_| call.clone())
    }

    fn calls(&self, call: impl Fn(usize) -> Fingerprint) -> Option<Calling<'_>> {
        let session = self.session.as_ref()?;
        let mut standings = self.team.meeting.standings();
        for (rank, standing) in standings.iter_mut().enumerate() {
            standing.presence = Presence::Waiting(Fingerprint { continues: true, ..call(rank) });
        }
        Some(Calling::new(session, standings, self.timeout))
    }

    /// Exchanges offers that can be sent with the members of all processes: everybody gets everybody's, in the order of
    /// global ids.
    ///
    /// # Errors
    /// As [`Member::together`].
    pub fn share<T>(&self, call: Fingerprint, offer: T) -> Result<Vec<Arc<T>>, Failure>
    where
        T: Serialize + DeserializeOwned + Send + Sync + 'static,
    {
        let (local, all) = self.together(call, offer, |local, mut calling| {
            let record = |error: postcard::Error| Failure::Record(error.to_string());
            let mine: Vec<&T> = local.iter().map(|offer| &**offer).collect();
            let bodies = calling.records(postcard::to_allocvec(&mine).map_err(record)?.into())?;
            let world = calling.world();
            let mut all = Vec::with_capacity(world.num_replicas_in_sync());
            for (worker, body) in bodies.iter().enumerate() {
                if worker == world.worker() {
                    all.extend_from_slice(local);
                    continue;
                }
                let theirs: Vec<T> = postcard::from_bytes(body).map_err(record)?;
                if theirs.len() != world.replicas() {
                    let reason = format!("{} offers of worker {worker}, {world}", theirs.len());
                    return Err(Failure::Record(reason));
                }
                all.extend(theirs.into_iter().map(Arc::new));
            }
            Ok(all)
        })?;
        Ok(all.map_or(local, |all| Vec::clone(&all)))
    }

    /// Which member this is, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The global id of this member's replica.
    pub fn replica(&self) -> usize {
        self.first + self.rank
    }

    /// How many members there are.
    pub fn size(&self) -> usize {
        self.team.size
    }

    /// The number of the step that this member takes part in.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The same member, which waits `timeout` at most for the others in each of its calls.
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self { timeout, ..self.clone() }
    }

    /// Exchanges offers: everybody gets everybody's, in the order of ranks.
    ///
    /// # Errors
    /// As [`Meeting::meet`]; and where members offer values of different types.
    pub fn exchange<T: Send + Sync + 'static>(
        &self,
        call: Fingerprint,
        offer: T,
    ) -> Result<Vec<Arc<T>>, Arc<Blame>> {
        if self.is_alone() {
            return Ok(vec![Arc::new(offer)]);
        }
        let met = self.team.meeting.meet(self.rank, call.clone(), Arc::new(offer), self.timeout, None)?;
        self.typed(&call, &met.offers)
    }

    /// Exchanges offers with the members of this process, and has one of them make something of them with the other
    /// processes, where there are any: `make` is called on the last to arrive, and all get what it made.
    ///
    /// # Errors
    /// The same on the members of all processes: as [`Member::exchange`], and where a process is lost.
    #[allow(clippy::type_complexity)]
    pub fn together<T: Send + Sync + 'static, M: Send + Sync + 'static>(
        &self,
        call: Fingerprint,
        offer: T,
        make: impl Fn(&[Arc<T>], Calling<'_>) -> Result<M, Failure>,
    ) -> Result<(Vec<Arc<T>>, Option<Arc<M>>), Failure> {
        if self.is_alone() {
            return Ok((vec![Arc::new(offer)], None));
        }
        let delegate = |offers: &[Offer], session: &Session, standings, timeout| {
            let typed = self.typed(&call, offers);
            let calling = Calling::new(session, standings, timeout);
            match typed {
                Ok(typed) => match make(&typed, calling) {
                    Ok(made) => Ok(Arc::new(Made(Ok(Arc::new(made)))) as Offer),
                    Err(Failure::Blame(blame)) => Err(blame),
                    Err(other) => Ok(Arc::new(Made::<M>(Err(Arc::new(other)))) as Offer),
                },
                // The others must not wait for what cannot come.
                Err(blame) => Err(calling.refuse(blame)),
            }
        };
        let offer = Arc::new(offer);
        let met = self.team.meeting.meet(self.rank, call.clone(), offer, self.timeout, Some(&delegate))?;
        let offers = self.typed(&call, &met.offers)?;
        let Some(made) = met.made else { return Ok((offers, None)) };
        match made.downcast_ref::<Made<M>>() {
            Some(Made(Ok(made))) => Ok((offers, Some(made.clone()))),
            Some(Made(Err(failure))) => Err(Failure::Shared(failure.clone())),
            None => Err(self.other_result(&call).into()),
        }
    }

    fn typed<T: Send + Sync + 'static>(
        &self,
        call: &Fingerprint,
        offers: &[Offer],
    ) -> Result<Vec<Arc<T>>, Arc<Blame>> {
        let typed: Option<Vec<_>> = offers.iter().map(|offer| offer.clone().downcast().ok()).collect();
        let others = || {
            let other = |r: &usize| (*offers[*r]).type_id() != (*offers[0]).type_id();
            (0..offers.len()).filter(other).map(|rank| self.first + rank).collect()
        };
        typed.ok_or_else(|| Arc::new(Blame::other_types(self.step, call, others())))
    }

    /// Exchanges offers, then member 0 alone makes something of them while the others wait for it, as long as the
    /// timeout at most. Everybody gets the same result.
    ///
    /// # Errors
    /// As [`Member::exchange`]. If `lead` panics, so does member 0, and the others learn that it failed.
    pub fn merge<T: Send + Sync + 'static, R: Send + Sync + 'static>(
        &self,
        call: Fingerprint,
        offer: T,
        lead: impl FnOnce(Vec<Arc<T>>) -> R,
    ) -> Result<Arc<R>, Arc<Blame>> {
        let offers = self.exchange(call.clone(), offer)?;
        self.hand_out(&call, "its outcome on replica 0", || lead(offers))
    }

    /// The second half of [`Member::merge`], for those who decide by the offers whether to: after an exchange that
    /// succeeded, and on all members or none. `part` says what member 0 is doing in the error of those who waited in vain.
    ///
    /// # Errors
    /// As [`Member::merge`].
    pub fn hand_out<R: Send + Sync + 'static>(
        &self,
        call: &Fingerprint,
        part: &str,
        make: impl FnOnce() -> R,
    ) -> Result<Arc<R>, Arc<Blame>> {
        if self.is_alone() {
            return Ok(Arc::new(make()));
        }
        let outcome = call.part(part);
        let made: Offer = match self.rank {
            0 => Arc::new(make()),
            _ => {
                // With what it holds: whoever offered that has it back when member 0 is done.
                drop(make);
                Arc::new(())
            }
        };
        let made = self.team.meeting.meet(self.rank, outcome.clone(), made, self.timeout, None)?;
        made.offers[0].clone().downcast().map_err(|_| self.other_result(&outcome))
    }

    /// Each member makes something after an exchange that succeeded, all at once; everybody gets everybody's, in the order
    /// of ranks. No one waits for the others longer than its timeout. `part` is as in [`Member::hand_out`].
    ///
    /// # Errors
    /// As [`Member::exchange`].
    pub fn each<T: Send + Sync + 'static>(
        &self,
        call: &Fingerprint,
        part: &str,
        make: impl FnOnce(usize) -> T,
    ) -> Result<Vec<Arc<T>>, Arc<Blame>> {
        self.exchange(call.part(part), make(self.rank))
    }

    /// After an exchange that succeeded, and on all members or none, member 0 leads and the others lend their cores: each
    /// closure that `lead` broadcasts runs once on every member. Everybody gets the same result.
    ///
    /// `lead` and what it broadcasts must be code that ends by itself, which is this project's own: the others wait for it
    /// without a deadline, because it borrows from members. Code of users belongs into [`Member::hand_out`] and
    /// [`Member::each`]. What lasts longer than this member's timeout is logged, again and again.
    ///
    /// # Errors
    /// If `lead` panics, so does member 0, and the others learn that it failed.
    pub fn lead<R: Send + Sync + 'static>(
        &self,
        call: &Fingerprint,
        lead: impl FnOnce(&Helpers<'_>) -> R,
    ) -> Result<Arc<R>, Arc<Blame>> {
        if self.is_alone() {
            return Ok(Arc::new(lead(&Helpers { team: &self.team })));
        }
        if self.rank > 0 {
            // With what it holds, such as offers: whoever offered them has them back when member 0 is done.
            drop(lead);
            let (step, timeout) = (self.step, self.timeout);
            let overdue = || {
                // Once, not by everyone who waits.
                if self.rank == 1 {
                    heard(
                        || tracing::error!(replica = 0, step, %call, "{timeout:?} after all had come, still in its own part of the call; the others wait"),
                    );
                }
            };
            let waiting = tracing::trace_span!("waiting", %call).entered();
            self.team.helpers.serve_watching(self.rank, timeout, &overdue);
            drop(waiting);
            let made = lock(&self.team.result).clone();
            return made
                .ok_or_else(|| Arc::new(Blame::failed(self.step, self.first, call)))?
                .downcast()
                .map_err(|_| self.other_result(call));
        }
        lock(&self.team.result).take();
        let dismiss = Dismiss(&self.team.helpers);
        let made = Arc::new(lead(&Helpers { team: &self.team }));
        *lock(&self.team.result) = Some(made.clone());
        drop(dismiss);
        Ok(made)
    }

    /// This member asks for another type of result than member 0 has made.
    fn other_result(&self, call: &Fingerprint) -> Arc<Blame> {
        Arc::new(Blame::other_types(self.step, call, vec![self.replica()]))
    }
}

/// What a delegate made for all members of its process.
struct Made<M>(Result<Arc<M>, Arc<Failure>>);

/// Lets the helpers go, also when the leader panics.
struct Dismiss<'a>(&'a Crew);

impl Drop for Dismiss<'_> {
    fn drop(&mut self) {
        self.0.dismiss();
    }
}

/// The members of a team while member 0 leads.
pub struct Helpers<'a> {
    team: &'a Team,
}

impl Helpers<'_> {
    /// How many members run what is broadcast, member 0 included.
    pub fn size(&self) -> usize {
        self.team.size
    }

    /// Runs `work(rank)` once on every member, and returns when all have finished.
    pub fn broadcast(&self, work: &(dyn Fn(usize) + Sync)) {
        if self.team.size == 1 {
            return work(0);
        }
        // What the others do is a part of what member 0 is doing.
        let span = tracing::Span::current();
        let work = &|rank| {
            let _theirs = (rank > 0).then(|| span.enter());
            work(rank);
        };
        self.team.helpers.broadcast(work, Duration::from_secs(60), &|| {
            heard(|| tracing::error!("a kernel has been running for a minute"));
        });
    }
}
