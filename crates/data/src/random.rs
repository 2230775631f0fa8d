//! Random numbers that depend only on a seed and an epoch. Shuffles, samples from several datasets, and the order of
//! dealt files use them.

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

/// A generator of random numbers that depend only on the seed and the epoch.
///
/// Each epoch is a separate stream of the generator with the key `seed`. Epochs are therefore independent, and epoch 7
/// can be computed without epochs 0 to 6.
pub(crate) struct EpochRng(ChaCha8Rng);

impl EpochRng {
    pub(crate) fn new(seed: u64, epoch: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(epoch);
        Self(rng)
    }

    /// Returns a random number in `0..n`, all with the same probability. Returns 0 if `n` is 0.
    ///
    /// Multiplies a random word, and rejects the few values that would make some results more likely (Lemire, "Fast
    /// random integer generation in an interval", 2019).
    pub(crate) fn below(&mut self, n: usize) -> usize {
        if n == 0 {
            return 0;
        }
        let n = n as u64;
        let reject = n.wrapping_neg() % n;
        loop {
            let product = u128::from(self.0.next_u64()) * u128::from(n);
            if product as u64 >= reject {
                return (product >> 64) as usize;
            }
        }
    }

    /// Returns a random number that is at least 0 and less than 1. All multiples of 2⁻⁵³ are equally likely.
    pub(crate) fn fraction(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depends_on_seed_and_epoch_only() {
        let draw = |seed, epoch| {
            let mut rng = EpochRng::new(seed, epoch);
            (0..20).map(|_| rng.below(1000)).collect::<Vec<_>>()
        };
        assert_eq!(draw(1, 2), draw(1, 2));
        assert_ne!(draw(1, 2), draw(1, 3));
        assert_ne!(draw(1, 2), draw(2, 2));
    }

    #[test]
    fn every_value_is_about_equally_likely() {
        let mut rng = EpochRng::new(7, 0);
        let mut counts = [0u32; 7];
        for _ in 0..70_000 {
            counts[rng.below(7)] += 1;
        }
        assert!(counts.iter().all(|c| (9_500..10_500).contains(c)), "{counts:?}");
        assert_eq!(EpochRng::new(0, 0).below(0), 0);
        assert_eq!(EpochRng::new(0, 0).below(1), 0);
    }
}
