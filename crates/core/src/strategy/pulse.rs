//! What the steps of optimizers came to: for who watches a running job.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Examples and the last loss that is known, as bits. It is written by one thread at a time, and a look between two writes is as good as one before.
#[derive(Debug, Default)]
pub struct Pulse {
    examples: AtomicU64,
    loss: AtomicU64,
    /// Whether one is.
    has_loss: AtomicBool,
    steps: AtomicU64,
}

impl Pulse {
    /// A step over so many examples had this loss, if nobody has to wait for it.
    pub fn beat(&self, examples: f64, loss: Option<f64>) {
        let before = f64::from_bits(self.examples.load(Ordering::Relaxed));
        loss.into_iter().for_each(|loss| self.had(loss));
        self.steps.fetch_add(1, Ordering::Relaxed);
        // Last: who reads it first knows a loss that is at least as late.
        self.examples.store((before + examples).to_bits(), Ordering::Release);
    }

    /// A step had this loss: it may be known after the step.
    pub fn had(&self, loss: f64) {
        self.loss.store(loss.to_bits(), Ordering::Relaxed);
        self.has_loss.store(true, Ordering::Relaxed);
    }

    /// How many examples there were.
    pub fn examples(&self) -> f64 {
        f64::from_bits(self.examples.load(Ordering::Acquire))
    }

    /// The last loss, if there was any.
    pub fn loss(&self) -> Option<f64> {
        self.has_loss.load(Ordering::Relaxed).then(|| f64::from_bits(self.loss.load(Ordering::Relaxed)))
    }

    /// How many steps there were.
    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }
}
