//! All-reduces of vectors in a worker's process.

use super::model::Algorithm;
use super::place::{Links, Place};
use crate::figure::Effort;
use bytes::Bytes;
use distribute::cluster::{Fingerprint, Operation, ReplicaStatus, Stopwatch};
use distribute::tensor::kernel::fold_scaled;
use distribute::{Error, Result};
use distribute_collective::group::{Group, GroupCall, SumOptions, numbers};
use distribute_net::{Credentials, Identity, Rendezvous};
use std::hint::black_box;
use std::panic::Location;
use std::time::Duration;

/// The maximum time that a worker waits for the others in one exchange.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The maximum size in bytes at which two workers exchange complete vectors. Up to this size, saving a round outweighs
/// adding everything twice.
const WHOLE: usize = 64 << 10;

/// Returns the algorithm that is used for vectors of `bytes` bytes.
pub fn algorithm(workers: usize, bytes: usize) -> Algorithm {
    if workers == 2 && bytes <= WHOLE { Algorithm::Exchange } else { Algorithm::Owners }
}

/// Measures the time of an all-reduce in microseconds, with this worker's clock.
///
/// Vectors are stored in the group's buffers, like gradients. Sums remain where they arrive, in one piece for each
/// worker that computed one. Nothing is copied before or after.
pub fn micros(place: &Place, links: Links, bytes: usize, effort: Effort) -> Result<f64> {
    let workers = place.world.workers();
    let weights = vec![1_f32; workers];
    let way = algorithm(workers, bytes);
    let all_reduce = |mut calling: GroupCall<'_>, mine: &Bytes| match way {
        Algorithm::Exchange => exchanged(calling, mine, &weights),
        _ => calling
            .all_reduce_vectors(std::slice::from_ref(mine), &weights, &SumOptions::default())
            .map_err(failed),
    };
    let (micros, sums) = timed(place, links, bytes, effort, all_reduce)?;
    check(&sums, bytes, workers)?;
    Ok(micros)
}

/// Measures the time of an exchange in microseconds. Each worker sends a vector to the others over sockets, without
/// adding the vectors.
pub fn exchange_micros(place: &Place, bytes: usize, effort: Effort) -> Result<f64> {
    let exchange = |mut calling: GroupCall<'_>, mine: &Bytes| {
        calling.all_gather_sized("bytes", mine.clone(), |_| bytes).map_err(failed)
    };
    let (micros, all) = timed(place, Links::Tcp, bytes, effort, exchange)?;
    let came: usize = all.iter().map(Bytes::len).sum();
    if came == bytes * place.world.workers() {
        return Ok(micros);
    }
    Err(failed(format!("{came} bytes came of {bytes} from each")))
}

/// Measures the time in microseconds of a call in which all workers participate. Also returns the result of the last
/// call.
fn timed(
    place: &Place,
    links: Links,
    bytes: usize,
    effort: Effort,
    call: impl Fn(GroupCall<'_>, &Bytes) -> Result<Vec<Bytes>>,
) -> Result<(f64, Vec<Bytes>)> {
    let world = place.world;
    // On two hosts, the peers encrypt nothing, and no other machine is in the network.
    let rendezvous = Rendezvous::new(world, place.addresses.clone())
        .shared_memory(links.shared_memory())
        .credentials(Credentials::from(Identity::None).allow_plain_text_on_the_network());
    let group = Group::join(world, rendezvous)?;
    let session = group.open("bench", 0);
    let mut mine = group.buffers().take(bytes);
    mine.bytes_mut().as_chunks_mut().0.fill((world.worker() as f32 + 1.).to_ne_bytes());
    let mine = mine.freeze();
    let print = Fingerprint::new(Operation::AllReduce, format!("{bytes} bytes"), Location::caller());
    let calling =
        || GroupCall::new(&session, vec![ReplicaStatus::waiting(world.worker(), print.clone())], TIMEOUT);
    let repeat = |calls: usize| {
        let watch = Stopwatch::start();
        for _ in 0..calls {
            black_box(call(calling(), &mine)?);
        }
        Ok::<_, Error>(watch.seconds() / calls as f64)
    };
    repeat(3)?;
    let calls = (effort.seconds / repeat(3)?).clamp(3., 1e6) as u64;
    // All workers make the same number of calls, chosen by worker 0.
    let said = calling().all_gather_bytes(Bytes::copy_from_slice(&calls.to_le_bytes())).map_err(failed)?;
    let calls = said.first().and_then(|said| said[..].try_into().ok()).map(u64::from_le_bytes);
    let calls = calls.ok_or_else(|| failed("worker 0 has not said how many calls there are"))? as usize;
    repeat(calls / 4 + 1)?;
    let seconds = repeat(calls)?;
    let last = call(calling(), &mine)?;
    group.end();
    Ok((seconds * 1e6, last))
}

/// Adds the vectors of two workers: each sends its whole vector to the other, and both add them in the same order.
fn exchanged(mut calling: GroupCall<'_>, mine: &Bytes, weights: &[f32]) -> Result<Vec<Bytes>> {
    let all = calling.all_gather_sized("its vector", mine.clone(), |_| mine.len()).map_err(failed)?;
    let all: Vec<_> = all.iter().map(|bytes| numbers::<f32>(bytes)).collect();
    let all: Vec<&[f32]> = all.iter().map(|numbers| &**numbers).collect();
    let mut sum = calling.buffers().take(mine.len());
    fold_scaled(&all, weights, bytemuck::cast_slice_mut(sum.bytes_mut()));
    Ok(vec![sum.freeze()])
}

/// Checks an all-reduce in which worker `k` contributed `k + 1` to every element.
fn check(sums: &[Bytes], bytes: usize, workers: usize) -> Result<()> {
    let expected = (workers * (workers + 1) / 2) as f32;
    let length: usize = sums.iter().map(Bytes::len).sum();
    let right = sums.iter().all(|piece| numbers::<f32>(piece).iter().all(|x| *x == expected));
    if length == bytes && right {
        return Ok(());
    }
    Err(failed(format!("{length} bytes came of {bytes}, or not all numbers are {expected}")))
}

fn failed(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::Io { operation: "all-reduce of processes".into(), source: std::io::Error::other(reason) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_or_missing_sum_is_an_error() {
        let piece =
            |x: f32, len| Bytes::from(vec![x; len].iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<_>>());
        check(&[piece(6., 2), piece(6., 1)], 12, 3).unwrap();
        check(&[piece(6., 2), piece(5., 1)], 12, 3).unwrap_err();
        check(&[piece(6., 2)], 12, 3).unwrap_err();
    }
}
