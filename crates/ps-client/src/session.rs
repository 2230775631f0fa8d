//! The session of this process with parameter servers, which fetches values between steps, never while a step computes.

// - INV-55: fetched values are written by one thread at a time, for which others wait, including a step that begins.
//   A step begins with what this process has written before, and fails if it computed with values that could not be
//   fetched. If two runs of one strategy are concurrent, one is refused; a run inside another's merge function
//   continues with its values. Tests: `ps-client/src/session/tests.rs`, `parameter_servers/fetched.rs`,
//   `parameter_servers/faults.rs`, `parameter_servers/variables.rs`.

use super::cache::{HostCache, fetch_all};
use super::lock_step::LockStep;
use super::row_cache::SharedClock;
use super::{Channels, RemoteVariable};
use distribute_base::internal::lock;
use distribute_base::{Error, Result};
use distribute_ps_tables::PrefetchUsage;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

/// The second half of an update in flight: it waits until servers have acknowledged the gradients, and then fetches
/// values.
pub(crate) type Finish = Box<dyn FnOnce() -> Result<Fetched> + Send>;

/// The result of fetching values after gradients were acknowledged. The step counts even if this is an error.
pub(crate) type Fetched = Result<()>;

/// The session of this process with parameter servers: the variables that candle computes with, the running
/// steps, and the updates in flight.
pub struct Session {
    pub(crate) channels: Arc<Channels>,
    /// The caches that candle computes with, in the order of creation.
    caches: Mutex<Vec<Weak<HostCache>>>,
    /// The maximum number of this process's updates that fetched values may lack.
    pub(crate) staleness: usize,
    /// The maximum time to wait while another thread is writing values.
    patience: Duration,
    state: Mutex<State>,
    /// Notified when a thread has finished writing values.
    written: Condvar,
    /// The clock that counts the updates of this process, for the age of cached rows.
    pub(crate) clock: SharedClock,
    /// The variables of which this process prefetches rows.
    pub(crate) prefetching: Mutex<Vec<Weak<RemoteVariable>>>,
    /// The usage of prefetched rows, including those of dropped variables.
    pub(crate) prefetch_usage: Arc<Mutex<PrefetchUsage>>,
}

#[derive(Default)]
struct State {
    /// The number of running steps: a step, and those that its merge functions run inside it.
    running: usize,
    /// Whether a thread is writing values, without holding the lock of this state.
    writing: bool,
    /// The updates in flight, oldest first.
    in_flight: VecDeque<Finish>,
    /// Whether the latest update in flight will fetch all changes, and was sent after the last step began.
    fresh: bool,
    /// The error of fetching values after the running step's gradients were applied, if that has failed.
    fetch_error: Option<Arc<Error>>,
    /// The error with which code of the running step failed to fetch values, if that code could not return an error.
    lost: Option<Error>,
}

/// A guard for a running step, which ends when the guard is dropped.
#[must_use = "the step ends when this guard is dropped"]
pub struct RunningStep<'a>(&'a Session);

/// A guard that prevents other threads from writing values until it is dropped.
struct WriteGuard<'a>(&'a Session);

impl Session {
    /// Creates a session in which values may lack up to `staleness` of this process's updates. While another thread is
    /// writing values, threads wait for at most `staleness + 2` timeouts of `channels`.
    pub(crate) fn new(channels: Channels, staleness: usize) -> Self {
        // All updates in flight, the one that is being added, and the fetch after them.
        let most = u32::try_from(staleness).unwrap_or(u32::MAX).saturating_add(2);
        let patience = channels.timeout().saturating_mul(most);
        let (caches, state, written) = (Mutex::default(), Mutex::default(), Condvar::new());
        Self {
            channels: Arc::new(channels),
            caches,
            staleness,
            patience,
            state,
            written,
            clock: Arc::default(),
            prefetching: Mutex::default(),
            prefetch_usage: Arc::default(),
        }
    }

    /// Registers a cache and returns it. Its values are fetched whenever a step begins, unless only its rows are looked
    /// up. The session does not keep the cache alive.
    pub fn register(&self, cache: HostCache) -> Arc<HostCache> {
        let cache = Arc::new(cache);
        let mut caches = lock(&self.caches);
        if caches.len() == caches.capacity() {
            caches.retain(|cache| cache.strong_count() > 0);
        }
        caches.push(Arc::downgrade(&cache));
        cache
    }

    /// Returns the caches that still exist, in the order of creation.
    pub(crate) fn caches(&self) -> Vec<Arc<HostCache>> {
        lock(&self.caches).iter().filter_map(Weak::upgrade).collect()
    }

    /// Begins a step. Unless the last update in flight will fetch all values, waits for the updates in flight, and
    /// fetches the values of all caches. A step that is `inside` another one does neither, and uses the same values.
    ///
    /// # Errors
    /// - [`Error::Server`]: values could not be fetched, or an update in flight failed.
    /// - [`Error::InvalidArgument`]: another step is running, and this one is not inside it; or another thread has not
    ///   finished writing values in time.
    pub fn begin_step(&self, inside: bool) -> Result<RunningStep<'_>> {
        let _servers = tracing::trace_span!("servers").entered();
        self.begin(inside, || fetch_all("run", &self.caches()))
    }

    fn begin(&self, inside: bool, pull: impl FnOnce() -> Result<()>) -> Result<RunningStep<'_>> {
        {
            let mut state = lock(&self.state);
            if state.running > 0 && !inside {
                let reason = "a run of this strategy is in progress on another thread, and computes with \
                              the values that this run would fetch again; run one step after another, or \
                              use a strategy for each, of the same cluster";
                return Err(Error::invalid("run", reason));
            }
            state.running += 1;
            if state.running > 1 {
                return Ok(RunningStep(self));
            }
        }
        // From now on other runs are refused, and no other thread begins to write.
        let step = RunningStep(self);
        lock(&self.clock).begin_run();
        let _writing = self.write("run")?;
        let on_the_way = {
            let mut state = lock(&self.state);
            (state.fetch_error, state.lost) = (None, None);
            std::mem::take(&mut state.fresh) && !state.in_flight.is_empty()
        };
        if !on_the_way {
            self.finish(0)?;
            pull()?;
        }
        Ok(step)
    }

    /// Adds an update in flight. Waits until no more updates are in flight than the staleness permits. No thread may be
    /// computing with the values.
    ///
    /// # Errors
    /// Returns the error of the first update that failed, or an error if another thread does not finish writing values
    /// in time.
    pub(crate) fn add(&self, finish: Finish) -> Result<()> {
        {
            let mut state = lock(&self.state);
            state.in_flight.push_back(finish);
            state.fresh = true;
        }
        let _writing = self.write("optimizer step")?;
        self.finish(self.staleness)
    }

    /// Waits until servers have acknowledged all updates. If a step is running, returns immediately, because the step
    /// must keep its values.
    ///
    /// # Errors
    /// Returns the error of the first update that failed, or an error if another thread does not finish writing values
    /// in time.
    pub fn flush(&self) -> Result<()> {
        self.between("waiting for updates", || self.finish(0)).map(drop)
    }

    // INV-55
    /// Fetches the complete value of the variable of `cache`, now and in all later steps. If a step is running and the
    /// value is already complete, fetches nothing now, because the step must keep its values.
    ///
    /// # Errors
    /// - [`Error::Server`]: a server did not answer.
    /// - [`Error::InvalidArgument`]: the value on a server has a different shape or dtype, or another thread does not
    ///   finish writing values in time.
    pub fn load(&self, operation: &'static str, cache: &Arc<HostCache>) -> Result<()> {
        let between = || if cache.is_complete() { cache.refresh(operation) } else { cache.load(operation) };
        match self.between(operation, between)? {
            Some(()) => Ok(()),
            None => cache.load(operation),
        }
    }

    /// Calls `body`, which may write values, and returns its result. If a step is running, returns `None` without
    /// calling `body`. No step begins before `body` has returned.
    ///
    /// # Errors
    /// Returns the errors of `body`, and an error if another thread does not finish writing values in time.
    fn between<T>(&self, operation: &'static str, body: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
        let _writing = self.write(operation)?;
        // A step that is beginning waits, and counts as running.
        if lock(&self.state).running > 0 { Ok(None) } else { body().map(Some) }
    }

    /// Returns the division of changes among workers; `None` if this process makes its changes alone.
    pub fn lock_step(&self) -> Option<LockStep> {
        self.channels.lock_step()
    }

    /// Returns `true` if a step is running.
    pub fn is_running(&self) -> bool {
        lock(&self.state).running > 0
    }

    /// Records that variables were written on servers, so that the next step fetches them.
    pub fn mark_dirty(&self) {
        lock(&self.state).fresh = false;
    }

    /// Records that `finished`, the step counter of an optimizer, has counted a step, so that the running closure can
    /// subtract it.
    pub fn record_step(&self, finished: &Arc<AtomicU64>) {
        self.channels.record_step(finished);
    }

    /// Records whether values were fetched after their gradients were acknowledged. If not, the next step fetches them,
    /// and [`require_fetched`](Self::require_fetched) returns the error during the running step.
    pub(crate) fn record_fetch(&self, fetched: Fetched) {
        if let Err(error) = fetched {
            tracing::debug!("values will be fetched in the next step: {error}");
            let mut state = lock(&self.state);
            state.fresh = false;
            if state.running > 0 {
                state.fetch_error.get_or_insert(Arc::new(error));
            }
        }
    }

    /// Checks that the values after earlier gradients of the same step were fetched. Call this before pushing more
    /// gradients.
    ///
    /// # Errors
    /// Returns the error of the fetch that failed. Each call returns it again until the next step begins.
    pub(crate) fn require_fetched(&self) -> Result<()> {
        lock(&self.state).fetch_error.clone().map_or(Ok(()), |error| Err(Error::Shared(error)))
    }

    /// Makes the running step fail with `error`, unless it fails with an earlier one already. Code that could not fetch
    /// values, and cannot return an error, calls this. Returns `error` if no step is running.
    pub fn fail_step(&self, error: Error) -> Option<Error> {
        let mut state = lock(&self.state);
        if state.running == 0 {
            return Some(error);
        }
        state.lost.get_or_insert(error);
        None
    }

    /// Waits until no other thread is writing values, and keeps others from doing so until the returned guard is
    /// dropped.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: another thread does not finish writing values in time.
    fn write(&self, operation: &'static str) -> Result<WriteGuard<'_>> {
        let busy = |state: &mut State| state.writing;
        let waited = self.written.wait_timeout_while(lock(&self.state), self.patience, busy);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if state.writing {
            let reason = format!(
                "another thread has been fetching values for {:?}; check the servers, and try again",
                self.patience
            );
            return Err(Error::invalid(operation, reason));
        }
        state.writing = true;
        drop(state);
        Ok(WriteGuard(self))
    }

    /// Finishes the oldest updates until at most `most` are in flight. The caller must hold the guard that
    /// [`write`](Session::write) returns.
    ///
    /// # Errors
    /// Returns the error of the first update that failed. Later ones remain in flight.
    fn finish(&self, most: usize) -> Result<()> {
        let next = || {
            let in_flight = &mut lock(&self.state).in_flight;
            if in_flight.len() > most { in_flight.pop_front() } else { None }
        };
        // The lock is not held during an update.
        while let Some(finish) = next() {
            let fetched = finish().inspect_err(|_| self.mark_dirty())?;
            self.record_fetch(fetched);
        }
        Ok(())
    }
}

impl RunningStep<'_> {
    /// Checks that all values that the step has used were fetched.
    ///
    /// # Errors
    /// Returns the error of the fetch that failed. Each error is returned once.
    pub fn require_values(&self) -> Result<()> {
        lock(&self.0.state).lost.take().map_or(Ok(()), Err)
    }
}

impl Drop for RunningStep<'_> {
    fn drop(&mut self) {
        let is_last = {
            let mut state = lock(&self.0.state);
            state.running -= 1;
            state.running == 0
        };
        if is_last {
            self.0.end_prefetching();
        }
    }
}

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).writing = false;
        self.0.written.notify_all();
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = lock(&self.state);
        write!(f, "Session({} running, {} updates in flight)", state.running, state.in_flight.len())
    }
}

#[cfg(test)]
mod tests;
