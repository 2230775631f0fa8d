//! The counters that are equal on all workers, restored after a process has joined a training run.

use crate::strategy::Strategy;
use crate::variables::DriftCheck;
use distribute_collective::recovery::Counters;

impl Strategy {
    /// Sets the counters to the values that all workers have agreed on. The check that variables are equal on all
    /// workers starts over.
    #[doc(hidden)]
    pub fn set_counters(&self, counters: Counters) {
        self.store_counters(counters);
        // Workers that joined later don't know that some variables have been dropped.
        self.extension::<DriftCheck>().restart();
    }
}
