//! The order of sums over workers, and the algorithms that compute them.

use distribute_tensor::Wire;
use std::fmt;

/// The maximum size in bytes of vectors that are summed by a [tree](Algorithm::Tree).
const SMALL: usize = 4 << 10;

/// The maximum size in bytes of vectors that are summed by [halving and doubling](Algorithm::HalvingDoubling) if the
/// number of workers is not a power of two.
const MEDIUM: usize = 256 << 10;

/// The order in which the vectors of workers are added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Order {
    /// The one order of sums: the result depends only on the values and on the ids of replicas. Each worker sums a
    /// range of all vectors.
    #[default]
    Exact,
    /// The order of the [`Algorithm`]. All workers get the same bits. The sum depends on the number of workers, and may
    /// differ from that of [`Exact`](Self::Exact) by the rounding of each addition.
    Fast,
}

/// The options of a sum. They must be the same on all workers; otherwise the call fails on all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SumOptions {
    /// The order in which vectors are added.
    pub order: Order,
    /// The type in which numbers are sent. In [`Order::Exact`], each vector is rounded once, including this worker's
    /// own, and so is the sum. The error of the sum is at most `2 u Σ|w x|`, apart from underflow. Here `u` is the unit
    /// roundoff of the type, `x` are the workers' numbers, and `w` are their weights. In [`Order::Fast`], partial sums
    /// are rounded each time they are sent: see [`Algorithm::roundings`].
    pub wire: Wire,
    /// The size of a bucket in bytes; 0 means no limit. A larger vector is summed in buckets of about this size (a
    /// multiple of 64 elements), one after another. This limits the memory that a sum needs in addition to the vectors.
    /// In [`Order::Exact`], the size does not change the result.
    pub bytes_per_pack: usize,
}

/// The algorithms of [`Order::Fast`]. In each round, all workers compare their calls, and some of them send data.
///
/// | bytes of a vector, or bucket | number of workers is a power of two | otherwise |
/// |---|---|---|
/// | up to 4 KiB | tree | tree |
/// | up to 256 KiB | halving and doubling | halving and doubling |
/// | more | halving and doubling | ring |
///
/// [`Order::algorithm`] implements this table. If the transport has a library that computes sums, such as MPI, and
/// numbers are sent [unchanged](Wire::Full), the library chooses the algorithm instead. The next table shows the number
/// of rounds, and the bytes that the busiest worker sends, for W workers with vectors of n bytes:
///
/// | algorithm | rounds | bytes |
/// |---|---|---|
/// | tree | 2 ⌈log₂ W⌉ | n ⌈log₂ W⌉ |
/// | halving and doubling | 2 log₂ W; 2 more if W is no power of two | 2 n (W − 1)/W; less than 3 n if W is no power of two |
/// | ring | 2 (W − 1) | 2 n (W − 1)/W |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// A binomial tree to worker 0 and back.
    Tree,
    /// Recursive halving (reduce-scatter) and doubling (all-gather). Workers beyond the largest power of two first send
    /// their vectors to other workers, and receive the sum at the end.
    HalvingDoubling,
    /// Reduce-scatter and all-gather in which each worker sends only to the next one.
    Ring,
}

impl Order {
    /// Returns the algorithm for a vector or bucket of `bytes` bytes over `workers` workers. Returns `None` for
    /// [`Order::Exact`], in which each worker sums a range in the one order of sums.
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
    /// Returns the maximum number of times that a contribution is rounded on its way into the sum of `workers` workers,
    /// if numbers are sent in [16 bits](Wire).
    ///
    /// To first order in the unit roundoff `u` of that type, the error of the sum is at most this number times `u Σ|w
    /// x|`, where `x` are the workers' numbers and `w` their weights.
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

/// Formats the options for comparisons between workers and for errors.
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
