//! Where the passes over a dataset stand.

use crate::lock::lock;
use distribute_data::Position;
use std::sync::{Arc, Mutex};

/// The passes over one dataset: all clones of it count them together.
#[derive(Clone)]
pub(super) struct Passes(Arc<Mutex<State>>);

struct State {
    /// Where the latest pass stands, or where the next begins.
    position: Position,
    /// Whether a pass has begun at `position`, so that the next one is the next epoch's.
    begun: bool,
    /// The number of the latest pass in this process: earlier ones, still running, no longer count.
    latest: u64,
}

impl Passes {
    pub(super) fn new(beginning: Position) -> Self {
        Self(Arc::new(Mutex::new(State { position: beginning, begun: false, latest: 0 })))
    }

    /// Begins a pass: its number, and where it begins. `epoch` says where an epoch does.
    pub(super) fn begin(&self, epoch: impl FnOnce(u64) -> Position) -> (u64, Position) {
        let mut state = lock(&self.0);
        if state.begun {
            state.position = epoch(state.position.epoch.saturating_add(1));
        }
        state.begun = true;
        state.latest += 1;
        (state.latest, state.position.clone())
    }

    /// Pass `number` has handed out a step.
    pub(super) fn stands(&self, number: u64, position: &Position) {
        let mut state = lock(&self.0);
        if state.latest == number {
            state.position.clone_from(position);
        }
    }

    /// Pass `number` is at its end: the next begins here.
    pub(super) fn ended(&self, number: u64, next: Position) {
        let mut state = lock(&self.0);
        if state.latest == number {
            (state.position, state.begun) = (next, false);
        }
    }

    pub(super) fn position(&self) -> Position {
        lock(&self.0).position.clone()
    }

    /// The next pass begins here. Passes that are running no longer count.
    pub(super) fn resume(&self, position: Position) {
        let mut state = lock(&self.0);
        (state.position, state.begun) = (position, false);
        state.latest += 1;
    }
}
