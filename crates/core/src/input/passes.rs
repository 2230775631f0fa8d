//! The positions of the passes over a dataset.

use distribute_base::internal::lock;
use distribute_data::Position;
use std::sync::{Arc, Mutex};

/// The state of the passes over one dataset, shared by all of the dataset's clones.
#[derive(Clone)]
pub(super) struct Passes(Arc<Mutex<State>>);

struct State {
    /// The position of the latest pass, or the position at which the next one begins.
    position: Position,
    /// Whether the latest pass has begun and is not complete. If so, the next pass begins at the next epoch.
    begun: bool,
    /// The sequence number of the latest pass in this process. Records that earlier passes still make are ignored.
    latest: u64,
    /// The position from which the first step since the last update was taken.
    anchor: Option<Anchor>,
}

/// A position, and the number of optimizer updates when a step was taken there.
struct Anchor {
    position: Position,
    updates: u64,
}

impl Passes {
    pub(super) fn new(beginning: Position) -> Self {
        Self(Arc::new(Mutex::new(State { position: beginning, begun: false, latest: 0, anchor: None })))
    }

    /// Begins a pass. Returns its number and its start position. `epoch` returns the start position of an
    /// epoch.
    pub(super) fn begin(&self, epoch: impl FnOnce(u64) -> Position) -> (u64, Position) {
        let mut state = lock(&self.0);
        if state.begun {
            state.position = epoch(state.position.epoch.saturating_add(1));
        }
        state.begun = true;
        state.latest += 1;
        (state.latest, state.position.clone())
    }

    /// Records that pass `number` is about to take a step from `position`. `updates` is the total number of
    /// updates of all optimizers so far.
    pub(super) fn record_take(&self, number: u64, position: &Position, updates: u64) {
        let mut state = lock(&self.0);
        if state.latest != number {
            return;
        }
        if state.anchor.as_ref().is_some_and(|anchor| anchor.updates == updates) {
            return;
        }
        state.anchor = Some(Anchor { position: position.clone(), updates });
    }

    /// Makes the next pass begin after the last step that is included in the weights. `updates` is the number of
    /// updates of these weights.
    pub(super) fn rewind(&self, updates: u64) {
        let state = lock(&self.0);
        let position = match &state.anchor {
            Some(anchor) if anchor.updates == updates => anchor.position.clone(),
            _ => state.position.clone(),
        };
        drop(state);
        self.resume(position);
    }

    /// Records that pass `number` has yielded a step and is now at `position`.
    pub(super) fn record_position(&self, number: u64, position: &Position) {
        let mut state = lock(&self.0);
        if state.latest == number {
            state.position.clone_from(position);
        }
    }

    /// Records that pass `number` is complete, and that the next pass begins at `next`.
    pub(super) fn record_end(&self, number: u64, next: Position) {
        let mut state = lock(&self.0);
        if state.latest == number {
            (state.position, state.begun) = (next, false);
        }
    }

    pub(super) fn position(&self) -> Position {
        lock(&self.0).position.clone()
    }

    /// Makes the next pass begin at `position`. Passes in progress may continue, but the positions that they record are
    /// ignored.
    pub(super) fn resume(&self, position: Position) {
        let mut state = lock(&self.0);
        (state.position, state.begun, state.anchor) = (position, false, None);
        state.latest += 1;
    }
}
