//! The datasets of workers that do not wait for each other: each worker uses complete batches as its own steps.

use super::DistributeOptions;
use super::decide::decide;
use crate::pipeline::{self, WorkerShard};
use crate::plan::policy::{AutoShardPolicy, Decision};
use crate::{Dataset, Error, Result};
use distribute_log::warn_or_stderr;
use distribute_tensor::Nest;

impl<T: Nest> Dataset<T> {
    // PSV1-12
    /// Returns the batches of this dataset that worker `worker` of `workers` reads, and the decision about how
    /// the dataset is sharded. Each worker takes steps with its own batches.
    ///
    /// If the dataset is sharded by files, a worker reads its own files; with a shard hint, it takes its own elements
    /// at the hint; with [`AutoShardPolicy::Off`], or a single worker, it reads everything. Otherwise it takes the
    /// batches `worker`, `worker + workers`, …; if [`AutoShardPolicy::Auto`] has decided so, a warning is logged. No
    /// batch is split, and workers may have different numbers of batches.
    ///
    /// ```
    /// use distribute_data::{AutoShardPolicy, Dataset, DistributeOptions};
    ///
    /// let batches = Dataset::range(10).batch(2);
    /// let (second, decision) = batches.batches_of_worker(2, 1, &DistributeOptions::default())?;
    /// assert_eq!(decision.taken, AutoShardPolicy::Data);
    /// let ids: Vec<_> = second
    ///     .iter()
    ///     .map(|batch| Ok(batch?.to_vec::<i64>()?))
    ///     .collect::<Result<_, distribute_data::Error>>()?;
    /// assert_eq!(ids, [[2, 3], [6, 7]]);
    /// # Ok::<(), distribute_data::Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::Worker`]: `worker` is not less than `workers`.
    /// - [`Error::Unshardable`]: the policy shards by files over several workers, but a source does not read files.
    /// - [`Error::TooFewFiles`]: the policy shards by files, but a source has fewer files than there are workers.
    /// - [`Error::Unordered`]: workers that read the same batches could see them in different orders.
    /// - [`Error::NotDealt`]: the policy is [`AutoShardPolicy::Dealt`], for several workers.
    pub fn batches_of_worker(
        &self,
        workers: usize,
        worker: usize,
        options: &DistributeOptions,
    ) -> Result<(Self, Decision)> {
        if worker >= workers {
            return Err(Error::Worker { worker, workers });
        }
        let decision = decide(self.pipeline(), options.policy, options.rule, workers)?;
        let shard = match decision.taken {
            _ if workers == 1 => return Ok((self.clone(), decision)),
            AutoShardPolicy::File => WorkerShard::Files { workers, index: worker },
            AutoShardPolicy::Hint => WorkerShard::Hint { workers, index: worker },
            AutoShardPolicy::Off => return Ok((self.clone(), decision)),
            AutoShardPolicy::Dealt => {
                let why = "they do not wait for each other, so no worker deals; let a coordinator deal files with a \
                           FileDeck, or use AutoShardPolicy::File";
                return Err(Error::NotDealt { why: why.into() });
            }
            AutoShardPolicy::Auto | AutoShardPolicy::Data => {
                if let Some(operation) = pipeline::unrepeatable(self.pipeline()) {
                    return Err(Error::Unordered { operation });
                }
                if options.policy == AutoShardPolicy::Auto {
                    warn_or_stderr(|| {
                        tracing::warn!(
                            why = decision.why,
                            "every worker reads all of the dataset, and takes one batch of {workers}; a \
                             function can return a separate part for each \
                             (distribute_datasets_from_function)"
                        );
                    });
                }
                return Ok((self.shard(workers, worker), decision));
            }
        };
        Ok((Self::from_pipeline(pipeline::shard(self.pipeline(), &shard)), decision))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(workers: usize, policy: AutoShardPolicy) -> Vec<Vec<Vec<i64>>> {
        let options = DistributeOptions { policy, ..Default::default() };
        let part = |worker| {
            let (part, _) = Dataset::range(7).batch(2).batches_of_worker(workers, worker, &options).unwrap();
            part.iter().map(|batch| batch.unwrap().to_vec::<i64>().unwrap()).collect()
        };
        (0..workers).map(part).collect()
    }

    #[test]
    fn psv1_12_workers_that_do_not_wait_take_whole_batches_in_turn() {
        let all = vec![vec![0, 1], vec![2, 3], vec![4, 5], vec![6]];
        let turns = parts(3, AutoShardPolicy::Auto);
        assert_eq!(turns, [vec![vec![0, 1], vec![6]], vec![vec![2, 3]], vec![vec![4, 5]]]);
        assert_eq!(parts(1, AutoShardPolicy::Auto), std::slice::from_ref(&all));
        assert_eq!(parts(2, AutoShardPolicy::Off), [all.clone(), all]);
    }

    #[test]
    fn an_impossible_split_is_refused() {
        let data = Dataset::range(4).batch(2);
        let file = DistributeOptions { policy: AutoShardPolicy::File, ..Default::default() };
        assert!(matches!(data.batches_of_worker(2, 0, &file), Err(Error::Unshardable { .. })));
        let no_such = data.batches_of_worker(2, 2, &file);
        assert!(matches!(no_such, Err(Error::Worker { worker: 2, workers: 2 })));
    }

    #[test]
    fn psv1_12_workers_read_separate_files_if_there_are_enough() {
        let folder = tempfile::tempdir().unwrap();
        let paths: Vec<_> = (0..3).map(|file| folder.path().join(format!("{file}.txt"))).collect();
        for (file, path) in paths.iter().enumerate() {
            std::fs::write(path, format!("{file}a\n{file}b\n")).unwrap();
        }
        let lines = |workers, worker| {
            let data = crate::text_lines(paths.clone()).batch(2);
            let (part, decision) =
                data.batches_of_worker(workers, worker, &DistributeOptions::default()).unwrap();
            let lines =
                part.iter().map(|batch| batch.unwrap().to_vec::<Vec<u8>>().unwrap()).collect::<Vec<_>>();
            (decision.taken, lines.concat())
        };
        assert_eq!(lines(2, 0), (AutoShardPolicy::File, ["0a", "0b", "2a", "2b"].map(Vec::from).to_vec()));
        assert_eq!(lines(2, 1), (AutoShardPolicy::File, ["1a", "1b"].map(Vec::from).to_vec()));
        assert_eq!(lines(4, 3).0, AutoShardPolicy::Data);
    }
}
