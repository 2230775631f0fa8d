//! The rows of one variable that this process requests before the step that looks them up.

// - INV-102: decided by `Prefetch` of `ps-tables`.

use super::sharded::{SentReads, UniqueRows};
use distribute_base::Result;
use distribute_base::internal::lock;
use distribute_ps_tables::{Prefetch, PrefetchLookup, PrefetchRequest, PrefetchUsage};
use distribute_tensor::HostTensor;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

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
pub(crate) struct PrefetchRead(Mutex<ReadState>);

enum ReadState {
    Sent(SentReads),
    /// The rows of each variable.
    Arrived(Vec<Arc<UniqueRows>>),
    Failed,
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
        let late = lookup.late.len();
        let mut usage = lock(usage);
        usage.late += late as u64;
        usage.prefetched += (ids.len() - late) as u64;
        drop(usage);
        let (_, index, read) = sent.as_ref().filter(|_| late < ids.len())?;
        Some(FoundRows { lookup, index: *index, read: read.clone() })
    }
}

impl PrefetchRead {
    pub(crate) fn new(sent: SentReads) -> Self {
        Self(Mutex::new(ReadState::Sent(sent)))
    }

    /// Returns the rows of a variable. Waits until they have arrived, at most until the deadline of the requests.
    /// Returns `None` if they could not be fetched.
    fn rows(&self, operation: &'static str, index: usize) -> Option<Arc<UniqueRows>> {
        let mut state = lock(&self.0);
        *state = match std::mem::replace(&mut *state, ReadState::Failed) {
            ReadState::Sent(sent) => match sent.wait(operation) {
                Ok(rows) => ReadState::Arrived(rows.into_iter().map(Arc::new).collect()),
                Err(error) => {
                    tracing::debug!("prefetched rows will be requested again: {error}");
                    ReadState::Failed
                }
            },
            other => other,
        };
        match &*state {
            ReadState::Arrived(rows) => rows.get(index).cloned(),
            ReadState::Sent(_) | ReadState::Failed => None,
        }
    }
}

impl FoundRows {
    /// Returns the ids whose rows were not prefetched.
    pub(crate) fn late(&self) -> &[i64] {
        &self.lookup.late
    }

    /// Returns the rows of all ids of the lookup. `late` are the rows of [`late`](Self::late). Returns `None` if the
    /// prefetched rows could not be fetched.
    ///
    /// # Errors
    /// - [`Error::Tensor`](distribute_base::Error::Tensor): there is not enough memory for the result.
    pub(crate) fn join(
        self,
        operation: &'static str,
        late: Option<UniqueRows>,
    ) -> Result<Option<UniqueRows>> {
        let Some(prefetched) = self.read.rows(operation, self.index) else { return Ok(None) };
        let count = prefetched.rows.dims().first().copied().unwrap_or(0);
        let (late_rows, late_places) = late.map(|late| (late.rows, late.places)).unzip();
        let mut late_places = late_places.unwrap_or_default().into_iter();
        let place = |place: Option<usize>| match place {
            Some(place) => prefetched.places.get(place).copied(),
            None => late_places.next().map(|place| count + place),
        };
        let places: Option<Vec<_>> = self.lookup.places.into_iter().map(place).collect();
        let rows = match &late_rows {
            None => prefetched.rows.clone(),
            Some(late) => HostTensor::concat(&[&prefetched.rows, late], 0)?,
        };
        Ok(places.map(|places| UniqueRows { rows, places }))
    }
}

impl fmt::Debug for PrefetchedRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrefetchedRows({:?})", lock(&self.state).decisions.usage())
    }
}
