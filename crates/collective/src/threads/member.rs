//! [`Member`]: a replica in a team, and its calls.

use super::team::Team;
use super::{BroadcastPool, Payload};
use crate::Failure;
use crate::group::{GroupCall, Session};
use crate::sync::lock;
use distribute_cluster::{Blame, Fingerprint, Presence};
use distribute_log::warn_or_stderr;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A replica during a run of its [`Team`].
#[derive(Clone)]
pub struct Member {
    pub(super) team: Arc<Team>,
    pub(super) step: u64,
    pub(super) rank: usize,
    /// The global id of member 0.
    pub(super) first: usize,
    /// The session with the other processes, if there are any.
    pub(super) session: Option<Arc<Session>>,
    pub(super) timeout: Duration,
}

impl Member {
    /// Returns the only member of a world with a single replica. It never waits, and its calls fail only if their own
    /// work fails.
    pub fn alone(step: u64) -> Self {
        static ALONE: OnceLock<Arc<Team>> = OnceLock::new();
        let team = ALONE.get_or_init(|| Arc::new(Team::without_threads(1, 1)));
        Self { team: team.clone(), step, rank: 0, first: 0, session: None, timeout: Duration::MAX }
    }

    /// Returns whether this is the only member of its world.
    pub fn is_alone(&self) -> bool {
        self.team.size == 1 && self.session.is_none()
    }

    /// Returns a copy of this member whose calls involve only the members of this process, even if there are other
    /// processes.
    pub fn without_group(&self) -> Self {
        Self { session: None, ..self.clone() }
    }

    /// Returns the session with the other processes of this run, if there are any.
    pub fn session(&self) -> Option<&Arc<Session>> {
        self.session.as_ref()
    }

    /// Makes a call to the other processes on behalf of all members of this process. Returns `None` if there are no
    /// other processes. Call this after the members have agreed on the call, while they wait for this member. `call`
    /// returns the fingerprint of each member, by rank.
    ///
    /// The other members wait longer than their own timeouts, because calls in `make` have their own deadlines.
    pub fn with_group<R>(
        &self,
        call: impl Fn(usize) -> Fingerprint,
        make: impl FnOnce(GroupCall<'_>) -> R,
    ) -> Option<R> {
        let _in_call = self.session.as_ref().map(|_| self.team.rendezvous.in_group_call());
        Some(make(self.group_call_by(self.session.as_ref()?, call)))
    }

    /// Returns a call to the other processes, as [`with_group`](Self::with_group) passes it to its closure; `None` if
    /// there are no other processes. Use this in [`run_on_leader_with_helpers`](Self::run_on_leader_with_helpers), in
    /// which the other members wait without a deadline.
    pub fn group_call(&self, call: impl FnOnce() -> Fingerprint) -> Option<GroupCall<'_>> {
        let session = self.session.as_ref()?;
        let call = call();
        Some(self.group_call_by(session, |_| call.clone()))
    }

    fn group_call_by<'a>(
        &'a self,
        session: &'a Session,
        call: impl Fn(usize) -> Fingerprint,
    ) -> GroupCall<'a> {
        let mut statuses = self.team.rendezvous.statuses();
        for (rank, status) in statuses.iter_mut().enumerate() {
            status.presence = Presence::Waiting(Fingerprint { continues: true, ..call(rank) });
        }
        GroupCall::new(session, statuses, self.timeout)
    }

    /// Aborts the next call of the other processes on behalf of all members of this process, because this process has
    /// failed outside a call. The other members must be waiting for this member: see [`Session::abort_call`].
    pub fn abort(&self) {
        let Some(session) = &self.session else { return };
        let _in_call = self.team.rendezvous.in_group_call();
        session.abort_call(self.team.rendezvous.statuses(), self.timeout);
    }

    /// Gathers the payloads of the members of all processes, in the order of global ids. Payloads are serialized if
    /// there are other processes.
    ///
    /// # Errors
    /// Returns the errors of [`Member::all_gather_with_group`].
    pub fn all_gather<T>(&self, call: Fingerprint, payload: T) -> Result<Vec<Arc<T>>, Failure>
    where
        T: Serialize + DeserializeOwned + Send + Sync + 'static,
    {
        let (local, all) = self.all_gather_with_group(call, payload, |local, mut calling| {
            let gathered = all_gather(local, &mut calling);
            calling.abort_on_error(gathered)
        })?;
        Ok(all.map_or(local, |all| Vec::clone(&all)))
    }

    /// Returns the rank of this member in its process, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the global id of this member's replica.
    pub fn replica(&self) -> usize {
        self.first + self.rank
    }

    /// Returns the number of members in this process.
    pub fn size(&self) -> usize {
        self.team.size
    }

    /// Returns the step in which this member takes part.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Returns a copy of this member whose calls wait at most `timeout`.
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self { timeout, ..self.clone() }
    }

    /// Gathers the payloads of the members of this process, in the order of ranks.
    ///
    /// # Errors
    /// Returns the errors of [`Rendezvous::arrive`](super::Rendezvous::arrive), and an error if members contribute
    /// values of different types.
    pub fn all_gather_local<T: Send + Sync + 'static>(
        &self,
        call: Fingerprint,
        payload: T,
    ) -> Result<Vec<Arc<T>>, Arc<Blame>> {
        if self.is_alone() {
            return Ok(vec![Arc::new(payload)]);
        }
        let met =
            self.team.rendezvous.arrive(self.rank, call.clone(), Arc::new(payload), self.timeout, None)?;
        self.downcast(&call, &met.payloads)
    }

    /// Gathers the payloads of the members of this process, and combines them with those of the other processes. `make`
    /// combines them on the last member to arrive, and all members get its result. Without other processes, `make` is
    /// not called, and the result is `None`.
    ///
    /// # Errors
    /// Returns the errors of [`Member::all_gather_local`] and of `make`, and an error if a process is lost. A
    /// [`Failure::Blame`] is the same on the members of all processes.
    #[allow(clippy::type_complexity)]
    pub fn all_gather_with_group<T: Send + Sync + 'static, M: Send + Sync + 'static>(
        &self,
        call: Fingerprint,
        payload: T,
        make: impl Fn(&[Arc<T>], GroupCall<'_>) -> Result<M, Failure>,
    ) -> Result<(Vec<Arc<T>>, Option<Arc<M>>), Failure> {
        if self.session.is_none() {
            return Ok((self.all_gather_local(call, payload)?, None));
        }
        let delegate = |payloads: &[Payload], session: &Session, statuses, timeout| {
            let typed = self.downcast(&call, payloads);
            let calling = GroupCall::new(session, statuses, timeout);
            match typed {
                Ok(typed) => match make(&typed, calling) {
                    Ok(made) => Ok(Arc::new(DelegateResult(Ok(Arc::new(made)))) as Payload),
                    Err(Failure::Blame(blame)) => Err(blame),
                    Err(other) => Ok(Arc::new(DelegateResult::<M>(Err(Arc::new(other)))) as Payload),
                },
                // Notify the other processes, so that they do not wait in vain.
                Err(blame) => Err(calling.reject(blame)),
            }
        };
        let payload = Arc::new(payload);
        let met =
            self.team.rendezvous.arrive(self.rank, call.clone(), payload, self.timeout, Some(&delegate))?;
        let payloads = self.downcast(&call, &met.payloads)?;
        let Some(made) = met.delegate_result else { return Ok((payloads, None)) };
        match made.downcast_ref::<DelegateResult<M>>() {
            Some(DelegateResult(Ok(made))) => Ok((payloads, Some(made.clone()))),
            Some(DelegateResult(Err(failure))) => Err(Failure::Shared(failure.clone())),
            None => Err(self.result_mismatch(&call).into()),
        }
    }

    fn downcast<T: Send + Sync + 'static>(
        &self,
        call: &Fingerprint,
        payloads: &[Payload],
    ) -> Result<Vec<Arc<T>>, Arc<Blame>> {
        let typed: Option<Vec<_>> = payloads.iter().map(|payload| payload.clone().downcast().ok()).collect();
        let others = || {
            let other = |r: &usize| (*payloads[*r]).type_id() != (*payloads[0]).type_id();
            (0..payloads.len()).filter(other).map(|rank| self.first + rank).collect()
        };
        typed.ok_or_else(|| Arc::new(Blame::other_types(self.step, call, others())))
    }

    /// Gathers the payloads of the members of this process, and then runs `lead` on member 0. The other members wait at
    /// most for their timeout. All members get the same result.
    ///
    /// # Errors
    /// Returns the errors of [`Member::all_gather_local`]. If `lead` panics, member 0 panics, and the other members get
    /// an error that reports this.
    pub fn reduce_on_leader<T: Send + Sync + 'static, R: Send + Sync + 'static>(
        &self,
        call: Fingerprint,
        payload: T,
        lead: impl FnOnce(Vec<Arc<T>>) -> R,
    ) -> Result<Arc<R>, Arc<Blame>> {
        let payloads = self.all_gather_local(call.clone(), payload)?;
        self.run_on_leader(&call, "its outcome on replica 0", || lead(payloads))
    }

    /// Runs `make` on member 0. The other members wait at most for their timeout. All members get the same result. Call
    /// this after a successful [`Member::all_gather_local`], on all members or on none. `part` describes the work of
    /// member 0, for the errors of members that time out.
    ///
    /// # Errors
    /// Returns the errors of [`Member::reduce_on_leader`].
    pub fn run_on_leader<R: Send + Sync + 'static>(
        &self,
        call: &Fingerprint,
        part: &str,
        make: impl FnOnce() -> R,
    ) -> Result<Arc<R>, Arc<Blame>> {
        if self.is_alone() {
            return Ok(Arc::new(make()));
        }
        let outcome = call.part(part);
        let made: Payload = match self.rank {
            0 => Arc::new(make()),
            _ => {
                // Dropped here, so that what it holds has a single owner again when member 0 is done.
                drop(make);
                Arc::new(())
            }
        };
        let made = self.team.rendezvous.arrive(self.rank, outcome.clone(), made, self.timeout, None)?;
        made.payloads[0].clone().downcast().map_err(|_| self.result_mismatch(&outcome))
    }

    /// Runs `make(rank)` on every member at the same time, after a successful [`Member::all_gather_local`]. Each member
    /// gets all results, in the order of ranks. No member waits for the others longer than its timeout. `part`
    /// describes the work, for errors.
    ///
    /// # Errors
    /// Returns the errors of [`Member::all_gather_local`].
    pub fn all_gather_with<T: Send + Sync + 'static>(
        &self,
        call: &Fingerprint,
        part: &str,
        make: impl FnOnce(usize) -> T,
    ) -> Result<Vec<Arc<T>>, Arc<Blame>> {
        self.all_gather_local(call.part(part), make(self.rank))
    }

    /// Runs `lead` on member 0, with the other members as its helpers: each closure that `lead` broadcasts runs once on
    /// every member. All members get the same result. Call this after a successful [`Member::all_gather_local`], on all
    /// members or on none.
    ///
    /// The other members wait without a deadline, because `lead` borrows from them. `lead` and the closures that it
    /// broadcasts must therefore always terminate. This is true of this project's own code; user code belongs in
    /// [`Member::run_on_leader`] and [`Member::all_gather_with`]. If `lead` takes longer than this member's timeout,
    /// this is logged repeatedly.
    ///
    /// # Errors
    /// If `lead` panics, member 0 panics, and the other members get an error that reports this.
    pub fn run_on_leader_with_helpers<R: Send + Sync + 'static>(
        &self,
        call: &Fingerprint,
        lead: impl FnOnce(&Helpers<'_>) -> R,
    ) -> Result<Arc<R>, Arc<Blame>> {
        if self.is_alone() {
            return Ok(Arc::new(lead(&Helpers { team: &self.team })));
        }
        if self.rank > 0 {
            // Dropped here, so that what it holds, such as payloads, has a single owner again when member 0 is done.
            drop(lead);
            let (step, timeout) = (self.step, self.timeout);
            let overdue = || {
                // Reported once, not by every member that waits.
                if self.rank == 1 {
                    warn_or_stderr(|| {
                        tracing::error!(
                            replica = 0, step, %call,
                            "still running its part of the call {timeout:?} after all replicas had arrived; the \
                             others wait"
                        )
                    });
                }
            };
            let waiting = tracing::trace_span!("waiting", %call).entered();
            self.team.helpers.serve_with_watchdog(self.rank, timeout, &overdue);
            drop(waiting);
            let made = lock(&self.team.result).clone();
            return made
                .ok_or_else(|| Arc::new(Blame::failed(self.step, self.first, call)))?
                .downcast()
                .map_err(|_| self.result_mismatch(call));
        }
        lock(&self.team.result).take();
        let dismiss = DismissOnDrop(&self.team.helpers);
        let made = Arc::new(lead(&Helpers { team: &self.team }));
        *lock(&self.team.result) = Some(made.clone());
        drop(dismiss);
        Ok(made)
    }

    /// Returns the error of a member that expects another type than that of member 0's result.
    fn result_mismatch(&self, call: &Fingerprint) -> Arc<Blame> {
        Arc::new(Blame::other_types(self.step, call, vec![self.replica()]))
    }
}

/// Gathers the payloads of the members of all processes, in the order of global ids. `local` contains the payloads of
/// this process.
///
/// # Errors
/// Returns a [`Failure`] if the round fails, or if the payloads of another process cannot be decoded or have the wrong
/// number.
fn all_gather<T: Serialize + DeserializeOwned>(
    local: &[Arc<T>],
    calling: &mut GroupCall<'_>,
) -> Result<Vec<Arc<T>>, Failure> {
    let record = |error: postcard::Error| Failure::Record(error.to_string());
    let mine: Vec<&T> = local.iter().map(|payload| &**payload).collect();
    let bodies = calling.all_gather_bytes(postcard::to_allocvec(&mine).map_err(record)?.into())?;
    let world = calling.world();
    let mut all = Vec::with_capacity(world.num_replicas_in_sync());
    for (worker, body) in bodies.iter().enumerate() {
        if worker == world.worker() {
            all.extend_from_slice(local);
            continue;
        }
        let theirs: Vec<T> = postcard::from_bytes(body).map_err(record)?;
        if theirs.len() != world.replicas_of(worker).len() {
            let reason = format!("{} payloads of worker {worker}, {world}", theirs.len());
            return Err(Failure::Record(reason));
        }
        all.extend(theirs.into_iter().map(Arc::new));
    }
    Ok(all)
}

/// The result of a delegate, in the form in which all members of its process share it.
struct DelegateResult<M>(Result<Arc<M>, Arc<Failure>>);

/// A guard that dismisses the helpers when it is dropped, even after a panic of the leader.
struct DismissOnDrop<'a>(&'a BroadcastPool);

impl Drop for DismissOnDrop<'_> {
    fn drop(&mut self) {
        self.0.dismiss();
    }
}

/// The helpers of member 0, which run the closures that it broadcasts.
pub struct Helpers<'a> {
    team: &'a Team,
}

impl Helpers<'_> {
    /// Returns the number of members that run a broadcast closure, including member 0.
    pub fn size(&self) -> usize {
        self.team.size
    }

    /// Runs `work(rank)` once on every member, and returns when all have finished. If this takes longer than a minute,
    /// it is logged repeatedly.
    pub fn broadcast(&self, work: &(dyn Fn(usize) + Sync)) {
        if self.team.size == 1 {
            return work(0);
        }
        // The work of the others is part of member 0's span.
        let span = tracing::Span::current();
        let work = &|rank| {
            let _theirs = (rank > 0).then(|| span.enter());
            work(rank);
        };
        self.team.helpers.broadcast(work, Duration::from_secs(60), &|| {
            warn_or_stderr(|| tracing::error!("a kernel has been running for a minute"));
        });
    }
}
