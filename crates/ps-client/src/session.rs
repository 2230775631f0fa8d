//! When the values in this process's memory are brought up to date: between steps, never under a running graph.

use distribute_base::internal::lock;
use distribute_base::{Error, Result};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// The end of an update that is under way: its gradients are acknowledged, and the values behind it have been fetched.
pub type Finish = Box<dyn FnOnce() -> Result<Fetched> + Send>;

/// Whether values could be fetched behind gradients that were acknowledged. Their step counts in any case.
pub(crate) type Fetched = Result<()>;

/// The steps that are being made, and the updates that are still under way.
pub struct Steps {
    /// So many updates of this process the values may lack.
    staleness: usize,
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
pub struct Step<'a>(&'a Steps);

/// Nobody else writes values until this is dropped.
struct Writing<'a>(&'a Steps);

impl Steps {
    /// No thread waits longer than `timeout` for a server to acknowledge one update.
    pub(crate) fn new(staleness: usize, timeout: Duration) -> Self {
        // All updates, the one that is being added, and what is fetched behind them.
        let most = u32::try_from(staleness).unwrap_or(u32::MAX).saturating_add(2);
        let patience = timeout.saturating_mul(most);
        Self { staleness, patience, state: Mutex::default(), written: Condvar::new() }
    }

    pub fn staleness(&self) -> usize {
        self.staleness
    }

    /// Begins a step. Before the first of those that are made at once, `pull` brings values up to date, unless an update is under way
    /// that will; one that is made inside of another goes on with its values.
    ///
    /// # Errors
    /// Those of `pull`, and of updates under way behind which something was written; [`Error::InvalidArgument`] where another step is
    /// being made that this is not inside of.
    pub fn begin(&self, inside: bool, pull: impl FnOnce() -> Result<()>) -> Result<Step<'_>> {
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

    /// An update is under way. Waits until no more are than values may lack. Nobody may be computing with these.
    ///
    /// # Errors
    /// Of the first that has failed.
    pub fn add(&self, finish: Finish) -> Result<()> {
        {
            let mut state = lock(&self.state);
            state.underway.push_back(finish);
            state.fresh = true;
        }
        let _writing = self.write("optimizer step")?;
        self.finish(self.staleness)
    }

    /// Waits until no update is under way, unless a step is being made: it goes on with its values.
    ///
    /// # Errors
    /// Of the first that has failed.
    pub fn settle(&self) -> Result<()> {
        self.between("waiting for updates", || self.finish(0)).map(drop)
    }

    /// Runs `body`, which may write values, unless a step is being made that computes with them. None begins before it is over.
    ///
    /// # Errors
    /// Those of `body`.
    pub fn between<T>(&self, operation: &'static str, body: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
        let _writing = self.write(operation)?;
        // A step that is beginning waits, and counts as one that is being made.
        if lock(&self.state).running > 0 { Ok(None) } else { body().map(Some) }
    }

    /// Something was written on servers: the next step begins with it.
    pub fn have_written(&self) {
        lock(&self.state).fresh = false;
    }

    /// What came of fetching values behind gradients that were acknowledged. If they could not be, the next step fetches them.
    pub fn fetched(&self, fetched: Fetched) {
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
    /// Why they could not be.
    pub fn require_fetched(&self) -> Result<()> {
        lock(&self.state).behind.take().map_or(Ok(()), Err)
    }

    /// Values could not be fetched when they were asked for, where no error can be returned: the step that is being made fails. Gives
    /// the error back if there is none.
    pub fn lose(&self, error: Error) -> Option<Error> {
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

    /// Ends updates until so many are under way. Called by one who [writes](Steps::write).
    fn finish(&self, most: usize) -> Result<()> {
        let next = || {
            let underway = &mut lock(&self.state).underway;
            if underway.len() > most { underway.pop_front() } else { None }
        };
        // The lock is not held meanwhile.
        while let Some(finish) = next() {
            let fetched = finish().inspect_err(|_| self.have_written())?;
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

impl fmt::Debug for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = lock(&self.state);
        write!(f, "Steps({} running, {} updates under way)", state.running, state.underway.len())
    }
}

#[cfg(test)]
mod tests;
