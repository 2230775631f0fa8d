//! The schedule of a sum in [`Order::Fast`](super::Order::Fast): the elements that each worker sends to which other one
//! in each round. It is a pure function of the algorithm and of sizes.

use super::Algorithm;
use distribute_tensor::partition::chunk;
use std::ops::Range;

/// The granularity of ranges in elements: ranges begin at multiples of it, so that no two ranges share a cache line.
pub(super) const GRAIN: usize = 64;

/// The schedule of one worker in a sum. All workers have the same number of reduce rounds, and the same number of
/// gather rounds.
#[derive(Debug)]
pub(super) struct Schedule {
    /// The rounds in which received elements are added to this worker's own elements.
    pub reduce: Vec<Exchange>,
    /// The elements whose sum this worker has after the reduce rounds. Each element is assigned to one worker.
    pub assigned: Range<usize>,
    /// The rounds in which sums are received.
    pub gather: Vec<Exchange>,
}

/// A worker's transfers in one round. The sent elements have the values that they had before the round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Exchange {
    pub send: Option<Transfer>,
    pub receive: Option<Transfer>,
}

/// A range of elements that is sent to another worker, or received from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Transfer {
    pub peer: usize,
    pub range: Range<usize>,
}

impl Schedule {
    /// Creates the schedule of `worker` of `workers` for vectors of `len` elements.
    pub(super) fn new(algorithm: Algorithm, len: usize, workers: usize, worker: usize) -> Self {
        match algorithm {
            Algorithm::Ring => ring(len, workers, worker),
            Algorithm::HalvingDoubling => halving_doubling(len, workers, worker),
            Algorithm::Tree => tree(len, workers, worker),
        }
    }
}

impl Exchange {
    fn send(peer: usize, range: Range<usize>) -> Self {
        Self { send: Some(Transfer { peer, range }), receive: None }
    }

    fn receive(peer: usize, range: Range<usize>) -> Self {
        Self { send: None, receive: Some(Transfer { peer, range }) }
    }

    /// Returns the exchange in the opposite direction, which sends a sum back to the workers that contributed to it.
    fn reversed(&self) -> Self {
        Self { send: self.receive.clone(), receive: self.send.clone() }
    }
}

/// Returns the range of `len` elements that a worker sums.
pub(super) fn range(len: usize, workers: usize, worker: usize) -> Range<usize> {
    chunk(len, workers, GRAIN, worker)
}

/// Returns the two halves of a range. If the range is too short to be divided, the second half is empty.
fn halves(range: &Range<usize>) -> [Range<usize>; 2] {
    let middle = range.start + chunk(range.len(), 2, GRAIN, 0).end;
    [range.start..middle, middle..range.end]
}

/// Returns the ring schedule. Every range travels once around the ring while it is summed, and its sum travels around
/// again.
fn ring(len: usize, workers: usize, me: usize) -> Schedule {
    let (next, previous) = ((me + 1) % workers, (me + workers - 1) % workers);
    let part = |at: usize| range(len, workers, at % workers);
    // `me + 2 * workers` stays above what is subtracted.
    let round = |first: usize, round: usize| Exchange {
        send: Some(Transfer { peer: next, range: part(first + 2 * workers - round) }),
        receive: Some(Transfer { peer: previous, range: part(first + 2 * workers - round - 1) }),
    };
    Schedule {
        reduce: (1..workers).map(|at| round(me, at - 1)).collect(),
        assigned: part(me + 1),
        gather: (1..workers).map(|at| round(me + 1, at - 1)).collect(),
    }
}

/// Returns the schedule of halving and doubling. In each round, two workers exchange halves of the ranges that they
/// have, so that the ranges become smaller. The sums return in the opposite direction. Workers beyond the largest power
/// of two send their vectors to another worker first, and receive the sum from it at the end.
fn halving_doubling(len: usize, workers: usize, me: usize) -> Schedule {
    let core = if workers.is_power_of_two() { workers } else { workers.next_power_of_two() / 2 };
    let extra = workers - core;
    let mut reduce = Vec::new();
    if extra > 0 {
        reduce.push(match me {
            _ if me >= core => Exchange::send(me - core, 0..len),
            _ if me < extra => Exchange::receive(me + core, 0..len),
            _ => Exchange::default(),
        });
    }
    let mut assigned = 0..if me < core { len } else { 0 };
    let mut distance = core / 2;
    while distance > 0 {
        reduce.push(if me < core {
            let [low, high] = halves(&assigned);
            let (kept, given) = if me & distance == 0 { (low, high) } else { (high, low) };
            assigned = kept.clone();
            let peer = me ^ distance;
            Exchange {
                send: Some(Transfer { peer, range: given }),
                receive: Some(Transfer { peer, range: kept }),
            }
        } else {
            Exchange::default()
        });
        distance /= 2;
    }
    let gather = reduce.iter().rev().map(Exchange::reversed).collect();
    Schedule { reduce, assigned, gather }
}

/// Returns the tree schedule. In each round, half of the remaining workers send their sums to the other half, until
/// worker 0 has the total. The total returns in the opposite direction.
fn tree(len: usize, workers: usize, me: usize) -> Schedule {
    let mut reduce = Vec::new();
    let mut distance = 1;
    while distance < workers {
        reduce.push(match me % (2 * distance) {
            0 if me + distance < workers => Exchange::receive(me + distance, 0..len),
            at if at == distance => Exchange::send(me - distance, 0..len),
            _ => Exchange::default(),
        });
        distance *= 2;
    }
    let gather = reduce.iter().rev().map(Exchange::reversed).collect();
    Schedule { reduce, assigned: 0..if me == 0 { len } else { 0 }, gather }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Executes one round of all workers. Checks that every transfer has both a sender and a receiver; a worker sends
    /// the values that it had before the round.
    fn carry_out(rounds: &[&Exchange], values: &mut [Vec<Option<u64>>], add: bool) {
        let before = values.to_vec();
        for (me, round) in rounds.iter().enumerate() {
            if let Some(Transfer { peer, range }) = &round.send {
                assert_ne!(*peer, me);
                let other_end = Some(Transfer { peer: me, range: range.clone() });
                assert_eq!(rounds[*peer].receive, other_end, "{me} sends to {peer}");
            }
            let Some(Transfer { peer, range }) = &round.receive else { continue };
            let other_end = Some(Transfer { peer: me, range: range.clone() });
            assert_eq!(rounds[*peer].send, other_end, "{me} receives from {peer}");
            for at in range.clone() {
                let come = before[*peer][at].expect("a sum that is there");
                values[me][at] = if add { before[me][at].map(|mine| mine + come) } else { Some(come) };
            }
        }
    }

    /// Checks that the schedules of all workers sum vectors of small integers correctly.
    fn check(algorithm: Algorithm, len: usize, workers: usize) {
        let all: Vec<_> = (0..workers).map(|worker| Schedule::new(algorithm, len, workers, worker)).collect();
        let value = |worker: usize, at: usize| (1_000 * worker + at) as u64;
        let mut values: Vec<Vec<_>> =
            (0..workers).map(|worker| (0..len).map(|at| Some(value(worker, at))).collect()).collect();
        for round in 0..all[0].reduce.len() {
            carry_out(&all.iter().map(|one| &one.reduce[round]).collect::<Vec<_>>(), &mut values, true);
        }
        // A worker has no sums of elements that are not assigned to it.
        let mut owners = vec![0; len];
        for (one, values) in all.iter().zip(&mut values) {
            one.assigned.clone().for_each(|at| owners[at] += 1);
            for (at, value) in values.iter_mut().enumerate() {
                *value = value.filter(|_| one.assigned.contains(&at));
            }
        }
        assert_eq!(owners, vec![1; len], "each element has one owner");
        for round in 0..all[0].gather.len() {
            carry_out(&all.iter().map(|one| &one.gather[round]).collect::<Vec<_>>(), &mut values, false);
        }
        for (worker, values) in values.iter().enumerate() {
            for (at, got) in values.iter().enumerate() {
                let sum = (0..workers).map(|worker| value(worker, at)).sum::<u64>();
                assert_eq!(*got, Some(sum), "element {at} of worker {worker}");
            }
        }
        for one in &all {
            assert_eq!((one.reduce.len(), one.gather.len()), (all[0].reduce.len(), all[0].gather.len()));
        }
    }

    const ALL: [Algorithm; 3] = [Algorithm::Tree, Algorithm::HalvingDoubling, Algorithm::Ring];

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn every_worker_gets_the_sum_of_all(
            workers in 1usize..=16, len in prop_oneof![0usize..20, 60usize..70, 0usize..3000],
        ) {
            for algorithm in ALL {
                check(algorithm, len, workers);
            }
        }
    }

    #[test]
    fn a_worker_sends_no_more_than_the_table_says() {
        let n = 64 * 5040;
        for workers in 2..=16usize {
            let sent = |algorithm, worker| {
                let schedule = Schedule::new(algorithm, n, workers, worker);
                let rounds = schedule.reduce.iter().chain(&schedule.gather);
                rounds.filter_map(|turn| turn.send.as_ref()).map(|sent| sent.range.len()).sum::<usize>()
            };
            let most = |algorithm| (0..workers).map(|worker| sent(algorithm, worker)).max().unwrap();
            // Ranges begin at multiples of 64.
            let slack = 2 * workers * 64;
            let shared = 2 * n * (workers - 1) / workers + slack;
            assert!(most(Algorithm::Ring) <= shared);
            let halved = most(Algorithm::HalvingDoubling);
            assert!(halved <= if workers.is_power_of_two() { shared } else { 3 * n }, "{workers}: {halved}");
            let rounds = workers.next_power_of_two().trailing_zeros() as usize;
            assert!(most(Algorithm::Tree) <= n * rounds);
        }
    }
}
