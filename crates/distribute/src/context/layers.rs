//! What layers ask of the replica that they run on.

use super::ReplicaContext;
use candle_core::{TensorId, Var};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, OnceLock, PoisonError};

/// What one replica knows and notes down for layers, during one run.
#[derive(Default)]
pub(super) struct Notes {
    rows: OnceLock<Range<usize>>,
    /// How often each key has been drawn from.
    draws: Mutex<HashMap<u64, u64>>,
    /// Variables that layers have set rightly even if this replica's piece is empty.
    kept: Mutex<Vec<TensorId>>,
}

impl ReplicaContext {
    /// Which rows of the global batch are this replica's piece; none where [`run`](crate::Strategy::run) was not given
    /// a piece of a batch, such as [`distribute_dataset`](crate::Strategy::distribute_dataset) makes.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use distribute::data::Dataset;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// for batch in &strategy.distribute_dataset(Dataset::range(3).batch(3))? {
    ///     let rows = strategy.run(batch?, |ctx, _piece| Ok(ctx.rows()))?;
    ///     assert_eq!(rows.into_values(), [Some(0..2), Some(2..3)]);
    /// }
    /// # Ok::<(), distribute::Error>(())
    /// ```
    pub fn rows(&self) -> Option<Range<usize>> {
        self.notes().rows.get().cloned()
    }

    pub(crate) fn set_rows(&self, rows: Range<usize>) {
        // A context is made for one run, which says so once.
        let _ = self.notes().rows.set(rows);
    }

    /// How often this replica has drawn from `key` in this run before.
    pub(crate) fn next_draw(&self, key: u64) -> u64 {
        let mut draws = self.notes().draws.lock().unwrap_or_else(PoisonError::into_inner);
        let count = draws.entry(key).or_default();
        *count += 1;
        *count - 1
    }

    /// Tells that what `variable` was set to is right, also where this replica's piece has no rows.
    pub(crate) fn keep(&self, variable: &Var) {
        self.notes().kept.lock().unwrap_or_else(PoisonError::into_inner).push(variable.id());
    }

    pub(crate) fn keeps(&self, variable: &Var) -> bool {
        self.notes().kept.lock().unwrap_or_else(PoisonError::into_inner).contains(&variable.id())
    }
}

/// Which rows each of several pieces has, in their order, of what they are pieces of together.
pub(crate) fn consecutive(sizes: &[Option<usize>]) -> Option<Vec<Range<usize>>> {
    let mut start = 0;
    let ranges = sizes.iter().map(|size| {
        let range = start..start + (*size)?;
        start = range.end;
        Some(range)
    });
    ranges.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_follow_each_other() {
        assert_eq!(consecutive(&[Some(2), Some(0), Some(1)]), Some(vec![0..2, 2..2, 2..3]));
        assert_eq!(consecutive(&[Some(2), None]), None);
    }
}
