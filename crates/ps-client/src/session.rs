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

/// The end of an update that is under way: its gradients are acknowledged, and the values after it have been fetched.
pub(crate) type Finish = Box<dyn FnOnce() -> Result<Fetched> + Send>;

/// Whether values could be fetched after gradients that were acknowledged. Their step counts in any case.
pub(crate) type Fetched = Result<()>;

/// The session of this process with parameter servers: the variables that candle computes with, the steps that are
/// running, and the updates that are still under way.
pub struct Session {
    pub(crate) links: Arc<Links>,
    /// The values that candle computes with, in the order of creation.
    caches: Mutex<Vec<Weak<HostCache>>>,
    /// The number of updates of this process that values may lack.
    pub(crate) staleness: usize,
    /// How long to wait for another thread that writes values.
    patience: Duration,
    state: Mutex<State>,
    /// Values are not being written any more.
    written: Condvar,
}

#[derive(Default)]
struct State {
    /// One, and those inside of its merge functions.
    running: usize,
    /// Whether a thread is writing values. The lock is not held meanwhile.
    writing: bool,
    /// From the first one on.
    underway: VecDeque<Finish>,
    /// Whether the last of these fetches all that was written, and something was sent since the last step began.
    fresh: bool,
    /// Why values could not be fetched behind the gradients of the step that is being made.
    behind: Option<Error>,
    /// Why values were not there that this step has computed with.
    lost: Option<Error>,
}

/// A step that is being made.
#[must_use = "it is over when this is dropped"]
pub struct Step<'a>(&'a Session);

/// Nobody else writes values until this is dropped.
struct Writing<'a>(&'a Session);

impl Session {
    /// No thread waits longer than the timeout of `links` for a server to acknowledge one update.
    pub(crate) fn new(links: Links, staleness: usize) -> Self {
        // All updates, the one that is being added, and what is fetched after them.
        let most = u32::try_from(staleness).unwrap_or(u32::MAX).saturating_add(2);
        let patience = links.timeout().saturating_mul(most);
        let (caches, state, written) = (Mutex::default(), Mutex::default(), Condvar::new());
        Self { links: Arc::new(links), caches, staleness, patience, state, written }
    }

    /// Registers a cache: steps begin with its values. The session does not keep it alive.
    pub fn register(&self, cache: HostCache) -> Arc<HostCache> {
        let cache = Arc::new(cache);
        let mut caches = lock(&self.caches);
        if caches.len() == caches.capacity() {
            caches.retain(|cache| cache.strong_count() > 0);
        }
        caches.push(Arc::downgrade(&cache));
        cache
    }

    /// The caches that still exist, in the order of creation.
    pub(crate) fn caches(&self) -> Vec<Arc<HostCache>> {
        lock(&self.caches).iter().filter_map(Weak::upgrade).collect()
    }

    /// Begins a step. The first of those that run at once fetches the values of all caches, unless an update is under
    /// way that will; a step `inside` another continues with its values.
    ///
    /// # Errors
    /// [`Error::Server`], also of an update under way after which something was written; [`Error::InvalidArgument`]:
    /// another step is running that this one is not inside of.
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
        // From now on other runs are refused, and nobody begins to write but this thread.
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

    /// Adds an update that is under way. Waits until no more are than values may lack. No thread may be computing with
    /// these.
    ///
    /// # Errors
    /// That of the first update which has failed.
    pub(crate) fn add(&self, finish: Finish) -> Result<()> {
        {
            let mut state = lock(&self.state);
            state.underway.push_back(finish);
            state.fresh = true;
        }
        let _writing = self.write("optimizer step")?;
        self.finish(self.staleness)
    }

    /// Waits until servers have acknowledged all updates, unless a step is running: it continues with its values.
    ///
    /// # Errors
    /// That of the first update which has failed.
    pub fn flush(&self) -> Result<()> {
        self.between("waiting for updates", || self.finish(0)).map(drop)
    }

    // INV-55
    /// Fetches all of a variable from now on. What candle computes with is refreshed now, unless a step is running that
    /// has it: its values stay until the step is over.
    ///
    /// # Errors
    /// [`Error::Server`].
    pub fn load(&self, operation: &'static str, cache: &Arc<HostCache>) -> Result<()> {
        let between = || if cache.is_here() { cache.refresh(operation) } else { cache.load(operation) };
        match self.between(operation, between)? {
            Some(()) => Ok(()),
            None => cache.load(operation),
        }
    }

    /// Runs `body`, which may write values, unless a step is running that computes with them. None begins before it is
    /// over.
    ///
    /// # Errors
    /// Those of `body`.
    fn between<T>(&self, operation: &'static str, body: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
        let _writing = self.write(operation)?;
        // A step that is beginning waits, and counts as one that is being made.
        if lock(&self.state).running > 0 { Ok(None) } else { body().map(Some) }
    }

    /// Marks variables as written on servers: the next step fetches them.
    pub fn mark_written(&self) {
        lock(&self.state).fresh = false;
    }

    /// Counts a step of an optimizer, which `finished` has counted, as one of the closure that is running, if one is.
    pub fn count_step(&self, finished: &Arc<AtomicU64>) {
        self.links.made_step(finished);
    }

    /// Takes the result of fetching values after gradients that were acknowledged. If it is an error, the next step
    /// fetches them.
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

    /// Refuses gradients of values that should have been fetched before in the same step.
    ///
    /// # Errors
    /// The one for which they could not be.
    pub(crate) fn require_fetched(&self) -> Result<()> {
        lock(&self.state).behind.take().map_or(Ok(()), Err)
    }

    /// Fails the step that is running, because values could not be fetched where no error can be returned. Returns the
    /// error if no step is running.
    pub fn fail_step(&self, error: Error) -> Option<Error> {
        let mut state = lock(&self.state);
        if state.running == 0 {
            return Some(error);
        }
        state.lost.get_or_insert(error);
        None
    }

    /// Waits until nobody writes values, and keeps others from it.
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

    /// Ends updates until so many are under way. Called by one who [writes](Session::write).
    fn finish(&self, most: usize) -> Result<()> {
        let next = || {
            let underway = &mut lock(&self.state).underway;
            if underway.len() > most { underway.pop_front() } else { None }
        };
        // The lock is not held meanwhile.
        while let Some(finish) = next() {
            let fetched = finish().inspect_err(|_| self.mark_written())?;
            self.fetched(fetched);
        }
        Ok(())
    }
}

impl Step<'_> {
    /// Whether all values were there that it has computed with.
    ///
    /// # Errors
    /// Why they could not be fetched.
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
