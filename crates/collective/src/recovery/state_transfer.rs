//! The rounds in which the workers of a re-formed group agree on the state of training, and transfer it to those that
//! need it.

use super::report::{Decision, Share, common_share, decide};
use super::rounds::{CHUNK, agree, decode_all, encode, to_wire};
pub use super::rounds::{Failure, Round};
use super::{Counters, Report};
use bytes::{Bytes, BytesMut};
use distribute_cluster::World;
use std::fmt::Display;

/// The state machine of one worker in a state transfer. `E` is the type of this worker's errors in providing or
/// receiving a state.
///
/// Call [`next_action`](Self::next_action), and execute the action that it returns. If a round fails, the transfer is
/// over, and the workers must re-form the group again.
#[derive(Debug)]
pub struct StateTransfer<E> {
    world: World,
    chunk: usize,
    stage: Stage<E>,
    plan: Plan,
}

/// The decision which workers receive whose state.
#[derive(Clone, Debug, Default)]
struct Plan {
    source: usize,
    receivers: Vec<usize>,
    counters: Counters,
    share: Option<Share>,
}

#[derive(Debug)]
enum Stage<E> {
    Reports(Report),
    Provide,
    Lengths(Result<Bytes, E>),
    Chunks { image: Bytes, length: usize, at: usize, received: BytesMut },
    Receive(Bytes),
    Outcomes(Result<(), E>),
    Over(Option<Result<Option<Agreed>, Failure<E>>>),
}

/// The next action of the caller.
#[derive(Debug)]
pub enum Next<E> {
    /// Exchange this round's data with the other workers, and pass the result to [`receive`](StateTransfer::receive).
    Exchange(Round),
    /// Pass this worker's encoded state to [`provide_state`](StateTransfer::provide_state).
    Provide,
    /// Replace this worker's state and counters by these, both at once and before any other work. Then call
    /// [`received`](StateTransfer::received). If another worker is lost during the transfer, this worker's next report
    /// must describe its actual state.
    Receive {
        /// The encoded state.
        image: Bytes,
        /// The worker whose state is transferred.
        source: usize,
        /// The counters from which all workers continue.
        counters: Counters,
    },
    /// The transfer is over, because all workers have agreed, because it has failed, or because no worker has taken
    /// part in training (`None`).
    End(Result<Option<Agreed>, Failure<E>>),
}

/// The outcome of a transfer after which all workers have the same state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The worker whose state all workers now have.
    pub source: usize,
    /// The counters from which all workers continue.
    pub counters: Counters,
    /// The number of logical replicas of one of them; `None` if their shares are even.
    pub share: Option<Share>,
}

impl<E: Display> StateTransfer<E> {
    /// Creates the state machine of a worker with the report `mine`.
    pub fn new(world: World, mine: Report) -> Self {
        Self { world, chunk: CHUNK, stage: Stage::Reports(mine), plan: Plan::default() }
    }

    /// Sets the size in bytes of the chunk of a state that is sent in one round; the minimum is 1. It must be the same
    /// on all workers.
    pub fn with_chunk_size(mut self, bytes: usize) -> Self {
        self.chunk = bytes.max(1);
        self
    }

    /// Returns the next action. The first [`Next::End`] contains the outcome of the transfer. Later ones contain
    /// `Ok(None)`.
    pub fn next_action(&mut self) -> Next<E> {
        let all = || (0..self.world.workers()).collect();
        let record = |what: &str, body| {
            Next::Exchange(Round { what: what.to_owned(), is_first: false, to: all(), body })
        };
        match &mut self.stage {
            Stage::Reports(mine) => {
                let (what, body) = ("the progress of each worker".to_owned(), encode(mine));
                Next::Exchange(Round { what, is_first: true, to: all(), body })
            }
            Stage::Provide => Next::Provide,
            Stage::Lengths(given) => record("its state", encode(&to_wire(given, Bytes::len))),
            Stage::Chunks { image, length, at, .. } => {
                let (number, of) = (*at / self.chunk + 1, length.div_ceil(self.chunk));
                let what = format!("its state, part {number} of {of}");
                let is_source = self.world.worker() == self.plan.source;
                let (to, body) = if is_source {
                    (self.plan.receivers.clone(), image.slice(*at..(*at + self.chunk).min(*length)))
                } else {
                    (Vec::new(), Bytes::new())
                };
                Next::Exchange(Round { what, is_first: false, to, body })
            }
            Stage::Receive(image) => {
                let Plan { source, counters, .. } = self.plan;
                Next::Receive { image: image.clone(), source, counters }
            }
            Stage::Outcomes(received) => {
                record("whether all workers have received it", encode(&to_wire(received, |()| ())))
            }
            Stage::Over(end) => Next::End(end.take().unwrap_or(Ok(None))),
        }
    }

    /// Processes the messages of all workers in this round, by rank. The entry of this worker is ignored.
    pub fn receive(&mut self, mut bodies: Vec<Bytes>) {
        let over = Stage::Over(None);
        let next = match std::mem::replace(&mut self.stage, over) {
            Stage::Reports(mine) => decode_all(self.world, bodies, mine).map(|reports| self.decide(&reports)),
            Stage::Lengths(given) => agree(self.world, bodies, given, Bytes::len).map(|(image, lengths)| {
                let length = lengths.get(self.plan.source).copied().unwrap_or(0);
                self.chunks(image, length, 0, BytesMut::new())
            }),
            Stage::Chunks { image, length, at, mut received } => {
                if self.receives()
                    && let Some(body) = bodies.get_mut(self.plan.source)
                {
                    received.extend_from_slice(&std::mem::take(body));
                }
                Ok(self.chunks(image, length, at + self.chunk, received))
            }
            Stage::Outcomes(received) => agree(self.world, bodies, received, |()| ()).map(|_| {
                let Plan { source, counters, share, .. } = self.plan;
                Stage::Over(Some(Ok(Some(Agreed { source, counters, share }))))
            }),
            other => Ok(other),
        };
        self.stage = next.unwrap_or_else(|failure| Stage::Over(Some(Err(failure))));
    }

    /// Continues with this worker's encoded state, or with the error if it cannot be encoded.
    pub fn provide_state(&mut self, image: Result<Bytes, E>) {
        self.stage = Stage::Lengths(image);
    }

    /// Continues after this worker has received the state, or with its error.
    pub fn received(&mut self, received: Result<(), E>) {
        self.stage = Stage::Outcomes(received);
    }

    /// Returns whether all workers but one receive the state of that one. The result is correct only after the exchange
    /// of reports.
    pub fn all_receive(&self) -> bool {
        self.plan.receivers.len() + 1 == self.world.workers()
    }

    fn receives(&self) -> bool {
        self.plan.receivers.contains(&self.world.worker())
    }

    fn decide(&mut self, reports: &[Report]) -> Stage<E> {
        let (source, receivers, counters) = match decide(reports) {
            Decision::Begin => return Stage::Over(Some(Ok(None))),
            Decision::Torn(worker, reason) => return Stage::Over(Some(Err(Failure::Torn(worker, reason)))),
            Decision::Transfer { source, receivers, counters } => (source, receivers, counters),
        };
        self.plan = Plan { source, receivers, counters, share: common_share(reports) };
        match () {
            () if self.plan.receivers.is_empty() => Stage::Outcomes(Ok(())),
            () if self.world.worker() == source => Stage::Provide,
            () => Stage::Lengths(Ok(Bytes::new())),
        }
    }

    /// Returns the stage that transfers the rest of the state, beginning at byte `at`.
    fn chunks(&self, image: Bytes, length: usize, at: usize, received: BytesMut) -> Stage<E> {
        match () {
            () if at < length => Stage::Chunks { image, length, at, received },
            () if self.receives() => Stage::Receive(received.freeze()),
            () => Stage::Outcomes(Ok(())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn at(updates: u64) -> Report {
        let counters = Counters { updates, steps: updates, ..Counters::default() };
        Report { begun: updates > 0, spare: false, agreed: 1, counters, torn: None, share: None }
    }

    type Ended = Result<Option<Agreed>, Failure<String>>;

    /// Runs the transfer on all workers of a world, whose states are texts, until it has ended. Worker `fails` cannot
    /// receive a state.
    fn hand_over(reports: &[Report], states: &mut [String], fails: Option<usize>) -> Vec<Ended> {
        let workers = reports.len();
        let make = |(worker, report): (usize, &Report)| {
            StateTransfer::new(World::new(workers, worker, 1).unwrap(), report.clone()).with_chunk_size(3)
        };
        let mut all: Vec<_> = reports.iter().enumerate().map(make).collect();
        let mut ends = BTreeMap::new();
        while ends.len() < workers {
            let mut rounds = Vec::new();
            for (worker, state_transfer) in all.iter_mut().enumerate() {
                loop {
                    match state_transfer.next_action() {
                        Next::Provide => state_transfer.provide_state(Ok(states[worker].clone().into())),
                        Next::Receive { .. } if fails == Some(worker) => {
                            state_transfer.received(Err("no room".to_owned()))
                        }
                        Next::Receive { image, .. } => {
                            states[worker] = String::from_utf8(image.to_vec()).unwrap();
                            state_transfer.received(Ok(()));
                        }
                        Next::Exchange(round) => break rounds.push(round),
                        Next::End(end) => break drop(ends.insert(worker, end)),
                    }
                }
            }
            let Some(first) = rounds.first() else { continue };
            assert!(rounds.iter().all(|round| round.what == first.what) && rounds.len() == workers);
            let body =
                |from: &Round, to| if from.to.contains(&to) { from.body.clone() } else { Bytes::new() };
            for (to, state_transfer) in all.iter_mut().enumerate() {
                state_transfer.receive(rounds.iter().map(|from| body(from, to)).collect());
            }
        }
        ends.into_values().collect()
    }

    // INV-42
    #[test]
    fn all_end_with_the_state_of_the_furthest() {
        let mut states = ["seven", "", "the eighth"].map(str::to_owned);
        let ends = hand_over(&[at(7), at(0), at(8)], &mut states, None);
        assert_eq!(states, ["the eighth"; 3]);
        let counters = at(8).counters;
        assert_eq!(ends, [Agreed { source: 2, counters, share: None }; 3].map(|agreed| Ok(Some(agreed))));
    }

    #[test]
    fn before_the_first_step_there_is_no_state_to_transfer() {
        let mut states = ["", ""].map(str::to_owned);
        assert_eq!(hand_over(&[at(0), at(0)], &mut states, None), [Ok(None), Ok(None)]);
    }

    // INV-101
    #[test]
    fn a_spare_has_the_state_of_one_that_has_just_started() {
        let mut states = ["restored", "older"].map(str::to_owned);
        let spare = Report { spare: true, ..at(0) };
        let ends = hand_over(&[at(0), spare], &mut states, None);
        assert_eq!(states, ["restored"; 2]);
        assert_eq!(
            ends,
            [Agreed { source: 0, counters: at(0).counters, share: None }; 2].map(|agreed| Ok(Some(agreed)))
        );
    }

    #[test]
    fn a_worker_that_cannot_load_the_state_is_named_on_all() {
        let mut states = ["a state", "", ""].map(str::to_owned);
        let ends = hand_over(&[at(7), at(0), at(0)], &mut states, Some(1));
        let named = || Err(Failure::Peer(1, "no room".to_owned()));
        assert_eq!(ends, [named(), Err(Failure::Own("no room".to_owned())), named()]);
    }

    #[test]
    fn unreadable_bytes_name_their_worker() {
        let mut state_transfer = StateTransfer::<String>::new(World::new(2, 0, 1).unwrap(), at(3));
        state_transfer.receive(vec![Bytes::new(), Bytes::from_static(b"\xff")]);
        assert!(matches!(state_transfer.next_action(), Next::End(Err(Failure::Unreadable(1, _)))));
    }
}
