//! The rate of batches from a range, and from complete passes over files, tensors and functions.

use super::figure::{About, Better, Effort, Figure, Target};
use super::sample::Sample;
use super::training::timed;
use super::work::inputs::{self, Pass};
use distribute::data::Dataset;
use distribute::input::{DistributedDataset, DistributedIterator};
use distribute::{Error, MirroredStrategy, Nest, Result};
use std::hint::black_box;

/// The figure for batches of a range, split over two replicas.
struct Range;

/// The figure for passes over a dataset, split over two replicas.
struct Passes<T>(Pass<T>);

/// The number of examples in a batch.
const BATCH: usize = 256;

/// Returns the figures for the range and the passes.
pub fn figures() -> Vec<Box<dyn Figure>> {
    vec![
        Box::new(Range),
        Box::new(Passes(inputs::TFRECORD)),
        Box::new(Passes(inputs::CSV)),
        Box::new(Passes(inputs::SHUFFLE)),
        Box::new(Passes(inputs::MAP)),
    ]
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
        let batches =
            MirroredStrategy::cpus(2)?.distribute_dataset(Dataset::range(1i64 << 40).batch(BATCH))?;
        let mut batches = batches.iter();
        timed(effort, || {
            if let Some(batch) = batches.next() {
                black_box(batch?);
            }
            Ok(())
        })
    }
}

impl<T: Nest + 'static> Figure for Passes<T> {
    fn about(&self) -> About {
        About {
            name: format!("input_{}_{BATCH}", self.0.name),
            unit: "examples/s",
            better: Better::More,
            measures: format!(
                "{}, in batches of {BATCH} through distribute_dataset, cut over 2 replicas, whole passes",
                self.0.what
            ),
            targets: vec![Target::BestPeer(1.)],
        }
    }

    fn round(&self, effort: Effort) -> Result<Sample> {
        let data = self.distributed()?;
        let mut batches = data.iter();
        self.check(&mut batches)?;
        let passes = timed(effort, || {
            for _ in 0..self.0.examples.div_ceil(BATCH) {
                if let Some(batch) = batches.next() {
                    black_box(batch?);
                }
            }
            Ok(())
        })?;
        Ok((passes.value * self.0.examples as f64).into())
    }
}

impl<T: Nest> Passes<T> {
    fn distributed(&self) -> Result<DistributedDataset<T::Batch>> {
        MirroredStrategy::cpus(2)?.distribute_dataset((self.0.dataset)()?.batch(BATCH).repeat_forever())
    }

    /// Makes a first pass, and checks that its examples equal those of the peers.
    fn check(&self, batches: &mut DistributedIterator<T::Batch>) -> Result<()> {
        let mut found = 0;
        for batch in batches.take(self.0.examples.div_ceil(BATCH)) {
            found += batch?.into_values().into_iter().map(inputs::checksum).sum::<i64>();
        }
        let (name, checksum) = (self.0.name, self.0.checksum);
        if found == checksum {
            Ok(())
        } else {
            Err(Error::InvalidArgument {
                operation: "bench",
                reason: format!("a pass of {name} has the checksum {found}, that of the peers {checksum}"),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_equal_those_of_the_peers() {
        fn check<T: Nest>(pass: Pass<T>) {
            let passes = Passes(pass);
            passes.check(&mut passes.distributed().unwrap().iter()).unwrap();
        }
        check(inputs::TFRECORD);
        check(inputs::CSV);
        check(inputs::SHUFFLE);
        check(inputs::MAP);
    }
}
