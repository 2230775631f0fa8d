//! [`ReplicaRange`]: the per-replica batches of some of the replicas, from a stage that yields those of all replicas.

use crate::Result;
use crate::chunk::Chunk;
use crate::stage::Stage;
use std::ops::Range;

/// A stage that yields the batches of the replicas `part`, in the order of steps. Its input yields those of all
/// replicas.
pub(super) struct ReplicaRange {
    input: Box<dyn Stage>,
    /// The number of all replicas.
    all: usize,
    /// The replicas whose batches are yielded. There is at least one.
    part: Range<usize>,
    /// The replica to which the next batch of the input belongs.
    at: usize,
}

impl ReplicaRange {
    pub(super) fn new(input: Box<dyn Stage>, all: usize, part: Range<usize>) -> Self {
        Self { input, all, part, at: 0 }
    }

    /// Returns how many of the first `batches` batches of all replicas belong to the replicas of `part`.
    fn own_before(&self, batches: usize) -> usize {
        let Range { start, end } = self.part;
        batches / self.all * (end - start) + (batches % self.all).clamp(start, end) - start
    }

    /// Skips `batches` batches of all replicas. Returns the number of skipped batches, which is less than
    /// `batches` only at the end.
    fn skip_all(&mut self, batches: usize) -> Result<usize> {
        let skipped = if batches == 0 { 0 } else { self.input.skip(batches)? };
        self.at = (self.at + skipped) % self.all;
        Ok(skipped)
    }

    fn batches(&mut self, max: usize) -> Result<Option<Chunk>> {
        let before = match self.at {
            at if at < self.part.start => self.part.start - at,
            at if at < self.part.end => 0,
            at => self.all - at + self.part.start,
        };
        if self.skip_all(before)? < before {
            return Ok(None);
        }
        let Some(chunk) = self.input.next(max.min(self.part.end - self.at)) else { return Ok(None) };
        let chunk = chunk?;
        self.at = (self.at + chunk.len()) % self.all;
        Ok(Some(chunk))
    }
}

impl Stage for ReplicaRange {
    fn next(&mut self, max: usize) -> Option<Result<Chunk>> {
        self.batches(max).transpose()
    }

    fn skip(&mut self, count: usize) -> Result<usize> {
        if count == 0 {
            return Ok(0);
        }
        let (start, own) = (self.at, self.own_before(self.at));
        // The last batch that is skipped.
        let last = own + count - 1;
        let end = last / self.part.len() * self.all + self.part.start + last % self.part.len() + 1;
        let skipped = self.skip_all(end - start)?;
        Ok(self.own_before(start + skipped) - own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dataset;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_yields_and_skips_the_batches_of_its_replicas_alone(
            count in 0usize..30, all in 1usize..6, start in 0usize..5, len in 1usize..6,
            skips in proptest::collection::vec(0usize..4, 0..6), max in 1usize..5,
        ) {
            prop_assume!(start + len <= all);
            let part = start..start + len;
            let mut expected = (0..count as i64).filter(|batch| part.contains(&(*batch as usize % all)));
            let stage = Dataset::range(count as i64).pipeline().start(0);
            let mut stage = ReplicaRange::new(stage, all, part.clone());
            for skip in skips {
                let left = expected.clone().count();
                prop_assert_eq!(stage.skip(skip)?, skip.min(left));
                (0..skip).for_each(|_| {
                    expected.next();
                });
                if skip > left {
                    return Ok(());
                }
                match stage.next(max).transpose()? {
                    None => {
                        prop_assert_eq!(expected.next(), None);
                        return Ok(());
                    }
                    Some(chunk) => {
                        prop_assert!(chunk.len() <= max);
                        for value in chunk.into_values()? {
                            let value = value.leaves()[0].to_host()?.to_vec::<i64>()?;
                            prop_assert_eq!(Some(value[0]), expected.next());
                        }
                    }
                }
            }
        }
    }
}
