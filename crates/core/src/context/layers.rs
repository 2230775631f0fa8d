//! The state that layers read and update, for one replica.

use super::ReplicaContext;
use candle_core::{TensorId, Var};
use distribute_base::internal::lock;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

/// The state that layers read and update, for one replica during one run.
#[derive(Default)]
pub(super) struct LayerState {
    /// The rows of the global batch that this replica's batch contains, if they are known.
    rows: Option<Range<usize>>,
    /// The number of random draws from each key so far.
    draws: Mutex<HashMap<u64, u64>>,
    /// The variables that layers set correctly even if this replica's batch is empty.
    valid_on_empty: Mutex<HashSet<TensorId>>,
}

impl LayerState {
    /// Creates the state of a replica whose batch contains these rows of the global batch.
    pub(super) fn new(rows: Option<Range<usize>>) -> Self {
        Self { rows, ..Self::default() }
    }
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
        self.layers().rows.clone()
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
}
