//! The history of all rows: the changes that a worker must see in a row, and those that it may see.

use super::plan::Act;

/// The changes that a process has seen, counted independently of the clock that its cache uses.
#[derive(Clone, Debug)]
pub struct Oracle {
    /// The number of changes that all workers have made.
    pub changes: usize,
    /// The number of changes at each tick. A tick is an update, or the beginning of a run if the program has made no
    /// update since the previous run began.
    ticks: Vec<usize>,
    /// The number of changes after the last write outside of runs.
    written: usize,
    has_updated: bool,
}

impl Oracle {
    /// Creates the oracle of a process that starts when `changes` changes have been made.
    pub fn new(changes: usize) -> Self {
        Self { changes, ticks: vec![changes], written: changes, has_updated: false }
    }

    pub fn begin_run(&mut self) {
        if !std::mem::take(&mut self.has_updated) {
            self.ticks.push(self.changes);
        }
    }

    pub fn update(&mut self) {
        self.changes += 1;
        self.ticks.push(self.changes);
        self.has_updated = true;
    }

    pub fn write(&mut self) {
        self.changes += 1;
        self.written = self.changes;
    }

    /// Returns the number of changes that a row must at least contain if it is read now and may be `staleness` ticks
    /// old.
    pub fn least(&self, staleness: u64) -> usize {
        let oldest = self.ticks.len().saturating_sub(1 + staleness as usize);
        self.ticks[oldest].max(self.written)
    }
}

/// Returns the number of changes of the row `id` among the first `changes` changes of a program.
pub fn version(acts: &[Act], id: i64, changes: usize) -> u64 {
    let changed = acts.iter().filter_map(Act::changes).take(changes);
    changed.filter(|ids| ids.contains(&id)).count() as u64
}
