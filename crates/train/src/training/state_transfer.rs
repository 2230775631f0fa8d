//! The transfer of state after a rendezvous, in the rounds of a `recovery::StateTransfer`.
//!
//! The workers agree on the position of the training run, and workers without the state receive it from another worker.

use bytes::Bytes;
use distribute_base::{Error, ErrorKind, Result};
use distribute_checkpoint::Reader;
use distribute_cluster::{Fingerprint, Operation, ReplicaStatus};
use distribute_collective::group::Session;
use distribute_collective::recovery::shard_transfer::NextShards;
use distribute_collective::recovery::shards::NoPlan;
use distribute_collective::recovery::state_transfer::{Failure, Next, Round};
use distribute_collective::recovery::{self, Counters, Report, ShardTransfer};
use distribute_core::internal::ShardedState;
use distribute_core::{Checkpoint, Strategy};
use distribute_log::warn_or_stderr;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const OPERATION: &str = "Training";

/// The exchange between the workers of a rendezvous.
pub(super) struct StateTransfer<'a> {
    pub strategy: &'a Strategy,
    pub parts: &'a Checkpoint<'a>,
    /// Whether this process has already taken part in the training run.
    pub begun: &'a AtomicBool,
    /// Whether variables of this process have drifted, so that it must receive a state.
    pub unsound: &'a AtomicBool,
    /// Whether drift is healed, which must be the same on all workers.
    pub heals_drift: bool,
    pub session: Session,
    /// The maximum time to wait for all workers. Newly started workers first build their models.
    pub patience: Duration,
    pub at: &'static Location<'static>,
}

impl StateTransfer<'_> {
    /// Agrees with the other workers on the position. Returns the worker whose state all workers now have; `None` if no
    /// worker had begun training.
    ///
    /// # Errors
    /// The error is the same on all workers:
    /// - A worker fails, cannot send its state or cannot restore it.
    /// - No worker has a complete state.
    pub fn run(&self, mine: Report) -> Result<Option<usize>> {
        let sharded = self.parts.sharded_states();
        if self.unsound.load(Ordering::Relaxed) {
            // The slots were computed from variables that have drifted.
            sharded.iter().for_each(|state| state.discard_shards());
        }
        let mut transfer = recovery::StateTransfer::new(self.strategy.world(), mine);
        loop {
            match transfer.next_action() {
                Next::Exchange(round) => transfer.receive(self.swap(&round)?),
                Next::Provide => {
                    let image = self.parts.writer().and_then(|all| Ok(all.image()?));
                    transfer.provide_state(image.map(Bytes::from));
                }
                Next::Receive { image, source, counters } => {
                    transfer.received(self.take(image, source, counters));
                }
                Next::End(Ok(agreed)) => {
                    if let Some(agreed) = agreed {
                        agreed.share.into_iter().for_each(|share| self.strategy.apply_share(share));
                        self.strategy.set_counters(agreed.counters);
                        self.strategy.record_transfer(transfer.all_receive());
                    }
                    // Also before the first step: the rank of a worker may have changed since it made its shards.
                    self.send_shards(agreed.map_or(0, |agreed| agreed.source), &sharded)?;
                    return Ok(agreed.map(|agreed| agreed.source));
                }
                Next::End(Err(failure)) => return Err(self.strategy.with_process(self.error(failure))),
            }
        }
    }

    /// Sends shards of state to the workers that lack them, after all workers have the weights of `source`.
    ///
    /// # Errors
    /// The error is the same on all workers:
    /// - A worker fails, cannot send a shard or cannot receive one.
    /// - The weights of a worker have another version than its shards.
    /// - No worker has a shard: it was lost together with its copy.
    fn send_shards(&self, source: usize, all: &[&dyn ShardedState]) -> Result<()> {
        if all.is_empty() {
            return Ok(());
        }
        let inventories: Result<_> = all.iter().map(|state| state.inventory()).collect();
        let mut transfer = ShardTransfer::new(self.strategy.world(), source, inventories);
        loop {
            match transfer.next_action() {
                NextShards::Exchange { what, mut bodies } => {
                    let body = |to: usize| bodies.get_mut(to).map(std::mem::take).unwrap_or_default();
                    let timeout = self.strategy.extended().timeout();
                    transfer.receive(self.exchange(what, body, timeout)?);
                }
                NextShards::Provide(moves) => {
                    let read = moves.iter().map(|of| all[of.component].read_shard(of.transfer.shard));
                    transfer.provide(read.collect());
                }
                NextShards::Receive(shards) => {
                    let mut written = shards
                        .iter()
                        .map(|(of, bytes)| all[of.component].add_shard(of.transfer.shard, bytes));
                    transfer.received(written.try_for_each(|written| written));
                }
                NextShards::End(end) => {
                    end.map_err(|failure| self.strategy.with_process(self.error(failure)))?;
                    return all.iter().try_for_each(|state| state.keep_own_shards());
                }
            }
        }
    }

    fn take(&self, image: Bytes, source: usize, counters: Counters) -> Result<()> {
        let reader = Reader::from_image(image, &format!("the state of worker {source}"))?;
        self.parts.restore_image(&reader)?;
        // If another worker fails before all have the state, this process has a valid state.
        self.strategy.set_counters(counters);
        self.begun.store(true, Ordering::Relaxed);
        self.unsound.store(false, Ordering::Relaxed);
        Ok(())
    }

    fn swap(&self, round: &Round) -> Result<Vec<Bytes>> {
        // Newly started workers build their models first. All workers need the same components.
        let (what, timeout) = if round.is_first {
            let heals = if self.heals_drift { ", with heal_drift" } else { "" };
            (format!("where {:?} stands{heals}", self.parts), self.patience)
        } else {
            (round.what.clone(), self.strategy.extended().timeout())
        };
        let body = |to: usize| if round.to.contains(&to) { round.body.clone() } else { Bytes::new() };
        self.exchange(what, body, timeout)
    }

    fn exchange(
        &self,
        what: String,
        body: impl FnMut(usize) -> Bytes,
        timeout: Duration,
    ) -> Result<Vec<Bytes>> {
        let call = Fingerprint::new(Operation::Recover, what, self.at);
        let statuses = self.strategy.world().local_replicas();
        let statuses = statuses.map(|replica| ReplicaStatus::waiting(replica, call.clone())).collect();
        self.session.all_to_all(statuses, body, timeout).map_err(Error::Collective)
    }

    fn error(&self, failure: Failure<Error>) -> Error {
        match failure {
            Failure::Own(error) => error,
            Failure::Peer(worker, text) => Error::worker_failed(worker, Error::other(text)),
            Failure::Unreadable(worker, text) => {
                let reason =
                    format!("its record cannot be read ({text}); all workers have to run the same program");
                Error::worker_failed(worker, Error::invalid(OPERATION, reason))
            }
            Failure::Torn(worker, reason) => Error::failed(
                ErrorKind::RestoreNeeded,
                OPERATION,
                format!(
                    "no worker has a complete state to resume from ({}: {reason}); restart all workers from the last \
                     checkpoint",
                    self.strategy.describe_worker(worker)
                ),
            ),
            Failure::NoPlan(NoPlan::Versions(workers)) => {
                let workers: Vec<_> =
                    workers.iter().map(|worker| self.strategy.describe_worker(*worker)).collect();
                let reason = format!(
                    "the optimizer's state of these workers is of another step than their weights: {}; restart all \
                     workers from the last checkpoint",
                    workers.join(", ")
                );
                Error::failed(ErrorKind::RestoreNeeded, OPERATION, reason)
            }
            Failure::NoPlan(NoPlan::LostShards(shards)) => {
                let workers: Vec<_> = shards.iter().map(|shard| shard.to_string()).collect();
                let reason = format!(
                    "the shards of the optimizer's state of these workers are lost, together with their copies at the next \
                     workers: {}; restart all workers from the last checkpoint",
                    workers.join(", ")
                );
                warn_or_stderr(|| tracing::warn!("the training cannot resume: {reason}"));
                Error::failed(ErrorKind::RestoreNeeded, OPERATION, reason)
            }
        }
    }
}
