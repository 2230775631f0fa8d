//! Vectors of numbers whose lengths all workers know: exchanged whole, or summed by ranges.
//!
//! Unlike leaves, they are sent without a head, from where they lie, and are folded from where they arrive.

use super::buffer::numbers;
use super::{Buffers, Calling};
use crate::Failure;
use bytemuck::Pod;
use bytes::Bytes;
use distribute_cluster::World;
use distribute_tensor::kernel::{Scale, fold_scaled};
use std::ops::Range;

/// Ranges begin at multiples of this many elements, so that no two share a cache line.
const GRAIN: usize = 64;

/// Which of `len` elements a worker folds: a function of sizes alone.
pub(super) fn range(len: usize, workers: usize, worker: usize) -> Range<usize> {
    let each = len.div_ceil(workers.max(1)).next_multiple_of(GRAIN);
    let start = each.saturating_mul(worker).min(len);
    start..start.saturating_add(each).min(len)
}

impl Calling<'_> {
    /// Sends every other worker these bytes, and gives what all have sent, by worker. All send equally many. `what` says in
    /// errors what is exchanged.
    ///
    /// # Errors
    /// [`Failure`] on every worker; [`Failure::Record`] where a worker has sent another number of bytes.
    pub fn exchange(&mut self, what: &str, mine: Bytes) -> Result<Vec<Bytes>, Failure> {
        let me = self.world().worker();
        let mut all = self.round(what, |_| mine.clone())?;
        for (worker, bytes) in all.iter().enumerate().filter(|(worker, _)| *worker != me) {
            require_length(worker, bytes, mine.len())?;
        }
        if let Some(own) = all.get_mut(me) {
            *own = mine;
        }
        Ok(all)
    }

    /// The sum of the vectors of all workers, each multiplied by its weight, in the one order of sums. Each worker brings the
    /// same number of vectors, all of one length; `weights` are those of all workers' vectors.
    ///
    /// Reduce-scatter and all-gather: each worker receives its range of all vectors, folds it, and sends the sum to all. Gives
    /// the sums of all ranges, one after another.
    ///
    /// # Errors
    /// [`Failure`] on every worker; [`Failure::Record`] where a worker has sent another number of bytes, and where vectors or
    /// weights are not as many or long as they have to be.
    pub fn sum<F: Scale + Pod>(&mut self, vectors: &[Bytes], weights: &[F]) -> Result<Vec<Bytes>, Failure> {
        let (world, buffers) = (self.world(), self.buffers().clone());
        let size = vectors.first().map_or(0, Bytes::len);
        if weights.len() != vectors.len() * world.workers() || vectors.iter().any(|v| v.len() != size) {
            return Err(Failure::Record("vectors of different lengths, or without a weight each".into()));
        }
        let part = |worker| of_worker::<F>(size, world, worker);
        let mine = part(world.worker());
        let come = self.round("its ranges", |worker| concatenated(vectors, part(worker), &buffers))?;
        let mut all = Vec::with_capacity(weights.len());
        for (worker, body) in come.iter().enumerate() {
            if worker == world.worker() {
                all.extend(vectors.iter().map(|vector| vector.slice(mine.clone())));
                continue;
            }
            require_length(worker, body, mine.len() * vectors.len())?;
            all.extend((0..vectors.len()).map(|at| body.slice(at * mine.len()..(at + 1) * mine.len())));
        }
        let mut sum = buffers.take(mine.len());
        let all: Vec<_> = all.iter().map(|bytes| numbers::<F>(bytes)).collect();
        let all: Vec<&[F]> = all.iter().map(|numbers| &**numbers).collect();
        fold_scaled(&all, weights, bytemuck::cast_slice_mut(sum.bytes_mut()));
        let sum = sum.freeze();
        drop(come);

        let mut sums = self.round("its sums", |_| sum.clone())?;
        for (worker, theirs) in sums.iter_mut().enumerate() {
            if worker == world.worker() {
                *theirs = sum.clone();
            } else {
                require_length(worker, theirs, part(worker).len())?;
            }
        }
        Ok(sums)
    }
}

/// The bytes of a vector that a worker folds.
fn of_worker<F>(size: usize, world: World, worker: usize) -> Range<usize> {
    let elements = range(size / size_of::<F>(), world.workers(), worker);
    elements.start * size_of::<F>()..elements.end * size_of::<F>()
}

/// The same part of each vector, one after another; of a single vector it is not copied.
fn concatenated(vectors: &[Bytes], part: Range<usize>, buffers: &Buffers) -> Bytes {
    match vectors {
        [] => Bytes::new(),
        [only] => only.slice(part),
        several => {
            let mut all = buffers.take(part.len() * several.len());
            for (place, vector) in all.bytes_mut().chunks_exact_mut(part.len().max(1)).zip(several) {
                place.copy_from_slice(&vector[part.clone()]);
            }
            all.freeze()
        }
    }
}

fn require_length(worker: usize, bytes: &Bytes, expected: usize) -> Result<(), Failure> {
    if bytes.len() == expected {
        return Ok(());
    }
    Err(Failure::Record(format!(
        "{} bytes of worker {worker}, where {expected} were expected: start all workers from the same build",
        bytes.len()
    )))
}
