//! Statistics of optimizers' steps, for monitoring a training run.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Statistics of optimizers' steps: the total number of examples, the number of steps, and the last loss that was read.
/// Only one thread at a time may write. A reader may see values of two adjacent steps.
#[derive(Debug, Default)]
pub struct StepStats {
    examples: AtomicU64,
    loss: AtomicU64,
    has_loss: AtomicBool,
    steps: AtomicU64,
}

impl StepStats {
    /// Records a step with `examples` examples. `loss` is the loss of the step, if it can be read without waiting.
    pub fn record_step(&self, examples: f64, loss: Option<f64>) {
        let before = f64::from_bits(self.examples.load(Ordering::Relaxed));
        loss.into_iter().for_each(|loss| self.record_loss(loss));
        self.steps.fetch_add(1, Ordering::Relaxed);
        // Last, so that a reader of the examples sees a loss that is at least as recent.
        self.examples.store((before + examples).to_bits(), Ordering::Release);
    }

    /// Records the loss of an earlier step that could not be read immediately.
    pub fn record_loss(&self, loss: f64) {
        self.loss.store(loss.to_bits(), Ordering::Relaxed);
        self.has_loss.store(true, Ordering::Relaxed);
    }

    /// Returns the total number of examples.
    pub fn examples(&self) -> f64 {
        f64::from_bits(self.examples.load(Ordering::Acquire))
    }

    /// Returns the last recorded loss, if there is one.
    pub fn loss(&self) -> Option<f64> {
        self.has_loss.load(Ordering::Relaxed).then(|| f64::from_bits(self.loss.load(Ordering::Relaxed)))
    }

    /// Returns the number of recorded steps.
    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }
}
