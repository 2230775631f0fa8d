//! The counters that are equal on all workers, after a process has joined a running training.

use crate::strategy::Strategy;
use crate::variables::Mirrored;
use distribute_collective::recovery::Numbers;

impl Strategy {
    /// Continues with other numbers, on which all workers have agreed.
    #[doc(hidden)]
    pub fn set_numbers(&self, numbers: Numbers) {
        self.store_numbers(numbers);
        // Workers that joined later don't know that some variables have been dropped.
        self.extension::<Mirrored>().renew();
    }
}
