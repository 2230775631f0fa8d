//! Resumes a pass at a position, on the same layout or another.

use super::decide::decide;
use super::lockstep::Gathered;
use super::parts::Parted;
use super::pass::WorkerPass;
use super::position::{Origin, Position};
use super::steps::{Pieces, Steps};
use super::{Distribution, FileDifference, FileList, Source};
use crate::pipeline::{self, Pipeline};
use crate::plan::ends::UnevenEnds;
use crate::plan::policy::Decision;
use crate::{Error, Result};
use distribute_tensor::Nest;
use std::sync::Arc;

impl<T: Nest> Distribution<T> {
    /// Starts the pass of one worker at a position. Every element that was in no step before the position
    /// comes exactly once.
    ///
    /// On the layout that began the pass, each worker skips the steps that were taken. On another layout,
    /// every worker reads the rest of the pass as the old workers would have, and takes its rows of each of
    /// their steps. The next pass uses the new layout.
    ///
    /// # Errors
    /// - [`Error::Position`]: the position has another batch size, other operations or parameters, or other
    ///   files, or an operation is not repeatable.
    /// - [`Error::Worker`]: there is no such worker.
    /// - [`Error::DatasetFunction`]: the function that makes datasets failed.
    pub fn resume(&self, worker: usize, position: &Position) -> Result<WorkerPass<T>> {
        self.layout.check_worker(worker)?;
        // Within a pass these are the files that the pass was begun with, if that is known.
        let files = self.files();
        self.check(position, || files.clone())?;
        self.made_for(worker)?.iter().try_for_each(|made| repeatable(position, made.pipeline()))?;
        let mine = self.origin();
        let as_begun = position.steps == 0 || position.origin == mine;
        let steps = if as_begun {
            let mut steps = self.steps(worker, position.epoch)?;
            steps.skip(position.steps)?;
            steps
        } else {
            let mut old = self.as_begun(&position.origin).together(position.epoch)?;
            old.skip(position.steps)?;
            let replicas = self.layout.replicas;
            let stage = self.own_pieces(worker, self.options.rule).start(Box::new(Gathered(old)));
            // Costly work is done ahead by the old workers' own threads.
            let pieces = Pieces::Dealt(self.ahead(stage, false, 0..replicas, position.steps), replicas);
            // The old workers' steps already decide together where the end is.
            let ends = UnevenEnds::PadEmpty;
            let templates = self.templates(worker, position.epoch)?;
            let mut steps = Steps::new(pieces, ends, None, templates, self.prepare.clone());
            steps.count(position.steps);
            steps
        };
        let origin = if position.steps == 0 { mine } else { position.origin };
        // On another layout, every worker reads the same batches.
        let same_batches = !as_begun || self.same_batches();
        Ok(WorkerPass::new(steps, Position { origin, files, ..position.clone() }, same_batches))
    }

    /// Checks that a pass can resume at a position.
    ///
    /// # Errors
    /// - [`Error::Position`]: the position has another batch size, other operations or parameters, other
    ///   files, or an invalid number of workers, or an operation is not repeatable.
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
            Source::Dataset(parted) => {
                repeatable(position, &parted.pipeline)?;
                if mine.pipeline != theirs.pipeline {
                    let why = "the dataset has other operations here, or other parameters of them: \
                               seeds, sizes, the number of files";
                    return refuse(why.into());
                }
                let Origin { layout, policy, rule, .. } = *theirs;
                let policy = policy.unwrap_or_default();
                match decide(&parted.pipeline, policy, rule, layout.workers) {
                    Ok(Decision { taken, .. }) if taken == policy => Ok(()),
                    Ok(_) => refuse(format!("nothing was ever parted by policy {policy}")),
                    Err(error) => refuse(error.to_string()),
                }
            }
            // The datasets of a function are checked when they are made.
            Source::Function(_) => Ok(()),
        }
    }

    /// Returns how a pass of this distribution is divided into steps.
    pub(super) fn origin(&self) -> Origin {
        Origin {
            layout: self.layout,
            policy: self.decision().map(|decision| decision.taken),
            rule: self.options.rule,
            batch: self.full(),
            pipeline: match &self.source {
                Source::Dataset(parted) => Some(pipeline::identity(&parted.pipeline)),
                Source::Function(_) => None,
            },
        }
    }

    /// Returns this dataset with the division of an earlier pass, and not prepared, because its batches are
    /// split again.
    fn as_begun(&self, origin: &Origin) -> Self {
        let mut plan = self.clone();
        plan.prepare = None;
        plan.layout = origin.layout;
        plan.options.rule = origin.rule;
        if let (Source::Dataset(parted), Some(taken)) = (&self.source, origin.policy) {
            let decision = Decision { taken, why: "as the pass was begun".into(), fell_back: false };
            let parted = Parted::new(parted.pipeline.clone(), decision, origin.layout.workers);
            plan.source = Source::Dataset(Arc::new(parted));
        }
        plan
    }
}

/// Checks that the files are those of a position within a pass. Otherwise elements could be repeated or lost.
/// Between passes files may change, except for their number, which is a part of the pipeline's checksum.
fn check_files(position: &Position, files: impl FnOnce() -> Option<FileList>) -> Result<()> {
    let Some(theirs) = position.files.as_ref().filter(|_| position.steps > 0) else { return Ok(()) };
    match files().and_then(|mine| mine.difference(theirs)) {
        None => Ok(()),
        Some(FileDifference { what, here, there }) => Err(Error::Position {
            position: position.to_string(),
            why: format!(
                "{what} is {here} here, and was {there} when the pass was begun; a pass goes on only over the same files \
                 in the same order: restore them, or begin the next epoch"
            ),
        }),
    }
}

/// Checks that a pass over a pipeline can be repeated, to resume in the middle.
fn repeatable(position: &Position, pipeline: &Pipeline) -> Result<()> {
    match pipeline::unrepeatable(pipeline).filter(|_| position.steps > 0) {
        None => Ok(()),
        Some(operation) => Err(Error::Position {
            position: position.to_string(),
            why: format!("\"{operation}\" may give other elements or another order each time"),
        }),
    }
}
