//! The numbers that all workers count alike, after a training was taken over.

use crate::strategy::Strategy;
use crate::variables::Mirrored;
use distribute_collective::recovery::Numbers;

impl Strategy {
    /// Goes on with other numbers, on which all workers have agreed.
    #[doc(hidden)]
    pub fn set_numbers(&self, numbers: Numbers) {
        self.store_numbers(numbers);
        // Of some variables only those who were there know that they are gone.
        self.extension::<Mirrored>().renew();
    }
}
