//! Reproducible random programs and data.

/// A small random number generator, sufficient for generating programs (Steele, Lea, Flood: SplitMix64).
#[derive(Clone, Debug)]
pub struct SplitMix(pub u64);

impl SplitMix {
    /// Returns the next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `n`, which must not be 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// Returns a copy of one of the given values, of which there must be at least one.
    pub fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }

    /// Corrupts valid bytes in a few random places: removes, inserts, changes or appends bytes, or cuts the rest off.
    pub fn mutate(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..1 + self.below(4) {
            let at = self.below(bytes.len() + 1);
            match self.below(6) {
                0 => bytes.truncate(at),
                1 => bytes.insert(at, self.bits() as u8),
                2 if at < bytes.len() => drop(bytes.remove(at)),
                3 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
                4 if at + 8 < bytes.len() => bytes[at..at + 8].copy_from_slice(&self.bits().to_le_bytes()),
                _ => bytes.extend((0..self.below(20)).map(|_| self.bits() as u8)),
            }
        }
    }
}

/// Returns the number of inputs that a test generates: the value of `DISTRIBUTE_FUZZ_INPUTS`, or 3000 by default.
pub fn fuzz_inputs() -> u64 {
    std::env::var("DISTRIBUTE_FUZZ_INPUTS").map_or(3000, |text| text.parse().unwrap())
}
