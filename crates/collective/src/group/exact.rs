//! Sums in [`Order::Exact`](super::Order::Exact): each worker sums a range of all vectors, and sends the sum to all
//! others.

use super::schedule::range;
use super::wire::Coding;
use super::{GroupCall, SumOptions, raw};
use crate::Failure;
use bytemuck::Pod;
use bytes::Bytes;
use distribute_tensor::kernel::Scale;

/// Sums the vectors of all workers, and returns the sum in pieces. If numbers are rounded before they are sent, this
/// worker's own numbers are rounded as well, so that the result does not depend on which worker sums which range.
///
/// # Errors
/// Returns a [`Failure`] if a round fails, or if another worker sends a different number of bytes than expected.
pub(super) fn sum<F: Scale + Pod>(
    calling: &mut GroupCall<'_>,
    vectors: &[Bytes],
    weights: &[F],
    coding: &Coding<F>,
    options: &SumOptions,
) -> Result<Vec<Bytes>, Failure> {
    let (world, buffers) = (calling.world(), calling.buffers().clone());
    let len = vectors.first().map_or(0, Bytes::len) / size_of::<F>();
    let part = |worker| {
        let elements = range(len, world.workers(), worker);
        elements.start * coding.width()..elements.end * coding.width()
    };
    let mine = part(world.worker());
    let vectors: Vec<_> = vectors.iter().map(|vector| coding.encode(vector.clone(), &buffers)).collect();
    let come = calling.subround(&round_name("its ranges", options), |worker| {
        buffers.concat(vectors.iter().map(|vector| vector.slice(part(worker))))
    })?;
    let mut all = Vec::with_capacity(weights.len());
    for (worker, body) in come.iter().enumerate() {
        if worker == world.worker() {
            all.extend(vectors.iter().map(|vector| vector.slice(mine.clone())));
            continue;
        }
        raw::require_length(worker, body, mine.len() * vectors.len())?;
        all.extend((0..vectors.len()).map(|at| body.slice(at * mine.len()..(at + 1) * mine.len())));
    }
    let sum = coding.fold(&all, weights, &buffers);
    drop((all, come));

    let mut sums = calling.subround(&round_name("its sums", options), |_| sum.clone())?;
    for (worker, theirs) in sums.iter_mut().enumerate() {
        if worker == world.worker() {
            *theirs = sum.clone();
        } else {
            raw::require_length(worker, theirs, part(worker).len())?;
        }
    }
    Ok(sums.into_iter().map(|sum| coding.decode_bytes(sum, &buffers)).collect())
}

/// Returns the name of a round in errors, with the options unless they are the default.
fn round_name(what: &str, options: &SumOptions) -> String {
    if *options == SumOptions::default() { what.into() } else { format!("{what}, {options}") }
}
