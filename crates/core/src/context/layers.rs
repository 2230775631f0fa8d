//! The state that layers read and update, for one replica.

use super::ReplicaContext;
use candle_core::{TensorId, Var};
use distribute_base::internal::lock;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, OnceLock};

/// The state that layers read and update, for one replica during one run.
#[derive(Default)]
pub(super) struct LayerState {
    rows: OnceLock<Range<usize>>,
    /// The number of random draws from each key so far.
    draws: Mutex<HashMap<u64, u64>>,
    /// The variables that layers set correctly even if this replica's batch is empty.
    valid_on_empty: Mutex<HashSet<TensorId>>,
}

impl ReplicaContext {
    /// Returns which rows of the global batch this replica's batch contains. Returns `None` if the arguments of
    /// [`run`](crate::Strategy::run) contain no per-replica batches, such as those from
    /// [`distribute_dataset`](crate::Strategy::distribute_dataset), or if the batch size of a replica of this process,
    /// or of a worker of lower rank, is unknown.
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
        self.layers().rows.get().cloned()
    }

    pub(crate) fn set_rows(&self, rows: Range<usize>) {
        // A context belongs to one run, which sets this once.
        let _ = self.layers().rows.set(rows);
    }

    /// Returns how often this replica has already drawn from `key` in this run, and increments the count.
    #[doc(hidden)]
    pub fn next_draw(&self, key: u64) -> u64 {
        let mut draws = lock(&self.layers().draws);
        let count = draws.entry(key).or_default();
        *count += 1;
        *count - 1
    }

    /// Records that a layer sets `variable` correctly even if this replica's batch has no rows. Does nothing outside
    /// `run`.
    #[doc(hidden)]
    pub fn mark_valid_on_empty(&self, variable: &Var) {
        // The default context lives as long as the process, and no run reads its records.
        if !self.is_default() {
            self.valid_on_empty().insert(variable.id());
        }
    }

    pub(crate) fn is_valid_on_empty(&self, variable: &Var) -> bool {
        self.valid_on_empty().contains(&variable.id())
    }

    fn valid_on_empty(&self) -> MutexGuard<'_, HashSet<TensorId>> {
        lock(&self.layers().valid_on_empty)
    }
}

/// Returns the row ranges of consecutive batches with the given sizes; the first begins at row `start`.
/// Returns `None` if a size is `None` or the sum overflows.
pub(crate) fn consecutive_ranges(mut start: usize, sizes: &[Option<usize>]) -> Option<Vec<Range<usize>>> {
    let ranges = sizes.iter().map(|size| {
        let range = start..start.checked_add((*size)?)?;
        start = range.end;
        Some(range)
    });
    ranges.collect()
}

#[cfg(test)]
mod tests {
    use super::super::default_context;
    use super::*;

    #[test]
    fn outside_of_run_nothing_is_noted_for_ever() {
        let variable = Var::zeros(1, candle_core::DType::F32, &candle_core::Device::Cpu).unwrap();
        default_context().mark_valid_on_empty(&variable);
        assert!(default_context().valid_on_empty().is_empty());
        let strategy = crate::testing::mirrored(1);
        let keep = |context: &ReplicaContext, ()| {
            (0..3).for_each(|_| context.mark_valid_on_empty(&variable));
            Ok((context.is_valid_on_empty(&variable), context.valid_on_empty().len()))
        };
        assert_eq!(strategy.run((), keep).unwrap().values(), [(true, 1)]);
    }

    #[test]
    fn pieces_follow_each_other() {
        assert_eq!(consecutive_ranges(7, &[Some(2), Some(0), Some(1)]), Some(vec![7..9, 9..9, 9..10]));
        assert_eq!(consecutive_ranges(0, &[Some(2), None]), None);
    }
}
