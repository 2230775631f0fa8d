//! The rows of one variable that this process requests before the step that looks them up.

// - INV-102: decided by `Prefetch` of `ps-tables`.

use super::Channels;
use super::sharded::{RowRead, SentReads, UniqueRows};
use distribute_base::internal::lock;
use distribute_base::{Error, Result};
use distribute_cluster::{Deadline, Stopwatch};
use distribute_ps_tables::{Prefetch, PrefetchLookup, PrefetchRequest, PrefetchUsage};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The divisor of the timeout that gives the minimum time of a lookup, however long the prefetch has been waiting to
/// send.
const LEAST: u32 = 8;

/// The prefetched rows of a variable.
#[derive(Default)]
pub(crate) struct PrefetchedRows {
    /// Whether rows of this variable were ever announced.
    is_used: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    decisions: Prefetch,
    /// The usage of prefetched rows of all variables, which outlives this one.
    usage: Arc<Mutex<PrefetchUsage>>,
    /// The latest read: the number of the change after which it was sent, and the index of this variable in the read.
    sent: Option<(u64, usize, Arc<PrefetchRead>)>,
}

/// A read of rows of several variables. The first lookup waits for its responses.
pub(crate) struct PrefetchRead {
    state: Mutex<ReadState>,
    /// The time that sending the requests took. It is long if a server cannot be reached.
    sending: Duration,
}

enum ReadState {
    Sent(SentReads),
    /// The rows of each variable.
    Arrived(Vec<Arc<UniqueRows>>),
    Failed(Arc<Error>),
}

/// A lookup that finds some of its rows prefetched.
pub(crate) struct FoundRows {
    lookup: PrefetchLookup,
    index: usize,
    read: Arc<PrefetchRead>,
}

impl PrefetchedRows {
    /// Announces ids of the next step. The first call returns `true`, and makes lookups count in its `usage`.
    pub(crate) fn want(&self, ids: &[i64], usage: &Arc<Mutex<PrefetchUsage>>) -> bool {
        let mut state = lock(&self.state);
        state.decisions.want(ids);
        let is_first = !self.is_used.swap(true, Ordering::Relaxed);
        if is_first {
            state.usage = usage.clone();
        }
        is_first
    }

    /// Returns `true` if rows of this variable were ever announced.
    pub(crate) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    /// Discards all prefetched rows, because the variable is about to change.
    pub(crate) fn discard(&self) {
        let mut state = lock(&self.state);
        state.decisions.begin_change();
        state.sent = None;
    }

    /// Returns the rows to request, because a change has ended. Omits ids for which `is_cached` returns `true`.
    pub(crate) fn end_change(&self, is_cached: impl Fn(i64) -> bool) -> PrefetchRequest {
        lock(&self.state).decisions.end_change(is_cached)
    }

    /// Sets the read that requests the rows after change number `change`. `index` is the index of this variable in the
    /// read.
    pub(crate) fn set_read(&self, change: u64, index: usize, read: &Arc<PrefetchRead>) {
        lock(&self.state).sent = Some((change, index, read.clone()));
    }

    pub(crate) fn end_run(&self) {
        lock(&self.state).decisions.end_run();
    }

    /// Looks up distinct ids. Returns `None` if none of their rows was prefetched.
    pub(crate) fn look_up(&self, ids: &[i64]) -> Option<FoundRows> {
        let mut state = lock(&self.state);
        let State { decisions, usage, sent } = &mut *state;
        let lookup = decisions.look_up(ids, sent.as_ref().map(|(change, ..)| *change));
        lock(usage).add(&lookup);
        let (_, index, read) = sent.as_ref().filter(|_| lookup.late.len() < ids.len())?;
        Some(FoundRows { lookup, index: *index, read: read.clone() })
    }
}

impl PrefetchRead {
    /// Sends the requests of all reads.
    pub(crate) fn start(channels: &Arc<Channels>, reads: Vec<RowRead<'static>>) -> Self {
        let sending = Stopwatch::start();
        let sent = SentReads::start(channels, reads);
        Self { state: Mutex::new(ReadState::Sent(sent)), sending: sending.elapsed() }
    }

    /// Returns the rows of a variable. Waits until they have arrived, at most until the deadline of the requests.
    ///
    /// # Errors
    /// Returns the error of the read.
    fn rows(&self, operation: &'static str, index: usize) -> Result<Arc<UniqueRows>, Arc<Error>> {
        let mut state = lock(&self.state);
        *state = match std::mem::replace(&mut *state, ReadState::Arrived(Vec::new())) {
            ReadState::Sent(sent) => match sent.wait(operation) {
                Ok(rows) => ReadState::Arrived(rows.into_iter().map(Arc::new).collect()),
                Err(error) => {
                    tracing::debug!("prefetched rows were not received: {error}");
                    ReadState::Failed(Arc::new(error))
                }
            },
            other => other,
        };
        match &*state {
            ReadState::Arrived(rows) => rows.get(index).cloned().ok_or_else(|| Arc::new(no_rows(operation))),
            ReadState::Failed(error) => Err(error.clone()),
            ReadState::Sent(_) => Err(Arc::new(no_rows(operation))),
        }
    }
}

/// Returns the error of a read that has responses without all of its rows.
fn no_rows(operation: &'static str) -> Error {
    Error::invalid(operation, "the responses to prefetched reads lack rows")
}

impl FoundRows {
    /// Returns the ids whose rows were not prefetched.
    pub(crate) fn late(&self) -> &[i64] {
        &self.lookup.late
    }

    /// Returns the deadline of this lookup, now that it begins. It applies to the read of late rows, and to a repeated
    /// read if the prefetched rows are not received. The time that the prefetch took to send is subtracted, so a server
    /// that is gone costs at most one timeout and an eighth.
    pub(crate) fn deadline(&self, timeout: Duration) -> Deadline {
        Deadline::after(timeout.saturating_sub(self.read.sending).max(timeout / LEAST))
    }

    /// Returns the rows of all ids of the lookup, or the error with which the prefetched rows were not received. `late`
    /// contains the rows of [`late`](Self::late).
    ///
    /// # Errors
    /// - [`Error::Tensor`]: there is not enough memory for the result.
    pub(crate) fn join(
        self,
        operation: &'static str,
        late: Option<UniqueRows>,
    ) -> Result<Result<UniqueRows, Arc<Error>>> {
        let prefetched = match self.read.rows(operation, self.index) {
            Ok(prefetched) => prefetched,
            Err(error) => return Ok(Err(error)),
        };
        let place = |place: &Option<usize>| match place {
            Some(place) => prefetched.places.get(*place).copied().map(Some),
            None => Some(None),
        };
        let places: Option<Vec<Option<usize>>> = self.lookup.places.iter().map(place).collect();
        let Some(places) = places else { return Ok(Err(Arc::new(no_rows(operation)))) };
        let Some(late) = late else {
            let places = places.into_iter().flatten().collect();
            return Ok(Ok(UniqueRows { rows: prefetched.rows.clone(), places }));
        };
        UniqueRows::merge(&prefetched.rows, &places, &late).map(Ok)
    }
}

impl fmt::Debug for PrefetchedRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrefetchedRows").field("is_used", &self.is_used).finish_non_exhaustive()
    }
}
