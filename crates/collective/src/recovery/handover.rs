//! The rounds in which the workers of a re-formed group agree on the state of the training, and transfer it.

use super::report::{Decision, decide};
use super::{Numbers, Report};
use bytes::{Bytes, BytesMut};
use distribute_cluster::World;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Display;

/// The size of the part of a state that is sent in one round.
const CHUNK: usize = 16 << 20;

/// One worker's part in a handover. `E` is why a state cannot be given or taken.
///
/// Ask for the [`next_action`](Self::next_action) and do it. A round that fails ends it: the workers then meet again.
#[derive(Debug)]
pub struct Handover<E> {
    world: World,
    chunk: usize,
    stage: Stage<E>,
    plan: Plan,
}

/// The decision, once there is one.
#[derive(Clone, Debug, Default)]
struct Plan {
    source: usize,
    takers: Vec<usize>,
    numbers: Numbers,
}

#[derive(Debug)]
enum Stage<E> {
    Reports(Report),
    Give,
    Lengths(Result<Bytes, E>),
    Chunks { image: Bytes, length: usize, at: usize, taken: BytesMut },
    Take(Bytes),
    Outcomes(Result<(), E>),
    Over(Option<Result<Option<Agreed>, Failure<E>>>),
}

/// The next action.
#[derive(Debug)]
pub enum Next<E> {
    /// Swap these with the others, and tell what has [come](Handover::hear).
    Swap(Round),
    /// Tell this worker's state, as [bytes](Handover::give).
    Give,
    /// Take over this state of worker `source`, and count on from these numbers, both before anything else: where
    /// another is lost before all have it, this worker stands where it says. Then tell whether it was
    /// [taken](Handover::taken).
    Take {
        /// The bytes.
        image: Bytes,
        /// The worker whose state is transferred.
        source: usize,
        /// The counters of the source.
        numbers: Numbers,
    },
    /// All have agreed, or all have failed.
    End(Result<Option<Agreed>, Failure<E>>),
}

/// The data to exchange in a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// The name of the data, the same on all workers.
    pub what: String,
    /// Whether it is the first, in which workers that have just started are waited for until they are there.
    pub is_first: bool,
    /// To whom the body goes; the others get an empty one.
    pub to: Vec<usize>,
    /// The body.
    pub body: Bytes,
}

/// The outcome: all workers have one state. If no worker has begun, there is none to agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The worker whose state it is.
    pub source: usize,
    /// From where all count on.
    pub numbers: Numbers,
}

/// The reason why the workers can't continue.
#[derive(Debug, PartialEq, Eq)]
pub enum Failure<E> {
    /// This worker cannot give or take a state.
    Mine(E),
    /// Another one cannot, and says why.
    Of(usize, String),
    /// The message of this worker cannot be read.
    Unreadable(usize, String),
    /// No worker has a complete state, for this reason of the worker.
    Torn(usize, String),
}

impl<E: Display> Handover<E> {
    /// A worker that says this of itself.
    pub fn new(world: World, mine: Report) -> Self {
        Self { world, chunk: CHUNK, stage: Stage::Reports(mine), plan: Plan::default() }
    }

    /// Sets the size of the part of a state that is sent in one round, the same on all workers.
    pub fn in_rounds_of(mut self, bytes: usize) -> Self {
        self.chunk = bytes.max(1);
        self
    }

    /// Returns the next action.
    pub fn next_action(&mut self) -> Next<E> {
        let all = || (0..self.world.workers()).collect();
        let record =
            |what: &str, body| Next::Swap(Round { what: what.to_owned(), is_first: false, to: all(), body });
        match &mut self.stage {
            Stage::Reports(mine) => {
                let (what, body) = ("where each stands".to_owned(), encode(mine));
                Next::Swap(Round { what, is_first: true, to: all(), body })
            }
            Stage::Give => Next::Give,
            Stage::Lengths(given) => record("its state", encode(&told(given, Bytes::len))),
            Stage::Chunks { image, length, at, .. } => {
                let (number, of) = (*at / self.chunk + 1, length.div_ceil(self.chunk));
                let what = format!("its state, part {number} of {of}");
                let is_source = self.world.worker() == self.plan.source;
                let (to, body) = if is_source {
                    (self.plan.takers.clone(), image.slice(*at..(*at + self.chunk).min(*length)))
                } else {
                    (Vec::new(), Bytes::new())
                };
                Next::Swap(Round { what, is_first: false, to, body })
            }
            Stage::Take(image) => {
                let Plan { source, numbers, .. } = self.plan;
                Next::Take { image: image.clone(), source, numbers }
            }
            Stage::Outcomes(taken) => record("whether all have taken it over", encode(&told(taken, |()| ()))),
            Stage::Over(end) => Next::End(end.take().unwrap_or(Ok(None))),
        }
    }

    /// Takes the messages of all workers in the round; this one's own entry is not read.
    pub fn hear(&mut self, mut bodies: Vec<Bytes>) {
        let over = Stage::Over(None);
        let next = match std::mem::replace(&mut self.stage, over) {
            Stage::Reports(mine) => self.decoded(bodies, mine).map(|reports| self.decide(&reports)),
            Stage::Lengths(given) => self.agree(bodies, given, Bytes::len).map(|(image, lengths)| {
                let length = lengths.get(self.plan.source).copied().unwrap_or(0);
                self.chunks(image, length, 0, BytesMut::new())
            }),
            Stage::Chunks { image, length, at, mut taken } => {
                if self.takes()
                    && let Some(body) = bodies.get_mut(self.plan.source)
                {
                    taken.extend_from_slice(&std::mem::take(body));
                }
                Ok(self.chunks(image, length, at + self.chunk, taken))
            }
            Stage::Outcomes(taken) => self.agree(bodies, taken, |()| ()).map(|_| {
                let Plan { source, numbers, .. } = self.plan;
                Stage::Over(Some(Ok(Some(Agreed { source, numbers }))))
            }),
            other => Ok(other),
        };
        self.stage = next.unwrap_or_else(|failure| Stage::Over(Some(Err(failure))));
    }

    /// The state that was asked for.
    pub fn give(&mut self, image: Result<Bytes, E>) {
        self.stage = Stage::Lengths(image);
    }

    /// The state has been taken over, or it cannot be.
    pub fn taken(&mut self, taken: Result<(), E>) {
        self.stage = Stage::Outcomes(taken);
    }

    fn takes(&self) -> bool {
        self.plan.takers.contains(&self.world.worker())
    }

    fn decide(&mut self, reports: &[Report]) -> Stage<E> {
        let (source, takers, numbers) = match decide(reports) {
            Decision::Begin => return Stage::Over(Some(Ok(None))),
            Decision::Torn(worker, reason) => return Stage::Over(Some(Err(Failure::Torn(worker, reason)))),
            Decision::TakeOver { source, takers, numbers } => (source, takers, numbers),
        };
        self.plan = Plan { source, takers, numbers };
        match () {
            () if self.plan.takers.is_empty() => Stage::Outcomes(Ok(())),
            () if self.world.worker() == source => Stage::Give,
            () => Stage::Lengths(Ok(Bytes::new())),
        }
    }

    /// The rest of the state from this byte on.
    fn chunks(&self, image: Bytes, length: usize, at: usize, taken: BytesMut) -> Stage<E> {
        match () {
            () if at < length => Stage::Chunks { image, length, at, taken },
            () if self.takes() => Stage::Take(taken.freeze()),
            () => Stage::Outcomes(Ok(())),
        }
    }

    /// Returns the results of all workers, if all have succeeded.
    fn agree<T, U: Serialize + DeserializeOwned>(
        &self,
        bodies: Vec<Bytes>,
        mine: Result<T, E>,
        told: impl Fn(&T) -> U,
    ) -> Result<(T, Vec<U>), Failure<E>> {
        // This worker's own error keeps its type.
        let mine = mine.map_err(Failure::Mine)?;
        let all: Vec<Result<U, String>> = self.decoded(bodies, Ok(told(&mine)))?;
        let outcome = |(worker, outcome): (usize, Result<U, String>)| {
            outcome.map_err(|reason| Failure::Of(worker, reason))
        };
        Ok((mine, all.into_iter().enumerate().map(outcome).collect::<Result<_, _>>()?))
    }

    /// The records of all workers.
    fn decoded<T: DeserializeOwned>(&self, bodies: Vec<Bytes>, mine: T) -> Result<Vec<T>, Failure<E>> {
        let (me, mut mine) = (self.world.worker(), Some(mine));
        let decode = |(worker, body): (usize, &Bytes)| match mine.take_if(|_| worker == me) {
            Some(mine) => Ok(mine),
            None => {
                postcard::from_bytes(body).map_err(|error| Failure::Unreadable(worker, error.to_string()))
            }
        };
        bodies.iter().enumerate().map(decode).collect()
    }
}

/// Returns a result in the form in which it is sent.
fn told<T, U, E: Display>(result: &Result<T, E>, of: impl Fn(&T) -> U) -> Result<U, String> {
    result.as_ref().map(of).map_err(ToString::to_string)
}

/// A record as bytes. One that cannot be written is empty: its readers name the worker that sent it.
fn encode(record: &impl Serialize) -> Bytes {
    postcard::to_allocvec(record).unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn at(updates: u64) -> Report {
        let numbers = Numbers { updates, steps: updates, ..Numbers::default() };
        Report { begun: updates > 0, agreed: 1, numbers, torn: None }
    }

    type Ended = Result<Option<Agreed>, Failure<String>>;

    /// All workers of a world, whose states are texts, until they have ended. Who is in `fails` can't take a state.
    fn hand_over(reports: &[Report], states: &mut [String], fails: Option<usize>) -> Vec<Ended> {
        let workers = reports.len();
        let make = |(worker, report): (usize, &Report)| {
            Handover::new(World::new(workers, worker, 1).unwrap(), report.clone()).in_rounds_of(3)
        };
        let mut all: Vec<_> = reports.iter().enumerate().map(make).collect();
        let mut ends = BTreeMap::new();
        while ends.len() < workers {
            let mut rounds = Vec::new();
            for (worker, handover) in all.iter_mut().enumerate() {
                loop {
                    match handover.next_action() {
                        Next::Give => handover.give(Ok(states[worker].clone().into())),
                        Next::Take { .. } if fails == Some(worker) => {
                            handover.taken(Err("no room".to_owned()))
                        }
                        Next::Take { image, .. } => {
                            states[worker] = String::from_utf8(image.to_vec()).unwrap();
                            handover.taken(Ok(()));
                        }
                        Next::Swap(round) => break rounds.push(round),
                        Next::End(end) => break drop(ends.insert(worker, end)),
                    }
                }
            }
            let Some(first) = rounds.first() else { continue };
            assert!(rounds.iter().all(|round| round.what == first.what) && rounds.len() == workers);
            let body =
                |from: &Round, to| if from.to.contains(&to) { from.body.clone() } else { Bytes::new() };
            for (to, handover) in all.iter_mut().enumerate() {
                handover.hear(rounds.iter().map(|from| body(from, to)).collect());
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
        let numbers = at(8).numbers;
        assert_eq!(ends, [Agreed { source: 2, numbers }; 3].map(|agreed| Ok(Some(agreed))));
    }

    #[test]
    fn where_nobody_has_begun_there_is_nothing_to_take_over() {
        let mut states = ["", ""].map(str::to_owned);
        assert_eq!(hand_over(&[at(0), at(0)], &mut states, None), [Ok(None), Ok(None)]);
    }

    #[test]
    fn who_cannot_take_it_over_is_named_on_all() {
        let mut states = ["a state", "", ""].map(str::to_owned);
        let ends = hand_over(&[at(7), at(0), at(0)], &mut states, Some(1));
        let named = || Err(Failure::Of(1, "no room".to_owned()));
        assert_eq!(ends, [named(), Err(Failure::Mine("no room".to_owned())), named()]);
    }

    #[test]
    fn what_cannot_be_read_names_its_worker() {
        let mut handover = Handover::<String>::new(World::new(2, 0, 1).unwrap(), at(3));
        handover.hear(vec![Bytes::new(), Bytes::from_static(b"\xff")]);
        assert!(matches!(handover.next_action(), Next::End(Err(Failure::Unreadable(1, _)))));
    }
}
