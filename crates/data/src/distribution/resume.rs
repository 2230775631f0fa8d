//! The resumption of a pass at a position, with the same layout or a different one.

use super::decide::decide;
use super::lockstep::Gathered;
use super::parts::ShardedPipeline;
use super::pass::{DealLog, Dealing, WorkerPass};
use super::position::{Origin, Position};
use super::steps::{Pieces, Steps};
use super::{Deals, Distribution, FileDifference, FileList, Source};
use crate::pipeline::{self, Pipeline};
use crate::plan::ends::UnevenEnds;
use crate::plan::policy::Decision;
use crate::{AutoShardPolicy, Error, Result};
use distribute_tensor::Nest;
use std::sync::Arc;

impl<T: Nest> Distribution<T> {
    /// Resumes the pass of one worker at a position. Every element that was not part of a step before the
    /// position occurs exactly once.
    ///
    /// With the layout with which the pass began, each worker skips the steps that were taken. With a different
    /// layout, every worker reads the rest of the pass as the old workers would have, and takes its own rows of
    /// each of their steps. The next pass uses the new layout.
    ///
    /// # Errors
    /// - [`Error::Position`]: the dataset does not fit the position; see [`check_position`](Self::check_position).
    /// - [`Error::Worker`]: `worker` is not less than the number of workers.
    /// - [`Error::DatasetFunction`]: the function that creates datasets failed.
    /// - Any other error of [`worker`](Self::worker), or of the pipeline while it skips elements.
    pub fn resume(&self, worker: usize, position: &Position) -> Result<WorkerPass<T>> {
        self.layout.check_worker(worker)?;
        // Within a pass these are the files that the pass was begun with, if that is known.
        let files = self.files();
        self.check(position, || files.clone())?;
        self.made_for(worker)?.iter().try_for_each(|made| repeatable(position, made.pipeline()))?;
        let mine = self.origin();
        // From here on, broken records may be skipped although the pass began without that.
        let theirs = Origin { pipeline: mine.pipeline, ..position.origin };
        let with_origin = position.steps == 0 || theirs == mine;
        let deals = position.deals.clone().filter(|_| position.steps > 0).unwrap_or_default();
        let (steps, dealing) = if with_origin {
            let mut steps = self.steps(worker, position.epoch, &deals)?;
            steps.skip(position.steps)?;
            (steps, self.dealing(worker, deals))
        } else {
            let old = self.with_origin(&theirs);
            let log = DealLog::default();
            let dealing = match old.dealer(Deals::default()) {
                Some(_) => Dealing::Repeated { log: log.clone(), latest: deals.clone() },
                None => Dealing::None,
            };
            let mut old = old.all_steps(position.epoch, deals)?;
            old.skip(position.steps)?;
            let replicas = self.replicas_here().len();
            let stage =
                self.own_pieces(worker, self.options.rule).start(Box::new(Gathered { all_steps: old, log }));
            // Costly work is done ahead by the old workers' own threads.
            let pieces = Pieces::InTurn(self.ahead(stage, false, 0..replicas, position.steps), replicas);
            // The old workers' steps already decide together where the end is.
            let ends = UnevenEnds::PadEmpty;
            let templates = self.templates(worker, position.epoch)?;
            let mut steps = Steps::new(pieces, ends, None, templates, self.prepare.clone());
            steps.count(position.steps);
            (steps, dealing)
        };
        let origin = if position.steps == 0 { mine } else { theirs };
        // On another layout, every worker reads the same batches.
        let same_batches = !with_origin || self.same_batches();
        let begun = Position { origin, files, deals: None, ..position.clone() };
        Ok(WorkerPass::new(steps, begun, same_batches, dealing))
    }

    /// Checks that a pass can resume at the given position.
    ///
    /// # Errors
    /// - [`Error::Position`]: the batch size, the operations, their parameters or the files differ from those of the
    ///   position, the position has an invalid layout, policy or deals, or an operation is not repeatable.
    pub fn check_position(&self, position: &Position) -> Result<()> {
        self.check(position, || self.files())
    }

    /// Checks a position as [`check_position`](Self::check_position) does. `files` returns the current files
    /// and is called only if they matter.
    fn check(&self, position: &Position, files: impl FnOnce() -> Option<FileList>) -> Result<()> {
        let refuse = |why: String| Err(Error::Position { position: position.to_string(), why });
        let (mine, theirs) = (self.origin(), &position.origin);
        if mine.policy.is_some() != theirs.policy.is_some() {
            return refuse("one dataset is made by a function, the other isn't".into());
        }
        if mine.batch != theirs.batch {
            let size = |batch: Option<usize>| batch.map_or("unknown".into(), |n| n.to_string());
            return refuse(format!("the batch size is {} here", size(mine.batch)));
        }
        theirs.layout.check().or_else(|error| refuse(error.to_string()))?;
        check_files(position, files)?;
        match &self.source {
            Source::Dataset(sharded) => {
                repeatable(position, &sharded.pipeline)?;
                // A pass that was not allowed to skip broken records has found none.
                let unskipped = Some(pipeline::checksum(&sharded.pipeline, false));
                if ![mine.pipeline, unskipped].contains(&theirs.pipeline) {
                    let why = "the dataset has other operations here, or other parameters of them: \
                               seeds, sizes, defaults, the number of files";
                    return refuse(why.into());
                }
                let Origin { layout, policy, rule, .. } = *theirs;
                let policy = policy.unwrap_or_default();
                match decide(&sharded.pipeline, policy, rule, layout.workers) {
                    Ok(Decision { taken, .. }) if taken == policy => {
                        self.check_deals(position, sharded.file_count()).or_else(refuse)
                    }
                    Ok(_) => refuse(format!("no dataset is sharded by policy {policy}")),
                    Err(error) => refuse(error.to_string()),
                }
            }
            // The datasets of a function are checked when they are made.
            Source::Function(_) => Ok(()),
        }
    }

    /// Checks that a position within a pass has deals of at most `files` files, if files are dealt, and that the
    /// steps before it can be skipped. Returns the reason if it does not fit.
    fn check_deals(&self, position: &Position, files: usize) -> Result<(), String> {
        if position.origin.policy != Some(AutoShardPolicy::Dealt) || position.steps == 0 {
            return Ok(());
        }
        if self.options.ends == UnevenEnds::Drop && self.full().is_none() {
            // The first step would determine which ones are full, but the workers skip it.
            return Err(
                "files were dealt in the pass, so UnevenEnds::Drop needs batches whose size the pipeline \
                        determines; call `.batch(n)` last, or use UnevenEnds::PadEmpty"
                    .into(),
            );
        }
        let Some(deals) = &position.deals else {
            return Err("it does not say who has been dealt which file".into());
        };
        if deals.count() > files {
            let dealt = deals.count();
            return Err(format!("{dealt} files had been dealt, but there are {files} here"));
        }
        let workers = position.origin.layout.workers;
        match deals.workers().find(|worker| *worker as usize >= workers) {
            Some(worker) => {
                Err(format!("a file had been dealt to worker {worker}, but the pass had {workers} workers"))
            }
            None => Ok(()),
        }
    }

    /// Returns the parameters by which a pass of this distribution is divided into steps.
    pub(super) fn origin(&self) -> Origin {
        Origin {
            layout: self.layout,
            policy: self.decision().map(|decision| decision.taken),
            rule: self.options.rule,
            batch: self.full(),
            pipeline: match &self.source {
                Source::Dataset(sharded) => Some(pipeline::checksum(&sharded.pipeline, true)),
                Source::Function(_) => None,
            },
        }
    }

    /// Returns this distribution with the division into steps of an earlier pass. It does not prepare batches,
    /// because they are split again.
    fn with_origin(&self, origin: &Origin) -> Self {
        let mut plan = self.clone();
        plan.prepare = None;
        plan.part = None;
        plan.layout = origin.layout;
        plan.options.rule = origin.rule;
        if let (Source::Dataset(sharded), Some(taken)) = (&self.source, origin.policy) {
            let decision = Decision { taken, why: "as the pass was begun".into(), fell_back: false };
            let sharded = ShardedPipeline::new(sharded.pipeline.clone(), decision, origin.layout.workers);
            plan.source = Source::Dataset(Arc::new(sharded));
        }
        plan
    }
}

/// Checks that the files are the same as in the position, if the position is within a pass: with other files, elements
/// could be repeated or lost. Between passes, files may change, except for their number, which is part of the
/// pipeline's checksum.
fn check_files(position: &Position, files: impl FnOnce() -> Option<FileList>) -> Result<()> {
    let Some(theirs) = position.files.as_ref().filter(|_| position.steps > 0) else { return Ok(()) };
    match files().and_then(|mine| mine.difference(theirs)) {
        None => Ok(()),
        Some(FileDifference { what, here, there }) => Err(Error::Position {
            position: position.to_string(),
            why: format!(
                "{what} is {here} here, but was {there} when the pass began; a pass only continues over \
                 the same files in the same order: restore them, or begin the next epoch"
            ),
        }),
    }
}

/// Checks that a pass over a pipeline can be repeated, unless `position` is at the beginning of the pass. A resumed
/// pass repeats the steps before the position.
fn repeatable(position: &Position, pipeline: &Pipeline) -> Result<()> {
    match pipeline::unrepeatable(pipeline).filter(|_| position.steps > 0) {
        None => Ok(()),
        Some(operation) => Err(Error::Position {
            position: position.to_string(),
            why: format!("\"{operation}\" may return other elements or another order each time"),
        }),
    }
}
