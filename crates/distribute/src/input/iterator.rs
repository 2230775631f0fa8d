//! [`DistributedIterator`]: one pass, step by step.

use super::InputOptions;
use super::bring::Bring;
use super::passes::Passes;
use crate::context::require_outside_of_run;
use crate::values::PerReplica;
use crate::{Error, Result, Strategy};
use distribute_cluster::{Fingerprint, Operation};
use distribute_data::distribution::WorkerPass;
use distribute_data::plan::ends::Ballot;
use distribute_data::{Distribution, Position};
use distribute_tensor::Nest;
use std::panic::Location;

/// A pass over a [`DistributedDataset`](super::DistributedDataset): for each step a piece for each local replica.
///
/// After the end or an error it is over. Where several workers read, taking a step is a call of all of them.
#[doc(alias = "tf.distribute.DistributedIterator")]
pub struct DistributedIterator<T> {
    pass: Pass<T>,
    strategy: Strategy,
    passes: Passes,
    /// Which of the passes this is.
    number: u64,
    position: Position,
    /// Where the next epoch begins.
    next: Position,
    /// Whether workers have to ask each other before each step.
    votes: bool,
    bring: Bring,
}

enum Pass<T> {
    Running(Box<WorkerPass<T>>),
    Broken(Error),
    Ended,
}

impl<T: Nest> DistributedIterator<T> {
    /// The next pass of the strategy's worker.
    pub(super) fn new(
        strategy: &Strategy,
        plan: &Distribution<T>,
        passes: &Passes,
        options: &InputOptions,
    ) -> DistributedIterator<T> {
        let (number, position) = passes.begin(|epoch| plan.beginning(epoch));
        let next = plan.beginning(position.epoch.saturating_add(1));
        let worker = strategy.world().worker();
        let started = plan.resume(worker, &position).map_err(Error::from);
        let started = started.and_then(|pass| Ok((pass, Bring::new(strategy, options)?)));
        let (pass, bring) = match started {
            Ok((pass, bring)) => (Pass::Running(Box::new(pass)), bring),
            Err(error) => (Pass::Broken(error), Bring::Nowhere),
        };
        let (strategy, passes, votes) = (strategy.clone(), passes.clone(), plan.is_uneven());
        Self { pass, strategy, passes, number, position, next, votes, bring }
    }

    /// The pieces of the next step.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] at the end, [`Error::WrongContext`] inside of `run`, and those of the
    /// dataset.
    #[doc(alias = "tf.distribute.DistributedIterator.get_next")]
    pub fn get_next(&mut self) -> Result<PerReplica<T>> {
        const OPERATION: &str = "DistributedIterator::get_next";
        self.take(OPERATION)?.ok_or(Error::OutOfRange { operation: OPERATION })
    }

    /// The pieces of the next step; `None` at the end, however often it is asked.
    ///
    /// # Errors
    /// [`Error::WrongContext`] inside of `run`, and those of the dataset.
    #[doc(alias = "tf.distribute.DistributedIterator.get_next_as_optional")]
    pub fn get_next_as_optional(&mut self) -> Result<Option<PerReplica<T>>> {
        self.take("DistributedIterator::get_next_as_optional")
    }

    /// Where the pass stands: behind the last step that it gave.
    pub fn position(&self) -> Position {
        self.position.clone()
    }

    fn take(&mut self, operation: &'static str) -> Result<Option<PerReplica<T>>> {
        require_outside_of_run(operation, "take steps outside of run, and give their pieces to it")?;
        let _input = tracing::trace_span!("input").entered();
        // Ended until proven otherwise, so that the threads of a pass go with its last step.
        let mut pass = match std::mem::replace(&mut self.pass, Pass::Ended) {
            Pass::Running(pass) => pass,
            Pass::Broken(error) => return Err(error),
            Pass::Ended => return Ok(None),
        };
        let Some(pieces) = self.step(operation, &mut pass)? else {
            self.passes.ended(self.number, self.next.clone());
            return Ok(None);
        };
        self.position = pass.position();
        self.passes.stands(self.number, &self.position);
        self.pass = Pass::Running(pass);
        Ok(Some(pieces))
    }

    fn step(&self, operation: &'static str, pass: &mut WorkerPass<T>) -> Result<Option<PerReplica<T>>> {
        let mine = pass.prepare()?;
        let all = if self.votes { self.agree(mine)? } else { mine };
        let Some(trees) = pass.finish_trees(all)? else { return Ok(None) };
        let brought = |(replica, piece)| self.bring.piece(operation, replica, piece);
        let trees = trees.into_iter().enumerate().map(brought).collect::<Result<Vec<_>>>()?;
        // Elements that are scalars are no rows of a batch.
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

    /// What all workers have for the next step: their ballots added up. A worker whose own data fails does not come to it,
    /// which the others learn by their deadline.
    fn agree(&self, mine: Ballot) -> Result<Ballot> {
        let call = || Fingerprint::new(Operation::NextBatch, String::new(), Location::caller());
        let all = self.strategy.among_workers("DistributedIterator::next", call, |mut calling| {
            let ballots = calling.records(encode(mine).into())?;
            Ok(ballots.iter().map(|bytes| decode(bytes)).sum::<Ballot>())
        })?;
        Ok(all.unwrap_or(mine))
    }
}

fn encode(ballot: Ballot) -> Vec<u8> {
    let Ballot { present, missing, rows, full } = ballot;
    [present, missing, rows, full].iter().flat_map(|n| (*n as u64).to_le_bytes()).collect()
}

fn decode(bytes: &[u8]) -> Ballot {
    let mut numbers =
        bytes.chunks_exact(8).map(|chunk| chunk.iter().rev().fold(0, |n, byte| n << 8 | usize::from(*byte)));
    let mut next = || numbers.next().unwrap_or_default();
    Ballot { present: next(), missing: next(), rows: next(), full: next() }
}

impl<T: Nest> Iterator for DistributedIterator<T> {
    type Item = Result<PerReplica<T>>;

    fn next(&mut self) -> Option<Result<PerReplica<T>>> {
        self.take("DistributedIterator::next").transpose()
    }
}
