//! The counts of steps that this worker has trained alone since the workers last agreed on their weights.

use super::Strategy;
use distribute_base::Result;
use distribute_decisions::LocalSteps;
use distribute_decisions::internal::Alone;
use std::sync::atomic::Ordering;

impl Strategy {
    /// Returns the setting of local steps; `None` if the workers train in lock step.
    pub fn local_steps(&self) -> Option<LocalSteps> {
        self.0.local_steps
    }

    /// Returns `true` if this worker has trained alone since the workers last agreed on their weights.
    #[doc(hidden)]
    pub fn is_apart(&self) -> bool {
        self.0.apart.load(Ordering::Relaxed) > 0
    }

    /// Records that the number of an optimizer's local steps since its last outer step has changed from `before` to
    /// `after`.
    #[doc(hidden)]
    pub fn record_local_steps(&self, before: u64, after: u64) {
        self.0.apart.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Records that the number of an optimizer's outer steps has changed from `before` to `after`.
    #[doc(hidden)]
    pub fn record_outer_steps(&self, before: u64, after: u64) {
        self.0.outer_steps.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Records that all workers have restored the state of optimizers. From now on, they count outer steps from 0.
    #[doc(hidden)]
    pub fn forget_outer_steps(&self) {
        self.0.outer_steps.store(0, Ordering::Relaxed);
    }

    /// Records that a worker's state has been transferred to others after a rendezvous. `all_received` is `true` if all
    /// other workers have received it, so that all have the same weights.
    #[doc(hidden)]
    pub fn record_transfer(&self, all_received: bool) {
        self.forget_outer_steps();
        if all_received {
            self.forget_abandoned_steps();
        }
    }

    /// Returns an error if the workers currently have different weights. Returns `Ok` if there are no other workers, or
    /// if this worker makes no calls with them.
    ///
    /// # Errors
    /// - [`Error::Failed`](distribute_base::Error::Failed) of the kind `Usage`: the workers have trained alone since
    ///   the last outer step.
    pub(crate) fn require_agreement(&self, operation: &'static str) -> Result<()> {
        let Some(alone) = self.alone().filter(|_| self.group().is_some()) else { return Ok(()) };
        alone.own_weights(operation).map_or(Ok(()), Err)
    }

    /// Returns the progress of this worker's local steps; `None` in lock step.
    pub(crate) fn alone(&self) -> Option<Alone> {
        let settings = self.0.local_steps?;
        let [since, outer] = [&self.0.apart, &self.0.outer_steps].map(|count| count.load(Ordering::Relaxed));
        Some(Alone { settings, since, outer, abandoned: self.abandoned_steps() })
    }
}
