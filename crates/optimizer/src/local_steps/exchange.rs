//! The calls of an outer step, which all workers make together.

use crate::Inner;
use crate::header::OuterHeader;
use crate::rate;
use crate::step::agreement;
use distribute_base::{Error, Result};
use distribute_cluster::{Fingerprint, Operation};
use distribute_collective::Failure;
use distribute_collective::group::GroupCall;
use distribute_collective::threads::Member;
use distribute_core::internal::{exchange_in_call, failure, wire};
use distribute_decisions::internal::different_counts;
use std::panic::Location;

/// The context in which the calls of an outer step are made.
pub(super) enum Calls<'a> {
    /// The calls are parts of a step; the leader's `member` makes them.
    InStep { member: &'a Member, fingerprint: &'a Fingerprint },
    /// The calls are made between two runs.
    Between { optimizer: &'a Inner, at: &'static Location<'static> },
}

impl Calls<'_> {
    /// Makes a call with the other workers. Returns `None`, without calling `make`, if there are none.
    pub(super) fn make<R>(
        &self,
        operation: &'static str,
        part: &str,
        make: impl FnOnce(GroupCall<'_>) -> Result<R, Failure>,
    ) -> Result<Option<R>> {
        match self {
            Calls::InStep { member, fingerprint } => {
                let calling = member.group_call(|| fingerprint.part(part));
                calling.map(make).transpose().map_err(failure(operation))
            }
            Calls::Between { optimizer, at } => {
                let rule = optimizer.groups.rule().name();
                let detail = || format!("finish_local_steps of {rule} {}: {part}", optimizer.number);
                let call = || Fingerprint::new(Operation::Minimize, detail(), *at);
                optimizer.parameters.strategy.worker_call(operation, call, make)
            }
        }
    }

    /// Compares the facts of an outer step. Returns `mine`, what this worker contributes, if all workers have their
    /// contributions and the facts are equal.
    ///
    /// # Errors
    ///
    /// All workers get the same error:
    /// - [`Error::Worker`]: the contribution of a worker is an error.
    /// - [`Error::Failed`], [`Error::InvalidArgument`]: the workers have different settings or learning rates, or have
    ///   made different numbers of outer or local steps.
    /// - [`Error::Collective`]: a worker does not make the calls, fails or times out.
    pub(super) fn compare<M>(
        &self,
        optimizer: &Inner,
        operation: &'static str,
        header: &OuterHeader,
        mine: Result<M>,
    ) -> Result<M> {
        let strategy = &optimizer.parameters.strategy;
        let mut mine = Some(mine);
        let missing = || Error::invalid(operation, "the weights of this worker are missing");
        let exchanged = self.make(operation, "whether its weights are ready", |calling| {
            let mine = mine.take().unwrap_or_else(|| Err(missing()));
            Ok(exchange_in_call(operation, calling, mine, |_| wire::encode(header)))
        })?;
        let Some(exchanged) = exchanged else { return mine.take().unwrap_or_else(|| Err(missing())) };
        let (mine, records) = exchanged.map_err(|error| strategy.with_process(error))?;
        let headers: Vec<OuterHeader> = wire::decode_all(operation, &records)?;
        if headers.iter().any(|other| other.settings != header.settings) {
            let differences = self.make(operation, "its settings", |mut calling| {
                agreement::exchange_settings(&mut calling, &optimizer.settings())
            })?;
            let differences = differences.flatten().unwrap_or_else(|| "they cannot be compared".to_owned());
            return Err(agreement::differences_error(operation, &differences));
        }
        let counts = |of: fn(&OuterHeader) -> u64| headers.iter().map(of).collect::<Vec<_>>();
        let differ =
            different_counts(operation, "outer steps", &counts(|header| header.outer)).or_else(|| {
                let since = counts(|header| header.since);
                different_counts(operation, "local steps since the last outer step", &since)
            });
        differ.map_or(Ok(()), Err)?;
        let rates: Vec<f64> = headers.iter().filter_map(|header| header.learning_rate).collect();
        rate::require_same(operation, &rates)?;
        Ok(mine)
    }
}
