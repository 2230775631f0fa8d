//! The transfer of state after a rendezvous, in the rounds of a `recovery::StateTransfer`.
//!
//! The workers agree on the position of the training run, and workers without the state receive it from another worker.

use bytes::Bytes;
use distribute_base::{Error, ErrorKind, Result};
use distribute_checkpoint::Reader;
use distribute_cluster::{Fingerprint, Operation, ReplicaStatus};
use distribute_collective::group::Session;
use distribute_collective::recovery::state_transfer::{Failure, Next, Round};
use distribute_collective::recovery::{self, Counters, Report};
use distribute_core::{Checkpoint, Strategy};
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
                        self.strategy.set_counters(agreed.counters);
                        self.strategy.record_transfer(transfer.all_receive());
                    }
                    return Ok(agreed.map(|agreed| agreed.source));
                }
                Next::End(Err(failure)) => return Err(self.strategy.with_process(self.error(failure))),
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
        let call = Fingerprint::new(Operation::Recover, what, self.at);
        let statuses = self.strategy.world().local_replicas();
        let statuses = statuses.map(|replica| ReplicaStatus::waiting(replica, call.clone())).collect();
        let body = |to: usize| if round.to.contains(&to) { round.body.clone() } else { Bytes::new() };
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
        }
    }
}
