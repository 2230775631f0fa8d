//! The order of sums over workers, their algorithms, and the numbers that are sent.

use std::fmt;

/// Up to this many bytes a [tree](Algorithm::Tree) sums.
const SMALL: usize = 4 << 10;

/// Up to this many bytes workers whose number is no power of two sum by [halves](Algorithm::HalvingDoubling).
const MEDIUM: usize = 256 << 10;

/// The order in which the vectors of workers are added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Order {
    /// The one order of sums: the bits depend on values and ids alone. Each worker folds a range of all vectors.
    #[default]
    Exact,
    /// The order of the [`Algorithm`]. All workers get the same bits, which may differ from those of
    /// [`Exact`](Self::Exact) by the rounding of each addition, and depend on the number of workers.
    Fast,
}

/// The type of the numbers that are sent. Sums are computed in the type of the vectors, `f32` or `f64`.
///
/// A number is rounded to the nearest half, ties to even; one that is too large becomes infinite (`f16`: from 65,520
/// on). In [`Order::Exact`], each vector is rounded once, this worker's own included, and so is the sum: with a unit
/// roundoff `u`, its error is at most `2 u Σ|w x|`, and underflow. In [`Order::Fast`] partial sums are rounded each
/// time they are sent: see [`Algorithm::roundings`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Wire {
    /// The type of the vectors.
    #[default]
    Full,
    /// `f16`: `u` is 2⁻¹¹, and numbers below 2⁻¹⁴ have an absolute error of at most 2⁻²⁵.
    F16,
    /// `bf16`, which has the range of `f32`: `u` is 2⁻⁸.
    Bf16,
}

/// The options of a sum. All workers must use the same, else the call fails on all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SumOptions {
    /// The order of additions.
    pub order: Order,
    /// The type of the numbers that are sent.
    pub wire: Wire,
    /// The size of a bucket: a larger vector is summed in buckets of about this many bytes (a multiple of 64
    /// elements), one after another. This bounds the memory that a sum needs in addition to the vectors. 0 is no
    /// bound. In [`Order::Exact`] it changes no bit.
    pub bytes_per_pack: usize,
}

/// The algorithms of [`Order::Fast`]. In each round, all workers exchange their call, and some send data.
///
/// | bytes of a vector, or pack | workers are a power of two | else |
/// |---|---|---|
/// | up to 4 KiB | tree | tree |
/// | up to 256 KiB | halving and doubling | halving and doubling |
/// | more | halving and doubling | ring |
///
/// [`Order::algorithm`] is this table. Where the transport stands on a library that sums by itself, such as MPI, and
/// numbers are sent [as they are](Wire::Full), that library chooses instead. Rounds, and bytes that the busiest worker
/// sends, of W workers with n bytes each:
///
/// | algorithm | rounds | bytes |
/// |---|---|---|
/// | tree | 2 ⌈log₂ W⌉ | n ⌈log₂ W⌉ |
/// | halving and doubling | 2 log₂ W; 2 more if W is no power of two | 2 n (W − 1)/W; less than 3 n if W is no power of two |
/// | ring | 2 (W − 1) | 2 n (W − 1)/W |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// A binomial tree to worker 0, and back.
    Tree,
    /// Recursive halving (reduce-scatter) and doubling (all-gather). Workers beyond a power of two give their vectors
    /// to others first, and get the sum last.
    HalvingDoubling,
    /// Reduce-scatter and all-gather, in which each worker sends to the next one only.
    Ring,
}

impl Order {
    /// Returns the algorithm for a vector, or bucket, of this many bytes over `workers`: a function of what all
    /// workers know. `None` if each range is folded in the one order of sums.
    pub fn algorithm(self, bytes: usize, workers: usize) -> Option<Algorithm> {
        match self {
            Order::Exact => None,
            Order::Fast if bytes <= SMALL => Some(Algorithm::Tree),
            Order::Fast if bytes <= MEDIUM || workers.is_power_of_two() => Some(Algorithm::HalvingDoubling),
            Order::Fast => Some(Algorithm::Ring),
        }
    }
}

impl Algorithm {
    /// Returns the largest number of roundings of a number in a sum over `workers`, if [halves](Wire) are sent. The
    /// error is at most that number times `u Σ|w x|`, to first order in `u`.
    pub fn roundings(self, workers: usize) -> usize {
        let rounds = workers.max(1).next_power_of_two().trailing_zeros() as usize;
        match self {
            Algorithm::Tree | Algorithm::HalvingDoubling => rounds + 1,
            Algorithm::Ring => workers,
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Algorithm::Tree => "tree",
            Algorithm::HalvingDoubling => "halving and doubling",
            Algorithm::Ring => "ring",
        })
    }
}

/// Writes the text that workers compare and errors show.
impl fmt::Display for SumOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.order {
            Order::Exact => "in the exact order",
            Order::Fast => "in the fast order",
        })?;
        match self.wire {
            Wire::Full => {}
            Wire::F16 => f.write_str(", sent as f16")?,
            Wire::Bf16 => f.write_str(", sent as bf16")?,
        }
        match self.bytes_per_pack {
            0 => Ok(()),
            bytes => write!(f, ", in packs of {bytes} bytes"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Algorithm::{HalvingDoubling, Ring, Tree};

    #[test]
    fn the_algorithm_follows_from_bytes_and_workers() {
        for (bytes, [two, three, eight]) in [
            (0, [Tree; 3]),
            (4 << 10, [Tree; 3]),
            ((4 << 10) + 1, [HalvingDoubling; 3]),
            (256 << 10, [HalvingDoubling; 3]),
            ((256 << 10) + 1, [HalvingDoubling, Ring, HalvingDoubling]),
            (usize::MAX, [HalvingDoubling, Ring, HalvingDoubling]),
        ] {
            let found = [2, 3, 8].map(|workers| Order::Fast.algorithm(bytes, workers));
            assert_eq!(found, [Some(two), Some(three), Some(eight)], "{bytes}");
            assert_eq!(Order::Exact.algorithm(bytes, 3), None);
        }
    }

    #[test]
    fn texts_tell_options_apart() {
        let fast = SumOptions { order: Order::Fast, wire: Wire::Bf16, bytes_per_pack: 8 };
        assert_eq!(fast.to_string(), "in the fast order, sent as bf16, in packs of 8 bytes");
        assert_eq!(SumOptions::default().to_string(), "in the exact order");
    }
}
