//! The construction of one worker's steps: its pipeline, and the splitting of its batches.

use super::batch_split::BatchSplit;
use super::deals::Deals;
use super::dealt_pieces::DealtPieces;
use super::prepare::PrepareStage;
use super::replica_range::ReplicaRange;
use super::steps::{Pieces, Steps, Templates};
use super::{Distribution, Source};
use crate::hand::{HandSlot, NewFiles};
use crate::operations::ahead::AheadStage;
use crate::pipeline::{self, Pipeline, WorkerShard};
use crate::plan::layout::Layout;
use crate::plan::policy::Decision;
use crate::plan::recut::worker_sizes;
use crate::stage::Stage;
use crate::{AutoShardPolicy, Batching, Dataset, Error, Files, Result, SplitRule, UnevenEnds};
use distribute_tensor::Nest;
use std::ops::Range;

impl<T: Nest> Distribution<T> {
    /// Returns the number of rows of a full batch; `None` if the pipeline does not determine it.
    pub(super) fn full(&self) -> Option<usize> {
        match &self.source {
            Source::Dataset(sharded) => match sharded.pipeline.batching() {
                Batching::Batches(size) => Some(size),
                Batching::Unknown | Batching::Elements => None,
            },
            Source::Function(_) => None,
        }
    }

    /// Starts pass `epoch` of one worker. `deals` are the files that have been dealt in this pass, if files are dealt.
    pub(super) fn steps(&self, worker: usize, epoch: u64, deals: &Deals) -> Result<Steps> {
        self.layout.check_worker(worker)?;
        let here = self.replicas_here();
        let replicas = here.len();
        let pieces = match &self.source {
            Source::Dataset(sharded) if sharded.decision.taken == AutoShardPolicy::Dealt => {
                pipeline::check(&sharded.pipeline)?;
                let split = self.batch_split(&sharded.decision, worker);
                let more = deals.count() < sharded.file_count();
                let first = NewFiles { files: deals.of(worker), more };
                let start = |hand| {
                    let shard = WorkerShard::Dealt(HandSlot::new(hand));
                    let stage = split.start(pipeline::shard(&sharded.pipeline, &shard).start(epoch));
                    self.prepared_stage(stage, 0..replicas, 0)
                };
                Pieces::Dealt(Box::new(DealtPieces::new(first, replicas, self.options.prefetch, start)))
            }
            Source::Dataset(sharded) => {
                let no_worker = || Error::Worker { worker, workers: self.layout.workers };
                let pipeline = sharded.parts.get(worker).ok_or_else(no_worker)?;
                pipeline::check(pipeline)?;
                let split = self.batch_split(&sharded.decision, worker);
                let is_own = matches!(split, BatchSplit::Own { .. });
                let stage = split.start(pipeline.start(epoch));
                let stage = if is_own { stage } else { self.only_here(stage) };
                Pieces::InTurn(self.ahead(stage, pipeline.costly(), 0..replicas, 0), replicas)
            }
            Source::Function(function) => {
                let start = |(replica, made): (usize, &Dataset<T>)| {
                    let pipeline = made.pipeline();
                    pipeline::check(pipeline)?;
                    let of = if function.per_replica { replica..replica + 1 } else { 0..replicas };
                    Ok(self.ahead(self.only_here(pipeline.start(epoch)), pipeline.costly(), of, 0))
                };
                let made = self.made_for(worker)?;
                let mut stages = made.iter().enumerate().map(start).collect::<Result<Vec<_>>>()?;
                match (function.per_replica, stages.pop()) {
                    (false, Some(stage)) => Pieces::InTurn(stage, replicas),
                    (_, last) => {
                        stages.extend(last);
                        Pieces::Each(stages)
                    }
                }
            }
        };
        let (ends, templates) = (self.ends(worker)?, self.templates(worker, epoch)?);
        Ok(Steps::new(pieces, ends, self.own_full(worker), templates, self.prepare.clone()))
    }

    /// Returns the treatment of the end of a worker's data. For datasets created by a function, it may differ from the
    /// option.
    ///
    /// # Errors
    /// - [`Error::Worker`]: `worker` is not less than the number of workers.
    /// - [`Error::DatasetFunction`]: the function that creates datasets failed.
    pub fn ends(&self, worker: usize) -> Result<UnevenEnds> {
        let made = self.made_for(worker)?;
        let known = |made: &Dataset<T>| {
            made.known_spec().is_some_and(|spec| spec.leaves().iter().all(|leaf| leaf.is_static()))
        };
        Ok(match &self.source {
            Source::Dataset(_) => self.options.ends,
            Source::Function(_) => self.options.ends.of_function(self.options.rule, made.iter().all(known)),
        })
    }

    /// Returns the pipelines from which an empty batch can be derived: the one before sharding or, for a function,
    /// those of the worker's datasets.
    pub(super) fn templates(&self, worker: usize, epoch: u64) -> Result<Templates> {
        let pipelines = match &self.source {
            Source::Dataset(sharded) => vec![sharded.pipeline.clone()],
            Source::Function(_) => {
                self.made_for(worker)?.iter().map(|made| made.pipeline().clone()).collect()
            }
        };
        Ok(Templates {
            pipelines,
            epoch,
            alone: self.layout.workers == 1 && self.part.is_none(),
            fit: distribute_tensor::nest::fitted::<T>,
        })
    }

    /// Returns the number of rows of a worker in a step with a full batch. If the worker's number varies from step to
    /// step, worker 0 gets the total of all workers, and the others 0. Returns `None` if the pipeline does not
    /// determine the size of batches.
    fn own_full(&self, worker: usize) -> Option<usize> {
        let full = self.full()?;
        match self.batch_split(self.decision()?, worker) {
            BatchSplit::Shares { .. } | BatchSplit::Stream { .. } => {
                Some(if worker == 0 && self.replicas_here().start == 0 { full } else { 0 })
            }
            batch_split => Some(batch_split.pieces(full).iter().map(|piece| piece.len()).sum()),
        }
    }

    /// Returns a stage that yields the batches of `stage`, prepared for the local `replicas` from step `step` on. The
    /// batches are prepared early if that was requested and is worth a thread. `costly` is whether reading alone is
    /// worth a thread.
    pub(super) fn ahead(
        &self,
        stage: Box<dyn Stage>,
        costly: bool,
        replicas: Range<usize>,
        step: u64,
    ) -> Box<dyn Stage> {
        let ahead = self.options.prefetch.saturating_mul(replicas.len());
        let costly = costly || self.prepare.as_ref().is_some_and(|prepare| prepare.costly);
        let stage = self.prepared_stage(stage, replicas, step);
        match ahead {
            ahead if ahead > 0 && costly => Box::new(AheadStage::new(stage, ahead, "prefetch")),
            _ => stage,
        }
    }

    /// Returns a stage that yields the batches of `stage`, prepared for the local `replicas` from step `step` on.
    fn prepared_stage(&self, stage: Box<dyn Stage>, replicas: Range<usize>, step: u64) -> Box<dyn Stage> {
        match &self.prepare {
            Some(prepare) => Box::new(PrepareStage::new(stage, prepare.clone(), replicas, step)),
            None => stage,
        }
    }

    /// Returns the way in which a worker's batches are split. TensorFlow's rule splits across the boundaries of
    /// batches if all batches have the same known size and each worker reads different ones.
    pub(super) fn batch_split(&self, decision: &Decision, worker: usize) -> BatchSplit {
        let Layout { workers, replicas } = self.layout;
        let of = self.layout.total();
        let same_batches = decision.taken == AutoShardPolicy::Data;
        match (self.options.rule, self.full()) {
            (SplitRule::Even, _) if same_batches || workers == 1 => self.own_pieces(worker, SplitRule::Even),
            (SplitRule::Even, full) => BatchSplit::Shares { full, layout: self.layout, worker },
            (SplitRule::TensorFlow, _) if of == 1 => BatchSplit::Not,
            (SplitRule::TensorFlow, _) if same_batches => self.own_pieces(worker, SplitRule::TensorFlow),
            (SplitRule::TensorFlow, Some(full)) => {
                BatchSplit::Stream { sizes: worker_sizes(full, workers, replicas, worker) }
            }
            (SplitRule::TensorFlow, None) if self.part.is_some() => {
                self.own_pieces(worker, SplitRule::TensorFlow)
            }
            (SplitRule::TensorFlow, None) => {
                BatchSplit::Own { rule: SplitRule::TensorFlow, of, pieces: (0..of).collect() }
            }
        }
    }

    /// Returns the part that a worker takes of a batch that every worker reads: the rows of its own replicas, or with
    /// TensorFlow's rule every `W`-th piece, for `W` workers.
    pub(super) fn own_pieces(&self, worker: usize, rule: SplitRule) -> BatchSplit {
        let Layout { workers, replicas } = self.layout;
        let piece = |r| match rule {
            SplitRule::Even => worker * replicas + r,
            SplitRule::TensorFlow => r * workers + worker,
        };
        BatchSplit::Own { rule, of: self.layout.total(), pieces: self.replicas_here().map(piece).collect() }
    }

    /// Returns a stage that yields the batches of this process's replicas, if `stage` yields those of all replicas.
    fn only_here(&self, stage: Box<dyn Stage>) -> Box<dyn Stage> {
        match &self.part {
            None => stage,
            Some(part) => Box::new(ReplicaRange::new(stage, self.layout.replicas, part.clone())),
        }
    }
}

/// A pipeline, and the sharded pipeline of each worker.
pub(super) struct ShardedPipeline {
    pub(super) pipeline: Pipeline,
    pub(super) decision: Decision,
    /// The pipeline of each worker. The pipelines are created once, so that the contents of caches survive until the
    /// next pass.
    pub(super) parts: Vec<Pipeline>,
}

impl ShardedPipeline {
    pub(super) fn new(pipeline: Pipeline, decision: Decision, workers: usize) -> Self {
        let part = |index| match decision.taken {
            AutoShardPolicy::File if workers > 1 => {
                pipeline::shard(&pipeline, &WorkerShard::Files { workers, index })
            }
            AutoShardPolicy::Hint => pipeline::shard(&pipeline, &WorkerShard::Hint { workers, index }),
            _ => pipeline.clone(),
        };
        Self { parts: (0..workers).map(part).collect(), pipeline, decision }
    }

    /// Returns the number of files of all sources.
    pub(super) fn file_count(&self) -> usize {
        let mut files = 0;
        pipeline::visit(&self.pipeline, &mut |operation| files += operation.files().map_or(0, Files::len));
        files
    }

    /// Checks that all parameters of the pipelines are in range. The parameters are the same for all workers.
    pub(super) fn check(&self) -> Result<()> {
        self.parts.first().map_or(Ok(()), pipeline::check)
    }
}
