//! The session of this process with parameter servers: values are fetched between steps, never under a running graph.

use super::Links;
use super::cache::{HostCache, fetch_all};
use distribute_base::internal::lock;
use distribute_base::{Error, Result};
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

/// The second half of an update in flight: waits for the acknowledgement of its gradients, and fetches the values
/// after it.
pub(crate) type Finish = Box<dyn FnOnce() -> Result<Fetched> + Send>;

/// Whether values were fetched after gradients that were acknowledged. The step counts in any case.
pub(crate) type Fetched = Result<()>;

/// The session of this process with parameter servers: the variables that candle computes with, the running steps, and
/// the updates in flight.
pub struct Session {
    pub(crate) links: Arc<Links>,
    /// The values that candle computes with, in the order of creation.
    caches: Mutex<Vec<Weak<HostCache>>>,
    /// The largest number of updates of this process that values may lack.
    pub(crate) staleness: usize,
    /// The time to wait for another thread that writes values.
    patience: Duration,
    state: Mutex<State>,
    /// Signals that no thread is writing values any more.
    written: Condvar,
}

#[derive(Default)]
struct State {
    /// The number of running steps: one, and those inside its merge functions.
    running: usize,
    /// Whether a thread is writing values. The lock is not held in the meantime.
    writing: bool,
    /// The updates in flight, oldest first.
    underway: VecDeque<Finish>,
    /// Whether the last update fetches all that was written, and something was sent since the last step began.
    fresh: bool,
    /// The error for which values could not be fetched after the gradients of the running step.
    behind: Option<Error>,
    /// The error for which values that the running step has used could not be fetched.
    lost: Option<Error>,
}

/// A running step.
#[must_use = "it is over when this is dropped"]
pub struct Step<'a>(&'a Session);

/// A guard: no other thread writes values until it is dropped.
struct Writing<'a>(&'a Session);

impl Session {
    /// Creates a session. A thread waits at most the timeout of `links` for a server to acknowledge one update.
    pub(crate) fn new(links: Links, staleness: usize) -> Self {
        // All updates in flight, the one that is being added, and the fetch after them.
        let most = u32::try_from(staleness).unwrap_or(u32::MAX).saturating_add(2);
        let patience = links.timeout().saturating_mul(most);
        let (caches, state, written) = (Mutex::default(), Mutex::default(), Condvar::new());
        Self { links: Arc::new(links), caches, staleness, patience, state, written }
    }

    /// Registers a cache. Its values are fetched when a step begins. The session does not keep it alive.
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

    /// Begins a step. The first running step fetches the values of all caches, unless an update in flight does. A step
    /// `inside` another one keeps its values.
    ///
    /// # Errors
    /// - [`Error::Server`]: values could not be fetched, or an update in flight failed.
    /// - [`Error::InvalidArgument`]: another step is running, and this one is not inside it.
    pub fn begin_step(&self, inside: bool) -> Result<Step<'_>> {
        let _servers = tracing::trace_span!("servers").entered();
        self.begin(inside, || fetch_all("run", &self.caches()))
    }

    fn begin(&self, inside: bool, pull: impl FnOnce() -> Result<()>) -> Result<Step<'_>> {
        {
            let mut state = lock(&self.state);
            if state.running > 0 && !inside {
                let reason = "a run of this strategy is in progress on another thread, and computes with the values that this one \
                              would fetch anew; make one step after another, or a strategy for each of them, of the same cluster";
                return Err(Error::invalid("run", reason));
            }
            state.running += 1;
            if state.running > 1 {
                return Ok(Step(self));
            }
        }
        // From now on other runs are refused, and no other thread begins to write.
        let step = Step(self);
        let _writing = self.write("run")?;
        let on_the_way = {
            let mut state = lock(&self.state);
            (state.behind, state.lost) = (None, None);
            std::mem::take(&mut state.fresh) && !state.underway.is_empty()
        };
        if !on_the_way {
            self.finish(0)?;
            pull()?;
        }
        Ok(step)
    }

    /// Adds an update in flight. Waits until no more updates are in flight than values may lack. No thread may be
    /// computing with the values.
    ///
    /// # Errors
    /// Returns the error of the first update that failed.
    pub(crate) fn add(&self, finish: Finish) -> Result<()> {
        {
            let mut state = lock(&self.state);
            state.underway.push_back(finish);
            state.fresh = true;
        }
        let _writing = self.write("optimizer step")?;
        self.finish(self.staleness)
    }

    /// Waits until servers have acknowledged all updates. Returns at once if a step is running: the step keeps its
    /// values.
    ///
    /// # Errors
    /// Returns the error of the first update that failed.
    pub fn flush(&self) -> Result<()> {
        self.between("waiting for updates", || self.finish(0)).map(drop)
    }

    // INV-55
    /// Fetches all values of a variable from now on. Refreshes them now, unless a running step already computes with
    /// them: such values stay until the step is over.
    ///
    /// # Errors
    /// - [`Error::Server`]: a server did not answer.
    pub fn load(&self, operation: &'static str, cache: &Arc<HostCache>) -> Result<()> {
        let between = || if cache.is_here() { cache.refresh(operation) } else { cache.load(operation) };
        match self.between(operation, between)? {
            Some(()) => Ok(()),
            None => cache.load(operation),
        }
    }

    /// Runs `body`, which may write values, unless a running step computes with them. No step begins before `body`
    /// returns.
    ///
    /// # Errors
    /// Returns the errors of `body`.
    fn between<T>(&self, operation: &'static str, body: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
        let _writing = self.write(operation)?;
        // A step that is beginning waits, and counts as running.
        if lock(&self.state).running > 0 { Ok(None) } else { body().map(Some) }
    }

    /// Marks variables as written on servers, so that the next step fetches them.
    pub fn mark_written(&self) {
        lock(&self.state).fresh = false;
    }

    /// Adds a step that `finished` has counted to the running closure, if there is one.
    pub fn count_step(&self, finished: &Arc<AtomicU64>) {
        self.links.made_step(finished);
    }

    /// Records whether values were fetched after acknowledged gradients. If not, the next step fetches them.
    pub(crate) fn fetched(&self, fetched: Fetched) {
        if let Err(error) = fetched {
            tracing::debug!("values are left to the next step: {error}");
            let mut state = lock(&self.state);
            state.fresh = false;
            if state.running > 0 {
                state.behind.get_or_insert(error);
            }
        }
    }

    /// Refuses to push gradients if the values after earlier gradients of the same step could not be fetched.
    ///
    /// # Errors
    /// Returns the error for which they could not be fetched.
    pub(crate) fn require_fetched(&self) -> Result<()> {
        lock(&self.state).behind.take().map_or(Ok(()), Err)
    }

    /// Fails the running step because values could not be fetched in a place that cannot return an error. Returns the
    /// error if no step is running.
    pub fn fail_step(&self, error: Error) -> Option<Error> {
        let mut state = lock(&self.state);
        if state.running == 0 {
            return Some(error);
        }
        state.lost.get_or_insert(error);
        None
    }

    /// Waits until no other thread writes values, and then prevents others from doing so.
    fn write(&self, operation: &'static str) -> Result<Writing<'_>> {
        let busy = |state: &mut State| state.writing;
        let waited = self.written.wait_timeout_while(lock(&self.state), self.patience, busy);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if state.writing {
            let reason = format!(
                "another thread has been fetching values for {:?}; look at the servers, and try again",
                self.patience
            );
            return Err(Error::invalid(operation, reason));
        }
        state.writing = true;
        drop(state);
        Ok(Writing(self))
    }

    /// Finishes updates until this number is in flight. The caller must be [writing](Session::write).
    fn finish(&self, most: usize) -> Result<()> {
        let next = || {
            let underway = &mut lock(&self.state).underway;
            if underway.len() > most { underway.pop_front() } else { None }
        };
        // The lock is not held during an update.
        while let Some(finish) = next() {
            let fetched = finish().inspect_err(|_| self.mark_written())?;
            self.fetched(fetched);
        }
        Ok(())
    }
}

impl Step<'_> {
    /// Checks that all values that the step has used could be fetched.
    ///
    /// # Errors
    /// Returns the error for which they could not be fetched.
    pub fn require_values(&self) -> Result<()> {
        lock(&self.0.state).lost.take().map_or(Ok(()), Err)
    }
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).running -= 1;
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).writing = false;
        self.0.written.notify_all();
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = lock(&self.state);
        write!(f, "Session({} running, {} updates under way)", state.running, state.underway.len())
    }
}

#[cfg(test)]
mod tests;
