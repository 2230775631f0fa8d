//! Going on where a pass stood, on the same layout or another.

use super::lockstep::Gathered;
use super::pass::WorkerPass;
use super::position::{Origin, Position};
use super::steps::{Pieces, Steps};
use super::{Distribution, Source};
use crate::plan::policy::Decision;
use crate::{Error, Result, pipeline};
use distribute_tensor::Nest;

impl<T: Nest> Distribution<T> {
    /// Starts the pass of one worker where another stood: every element that was not in a step before comes, once.
    ///
    /// On the layout that began the pass, each worker passes over what it had. On another, every worker reads the rest of
    /// the pass as the old ones would have, and takes its pieces of each of their steps; the next pass is its own again.
    ///
    /// # Errors
    /// [`Error::Position`] for a position of another batch size or of another kind of dataset, or where an operation
    /// cannot give the same once more. [`Error::Worker`].
    pub fn resume(&self, worker: usize, position: &Position) -> Result<WorkerPass<T>> {
        self.layout.check_worker(worker)?;
        self.check_position(worker, position)?;
        let mine = self.origin();
        let steps = if position.steps == 0 || position.origin == mine {
            let mut steps = self.steps(worker, position.epoch)?;
            steps.skip(position.steps)?;
            steps
        } else {
            let mut old = self.as_begun(&position.origin).together(position.epoch)?;
            old.skip(position.steps)?;
            let stage = self.own_pieces(worker, self.options.rule).start(Box::new(Gathered(old)));
            let pieces = Pieces::Dealt(stage, self.layout.replicas);
            let mut steps = Steps::new(pieces, self.options.ends, None, None);
            steps.count(position.steps);
            steps
        };
        let origin = if position.steps == 0 { mine } else { position.origin };
        Ok(WorkerPass::new(steps, Position { origin, ..position.clone() }))
    }

    fn check_position(&self, worker: usize, position: &Position) -> Result<()> {
        let refuse = |why: String| Err(Error::Position { position: position.to_string(), why });
        let (mine, theirs) = (self.origin(), &position.origin);
        if mine.policy.is_some() != theirs.policy.is_some() {
            return refuse("one dataset is made by a function, the other isn't".into());
        }
        if mine.batch != theirs.batch {
            let size = |batch: Option<usize>| batch.map_or("unknown".into(), |n| n.to_string());
            return refuse(format!("the batch size is {} here", size(mine.batch)));
        }
        theirs.layout.check()?;
        let unrepeatable = match &self.source {
            _ if position.steps == 0 => None,
            Source::Dataset { pipeline, .. } => pipeline::unrepeatable(pipeline),
            Source::Function(_) => {
                self.made_for(worker)?.iter().find_map(|made| pipeline::unrepeatable(made.pipeline()))
            }
        };
        match unrepeatable {
            None => Ok(()),
            Some(operation) => {
                refuse(format!("\"{operation}\" may give other elements or another order each time"))
            }
        }
    }

    /// How a pass of this distribution is parted.
    pub(super) fn origin(&self) -> Origin {
        Origin {
            layout: self.layout,
            policy: self.decision().map(|decision| decision.taken),
            rule: self.options.rule,
            batch: self.full(),
        }
    }

    /// This dataset, parted as it was where a pass began.
    fn as_begun(&self, origin: &Origin) -> Self {
        let mut plan = self.clone();
        plan.layout = origin.layout;
        plan.options.rule = origin.rule;
        if let (Source::Dataset { decision, .. }, Some(taken)) = (&mut plan.source, origin.policy) {
            *decision = Decision { taken, why: "as the pass was begun".into(), fell_back: false };
        }
        plan
    }
}
