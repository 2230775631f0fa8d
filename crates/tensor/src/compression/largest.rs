//! The largest numbers of a chunk.

use super::CHUNK;

/// The number of groups of a chunk whose largest numbers determine a bound, if no more numbers are selected.
const GROUPS: usize = 256;

/// The number of numbers that are compared with the bound at once.
const BLOCK: usize = u32::BITS as usize;

/// The minimum length for which the bound saves more than it costs.
const MIN_LEN: usize = 4 * GROUPS;

/// Finds the largest numbers of chunks. It has memory that is reused for each chunk.
#[derive(Default)]
pub(super) struct Largest {
    candidates: Vec<u64>,
    order: Vec<u64>,
}

impl Largest {
    /// Writes the positions of the numbers with the largest magnitudes to `at`, in ascending order. Their number is the
    /// length of `at`, at most that of the numbers. NaN is larger than infinity, and of equal magnitudes the first ones
    /// are larger.
    ///
    /// Most numbers are only compared with a bound that the numbers in question reach, several at a time.
    pub(super) fn positions(&mut self, numbers: &[f32], at: &mut [u16]) {
        debug_assert!(at.len() <= numbers.len(), "more positions than numbers");
        let Self { candidates, order } = self;
        let bound = bound(numbers, at.len());
        candidates.clear();
        // Of the numbers that are equal to the bound, only the first ones can be selected.
        let (mut limit, mut equal) = (bound, 0);
        for (block, numbers) in numbers.chunks(BLOCK).enumerate() {
            let mut reach = reach(numbers, limit);
            while reach != 0 {
                let place = reach.trailing_zeros() as usize;
                reach &= reach - 1;
                let magnitude = magnitude(numbers[place]);
                equal += usize::from(magnitude == bound);
                candidates.push(key(magnitude, block * BLOCK + place));
            }
            if equal >= at.len() {
                limit = bound.saturating_add(1);
            }
        }
        let smallest = if at.is_empty() || at.len() >= candidates.len() {
            0
        } else {
            order.clone_from(candidates);
            *order.select_nth_unstable_by(at.len() - 1, |a, b| b.cmp(a)).1
        };
        let selected = candidates.iter().filter(|key| **key >= smallest);
        for (at, key) in at.iter_mut().zip(selected) {
            *at = position(*key);
        }
    }
}

/// Returns the bits of the magnitude of a number, which are ordered like the magnitudes, with NaN above infinity.
fn magnitude(x: f32) -> i32 {
    // The sign is cleared, so this is not negative. Processors compare signed numbers faster.
    (x.to_bits() & 0x7fff_ffff) as i32
}

/// Returns a number that is larger for larger magnitudes and, of equal ones, for the first. All keys of a chunk differ.
fn key(magnitude: i32, position: usize) -> u64 {
    (magnitude as u64) << 16 | (CHUNK - position) as u64
}

fn position(key: u64) -> u16 {
    (CHUNK as u64 - (key & 0xffff)) as u16
}

/// Returns the numbers of a block whose magnitudes are at least `limit`, as bits.
fn reach(block: &[f32], limit: i32) -> u32 {
    block.iter().zip(0..).fold(0, |bits, (x, place)| bits | u32::from(magnitude(*x) >= limit) << place)
}

/// Returns a magnitude that at least `count` numbers reach, and few more than that in most chunks.
fn bound(numbers: &[f32], count: usize) -> i32 {
    if numbers.len() < MIN_LEN || count == 0 || count > GROUPS {
        return 0;
    }
    let mut largest = [0; GROUPS];
    for row in numbers.chunks_exact(GROUPS) {
        for (largest, x) in largest.iter_mut().zip(row) {
            *largest = magnitude(*x).max(*largest);
        }
    }
    *largest.select_nth_unstable(GROUPS - count).1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the positions by sorting all numbers.
    fn by_sorting(numbers: &[f32], count: usize) -> Vec<u16> {
        let mut all: Vec<u16> = (0..numbers.len() as u16).collect();
        let bits = |at: &u16| numbers[usize::from(*at)].abs().to_bits();
        all.sort_by(|a, b| bits(b).cmp(&bits(a)).then(a.cmp(b)));
        all.truncate(count);
        all.sort_unstable();
        all
    }

    fn found(numbers: &[f32], count: usize) -> Vec<u16> {
        let (mut largest, mut at) = (Largest::default(), vec![0; count]);
        // The memory of another chunk is reused.
        largest.positions(&[3.; 2000], &mut at);
        largest.positions(numbers, &mut at);
        at
    }

    proptest! {
        #[test]
        fn positions_are_those_of_a_sort(
            numbers in prop::collection::vec(prop_oneof![
                8 => -1f32..1.,
                1 => Just(0.),
                1 => Just(-0.),
                2 => (0i8..4).prop_map(|x| f32::from(x) / 4.),
                1 => any::<f32>(),
            ], 1..=CHUNK),
            of in 1usize..80,
        ) {
            let count = numbers.len().div_ceil(of.max(16));
            prop_assert_eq!(found(&numbers, count), by_sorting(&numbers, count));
        }
    }

    #[test]
    fn positions_of_unusual_chunks() {
        let ramp = |sign: f32| (0..CHUNK).map(|at| sign * at as f32).collect::<Vec<_>>();
        let mut few = vec![0f32; CHUNK];
        few[4000..4010].fill(-2.);
        let mut mixed = vec![1f32; CHUNK];
        (mixed[7], mixed[300], mixed[4095]) = (f32::NAN, f32::NEG_INFINITY, -1.5);
        let falling: Vec<f32> = ramp(1.).into_iter().rev().collect();
        for numbers in [ramp(1.), ramp(-1.), falling, few, mixed, vec![0.; CHUNK], vec![f32::NAN; 1500]] {
            for count in [0, 1, 63, 64, 256, 300] {
                assert_eq!(
                    found(&numbers, count),
                    by_sorting(&numbers, count),
                    "{count} of {:?}",
                    &numbers[..9]
                );
            }
        }
        assert_eq!(found(&[1., 2.], 2), [0, 1]);
    }
}
