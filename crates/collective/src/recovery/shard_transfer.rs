//! The rounds in which the workers of a re-formed group receive the shards that they lack.

pub use super::rounds::Failure;
use super::rounds::{CHUNK, agree, encode, to_wire};
use super::shards::{Inventory, Move, plan};
use bytes::{Bytes, BytesMut};
use distribute_cluster::World;
use std::fmt::Display;

/// One worker's part in a transfer of shards, after all workers have the same weights. `E` is the type of the error if
/// this worker cannot provide its shards or receive some.
///
/// Call [`next_action`](Self::next_action), and execute the action that it returns. If a round fails, the transfer is
/// over, and the workers must re-form the group again.
#[derive(Debug)]
pub struct ShardTransfer<E> {
    world: World,
    /// The worker whose weights all workers have.
    source: usize,
    chunk: usize,
    /// The transfers of all components, in the order in which each worker sends.
    moves: Vec<ComponentMove>,
    stage: Stage<E>,
}

/// A transfer of a shard of one component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComponentMove {
    /// The index of the component.
    pub component: usize,
    /// The transfer.
    pub transfer: Move,
}

#[derive(Debug)]
enum Stage<E> {
    Inventories(Result<Vec<Inventory>, E>),
    Provide(Vec<ComponentMove>),
    Provided(Result<Vec<Bytes>, E>),
    /// The shards for each worker, one after the other, and those that each worker has sent so far.
    Chunks {
        sent: Vec<Bytes>,
        at: usize,
        received: Vec<BytesMut>,
    },
    Receive(Vec<(ComponentMove, Bytes)>),
    Outcomes(Result<(), E>),
    Over(Option<Result<(), Failure<E>>>),
}

/// The next action of the caller.
#[derive(Debug)]
pub enum NextShards<E> {
    /// Exchange this round's data with the other workers, and pass the result to [`receive`](ShardTransfer::receive).
    Exchange {
        /// The name of the data, which is the same on all workers.
        what: String,
        /// The data for each worker.
        bodies: Vec<Bytes>,
    },
    /// Pass the encoded shards, in this order, to [`provide`](ShardTransfer::provide).
    Provide(Vec<ComponentMove>),
    /// Replace this worker's shards with these, and call [`received`](ShardTransfer::received).
    Receive(Vec<(ComponentMove, Bytes)>),
    /// The transfer is over: all workers have their shards and copies, or the transfer has failed.
    End(Result<(), Failure<E>>),
}

impl<E: Display> ShardTransfer<E> {
    /// Creates the state machine of a worker. `mine` is what the worker has of each component with shards, or the error
    /// if it cannot read them. All workers have the weights of worker `source`.
    pub fn new(world: World, source: usize, mine: Result<Vec<Inventory>, E>) -> Self {
        Self { world, source, chunk: CHUNK, moves: Vec::new(), stage: Stage::Inventories(mine) }
    }

    /// Sets the maximum number of bytes that are sent to a worker in one round; the minimum is 1. It must be the same
    /// on all workers.
    pub fn with_chunk_size(mut self, bytes: usize) -> Self {
        self.chunk = bytes.max(1);
        self
    }

    /// Returns the next action. The first [`NextShards::End`] contains the outcome of the transfer; later ones are
    /// `Ok`.
    pub fn next_action(&mut self) -> NextShards<E> {
        let record = |what: &str, body: Bytes| NextShards::Exchange {
            what: what.to_owned(),
            bodies: vec![body; self.world.workers()],
        };
        match &mut self.stage {
            Stage::Inventories(mine) => {
                record("the shards of each worker", encode(&to_wire(mine, Vec::clone)))
            }
            Stage::Provide(moves) => NextShards::Provide(std::mem::take(moves)),
            Stage::Provided(given) => record("whether it has its shards", encode(&to_wire(given, |_| ()))),
            Stage::Chunks { sent, at, .. } => {
                let what = format!("its shards, part {}", *at / self.chunk + 1);
                let piece = |all: &Bytes| all.slice((*at).min(all.len())..(*at + self.chunk).min(all.len()));
                NextShards::Exchange { what, bodies: sent.iter().map(piece).collect() }
            }
            Stage::Receive(shards) => NextShards::Receive(std::mem::take(shards)),
            Stage::Outcomes(received) => {
                record("whether all workers have received their shards", encode(&to_wire(received, |()| ())))
            }
            Stage::Over(end) => NextShards::End(end.take().unwrap_or(Ok(()))),
        }
    }

    /// Processes the messages of all workers in this round. The entry of this worker is ignored.
    pub fn receive(&mut self, bodies: Vec<Bytes>) {
        let next = match std::mem::replace(&mut self.stage, Stage::Over(None)) {
            Stage::Inventories(mine) => {
                agree(self.world, bodies, mine, Vec::clone).and_then(|(_, all)| self.decide(&all))
            }
            Stage::Provided(given) => agree(self.world, bodies, given, |_| ()).map(|(given, _)| {
                let sent = self.streams(given);
                self.chunks(sent, 0, vec![BytesMut::new(); self.world.workers()])
            }),
            Stage::Chunks { sent, at, mut received } => {
                let me = self.world.worker();
                for (from, (received, body)) in received.iter_mut().zip(&bodies).enumerate() {
                    // Bytes beyond the planned length are dropped, so they take no memory.
                    let rest = self.length(from, me).saturating_sub(received.len() as u64);
                    received.extend_from_slice(&body[..body.len().min(rest as usize)]);
                }
                Ok(self.chunks(sent, at + self.chunk, received))
            }
            Stage::Outcomes(received) => {
                agree(self.world, bodies, received, |()| ()).map(|_| Stage::Over(Some(Ok(()))))
            }
            other => Ok(other),
        };
        self.stage = next.unwrap_or_else(|failure| Stage::Over(Some(Err(failure))));
    }

    /// Continues with the encoded shards, or with the error if one cannot be encoded.
    pub fn provide(&mut self, shards: Result<Vec<Bytes>, E>) {
        self.stage = Stage::Provided(shards);
    }

    /// Records whether this worker has replaced its shards.
    pub fn received(&mut self, received: Result<(), E>) {
        self.stage = Stage::Outcomes(received);
    }

    /// Plans the transfers of all components. `all` contains the inventories of each worker.
    fn decide(&mut self, all: &[Vec<Inventory>]) -> Result<Stage<E>, Failure<E>> {
        let components = all.get(self.world.worker()).map_or(0, Vec::len);
        if let Some(worker) = all.iter().position(|of| of.len() != components) {
            let reason = format!("it has {} components with shards, not {components}", all[worker].len());
            return Err(Failure::Unreadable(worker, reason));
        }
        for component in 0..components {
            let inventories: Vec<_> = all.iter().map(|of| of[component].clone()).collect();
            let moves = plan(&inventories, self.source).map_err(Failure::NoPlan)?;
            self.moves.extend(moves.into_iter().map(|transfer| ComponentMove { component, transfer }));
        }
        Ok(if self.moves.is_empty() {
            Stage::Over(Some(Ok(())))
        } else {
            Stage::Provide(self.sent().collect())
        })
    }

    /// Returns the transfers from this worker.
    fn sent(&self) -> impl Iterator<Item = ComponentMove> {
        let me = self.world.worker();
        self.moves.iter().copied().filter(move |of| of.transfer.from == me)
    }

    /// Returns the shards for each worker, one after the other.
    fn streams(&self, shards: Vec<Bytes>) -> Vec<Bytes> {
        let mut streams = vec![BytesMut::new(); self.world.workers()];
        for (of, shard) in self.sent().zip(shards) {
            if let Some(stream) = streams.get_mut(of.transfer.to) {
                stream.extend_from_slice(&shard);
            }
        }
        streams.into_iter().map(BytesMut::freeze).collect()
    }

    /// Returns the number of bytes that a worker sends to another one.
    fn length(&self, from: usize, to: usize) -> u64 {
        let between = self.moves.iter().filter(|of| (of.transfer.from, of.transfer.to) == (from, to));
        between.map(|of| of.transfer.bytes).fold(0, u64::saturating_add)
    }

    /// Returns the stage that transfers the rest of the shards, beginning at byte `at` for each pair of workers.
    fn chunks(&self, sent: Vec<Bytes>, at: usize, received: Vec<BytesMut>) -> Stage<E> {
        let workers = self.world.workers();
        let pairs = (0..workers).flat_map(|from| (0..workers).map(move |to| (from, to)));
        if pairs.map(|(from, to)| self.length(from, to)).max().unwrap_or(0) > at as u64 {
            return Stage::Chunks { sent, at, received };
        }
        let mut received: Vec<Bytes> = received.into_iter().map(BytesMut::freeze).collect();
        let mine = self.moves.iter().filter(|of| of.transfer.to == self.world.worker());
        let shards = mine.filter_map(|of| {
            let stream = received.get_mut(of.transfer.from)?;
            Some((*of, stream.split_to((of.transfer.bytes as usize).min(stream.len()))))
        });
        Stage::Receive(shards.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::shards::{NoPlan, Version};
    use super::*;
    use std::collections::BTreeMap;

    const VERSION: Version = Version { step: 5, generation: 2 };

    /// The shards of a worker, as texts.
    type Shards = BTreeMap<usize, String>;

    fn inventory(shards: &Shards) -> Inventory {
        let shards = shards.iter().map(|(shard, text)| (*shard, text.len() as u64)).collect();
        Inventory { version: VERSION, shards }
    }

    /// Runs the transfer on all workers, each with the shards of two components, until it has ended. Worker `fails`
    /// cannot receive a shard.
    fn transfer(all: &mut [[Shards; 2]], fails: Option<usize>) -> Vec<Result<(), Failure<String>>> {
        transfer_with(all, None, fails)
    }

    /// Acts like [`transfer`], but worker `fails_first` cannot read its shards.
    fn transfer_with(
        all: &mut [[Shards; 2]],
        fails_first: Option<usize>,
        fails: Option<usize>,
    ) -> Vec<Result<(), Failure<String>>> {
        let workers = all.len();
        let make = |(worker, mine): (usize, &[Shards; 2])| {
            let world = World::new(workers, worker, 1).unwrap();
            let mine = mine.iter().map(inventory).collect();
            let mine = if fails_first == Some(worker) { Err("busy".to_owned()) } else { Ok(mine) };
            ShardTransfer::new(world, 0, mine).with_chunk_size(2)
        };
        let mut machines: Vec<_> = all.iter().enumerate().map(make).collect();
        let mut ends = BTreeMap::new();
        while ends.len() < workers {
            let mut rounds = Vec::new();
            for (worker, machine) in machines.iter_mut().enumerate() {
                loop {
                    match machine.next_action() {
                        NextShards::Provide(moves) => {
                            let text =
                                |of: &ComponentMove| all[worker][of.component][&of.transfer.shard].clone();
                            machine.provide(Ok(moves.iter().map(|of| text(of).into()).collect()));
                        }
                        NextShards::Receive(_) if fails == Some(worker) => {
                            machine.received(Err("no room".to_owned()))
                        }
                        NextShards::Receive(shards) => {
                            for (of, text) in shards {
                                let text = String::from_utf8(text.to_vec()).unwrap();
                                all[worker][of.component].insert(of.transfer.shard, text);
                            }
                            machine.received(Ok(()));
                        }
                        NextShards::Exchange { what, bodies } => break rounds.push((what, bodies)),
                        NextShards::End(end) => break drop(ends.insert(worker, end)),
                    }
                }
            }
            let Some((what, _)) = rounds.first() else { continue };
            assert!(rounds.iter().all(|round| round.0 == *what) && rounds.len() == workers);
            for (to, machine) in machines.iter_mut().enumerate() {
                machine.receive(rounds.iter().map(|(_, bodies)| bodies[to].clone()).collect());
            }
        }
        ends.into_values().collect()
    }

    /// Returns the shards of a worker and the one before it, of two components.
    fn complete(worker: usize, workers: usize) -> [Shards; 2] {
        let of = |shard: usize| (shard, format!("{shard} is {}", "x".repeat(shard)));
        let before = (worker + workers - 1) % workers;
        [
            Shards::from([of(worker), of(before)]),
            Shards::from([(worker, "m".into()), (before, String::new())]),
        ]
        .map(|mut shards| {
            shards.values_mut().for_each(|text| text.push('!'));
            shards
        })
    }

    // INV-109
    #[test]
    fn a_replacement_receives_its_shard_and_its_copy() {
        for workers in 2..5 {
            for lost in 0..workers {
                let expected: Vec<_> =
                    (0..workers).map(|worker| complete(worker, workers)[0].clone()).collect();
                let mut all: Vec<_> = (0..workers).map(|worker| complete(worker, workers)).collect();
                all[lost] = Default::default();
                assert!(transfer(&mut all, None).iter().all(Result::is_ok));
                let first: Vec<_> = all.iter().map(|shards| shards[0].clone()).collect();
                assert_eq!(first, expected, "{lost} of {workers}");
                assert_eq!(all[lost][1].len(), 2);
            }
        }
    }

    #[test]
    fn none_is_sent_if_each_worker_has_its_shards() {
        let mut all: Vec<_> = (0..3).map(|worker| complete(worker, 3)).collect();
        assert!(transfer(&mut all, Some(1)).iter().all(Result::is_ok), "no worker receives anything");
    }

    // INV-109
    #[test]
    fn two_neighbours_are_named_on_all_workers() {
        let mut all: Vec<_> = (0..4).map(|worker| complete(worker, 4)).collect();
        (all[3], all[0]) = Default::default();
        let lost = || Err(Failure::NoPlan(NoPlan::LostShards(vec![3])));
        assert_eq!(transfer(&mut all, None), [lost(), lost(), lost(), lost()]);
    }

    /// A worker that cannot read its shards has not lost them.
    #[test]
    fn a_worker_that_cannot_read_its_shards_is_named_on_all() {
        let mut all: Vec<_> = (0..3).map(|worker| complete(worker, 3)).collect();
        let named = || Err(Failure::Peer(1, "busy".to_owned()));
        let failed = transfer_with(&mut all, Some(1), None);
        assert_eq!(failed, [named(), Err(Failure::Own("busy".to_owned())), named()]);
    }

    /// A worker of another program sends bytes that no worker expects.
    #[test]
    fn bytes_that_are_not_planned_take_no_memory() {
        let world = World::new(3, 0, 1).unwrap();
        let mut transfer = ShardTransfer::<String>::new(world, 1, Ok(vec![]));
        let planned = Move { shard: 0, from: 1, to: 0, bytes: 5 };
        transfer.moves = vec![ComponentMove { component: 0, transfer: planned }];
        transfer.stage = transfer.chunks(vec![Bytes::new(); 3], 0, vec![BytesMut::new(); 3]);
        transfer.chunk = 3;
        for _ in 0..2 {
            let NextShards::Exchange { .. } = transfer.next_action() else { panic!("no exchange") };
            transfer.receive(["", "abcd", "xyz"].map(Bytes::from).to_vec());
            if let Stage::Chunks { received, .. } = &transfer.stage {
                assert_eq!([received[0].len(), received[1].len(), received[2].len()], [0, 4, 0]);
            }
        }
        let NextShards::Receive(shards) = transfer.next_action() else { panic!("nothing is received") };
        assert_eq!(shards, [(ComponentMove { component: 0, transfer: planned }, Bytes::from("abcda"))]);
    }

    #[test]
    fn a_worker_that_cannot_receive_is_named_on_all() {
        let mut all: Vec<_> = (0..3).map(|worker| complete(worker, 3)).collect();
        all[1] = Default::default();
        let named = || Err(Failure::Peer(1, "no room".to_owned()));
        assert_eq!(transfer(&mut all, Some(1)), [named(), Err(Failure::Own("no room".to_owned())), named()]);
    }
}
