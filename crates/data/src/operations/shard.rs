//! The operation that takes every `W`-th element, for one of `W` workers.

use crate::chunk::{Chunk, Picks};
use crate::error::at_least_one;
use crate::pipeline::{Operation, Pipeline, Sharding, WorkerShard, one_input};
use crate::stage::Stage;
use crate::{Cardinality, Dataset, Error, Result};
use distribute_tensor::Nest;
use std::sync::Arc;

impl<T: Nest> Dataset<T> {
    /// Returns a dataset of the elements `index`, `index + workers`, `index + 2 * workers`, … of this dataset.
    /// The shards of all workers together contain each element exactly once.
    ///
    /// An `index` that is not less than `workers` results in [`Error::Worker`] in the pass. If `workers` is 0, the pass
    /// returns [`Error::Parameter`].
    #[doc(alias = "tf.data.Dataset.shard")]
    pub fn shard(&self, workers: usize, index: usize) -> Self {
        Self::of(Shard { input: self.pipeline().clone(), workers, index })
    }

    /// Marks the position at which the policy [`AutoShardPolicy::Hint`](crate::AutoShardPolicy::Hint) shards the
    /// pipeline over the workers. Without that policy, a pass returns [`Error::Hinted`].
    #[doc(alias = "tf.data.experimental.SHARD_HINT")]
    #[doc(alias = "SHARD_HINT")]
    pub fn shard_hint(&self) -> Self {
        Self::of(ShardHint { input: self.pipeline().clone() })
    }
}

#[derive(Clone)]
struct Shard {
    input: Pipeline,
    workers: usize,
    index: usize,
}

impl Operation for Shard {
    one_input!();

    fn describe(&self) -> String {
        format!("shard {} of {}", self.index, self.workers)
    }

    fn cardinality(&self) -> Cardinality {
        self.input.cardinality().map(|n| n.saturating_sub(self.index).div_ceil(self.workers.max(1)))
    }

    fn check(&self) -> Result<()> {
        at_least_one("shard", "the number of workers", self.workers)?;
        if self.index < self.workers {
            Ok(())
        } else {
            Err(Error::Worker { worker: self.index, workers: self.workers })
        }
    }

    fn sharding(&self) -> Sharding {
        Sharding::Whole
    }

    fn start(&self, epoch: u64) -> Box<dyn Stage> {
        // Skipping rows in memory costs nothing. If elements have to be made, only this worker's elements
        // are.
        let at_once = if self.input.costly() { 1 } else { MAX_AT_ONCE };
        let input = self.input.start(epoch);
        Box::new(ShardStage { input, workers: self.workers, at_once, ahead: self.index, ended: false })
    }
}

struct ShardStage {
    input: Box<dyn Stage>,
    workers: usize,
    /// The number of elements that are requested from the input at a time.
    at_once: usize,
    /// The number of elements of other workers before this worker's next element.
    ahead: usize,
    ended: bool,
}

impl ShardStage {
    /// Skips the elements of other workers. Returns `false` at the end.
    fn advance(&mut self) -> Result<bool> {
        let ahead = std::mem::take(&mut self.ahead);
        self.ended = self.ended || self.input.skip(ahead)? < ahead;
        Ok(!self.ended)
    }
}

impl Stage for ShardStage {
    fn next(&mut self, max: usize) -> Option<Result<Chunk>> {
        match self.advance() {
            Err(error) => return Some(Err(error)),
            Ok(false) => return None,
            Ok(true) => {}
        }
        let chunk = match self.input.next(max.saturating_mul(self.workers).min(self.at_once)) {
            Some(Ok(chunk)) => chunk,
            other => return other,
        };
        let len = chunk.len();
        let ours = |i: &usize| i.is_multiple_of(self.workers);
        let picked = match chunk {
            Chunk::Rows(source, picks) => {
                let rows = match picks.into_list() {
                    Ok(rows) => rows.into_iter().enumerate(),
                    Err(error) => return Some(Err(error)),
                };
                Chunk::Rows(source, Picks::List(rows.filter(|(i, _)| ours(i)).map(|(_, row)| row).collect()))
            }
            Chunk::Values(values) => {
                let values = values.into_iter().enumerate();
                Chunk::Values(values.filter(|(i, _)| ours(i)).map(|(_, value)| value).collect())
            }
            batch @ Chunk::Batch(_) => batch,
        };
        self.ahead = len.div_ceil(self.workers) * self.workers - len;
        Some(Ok(picked))
    }

    fn skip(&mut self, count: usize) -> Result<usize> {
        if count == 0 || !self.advance()? {
            return Ok(0);
        }
        let wanted = (count - 1).saturating_mul(self.workers).saturating_add(1);
        let passed = self.input.skip(wanted)?;
        self.ended = passed < wanted;
        self.ahead = self.workers - 1;
        Ok(passed.div_ceil(self.workers))
    }

    fn passes(&self) -> usize {
        self.input.passes()
    }
}

/// The maximum number of rows that are requested at a time.
const MAX_AT_ONCE: usize = 1024;

#[derive(Clone)]
struct ShardHint {
    input: Pipeline,
}

impl Operation for ShardHint {
    one_input!();

    fn lean(&self) -> Option<Pipeline> {
        Some(self.input.clone())
    }

    fn describe(&self) -> String {
        "shard_hint".into()
    }

    fn cardinality(&self) -> Cardinality {
        self.input.cardinality()
    }

    fn check(&self) -> Result<()> {
        Err(Error::Hinted)
    }

    fn sharding(&self) -> Sharding {
        Sharding::Through
    }

    fn shard(&self, worker: &WorkerShard) -> Option<Pipeline> {
        match *worker {
            WorkerShard::Hint { workers, index } => {
                Some(Arc::new(Shard { input: crate::pipeline::shard(&self.input, worker), workers, index }))
            }
            WorkerShard::Files { .. } | WorkerShard::Dealt(_) => None,
        }
    }

    fn start(&self, epoch: u64) -> Box<dyn Stage> {
        self.input.start(epoch)
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::values;
    use crate::{Cardinality, Dataset, Error};
    use proptest::prelude::*;

    #[test]
    fn shards_are_every_so_manieth_element() {
        let range = Dataset::range(7);
        assert_eq!(values(&range.shard(3, 0)), [0, 3, 6]);
        assert_eq!(values(&range.map(|x| x).shard(3, 2)), [2, 5]);
        assert_eq!(values(&range.shard(9, 8)), [0i64; 0]);
        assert_eq!(range.shard(3, 1).cardinality(), Cardinality::Finite(2));
    }

    #[test]
    fn a_shard_that_is_none_and_a_hint_alone_are_errors() {
        let error = Dataset::range(3).shard(2, 2).iter().next().unwrap().unwrap_err();
        assert_eq!(error.to_string(), "there is no worker 2: there are 2, counted from 0");
        assert!(matches!(Dataset::range(3).shard(0, 0).check(), Err(Error::Parameter { .. })));
        let error = Dataset::range(3).shard_hint().batch(2).iter().next().unwrap().unwrap_err();
        assert!(matches!(error, Error::Hinted), "{error}");
    }

    proptest! {
        #[test]
        fn shards_together_are_the_dataset(n in 0i64..40, workers in 1usize..6, mapped: bool, skip in 0usize..9) {
            let range = if mapped { Dataset::range(n).map(|x| x) } else { Dataset::range(n) };
            let mut all = Vec::new();
            for index in 0..workers {
                let shard = range.shard(workers, index);
                let mine = values(&shard);
                prop_assert_eq!(shard.cardinality().finite(), Some(mine.len()));
                prop_assert_eq!(&values(&shard.skip(skip)), &mine[skip.min(mine.len())..]);
                prop_assert_eq!(&crate::testing::ids(&shard.batch(3)).concat(), &mine);
                all.extend(mine);
            }
            all.sort_unstable();
            prop_assert_eq!(all, (0..n).collect::<Vec<_>>());
        }
    }
}
