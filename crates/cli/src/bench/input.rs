//! How fast batches come.

use super::figure::{About, Better, Effort, Figure, Target};
use super::training::timed;
use super::turns::Sample;
use distribute::data::Dataset;
use distribute::{MirroredStrategy, Result};
use std::hint::black_box;

/// Batches of a range, cut over two replicas.
struct Range;

/// The one.
pub fn figures() -> Vec<Box<dyn Figure>> {
    vec![Box::new(Range)]
}

impl Figure for Range {
    fn about(&self) -> About {
        About {
            name: "input_range_256".into(),
            unit: "batches/s",
            better: Better::More,
            measures: "batches of 256 numbers of a range through distribute_dataset, cut over 2 replicas"
                .into(),
            targets: vec![Target::BestPeer(20.)],
        }
    }

    fn round(&self, effort: Effort) -> Result<Sample> {
        let strategy = MirroredStrategy::cpus(2)?;
        let batches = strategy.distribute_dataset(Dataset::range(1 << 40).batch(256))?;
        let mut batches = batches.iter();
        timed(effort, || {
            if let Some(batch) = batches.next() {
                black_box(batch?);
            }
            Ok(())
        })
    }
}
