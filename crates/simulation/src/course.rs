//! What workers train, as a function of the seed: a state whose updates depend on what all workers bring to each, so that one that is
//! left out, made twice or made from another state is seen.

use crate::script::Script;
use distribute_testing::SplitMix;
use std::time::Duration;

/// A training: so many steps, each with these calls.
#[derive(Clone, Debug)]
pub struct Course {
    /// The number of steps.
    pub steps: u64,
    /// The calls of a step, and whether an update follows.
    pub calls: Vec<bool>,
    /// How long to wait for the others when they meet again.
    pub patience: Duration,
    /// Of how many steps in 100 a worker has something else to do before.
    pub breaks: u64,
    /// For how long at most.
    pub longest_break: Duration,
}

impl Course {
    /// The number of updates of a step.
    pub fn updates(&self) -> u64 {
        self.calls.iter().filter(|updates| **updates).count() as u64
    }

    /// What a worker does for so long before a step.
    pub fn pause(&self, script: &Script, generation: u64, rank: usize, step: u64) -> Duration {
        let mut draw = SplitMix(mix(script.seed ^ generation, (rank as u64) << 32 | step));
        if draw.bits() % 100 >= self.breaks {
            return Duration::ZERO;
        }
        Duration::from_millis(draw.below(self.longest_break.as_millis() as usize + 1) as u64)
    }
}

/// The state of a training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weights {
    /// How many updates it has had: also where the dataset is.
    pub made: u64,
    digest: u64,
}

impl Weights {
    /// What a worker of so many brings to an update: its share of the examples of a batch. There are as many as there may be workers,
    /// and each is in one share, however many workers there are.
    pub fn contribution(script: &Script, worker: usize, workers: usize, update: u64) -> u64 {
        let share = (worker..script.workers).step_by(workers.max(1));
        share.map(|example| mix(script.seed ^ update, example as u64)).fold(0, u64::wrapping_add)
    }

    /// An update with the sum of what all have brought.
    pub fn update(&mut self, sum: u64) {
        *self = Self { made: self.made + 1, digest: mix(self.digest ^ sum, self.made) };
    }

    /// The state after so many updates of a training without interruption.
    pub fn after(script: &Script, updates: u64) -> Self {
        let mut weights = Self::default();
        for update in 1..=updates {
            weights.update(Self::contribution(script, 0, 1, update));
        }
        weights
    }

    /// The state as bytes, more than go in one round.
    pub fn image(&self) -> Vec<u8> {
        [self.made, self.digest].map(u64::to_le_bytes).concat()
    }

    /// The state in these bytes.
    pub fn of_image(image: &[u8]) -> Option<Self> {
        let (made, digest) = image.split_first_chunk()?;
        Some(Self { made: u64::from_le_bytes(*made), digest: u64::from_le_bytes(digest.try_into().ok()?) })
    }
}

/// How many bytes of a state go in one round.
pub const CHUNK: usize = 9;

fn mix(a: u64, b: u64) -> u64 {
    SplitMix(SplitMix(a).bits() ^ b).bits()
}
