//! The results of optimizers' steps, for monitoring a running job.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The number of examples and the last loss that has been read, as bits. One thread at a time writes. A read
/// between two writes is as good as one before.
#[derive(Debug, Default)]
pub struct Pulse {
    examples: AtomicU64,
    loss: AtomicU64,
    /// Whether there is a loss.
    has_loss: AtomicBool,
    steps: AtomicU64,
}

impl Pulse {
    /// Records a step over this number of examples. `loss` is its loss, if reading it needs no wait.
    pub fn beat(&self, examples: f64, loss: Option<f64>) {
        let before = f64::from_bits(self.examples.load(Ordering::Relaxed));
        loss.into_iter().for_each(|loss| self.had(loss));
        self.steps.fetch_add(1, Ordering::Relaxed);
        // Last, so that a reader of the examples sees a loss that is at least as recent.
        self.examples.store((before + examples).to_bits(), Ordering::Release);
    }

    /// Records the loss of a step, which may be read after the step.
    pub fn had(&self, loss: f64) {
        self.loss.store(loss.to_bits(), Ordering::Relaxed);
        self.has_loss.store(true, Ordering::Relaxed);
    }

    /// Returns the number of examples.
    pub fn examples(&self) -> f64 {
        f64::from_bits(self.examples.load(Ordering::Acquire))
    }

    /// Returns the last loss, if there is one.
    pub fn loss(&self) -> Option<f64> {
        self.has_loss.load(Ordering::Relaxed).then(|| f64::from_bits(self.loss.load(Ordering::Relaxed)))
    }

    /// Returns the number of steps.
    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }
}
