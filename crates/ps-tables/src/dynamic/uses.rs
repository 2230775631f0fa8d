//! The uses of a row, by which rows are evicted.

use super::Eviction;

/// The uses of a row. Rows with the smallest values are evicted first.
///
/// The lower 32 bits contain the step of the last push; all steps from 2³² on are stored as the same value. If rows are
/// evicted by frequency, the upper 32 bits contain the number of pushes; otherwise they are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Uses(u64);

/// The number of bits for the step.
const STEP: u32 = 32;

fn stamp(step: u64) -> u64 {
    step.min(u32::MAX.into())
}

impl Uses {
    /// Returns the uses of a row that is created by a push.
    pub(super) fn first(eviction: Eviction, step: u64) -> Self {
        Self(0).again(eviction, step)
    }

    /// Returns the uses of a row after another push.
    pub(super) fn again(self, eviction: Eviction, step: u64) -> Self {
        let step = stamp(step).max(self.step());
        Self(match eviction {
            Eviction::LeastRecent => step,
            Eviction::LeastFrequent => ((self.0 >> STEP) + 1).min(u32::MAX.into()) << STEP | step,
        })
    }

    /// Converts saved uses to those for `eviction`. They may come from a table with another order of eviction.
    pub(super) fn restored(eviction: Eviction, saved: u64) -> Self {
        match eviction {
            Eviction::LeastRecent => Self(Self(saved).step()),
            Eviction::LeastFrequent => Self(saved),
        }
    }

    /// Returns the uses as a number, for saving.
    pub(super) fn saved(self) -> u64 {
        self.0
    }

    /// Returns whether the last push was before `step`.
    pub(super) fn before(self, step: u64) -> bool {
        self.step() < stamp(step)
    }

    fn step(self) -> u64 {
        self.0 & u64::from(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Eviction::{LeastFrequent, LeastRecent};

    #[test]
    fn counts_precede_steps_and_both_saturate() {
        let often = Uses::first(LeastFrequent, 1).again(LeastFrequent, 2);
        assert!(often > Uses::first(LeastFrequent, 9) && often.before(3) && !often.before(2));
        assert!(Uses::first(LeastRecent, 1).again(LeastRecent, 2) < Uses::first(LeastRecent, 9));
        let last = Uses::restored(LeastFrequent, u64::MAX);
        assert_eq!((last.again(LeastFrequent, u64::MAX), last.before(u64::MAX)), (last, false));
        // An older push that arrives later.
        assert_eq!(Uses::first(LeastRecent, 9).again(LeastRecent, 2), Uses::first(LeastRecent, 9));
        assert_eq!(Uses::restored(LeastRecent, often.saved()).saved(), 2);
    }
}
