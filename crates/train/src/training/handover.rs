//! State transfer after a rendezvous: the rounds of a `recovery::Handover` in a session.
//!
//! The workers agree on the position of the training, and workers without the state receive it from another.

use bytes::Bytes;
use distribute_base::{Error, Result};
use distribute_checkpoint::Reader;
use distribute_cluster::{Fingerprint, Operation, Standing};
use distribute_collective::group::Session;
use distribute_collective::recovery::handover::{Failure, Next, Round};
use distribute_collective::recovery::{self, Numbers, Report};
use distribute_core::{Checkpoint, Strategy};
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const OPERATION: &str = "Training";

/// An exchange between the workers of a rendezvous.
pub(super) struct Handover<'a> {
    pub strategy: &'a Strategy,
    pub parts: &'a Checkpoint<'a>,
    /// Whether this process participates in the training.
    pub begun: &'a AtomicBool,
    pub session: Session,
    /// The time to wait for all workers: newly started ones build their models first.
    pub patience: Duration,
    pub at: &'static Location<'static>,
}

impl Handover<'_> {
    /// Agrees with the others, and returns the worker whose state was transferred, if any.
    ///
    /// # Errors
    /// The error is the same on all workers:
    /// - A worker fails, cannot send its state or cannot restore it.
    /// - No worker has a complete state.
    pub fn make(&self, mine: Report) -> Result<Option<usize>> {
        let mut handover = recovery::Handover::new(self.strategy.world(), mine);
        loop {
            match handover.next_action() {
                Next::Swap(round) => handover.hear(self.swap(&round)?),
                Next::Give => {
                    let image = self.parts.writer().and_then(|all| Ok(all.image()?));
                    handover.give(image.map(Bytes::from));
                }
                Next::Take { image, source, numbers } => {
                    handover.taken(self.take(image, source, numbers));
                }
                Next::End(Ok(agreed)) => {
                    if let Some(agreed) = agreed {
                        self.strategy.set_numbers(agreed.numbers);
                    }
                    return Ok(agreed.map(|agreed| agreed.source));
                }
                Next::End(Err(failure)) => return Err(self.strategy.located(self.error(failure))),
            }
        }
    }

    fn take(&self, image: Bytes, source: usize, numbers: Numbers) -> Result<()> {
        let reader = Reader::from_image(image, &format!("the state of worker {source}"))?;
        self.parts.take_over(&reader)?;
        // If another worker fails before all have the state, this process has a valid state.
        self.strategy.set_numbers(numbers);
        self.begun.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn swap(&self, round: &Round) -> Result<Vec<Bytes>> {
        // Newly started workers build their models first. All workers need the same components.
        let (what, timeout) = if round.is_first {
            (format!("where {:?} stands", self.parts), self.patience)
        } else {
            (round.what.clone(), self.strategy.extended().timeout())
        };
        let call = Fingerprint::new(Operation::Recover, what, self.at);
        let standings = self.strategy.world().local_replicas();
        let standings = standings.map(|replica| Standing::waiting(replica, call.clone())).collect();
        let body = |to: usize| if round.to.contains(&to) { round.body.clone() } else { Bytes::new() };
        self.session.all_to_all(standings, body, timeout).map_err(Error::Collective)
    }

    fn error(&self, failure: Failure<Error>) -> Error {
        match failure {
            Failure::Mine(error) => error,
            Failure::Of(worker, text) => Error::worker_failed(worker, Error::other(text)),
            Failure::Unreadable(worker, text) => {
                let reason =
                    format!("its record cannot be read ({text}); all workers have to run the same program");
                Error::worker_failed(worker, Error::invalid(OPERATION, reason))
            }
            Failure::Torn(worker, reason) => Error::invalid(
                OPERATION,
                format!(
                    "no worker has a whole state to go on from ({}: {reason}); start all workers anew, from the last checkpoint",
                    self.strategy.named(worker)
                ),
            ),
        }
    }
}
