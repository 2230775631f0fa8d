//! The state of a replica that layers read and record.

use super::ReplicaContext;
use candle_core::{TensorId, Var};
use distribute_base::internal::lock;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, OnceLock};

/// The state of one replica during one run that layers read and record.
#[derive(Default)]
pub(super) struct LayerState {
    rows: OnceLock<Range<usize>>,
    /// The number of draws from each key.
    draws: Mutex<HashMap<u64, u64>>,
    /// Variables that layers have set correctly even if this replica's batch is empty.
    kept: Mutex<HashSet<TensorId>>,
}

impl ReplicaContext {
    /// Returns the rows of the global batch that are in this replica's batch. Returns `None` if the arguments
    /// of [`run`](crate::Strategy::run) have no per-replica batches, such as those of
    /// [`distribute_dataset`](crate::Strategy::distribute_dataset).
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

    /// Returns the number of earlier draws of this replica from `key` in this run.
    #[doc(hidden)]
    pub fn next_draw(&self, key: u64) -> u64 {
        let mut draws = lock(&self.layers().draws);
        let count = draws.entry(key).or_default();
        *count += 1;
        *count - 1
    }

    /// Records that the value of `variable` is correct even if this replica's batch has no rows.
    #[doc(hidden)]
    pub fn keep(&self, variable: &Var) {
        // The default context lives as long as the process, and no run reads its records.
        if !self.is_default() {
            self.kept().insert(variable.id());
        }
    }

    pub(crate) fn keeps(&self, variable: &Var) -> bool {
        self.kept().contains(&variable.id())
    }

    fn kept(&self) -> MutexGuard<'_, HashSet<TensorId>> {
        lock(&self.layers().kept)
    }
}

/// Returns the rows of consecutive batches with these sizes, of which the first begins at row `start`. Returns
/// `None` if a size is unknown, or their sum overflows.
pub(crate) fn consecutive(mut start: usize, sizes: &[Option<usize>]) -> Option<Vec<Range<usize>>> {
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
        default_context().keep(&variable);
        assert!(default_context().kept().is_empty());
        let strategy = crate::testing::mirrored(1);
        let keep = |context: &ReplicaContext, ()| {
            (0..3).for_each(|_| context.keep(&variable));
            Ok((context.keeps(&variable), context.kept().len()))
        };
        assert_eq!(strategy.run((), keep).unwrap().values(), [(true, 1)]);
    }

    #[test]
    fn pieces_follow_each_other() {
        assert_eq!(consecutive(7, &[Some(2), Some(0), Some(1)]), Some(vec![7..9, 9..9, 9..10]));
        assert_eq!(consecutive(0, &[Some(2), None]), None);
    }
}
