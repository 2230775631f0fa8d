//! How the workers that have met agree on where the training stands, and how some take over the state of another.

use super::report::{Decision, Report, decide};
use crate::checkpoint::{Checkpoint, Reader};
use crate::strategy::record;
use crate::{Error, Result, Strategy};
use bytes::{Bytes, BytesMut};
use distribute_cluster::{Fingerprint, Operation, Standing};
use distribute_collective::group::Session;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::panic::Location;
use std::time::Duration;

const OPERATION: &str = "Training";

/// How much of a state goes in one message.
const CHUNK: usize = 16 << 20;

/// The conversation of the workers that have met.
pub(super) struct Handover<'a> {
    pub strategy: &'a Strategy,
    pub parts: &'a Checkpoint<'a>,
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
        let reports = self.swap(&format!("where {:?} stands", self.parts), self.patience, &mine)?;
        let source = match decide(&reports) {
            Decision::Begin => None,
            Decision::Torn(worker, reason) => {
                let reason = format!(
                    "no worker has a whole state to go on from (worker {worker}: {reason}); start all workers anew, from the \
                     last checkpoint"
                );
                return Err(Error::invalid(OPERATION, reason));
            }
            Decision::TakeOver { source, takers, numbers } => {
                let given = self.hand_over(source, &takers)?;
                let taken = match given {
                    Some(image) => self.take(image, source),
                    None => Ok(()),
                };
                self.agree("whether all have taken it over", taken)?;
                self.strategy.set_numbers(numbers);
                Some(source)
            }
        };
        Ok(source)
    }

    /// Sends the state of worker `source` to those that take it over. Gives it to these.
    fn hand_over(&self, source: usize, takers: &[usize]) -> Result<Option<Bytes>> {
        let me = self.strategy.world().worker();
        if takers.is_empty() {
            return Ok(None);
        }
        let image =
            if me == source { self.parts.writer().and_then(|all| Ok(all.image()?)) } else { Ok(Vec::new()) };
        let lengths = self.agree(
            "its state",
            image.as_ref().map(Vec::len).map_err(|error| Error::other(error.to_string())),
        )?;
        let image = Bytes::from(image?);
        let length = lengths[source];
        let mut taken = BytesMut::new();
        let chunks = length.div_ceil(CHUNK);
        for chunk in 0..chunks {
            let part = chunk * CHUNK..((chunk + 1) * CHUNK).min(length);
            let body = |to: usize| {
                if me == source && takers.contains(&to) { image.slice(part.clone()) } else { Bytes::new() }
            };
            let what = format!("its state, part {} of {chunks}", chunk + 1);
            let mut bodies = self.raw(&what, self.strategy.extended().timeout(), body)?;
            if takers.contains(&me) {
                taken.extend_from_slice(&std::mem::take(&mut bodies[source]));
            }
        }
        Ok(takers.contains(&me).then(|| taken.freeze()))
    }

    fn take(&self, image: Bytes, source: usize) -> Result<()> {
        let reader = Reader::from_image(image, &format!("the state of worker {source}"))?;
        self.parts.take_over(&reader)
    }

    /// The outcomes of all workers, if all have succeeded.
    fn agree<T: Serialize + DeserializeOwned + Clone>(&self, what: &str, mine: Result<T>) -> Result<Vec<T>> {
        let told: std::result::Result<T, String> = mine.as_ref().map(T::clone).map_err(ToString::to_string);
        let all = self.swap(what, self.strategy.extended().timeout(), &told)?;
        // This worker's own error keeps its type.
        mine?;
        let outcome = |(worker, outcome): (usize, std::result::Result<T, String>)| {
            outcome.map_err(|text| Error::Worker { worker, source: Box::new(Error::other(text)) })
        };
        all.into_iter().enumerate().map(outcome).collect()
    }

    /// The records of all workers.
    fn swap<T: Serialize + DeserializeOwned>(
        &self,
        what: &str,
        timeout: Duration,
        mine: &T,
    ) -> Result<Vec<T>> {
        let record = record::encode(mine);
        let mut all = self.raw(what, timeout, |_| record.clone())?;
        if let Some(own) = all.get_mut(self.strategy.world().worker()) {
            *own = record;
        }
        record::decode_all(OPERATION, &all)
    }

    fn raw(&self, what: &str, timeout: Duration, body: impl FnMut(usize) -> Bytes) -> Result<Vec<Bytes>> {
        let call = Fingerprint::new(Operation::Recover, what, self.at);
        let standings = self.strategy.world().local_replicas();
        let standings = standings.map(|replica| Standing::waiting(replica, call.clone())).collect();
        self.session.swap(standings, body, timeout).map_err(Error::Collective)
    }
}
