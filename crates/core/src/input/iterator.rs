//! [`DistributedIterator`]: one pass, step by step.

use super::device_placement::DevicePlacement;
use super::passes::Passes;
use super::plan::CurrentPlan;
use crate::context::require_outside_of_run;
use crate::strategy::{Strategy, wire};
use crate::values::PerReplica;
use distribute_base::{Error, Result};
use distribute_cluster::{CallSite, Fingerprint, Operation, Stopwatch};
use distribute_data::distribution::WorkerPass;
use distribute_data::plan::ends::StepCounts;
use distribute_data::{Distribution, Position};
use distribute_tensor::Nest;
use std::panic::Location;

/// A pass over a [`DistributedDataset`](super::DistributedDataset). Each step yields one batch per local
/// replica.
///
/// [`next`](Iterator::next) returns `None` after the end of the pass and after an error. Two errors do not end the
/// pass: [`Error::WrongContext`] inside `run`, and [`Error::InvalidArgument`] on a worker that has not caught up with
/// the others, or has left them.
///
/// Several workers take each step together, in a call in which each worker reports whether it has data for the step. If
/// the pipeline of a worker fails, the pass ends on all workers, and each gets [`Error::Worker`], which names that
/// worker and the reason. If a worker stops taking steps, the others wait until the strategy's timeout. Stop a pass
/// early on all workers or on none.
#[doc(alias = "tf.distribute.DistributedIterator")]
#[doc(alias = "tf.distribute.DistributedIterator.get_next")]
#[doc(alias = "get_next")]
#[doc(alias = "tf.distribute.DistributedIterator.get_next_as_optional")]
#[doc(alias = "get_next_as_optional")]
pub struct DistributedIterator<T> {
    pass: Pass<T>,
    strategy: Strategy,
    passes: Passes,
    /// The sequence number of this pass. Records that earlier passes make are ignored.
    number: u64,
    position: Position,
    /// The position at which the next epoch begins.
    next_epoch: Position,
    placement: DevicePlacement,
    /// The source line that started the pass.
    started_at: &'static Location<'static>,
}

impl<T> std::fmt::Debug for DistributedIterator<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DistributedIterator").field("number", &self.number).finish_non_exhaustive()
    }
}

enum Pass<T> {
    Running(Box<WorkerPass<T>>),
    Failed(Error),
    Ended,
}

impl<T: Nest> DistributedIterator<T> {
    /// Starts the next pass on this worker. If that fails, the first step of the pass returns the error.
    pub(super) fn new(
        strategy: &Strategy,
        plan: &CurrentPlan<T>,
        passes: &Passes,
        placement: Result<DevicePlacement>,
        started_at: &'static Location<'static>,
    ) -> DistributedIterator<T> {
        let current = plan.current(strategy);
        let plan = current.as_ref().map_or_else(|_| plan.latest(), Distribution::clone);
        let (number, position) = passes.begin(|epoch| plan.beginning(epoch));
        let next_epoch = plan.beginning(position.epoch.saturating_add(1));
        let worker = super::pipeline(strategy.world());
        let started = current.and_then(|plan| {
            let placement = placement?;
            Ok((placement.apply(plan).resume(worker, &position)?, placement))
        });
        let (pass, placement) = match started {
            Ok((pass, placement)) => (Pass::Running(Box::new(pass)), placement),
            Err(error) => (Pass::Failed(error), DevicePlacement::Any),
        };
        let (strategy, passes) = (strategy.clone(), passes.clone());
        Self { pass, strategy, passes, number, position, next_epoch, placement, started_at }
    }

    /// Returns the position of the pass after the last step that it yielded.
    pub fn position(&self) -> Position {
        self.position.clone()
    }

    #[track_caller]
    fn take(&mut self, operation: &'static str) -> Result<Option<PerReplica<T>>> {
        require_outside_of_run(operation, "take steps outside run, and pass the batches to it")?;
        self.strategy.require_caught_up(operation)?;
        let _input = tracing::trace_span!("input").entered();
        self.passes.record_take(self.number, &self.position, self.strategy.updates());
        // Ended unless another step follows, so that the pass's threads exit with its last step.
        let pass = match std::mem::replace(&mut self.pass, Pass::Ended) {
            Pass::Running(pass) => Ok(pass),
            Pass::Failed(error) => Err(error),
            Pass::Ended => return Ok(None),
        };
        let (mut pass, all) = self.agree(operation, pass)?;
        // The others have their batches, and continue.
        let finished = self.finish(operation, &mut pass, all);
        let Some(batches) = self.strategy.abort_peers_on_err(finished)? else {
            self.passes.record_end(self.number, self.next_epoch.clone());
            return Ok(None);
        };
        self.position = pass.position();
        self.passes.record_position(self.number, &self.position);
        self.pass = Pass::Running(pass);
        Ok(Some(batches))
    }

    // ITER-4
    /// Prepares the next step on all workers. Returns this worker's pass, and the sum of the counts of all workers. If
    /// files are dealt and a worker has none for the step, there are several rounds.
    #[track_caller]
    fn agree(
        &self,
        operation: &'static str,
        mut pass: Result<Box<WorkerPass<T>>>,
    ) -> Result<(Box<WorkerPass<T>>, StepCounts)> {
        loop {
            let timed = self.strategy.has_group().then(Stopwatch::start);
            let prepared = pass.and_then(|mut pass| {
                let mine = pass.prepare()?;
                Ok((pass, mine))
            });
            timed.iter().for_each(|timed| self.strategy.record_input_time(timed.elapsed()));
            let (mut prepared, counts) = self.exchange_counts(operation, prepared)?;
            if !prepared.deal(&counts)? {
                let all = match counts[..] {
                    [alone] => alone,
                    _ => prepared.total(&counts)?,
                };
                return Ok((prepared, all));
            }
            pass = Ok(prepared);
        }
    }

    /// Exchanges the workers' row counts for the next step. Returns this worker's pass, and the counts of each
    /// worker.
    #[track_caller]
    fn exchange_counts(
        &self,
        operation: &'static str,
        prepared: Result<(Box<WorkerPass<T>>, StepCounts)>,
    ) -> Result<(Box<WorkerPass<T>>, Vec<StepCounts>)> {
        let at = CallSite::or_begun(Location::caller(), self.started_at);
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
            self.strategy.exchange_results(operation, call, prepared, |(_, counts)| wire::encode(counts))?;
        if all.is_empty() {
            return Ok((pass, vec![mine]));
        }
        let counts = wire::decode_all::<StepCounts>(operation, &all);
        Ok((pass, counts.map_err(|error| self.strategy.with_process(error))?))
    }

    /// Returns the prepared batches, or `None` if the pass ends instead of taking the step.
    fn finish(
        &self,
        operation: &'static str,
        pass: &mut WorkerPass<T>,
        all: StepCounts,
    ) -> Result<Option<PerReplica<T>>> {
        let Some(trees) = pass.finish_trees(all)? else { return Ok(None) };
        let check = |(replica, batch)| self.placement.check(operation, replica, batch);
        trees.iter().enumerate().try_for_each(check)?;
        // Scalar elements are not rows of a batch.
        let rows = trees.iter().map(|batch| batch.rows().ok()).collect::<Option<Vec<_>>>();
        let typed = |(index, batch)| {
            let wrong = |source| distribute_data::Error::Type { operation: "distribute", index, source };
            T::from_tree(batch).map_err(wrong)
        };
        let values = trees.into_iter().enumerate().map(typed).collect::<Result<_, _>>()?;
        Ok(Some(match rows {
            Some(rows) => PerReplica::with_rows(values, rows),
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
