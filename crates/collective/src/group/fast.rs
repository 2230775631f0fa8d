//! Sums in [`Order::Fast`](super::Order::Fast): with the library of the transport, or by an algorithm with a schedule
//! of rounds.

use super::buffer::numbers;
use super::pieces::Pieces;
use super::schedule::{Exchange, Schedule, Transfer};
use super::wire::{Coding, Real};
use super::{Algorithm, GroupCall, SumOptions, Wire, native, raw};
use crate::Failure;
use bytes::Bytes;
use distribute_tensor::kernel::fold_scaled;
use std::ops::Range;

/// Returns the sum of the vectors of all workers, in pieces. The library of the transport computes the sum if there is
/// one, all workers can use it, and numbers are sent unchanged. Otherwise one worker computes the sum of each element,
/// so that all workers get the same bits.
///
/// # Errors
/// Returns a [`Failure`] if a round or the library fails, or if another worker sends a different number of bytes than
/// expected.
pub(super) fn sum<F: Real>(
    call: &mut GroupCall<'_>,
    vectors: &[Bytes],
    weights: &[F],
    algorithm: Algorithm,
    coding: &Coding<F>,
    options: &SumOptions,
) -> Result<Vec<Bytes>, Failure> {
    let (world, buffers) = (call.world(), call.buffers().clone());
    let mine = sum_of_replicas(call, vectors, weights);
    if options.wire == Wire::Full
        && let Some(sum) = native::sum::<F>(call, &mine, options)?
    {
        return Ok(vec![sum]);
    }
    let bytes = mine.len();
    let schedule = Schedule::new(algorithm, bytes / size_of::<F>(), world.workers(), world.worker());
    let mut number = 0;
    let mut next = || {
        number += 1;
        round_name(bytes, algorithm, options, number)
    };

    let mut partial = Pieces::default();
    partial.put(0, mine);
    for turn in &schedule.reduce {
        let send = |range: &Range<usize>| {
            Ok(coding.encode(
                partial.get(byte_range(range, size_of::<F>()), &buffers).ok_or_else(schedule_gap)?,
                &buffers,
            ))
        };
        let Some((range, theirs)) = run_exchange(call, &next(), turn, coding, send)? else { continue };
        let place = byte_range(&range, size_of::<F>());
        let mine = partial.get(place.clone(), &buffers).ok_or_else(schedule_gap)?;
        let mut sum = buffers.take(place.len());
        coding.add(&mine, &theirs, bytemuck::cast_slice_mut(sum.bytes_mut()));
        partial.put(place.start, sum.freeze());
    }

    // From here on, what is sent has been rounded, this worker's own sum included.
    let own =
        partial.get(byte_range(&schedule.assigned, size_of::<F>()), &buffers).ok_or_else(schedule_gap)?;
    drop(partial);
    let mut sums = Pieces::default();
    sums.put(schedule.assigned.start * coding.width(), coding.encode(own, &buffers));
    for turn in &schedule.gather {
        let send = |range: &Range<usize>| {
            sums.get(byte_range(range, coding.width()), &buffers).ok_or_else(schedule_gap)
        };
        if let Some((range, theirs)) = run_exchange(call, &next(), turn, coding, send)? {
            sums.put(range.start * coding.width(), theirs);
        }
    }
    Ok(sums.into_all().map(|sum| coding.decode_bytes(sum, &buffers)).collect())
}

/// Returns the weighted sum over this worker's replicas. A single vector of weight 1 is not copied.
fn sum_of_replicas<F: Real>(call: &GroupCall<'_>, vectors: &[Bytes], weights: &[F]) -> Bytes {
    let first = call.world().worker() * vectors.len();
    let weights = &weights[first..first + vectors.len()];
    if let ([only], [weight]) = (vectors, weights)
        && *weight == F::ONE
    {
        return only.clone();
    }
    let all: Vec<_> = vectors.iter().map(|vector| numbers::<F>(vector)).collect();
    let all: Vec<&[F]> = all.iter().map(|numbers| &**numbers).collect();
    let mut sum = call.buffers().take(vectors.first().map_or(0, Bytes::len));
    fold_scaled(&all, weights, bytemuck::cast_slice_mut(sum.bytes_mut()));
    sum.freeze()
}

/// Returns the name of a round, on which all workers must agree.
fn round_name(bytes: usize, algorithm: Algorithm, options: &SumOptions, number: usize) -> String {
    format!("its part of {bytes} bytes {options}, {algorithm}, round {number}")
}

/// Executes one round of the schedule: sends this worker's part, and returns the received part with its position.
/// Returns `None` if this worker receives nothing.
///
/// # Errors
/// Returns a [`Failure`] if the round fails, or if the received part has a different length.
fn run_exchange<F: Real>(
    call: &mut GroupCall<'_>,
    what: &str,
    turn: &Exchange,
    coding: &Coding<F>,
    send: impl Fn(&Range<usize>) -> Result<Bytes, Failure>,
) -> Result<Option<(Range<usize>, Bytes)>, Failure> {
    let body = turn.send.as_ref().map(|sent| send(&sent.range)).transpose()?.unwrap_or_default();
    let to = turn.send.as_ref().map(|sent| sent.peer);
    let mut come =
        call.subround(what, |worker| if to == Some(worker) { body.clone() } else { Bytes::new() })?;
    let Some(Transfer { peer, range }) = turn.receive.clone() else { return Ok(None) };
    let theirs = come.get_mut(peer).map(std::mem::take).unwrap_or_default();
    raw::require_length(peer, &theirs, range.len() * coding.width())?;
    Ok(Some((range, theirs)))
}

fn byte_range(elements: &Range<usize>, width: usize) -> Range<usize> {
    elements.start * width..elements.end * width
}

/// Returns the error for a schedule that sends data before this worker has it. Tests rule this out.
fn schedule_gap() -> Failure {
    Failure::Record("the schedule sends data that this worker does not have".into())
}

#[cfg(test)]
mod tests {
    use super::super::{Group, Links, Order, Session, local};
    use super::*;
    use distribute_cluster::{Blame, Fault, Fingerprint, Operation, ReplicaStatus};
    use distribute_testing::watched;
    use std::panic::Location;
    use std::sync::{Arc, Barrier};
    use std::time::Duration;

    const WORKERS: usize = 5;
    const LONG: Duration = Duration::from_secs(30);
    const FAST: SumOptions =
        SumOptions { order: Order::Fast, wire: super::super::Wire::Full, bytes_per_pack: 0 };
    /// The worker that does not take part in all rounds.
    const WHO: usize = 2;

    fn call(session: &Session, timeout: Duration) -> GroupCall<'_> {
        let call = Fingerprint::new(Operation::AllReduce, "vectors", Location::caller());
        GroupCall::new(session, vec![ReplicaStatus::waiting(session.world().worker(), call)], timeout)
    }

    /// Sums on all workers but one, which takes part in only `rounds` rounds and then calls `last`. Returns the errors
    /// of the other workers.
    fn without_one(
        len: usize,
        rounds: usize,
        timeout: Duration,
        last: impl Fn(&Group) + Send + Sync + 'static,
        then: impl Fn() + Send + Sync + 'static,
    ) -> Vec<Arc<Blame>> {
        watched(move || {
            let groups = local::groups(Links::Memory, WORKERS, 1).unwrap();
            let run = |group: Group| {
                let session = group.open("fast", 1);
                let mut call = call(&session, timeout);
                if group.world().worker() == WHO {
                    let algorithm = FAST.order.algorithm(4 * len, WORKERS).unwrap();
                    let schedule = Schedule::new(algorithm, len, WORKERS, WHO);
                    let turns = schedule.reduce.iter().chain(&schedule.gather).take(rounds).enumerate();
                    for (number, turn) in turns {
                        let what = round_name(4 * len, algorithm, &FAST, number + 1);
                        let zeros = |range: &Range<usize>| Ok(vec![0; 4 * range.len()].into());
                        run_exchange::<f32>(&mut call, &what, turn, &Coding::of(Wire::Full), zeros).unwrap();
                    }
                    last(&group);
                    return None;
                }
                let failed = call.all_reduce_vectors(&[vec![0; 4 * len].into()], &[1f32; WORKERS], &FAST);
                then();
                match failed {
                    Err(Failure::Blame(blame)) => Some(blame),
                    other => panic!("{other:?}"),
                }
            };
            std::thread::scope(|scope| {
                let all: Vec<_> = groups.into_iter().map(|group| scope.spawn(|| run(group))).collect();
                all.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
            })
        })
    }

    fn one_text(blames: &[Arc<Blame>], fault: Fault) {
        assert_eq!(blames.len(), WORKERS - 1);
        for blame in blames {
            assert_eq!((blame.fault, &blame.culprits[..]), (fault, &[WHO][..]), "{blame}");
            assert_eq!(blame.to_string(), blames[0].to_string());
        }
    }

    /// The lengths for which the algorithms are chosen, and the number of rounds of each.
    const SUMS: [(usize, usize); 3] = [(1_000, 6), (40_000, 6), (100_000, 8)];

    // INV-2, INV-25
    #[test]
    fn a_worker_that_is_lost_in_any_round_is_named_on_all_others() {
        for (len, rounds) in SUMS {
            for before in 0..rounds {
                one_text(&without_one(len, before, LONG, Group::end, || ()), Fault::Lost);
            }
        }
    }

    // INV-2
    #[test]
    fn a_worker_that_is_late_in_a_further_round_is_named_on_all_others() {
        for (len, rounds) in SUMS {
            let (met, others) = (Arc::new(Barrier::new(WORKERS)), Duration::from_secs(2));
            let over = met.clone();
            let wait = move |_: &Group| {
                met.wait();
            };
            let blames = without_one(len, rounds / 2, others, wait, move || {
                over.wait();
            });
            one_text(&blames, Fault::TimedOut);
        }
    }
}
