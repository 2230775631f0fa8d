//! [`DistributedIterator`]: one pass, step by step.

// - **INV-103** A step is in a recorded position when it has been yielded, whenever it was taken. Tests:
//   `computing/input/look_ahead.rs`, `clusters/multi_worker/input/look_ahead.rs`.

use super::device_placement::DevicePlacement;
use super::look_ahead::LookAhead;
use super::passes::Passes;
use super::plan::CurrentPlan;
use crate::context::require_outside_of_run;
use crate::strategy::{Strategy, wire};
use distribute_base::{Error, Result};
use distribute_cluster::{CallSite, Fingerprint, Operation, Stopwatch};
use distribute_data::distribution::WorkerPass;
use distribute_data::plan::ends::StepCounts;
use distribute_data::{Distribution, Position};
use distribute_tensor::Nest;
use distribute_values::PerReplica;
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
    /// The sequence number of this pass, by which the dataset ignores records of earlier passes.
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

/// The pass of this worker after an agreement on its next step, and counts of the step.
type Agreed<T, Counts> = Result<(Box<WorkerPass<T>>, Counts)>;

/// The result of taking a step.
pub(super) enum Taken<T> {
    Step(PerReplica<T>),
    /// Only this worker could not take the step. The other workers have taken it, and are now at this position.
    Failed(Error, Position),
    /// The pass ends now, because there is no further step.
    End,
    /// The pass had already ended.
    Nothing,
}

impl<T> Taken<T> {
    /// Returns the batches of the step, if there is one.
    ///
    /// # Errors
    /// Returns the error of this worker, if only this one could not take the step.
    pub(super) fn batches(self) -> Result<Option<PerReplica<T>>> {
        match self {
            Taken::Step(batches) => Ok(Some(batches)),
            Taken::Failed(error, _) => Err(error),
            Taken::End | Taken::Nothing => Ok(None),
        }
    }
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

    /// Returns an iterator that takes each step before it yields the previous one, and calls `look` for each local
    /// replica's batch as soon as it is taken. A program can thus prepare the next step while it computes the current
    /// one. For example, it can request the rows of the next batch with [`nn::prefetch_rows`].
    ///
    /// The steps, the positions that the dataset records, and a resumed pass are the same as without this call: a step
    /// that was taken and not yielded is taken again. With several workers, call this on all of them or on none.
    ///
    /// # Errors
    /// The iterator returns the errors of this one, after the steps that were taken before. An error of `look` is
    /// returned in place of the step with the batch, and ends the pass. If a step or `look` fails on one of several
    /// workers, all workers get [`Error::Worker`] in place of that step.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// # use distribute::data::Dataset;
    /// let strategy = MirroredStrategy::cpus(1)?;
    /// let batches = strategy.distribute_dataset(Dataset::range(6).batch(2))?;
    /// let seen = std::cell::RefCell::new(Vec::new());
    /// let first = |batch: &HostTensor| distribute::Ok(batch.to_vec::<i64>()?[0]);
    /// let steps = batches.iter().look_ahead(|batch| first(batch).map(|id| seen.borrow_mut().push(id)));
    /// for batch in steps {
    ///     seen.borrow_mut().push(-first(&batch?.values()[0])?);
    ///     assert_eq!(batches.position().steps, seen.borrow().iter().filter(|id| **id <= 0).count() as u64 - 1);
    /// }
    /// assert_eq!(*seen.borrow(), [0, 2, 0, 4, -2, -4]);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    ///
    /// [`nn::prefetch_rows`]: https://docs.rs/distribute/latest/distribute/nn/fn.prefetch_rows.html
    pub fn look_ahead<E>(
        self,
        look: impl FnMut(&T) -> Result<(), E>,
    ) -> LookAhead<T, impl FnMut(&T) -> Result<()>>
    where
        Error: From<E>,
    {
        let mut look = look;
        LookAhead::new(self, move |batch: &T| Ok(look(batch)?))
    }

    #[track_caller]
    fn take(&mut self, operation: &'static str) -> Result<Option<PerReplica<T>>> {
        self.begin_take(operation, &self.position)?;
        let taken = self.advance(operation, Ok(()))??;
        self.record(&taken, &self.position);
        // The others have their batches, and continue.
        self.strategy.abort_peers_on_err(taken.batches())
    }

    /// Checks that a step may be yielded now, and records that it is taken from `position`.
    pub(super) fn begin_take(&self, operation: &'static str, position: &Position) -> Result<()> {
        require_outside_of_run(operation, "take steps outside run, and pass the batches to it")?;
        self.strategy.require_caught_up(operation)?;
        self.passes.record_take(self.number, position, self.strategy.updates());
        Ok(())
    }

    // INV-103
    /// Takes the next step, without recording that it is yielded. `held` is the result of this worker for the step
    /// before, if that has not been yielded. Returns the result of the step.
    ///
    /// # Errors
    /// Returns the error of the step before, if a worker holds one. All workers get it, and the pass ends.
    #[track_caller]
    pub(super) fn advance(&mut self, operation: &'static str, held: Result<()>) -> Result<Result<Taken<T>>> {
        let _input = tracing::trace_span!("input").entered();
        // Ended unless another step follows, so that the pass's threads exit with its last step.
        let pass = match (std::mem::replace(&mut self.pass, Pass::Ended), &held) {
            (_, Err(_)) => Err(Error::other("the step before has failed")),
            (Pass::Running(pass), Ok(())) => Ok(pass),
            (Pass::Failed(error), Ok(())) => Err(error),
            (Pass::Ended, Ok(())) => return Ok(Ok(Taken::Nothing)),
        };
        let (mut pass, all) = match self.agree(operation, held, pass)? {
            Ok(agreed) => agreed,
            Err(error) => return Ok(Err(error)),
        };
        Ok(Ok(match self.finish(operation, &mut pass, all) {
            Ok(Some(batches)) => {
                self.position = pass.position();
                self.pass = Pass::Running(pass);
                Taken::Step(batches)
            }
            Ok(None) => Taken::End,
            Err(error) => Taken::Failed(error, pass.position()),
        }))
    }

    /// Sets the position from which the next step is taken, because the other workers have taken a step that this one
    /// could not take.
    pub(super) fn follow(&mut self, position: Position) {
        self.position = position;
    }

    /// Records that a step is yielded and the pass is then at `position`, or that the pass has ended.
    pub(super) fn record(&self, taken: &Taken<T>, position: &Position) {
        match taken {
            Taken::Step(_) => self.passes.record_position(self.number, position),
            Taken::End => self.passes.record_end(self.number, self.next_epoch.clone()),
            Taken::Failed(..) | Taken::Nothing => {}
        }
    }

    // ITER-4
    /// Prepares the next step on all workers. Returns this worker's pass, and the sum of the counts of all workers. If
    /// a worker first has to be dealt a file, the workers exchange their counts again. The first exchange reports
    /// `held`, the result of this worker for the step before.
    ///
    /// # Errors
    /// Returns the error of the step before, if a worker holds one.
    #[track_caller]
    fn agree(
        &self,
        operation: &'static str,
        mut held: Result<()>,
        mut pass: Result<Box<WorkerPass<T>>>,
    ) -> Result<Agreed<T, StepCounts>> {
        loop {
            let timed = self.strategy.has_group().then(Stopwatch::start);
            let prepared = pass.and_then(|mut pass| {
                let mine = pass.prepare()?;
                Ok((pass, mine))
            });
            timed.iter().for_each(|timed| self.strategy.record_input_time(timed.elapsed()));
            let held = std::mem::replace(&mut held, Ok(()));
            let agreed =
                self.exchange_counts(operation, held, prepared)?.and_then(|(mut prepared, counts)| {
                    if prepared.deal(&counts)? {
                        return Ok((prepared, None));
                    }
                    let all = match counts[..] {
                        [alone] => alone,
                        _ => prepared.total(&counts)?,
                    };
                    Ok((prepared, Some(all)))
                });
            pass = match agreed {
                Ok((prepared, Some(all))) => return Ok(Ok((prepared, all))),
                Ok((prepared, None)) => Ok(prepared),
                Err(error) => return Ok(Err(error)),
            };
        }
    }

    /// Exchanges the workers' row counts for the next step. Returns this worker's pass, and the counts of each
    /// worker.
    ///
    /// # Errors
    /// Returns the error of the step before, if a worker `held` one.
    #[track_caller]
    fn exchange_counts(
        &self,
        operation: &'static str,
        held: Result<()>,
        prepared: Result<(Box<WorkerPass<T>>, StepCounts)>,
    ) -> Result<Agreed<T, Vec<StepCounts>>> {
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
        let record = |(_, counts): &(_, StepCounts)| wire::encode(counts);
        let exchanged = self.strategy.exchange_results_after(operation, call, held, prepared, record)?;
        Ok(exchanged.and_then(|((pass, mine), all)| {
            if all.is_empty() {
                return Ok((pass, vec![mine]));
            }
            let counts = wire::decode_all::<StepCounts>(operation, &all);
            Ok((pass, counts.map_err(|error| self.strategy.with_process(error))?))
        }))
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
