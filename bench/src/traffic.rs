//! The cost of moving the same bytes without any synchronization. It is a bound for every figure that moves bytes.

use super::figure::{About, Beside, Better, Effort, Figure, Role};
use super::numbers::size;
use super::sample::Sample;
use distribute::cluster::Stopwatch;
use distribute::{MirroredStrategy, Result};
use std::hint::black_box;

/// The figure for a loop over memory, split over threads that do not wait for each other.
struct Traffic {
    kind: Kind,
    bytes: usize,
    threads: usize,
    estimate: f64,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// One read and one write per element.
    Copy,
    /// Two reads and one write per element: the minimum traffic of an all-reduce between 2 replicas.
    Add,
}

/// Returns figures for copies and sums of the sizes that the figures of the all-reduce have.
pub fn figures() -> Vec<Box<dyn Figure>> {
    let mut all: Vec<Box<dyn Figure>> = Vec::new();
    for kind in [Kind::Copy, Kind::Add] {
        for (bytes, estimate) in [(4 << 10, 0.1e-6), (1 << 20, 40e-6), (64 << 20, 10e-3)] {
            for threads in [1, 2] {
                all.push(Box::new(Traffic { kind, bytes, threads, estimate }));
            }
        }
    }
    all
}

/// Returns the memory traffic for summing two tensors of the given size in bytes, split over two threads, as a bound.
pub fn of_a_sum(bytes: usize, estimate: f64) -> Beside {
    let add = Traffic { kind: Kind::Add, bytes, threads: 2, estimate };
    Beside {
        name: "memory traffic".into(),
        version: "",
        role: Role::Bound,
        round: Box::new(move |effort| add.round(effort)),
    }
}

impl Figure for Traffic {
    fn about(&self) -> About {
        let (name, what) = match self.kind {
            Kind::Copy => ("copy", "copying"),
            Kind::Add => ("add", "adding two arrays into a third, each"),
        };
        let Self { bytes, threads, .. } = self;
        About {
            name: format!("{name}_{}_{threads}_threads", size(*bytes)),
            unit: "µs",
            better: Better::Less,
            measures: format!(
                "{what} of {bytes} bytes, cut over {threads} threads that do not wait for each other"
            ),
            targets: Vec::new(),
        }
    }

    fn round(&self, effort: Effort) -> Result<Sample> {
        let strategy = MirroredStrategy::cpus(self.threads)?;
        let calls = effort.calls(self.estimate);
        let each = self.bytes / size_of::<f32>() / self.threads;
        let seconds = strategy.run((), |ctx, ()| {
            let (a, b, mut out) = (vec![1f32; each], vec![2f32; each], vec![3f32; each]);
            let mut seconds = 0.;
            // The first iteration warms up; all threads begin the second one at the same time.
            for _ in 0..2 {
                ctx.all_reduce(distribute::ReduceOp::Sum, 0f32)?;
                let watch = Stopwatch::start();
                for _ in 0..calls {
                    match self.kind {
                        Kind::Copy => out.copy_from_slice(black_box(&a)),
                        Kind::Add => {
                            let terms = black_box(&a).iter().zip(black_box(&b));
                            out.iter_mut().zip(terms).for_each(|(out, (a, b))| *out = a + b);
                        }
                    }
                    black_box(&mut out);
                }
                seconds = watch.seconds();
            }
            Ok(seconds)
        })?;
        let slowest = seconds.values().iter().copied().fold(0., f64::max);
        Ok((slowest * 1e6 / calls as f64).into())
    }
}
