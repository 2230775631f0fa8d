//! The progress of a training in lines, and its speed and loss at the end.

use crate::report::{Trained, thousands};
use distribute::cluster::deadline::Stopwatch;

/// The number of lines that a training prints.
const LINES: usize = 20;

pub struct Progress {
    title: String,
    is_quiet: bool,
    epochs: usize,
    /// The number of examples in an epoch, and in a step. The last step of an epoch may have fewer.
    examples: usize,
    batch: usize,
    /// The number of examples so far, and the sum of the losses in the current epoch.
    seen: usize,
    sum: f64,
    /// The mean loss of the last complete epoch.
    loss: f64,
    clock: Stopwatch,
}

impl Progress {
    /// Starts the clock. `title` begins each line.
    pub fn start(title: String, is_quiet: bool, epochs: usize, examples: usize, batch: usize) -> Self {
        let clock = Stopwatch::start();
        Self { title, is_quiet, epochs, examples, batch, seen: 0, sum: 0., loss: f64::NAN, clock }
    }

    /// Counts a step whose mean loss is `loss`, and prints a line if one is due.
    pub fn step(&mut self, loss: f64) -> distribute::Result<()> {
        self.step_of(loss, || Ok(String::new()))
    }

    /// Counts a step whose mean loss is `loss`, and prints a line if one is due. `state` returns the end of that line.
    pub fn step_of(
        &mut self,
        loss: f64,
        state: impl FnOnce() -> distribute::Result<String>,
    ) -> distribute::Result<()> {
        let before = self.seen;
        let count = self.batch.min(self.examples - before % self.examples);
        self.seen += count;
        self.sum += loss * count as f64;
        let (in_epoch, every) = (self.seen % self.examples, (self.epochs * self.examples).div_ceil(LINES));
        let (part, mean) = if in_epoch == 0 {
            self.loss = std::mem::take(&mut self.sum) / self.examples as f64;
            (String::new(), self.loss)
        } else {
            (format!(" ({} %)", 100 * in_epoch / self.examples), self.sum / in_epoch as f64)
        };
        let is_last = self.seen == self.epochs * self.examples;
        if !self.is_quiet && (self.seen / every > before / every || is_last) {
            let (title, epochs, speed) = (&self.title, self.epochs, thousands(self.speed()));
            // A worker that waits for no other may make more steps than its share.
            let epoch = self.seen.div_ceil(self.examples).min(epochs);
            let state = state()?;
            println!("{title}: epoch {epoch} of {epochs}{part}, {speed} examples/s, loss {mean:.4}{state}");
        }
        Ok(())
    }

    fn speed(&self) -> f64 {
        self.seen as f64 / self.clock.seconds()
    }

    /// Returns the result of the training so far, before it is tested.
    pub fn trained(&self) -> Trained {
        let (seconds, examples_per_s) = (self.clock.seconds(), self.speed());
        Trained { seconds, examples_per_s, loss: self.loss, accuracy: f64::NAN }
    }
}
