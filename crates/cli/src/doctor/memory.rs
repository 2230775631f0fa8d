//! Measurement of memory bandwidth.

use distribute::cluster::Stopwatch;
use distribute::{MirroredStrategy, ReduceOp, Result};
use std::hint::black_box;

/// The number of bytes of one copy by all threads together. It is more than a cache holds.
const BYTES: usize = 64 << 20;
/// The number of copies in a round.
const COPIES: usize = 10;
/// The number of rounds. The fastest round counts, because other programs disturb some of them.
const ROUNDS: usize = 5;

/// Returns the number of gigabytes per second that `threads` threads together copy. A copied byte counts once, although
/// it is read and written. The copies are too large for caches.
pub fn bandwidth(threads: usize) -> Result<f64> {
    let strategy = MirroredStrategy::cpus(threads)?;
    let each = BYTES / size_of::<f32>() / threads;
    let mut fastest = f64::INFINITY;
    for _ in 0..ROUNDS {
        let seconds = strategy.run((), |ctx, ()| {
            let (from, mut to) = (vec![1f32; each], vec![3f32; each]);
            let mut seconds = 0.;
            // The first iteration warms up; all threads begin the second one together.
            for _ in 0..2 {
                ctx.all_reduce(ReduceOp::Sum, 0f32)?;
                let watch = Stopwatch::start();
                for _ in 0..COPIES {
                    to.copy_from_slice(black_box(&from));
                    black_box(&mut to);
                }
                seconds = watch.seconds();
            }
            Ok(seconds)
        })?;
        fastest = seconds.values().iter().copied().fold(0., f64::max).min(fastest);
    }
    Ok((BYTES * COPIES) as f64 / fastest / 1e9)
}
