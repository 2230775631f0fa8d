//! [`UnevenEnds`]: the treatment of a step for which some replicas have no data.

use super::split::SplitRule;
use serde::{Deserialize, Serialize};

/// The treatment of the end of the data, when some replicas have data left and others do not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum UnevenEnds {
    /// Every element is used, with the exception below. Replicas without data get empty batches (with 0 rows)
    /// until all workers reach the end. In an optimizer's `minimize`, empty batches have weight 0.
    ///
    /// With [`SplitRule::TensorFlow`], datasets created by a function are an exception, as in TensorFlow. If all
    /// their tensors have static shapes, as after [`batch_exact`](crate::Dataset::batch_exact), they end as with
    /// [`StopAll`](Self::StopAll).
    #[default]
    PadEmpty,
    /// The pass ends for all replicas as soon as one has no data left. The data of the other replicas for that
    /// step is dropped. A shorter last batch is used if every replica gets a part of it.
    StopAll,
    /// Every step is a full global batch. The first shorter step ends the pass for all replicas. If the pipeline does
    /// not determine the batch size, the first step is treated as full.
    Drop,
}

/// The counts of replicas and rows for the next step. Each worker counts its own, and the counts of all workers
/// are added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepCounts {
    /// The number of replicas that have a per-replica batch, even one without rows.
    pub present: usize,
    /// The number of replicas that have no per-replica batch, because their data has ended.
    pub missing: usize,
    /// The total number of rows of all per-replica batches.
    pub rows: usize,
    /// The number of rows that this worker counts for a full step. The sum over all workers is the size of a global
    /// batch; one worker may count all of it.
    pub full: usize,
    /// The number of replicas without data for which no empty batch can be created.
    pub unfilled: usize,
    /// The number of workers that need another file soon, if files are dealt.
    pub needs_file: usize,
    /// The number of workers that cannot decide about the step before they get another file.
    pub lacks_file: usize,
    /// A checksum of the files that all workers have been dealt until the step; 0 if files are not dealt. It must be
    /// equal on all workers, and is not added up.
    pub deals: u32,
}

impl std::ops::Add for StepCounts {
    type Output = StepCounts;

    fn add(self, other: StepCounts) -> StepCounts {
        StepCounts {
            // Saturating, because other workers' numbers are not trusted.
            present: self.present.saturating_add(other.present),
            missing: self.missing.saturating_add(other.missing),
            rows: self.rows.saturating_add(other.rows),
            full: self.full.saturating_add(other.full),
            unfilled: self.unfilled.saturating_add(other.unfilled),
            needs_file: self.needs_file.saturating_add(other.needs_file),
            lacks_file: self.lacks_file.saturating_add(other.lacks_file),
            deals: self.deals.max(other.deals),
        }
    }
}

impl std::iter::Sum for StepCounts {
    fn sum<I: Iterator<Item = StepCounts>>(all: I) -> StepCounts {
        all.fold(StepCounts::default(), std::ops::Add::add)
    }
}

impl UnevenEnds {
    /// Returns the treatment for datasets that are created by a function and split by `rule`. `known` is whether all
    /// their tensors have static shapes.
    pub(crate) fn of_function(self, rule: SplitRule, known: bool) -> Self {
        match (self, rule) {
            // ITER-3: TensorFlow makes empty batches only of tensors that may have any number of rows.
            (UnevenEnds::PadEmpty, SplitRule::TensorFlow) if known => UnevenEnds::StopAll,
            _ => self,
        }
    }

    /// Returns whether the step is taken. `all` is the sum of the counts of all workers, so the result is the
    /// same on every worker.
    pub fn take(self, all: StepCounts) -> bool {
        let everybody = all.present > 0 && all.missing == 0;
        match self {
            UnevenEnds::PadEmpty => all.present > 0,
            UnevenEnds::StopAll => everybody,
            UnevenEnds::Drop => everybody && all.rows >= all.full,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_policy_ends_where_it_says() {
        let counts = [(4, 0, 8), (4, 0, 5), (3, 1, 6), (0, 4, 0)];
        let take = |ends: UnevenEnds| {
            counts.map(|(present, missing, rows)| {
                ends.take(StepCounts { present, missing, rows, full: 8, ..StepCounts::default() })
            })
        };
        assert_eq!(take(UnevenEnds::PadEmpty), [true, true, true, false]);
        assert_eq!(take(UnevenEnds::StopAll), [true, true, false, false]);
        assert_eq!(take(UnevenEnds::Drop), [true, false, false, false]);
    }

    /// Checks ITER-3: with a function and TensorFlow's rule, a pass stops when a replica has no more data, if the
    /// shapes are known.
    #[test]
    fn tensorflows_rule_ends_as_tensorflow_does() {
        use UnevenEnds::{Drop, PadEmpty, StopAll};
        for (ends, rule, known, expected) in [
            (PadEmpty, SplitRule::TensorFlow, true, StopAll),
            (PadEmpty, SplitRule::TensorFlow, false, PadEmpty),
            (PadEmpty, SplitRule::Even, true, PadEmpty),
            (Drop, SplitRule::TensorFlow, true, Drop),
        ] {
            assert_eq!(ends.of_function(rule, known), expected);
        }
    }

    #[test]
    fn counts_add_up() {
        let of = |n: usize| StepCounts {
            present: n,
            missing: 2 * n,
            rows: 3 * n,
            full: 4 * n,
            unfilled: 5 * n,
            needs_file: 6 * n,
            lacks_file: 7 * n,
            deals: 8,
        };
        assert_eq!(of(1) + of(1), of(2));
    }
}
