//! Random numbers by position, independent of threads, replicas and shards.

/// Random numbers that are functions of their position (SplitMix64), so that any part of them can be drawn alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Draws {
    key: u64,
}

impl Draws {
    pub(crate) fn new(seed: u64, name: &str) -> Self {
        // The hash spreads names; the mixing below does the rest.
        Self { key: mix(mix(seed) ^ distribute_cluster::fnv1a(name.bytes())) }
    }

    /// Another sequence for each index.
    pub(crate) fn at(self, index: u64) -> Self {
        Self { key: self.bits(index) }
    }

    pub(crate) fn bits(&self, position: u64) -> u64 {
        mix(self.key.wrapping_add(position.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// In [0, 1).
    pub(crate) fn uniform(&self, position: u64) -> f64 {
        (self.bits(position) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Standard normal, by Box and Muller.
    pub(crate) fn normal(&self, position: u64) -> f64 {
        let radius = (-2. * (1. - self.uniform(2 * position)).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform(2 * position + 1)).cos()
    }
}

fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
