//! [`DistributedIterator`]: one pass, step by step.

use super::bring::Bring;
use super::passes::Passes;
use super::plan::Plan;
use crate::context::require_outside_of_run;
use crate::strategy::{Strategy, record};
use crate::values::PerReplica;
use distribute_base::{Error, Result};
use distribute_cluster::{CallSite, Fingerprint, Operation};
use distribute_data::distribution::WorkerPass;
use distribute_data::plan::ends::StepCounts;
use distribute_data::{Distribution, Position};
use distribute_tensor::Nest;
use std::panic::Location;

/// A pass over a [`DistributedDataset`](super::DistributedDataset), which yields a batch for each local replica
/// in each step.
///
/// The pass is over after its end or an error.
///
/// Several workers take each step together, in a call that reports whether the others have data for it. If a
/// worker's data fails, the pass ends for all, and each gets [`Error::Worker`], which names that worker and the
/// reason. If a worker stops taking steps, the others wait until the strategy's timeout. Leave a pass early on
/// all workers or on none.
#[doc(alias = "tf.distribute.DistributedIterator")]
pub struct DistributedIterator<T> {
    pass: Pass<T>,
    strategy: Strategy,
    passes: Passes,
    /// The number of this pass.
    number: u64,
    position: Position,
    /// The position at which the next epoch begins.
    next: Position,
    bring: Bring,
    /// The source line that started the pass.
    begun: &'static Location<'static>,
}

enum Pass<T> {
    Running(Box<WorkerPass<T>>),
    Broken(Error),
    Ended,
}

impl<T: Nest> DistributedIterator<T> {
    /// Starts the next pass of the strategy's worker.
    pub(super) fn new(
        strategy: &Strategy,
        plan: &Plan<T>,
        passes: &Passes,
        bring: Result<Bring>,
        begun: &'static Location<'static>,
    ) -> DistributedIterator<T> {
        let present = plan.present(strategy);
        let plan = present.as_ref().map_or_else(|_| plan.latest(), Distribution::clone);
        let (number, position) = passes.begin(|epoch| plan.beginning(epoch));
        let next = plan.beginning(position.epoch.saturating_add(1));
        let worker = strategy.world().worker();
        let started = present.and_then(|plan| {
            let bring = bring?;
            Ok((bring.with(plan).resume(worker, &position)?, bring))
        });
        let (pass, bring) = match started {
            Ok((pass, bring)) => (Pass::Running(Box::new(pass)), bring),
            Err(error) => (Pass::Broken(error), Bring::Nowhere),
        };
        let (strategy, passes) = (strategy.clone(), passes.clone());
        Self { pass, strategy, passes, number, position, next, bring, begun }
    }

    /// Returns the per-replica batches of the next step.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`]: the pass is at its end.
    /// - [`Error::WrongContext`]: called inside `run`.
    /// - The errors of the dataset.
    #[doc(alias = "tf.distribute.DistributedIterator.get_next")]
    #[track_caller]
    pub fn get_next(&mut self) -> Result<PerReplica<T>> {
        const OPERATION: &str = "DistributedIterator::get_next";
        self.take(OPERATION)?.ok_or(Error::OutOfRange { operation: OPERATION })
    }

    /// Returns the per-replica batches of the next step; `None` at the end, and again in every later call.
    ///
    /// # Errors
    /// - [`Error::WrongContext`]: called inside `run`.
    /// - The errors of the dataset.
    #[doc(alias = "tf.distribute.DistributedIterator.get_next_as_optional")]
    #[track_caller]
    pub fn get_next_as_optional(&mut self) -> Result<Option<PerReplica<T>>> {
        self.take("DistributedIterator::get_next_as_optional")
    }

    /// Returns the position of the pass, after the last step that it yielded.
    pub fn position(&self) -> Position {
        self.position.clone()
    }

    #[track_caller]
    fn take(&mut self, operation: &'static str) -> Result<Option<PerReplica<T>>> {
        require_outside_of_run(operation, "take steps outside of run, and give their pieces to it")?;
        self.strategy.require_settled(operation)?;
        let _input = tracing::trace_span!("input").entered();
        self.passes.takes(self.number, &self.position, self.strategy.updates());
        // Ended unless another step follows, so that the pass's threads exit with its last step.
        let pass = match std::mem::replace(&mut self.pass, Pass::Ended) {
            Pass::Running(pass) => Ok(pass),
            Pass::Broken(error) => Err(error),
            Pass::Ended => return Ok(None),
        };
        let prepared = pass.and_then(|mut pass| {
            let mine = pass.prepare()?;
            Ok((pass, mine))
        });
        let (mut pass, all) = self.agree(operation, prepared)?;
        // The others have their batches, and continue.
        let finished = self.finish(operation, &mut pass, all);
        let Some(pieces) = self.strategy.or_tell_workers(finished)? else {
            self.passes.ended(self.number, self.next.clone());
            return Ok(None);
        };
        self.position = pass.position();
        self.passes.stands(self.number, &self.position);
        self.pass = Pass::Running(pass);
        Ok(Some(pieces))
    }

    // ITER-4
    /// Returns the data of all workers for the next step.
    #[track_caller]
    fn agree(
        &self,
        operation: &'static str,
        prepared: Result<(Box<WorkerPass<T>>, StepCounts)>,
    ) -> Result<(Box<WorkerPass<T>>, StepCounts)> {
        let at = CallSite::or_begun(Location::caller(), self.begun);
        let call = || {
            let Position { epoch, steps, origin, .. } = &self.position;
            let pipeline = origin.pipeline.map_or("a function".into(), |sum| format!("pipeline {sum:08x}"));
            Fingerprint::new(
                Operation::NextBatch,
                format!("epoch {epoch}, step {steps} of {pipeline}"),
                at.clone(),
            )
        };
        let ((pass, mine), all) =
            self.strategy.agree(operation, call, prepared, |(_, counts)| record::encode(counts))?;
        if all.is_empty() {
            return Ok((pass, mine));
        }
        let counts = record::decode_all::<StepCounts>(operation, &all);
        let all = pass.total(&counts.map_err(|error| self.strategy.located(error))?)?;
        Ok((pass, all))
    }

    /// Returns the prepared batches, if the workers take the step.
    fn finish(
        &self,
        operation: &'static str,
        pass: &mut WorkerPass<T>,
        all: StepCounts,
    ) -> Result<Option<PerReplica<T>>> {
        let Some(trees) = pass.finish_trees(all)? else { return Ok(None) };
        let check = |(replica, piece)| self.bring.check(operation, replica, piece);
        trees.iter().enumerate().try_for_each(check)?;
        // Scalar elements are not rows of a batch.
        let rows = trees.iter().map(|piece| piece.rows().ok()).collect::<Option<Vec<_>>>();
        let typed = |(index, piece)| {
            let wrong = |source| distribute_data::Error::Type { operation: "distribute", index, source };
            T::from_tree(piece).map_err(wrong)
        };
        let values = trees.into_iter().enumerate().map(typed).collect::<Result<_, _>>()?;
        Ok(Some(match rows {
            Some(rows) => PerReplica::pieces(values, rows),
            None => PerReplica::from_values(values),
        }))
    }
}

impl<T: Nest> Iterator for DistributedIterator<T> {
    type Item = Result<PerReplica<T>>;

    #[track_caller]
    fn next(&mut self) -> Option<Result<PerReplica<T>>> {
        self.take("DistributedIterator::next").transpose()
    }
}
