//! The positions of the passes over a dataset.

use distribute_base::internal::lock;
use distribute_data::Position;
use std::sync::{Arc, Mutex};

/// The passes over one dataset, shared by all clones of it.
#[derive(Clone)]
pub(super) struct Passes(Arc<Mutex<State>>);

struct State {
    /// The position of the latest pass, or the one at which the next begins.
    position: Position,
    /// Whether a pass has begun at `position`, so that the next one is the next epoch's.
    begun: bool,
    /// The number of the latest pass in this process. Earlier ones that are still running are ignored.
    latest: u64,
    /// The position of the latest pass at a step that was not yet in the weights.
    anchor: Option<Anchor>,
}

/// A position, and the number of updates when a step was taken there.
struct Anchor {
    position: Position,
    updates: u64,
}

impl Passes {
    pub(super) fn new(beginning: Position) -> Self {
        Self(Arc::new(Mutex::new(State { position: beginning, begun: false, latest: 0, anchor: None })))
    }

    /// Begins a pass, and returns its number and start position. `epoch` returns the start of an epoch.
    pub(super) fn begin(&self, epoch: impl FnOnce(u64) -> Position) -> (u64, Position) {
        let mut state = lock(&self.0);
        if state.begun {
            state.position = epoch(state.position.epoch.saturating_add(1));
        }
        state.begun = true;
        state.latest += 1;
        (state.latest, state.position.clone())
    }

    /// Records that pass `number` is about to take a step from this position, after this number of updates of
    /// all optimizers.
    pub(super) fn takes(&self, number: u64, position: &Position, updates: u64) {
        let mut state = lock(&self.0);
        if state.latest != number {
            return;
        }
        if state.anchor.as_ref().is_some_and(|anchor| anchor.updates == updates) {
            return;
        }
        state.anchor = Some(Anchor { position: position.clone(), updates });
    }

    /// Sets the start of the next pass after the last step that is in the weights, which have this number of
    /// updates.
    pub(super) fn rewind(&self, updates: u64) {
        let state = lock(&self.0);
        let position = match &state.anchor {
            Some(anchor) if anchor.updates == updates => anchor.position.clone(),
            _ => state.position.clone(),
        };
        drop(state);
        self.resume(position);
    }

    /// Records that pass `number` has yielded a step.
    pub(super) fn stands(&self, number: u64, position: &Position) {
        let mut state = lock(&self.0);
        if state.latest == number {
            state.position.clone_from(position);
        }
    }

    /// Records that pass `number` is at its end, and that the next one begins at `next`.
    pub(super) fn ended(&self, number: u64, next: Position) {
        let mut state = lock(&self.0);
        if state.latest == number {
            (state.position, state.begun) = (next, false);
        }
    }

    pub(super) fn position(&self) -> Position {
        lock(&self.0).position.clone()
    }

    /// Sets the start of the next pass to `position`. Passes in progress are ignored from here on.
    pub(super) fn resume(&self, position: Position) {
        let mut state = lock(&self.0);
        (state.position, state.begun, state.anchor) = (position, false, None);
        state.latest += 1;
    }
}
