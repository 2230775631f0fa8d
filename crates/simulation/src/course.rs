//! Training runs as functions of the seed. Each update of the state depends on the contributions of all workers. An
//! update that is skipped, made twice, or made from a different state is therefore detected.

use crate::script::Script;
use distribute_testing::SplitMix;
use std::time::Duration;

/// A training run of several steps, each with the same calls.
#[derive(Clone, Debug)]
pub struct Course {
    /// The number of steps.
    pub steps: u64,
    /// The calls of a step. An entry is `true` if an update follows the call.
    pub calls: Vec<bool>,
    /// The time from an interruption of the training run until a worker gives up the rendezvous and the agreement after
    /// it.
    pub patience: Duration,
    /// The percentage of a worker's steps that are delayed.
    pub breaks: u64,
    /// The maximum delay of a step.
    pub longest_break: Duration,
    /// The percentage of steps before which the leader proposes that a spare takes the place of another worker.
    pub replacements: u64,
}

impl Course {
    /// Returns the number of updates in a step.
    pub fn updates(&self) -> u64 {
        self.calls.iter().filter(|updates| **updates).count() as u64
    }

    /// Returns the rank of the worker that the leader proposes to replace before a step, in a world with this number of
    /// workers; `None` if the leader proposes nothing.
    pub fn replaces(&self, script: &Script, generation: u64, workers: usize, step: u64) -> Option<usize> {
        let mut draw = SplitMix(mix(script.seed ^ generation, 1 << 63 | step));
        let proposes = draw.bits() % 100 < self.replacements && workers > 1;
        proposes.then(|| 1 + draw.below(workers - 1))
    }

    /// Returns the time by which a worker delays a step; 0 if it does not.
    pub fn pause(&self, script: &Script, generation: u64, rank: usize, step: u64) -> Duration {
        let mut draw = SplitMix(mix(script.seed ^ generation, (rank as u64) << 32 | step));
        if draw.bits() % 100 >= self.breaks {
            return Duration::ZERO;
        }
        Duration::from_millis(draw.below(self.longest_break.as_millis() as usize + 1) as u64)
    }
}

/// The state of a training run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weights {
    /// The number of updates, which is also the position in the dataset.
    pub made: u64,
    digest: u64,
}

impl Weights {
    /// Returns the contribution of a worker to an update, which is computed from its share of a batch. A batch has one
    /// example for each of the maximum number of workers. Whatever the current number of workers, each example is in
    /// exactly one share.
    pub fn contribution(script: &Script, worker: usize, workers: usize, update: u64) -> u64 {
        let share = (worker..script.workers).step_by(workers.max(1));
        share.map(|example| mix(script.seed ^ update, example as u64)).fold(0, u64::wrapping_add)
    }

    /// Updates the state with the sum of all contributions.
    pub fn update(&mut self, sum: u64) {
        *self = Self { made: self.made + 1, digest: mix(self.digest ^ sum, self.made) };
    }

    /// Returns the state after the given number of updates of an uninterrupted training run.
    pub fn after(script: &Script, updates: u64) -> Self {
        let mut weights = Self::default();
        for update in 1..=updates {
            weights.update(Self::contribution(script, 0, 1, update));
        }
        weights
    }

    /// Encodes the state as 16 bytes. They are sent in two rounds, because one round sends at most [`CHUNK`] bytes.
    pub fn image(&self) -> Vec<u8> {
        [self.made, self.digest].map(u64::to_le_bytes).concat()
    }

    /// Decodes the state from bytes; `None` if they are malformed.
    pub fn of_image(image: &[u8]) -> Option<Self> {
        let (made, digest) = image.split_first_chunk()?;
        Some(Self { made: u64::from_le_bytes(*made), digest: u64::from_le_bytes(digest.try_into().ok()?) })
    }
}

/// The maximum number of bytes of a state that are sent in one round.
pub const CHUNK: usize = 9;

fn mix(a: u64, b: u64) -> u64 {
    SplitMix(SplitMix(a).bits() ^ b).bits()
}
