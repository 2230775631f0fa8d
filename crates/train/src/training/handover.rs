//! How the workers that have met agree on where the training stands, and how some take over the state of another: the rounds of a
//! `recovery::Handover`, in a session.

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

/// The conversation of the workers that have met.
pub(super) struct Handover<'a> {
    pub strategy: &'a Strategy,
    pub parts: &'a Checkpoint<'a>,
    /// Whether this process is part of the training.
    pub begun: &'a AtomicBool,
    pub session: Session,
    /// How long to wait until all are there: those that have just started build their models first.
    pub patience: Duration,
    pub at: &'static Location<'static>,
}

impl Handover<'_> {
    /// Agrees with the others. Gives the worker from whom others, or this one, have taken over the state, if there is one.
    ///
    /// # Errors
    /// The same on all workers, where one is lost meanwhile, cannot give its state or cannot take it over, or if nobody's is whole.
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
        // Where another is lost before all have it, this process has a state that counts.
        self.strategy.set_numbers(numbers);
        self.begun.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn swap(&self, round: &Round) -> Result<Vec<Bytes>> {
        // Who has just started builds its model first. All have to have the same parts.
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
