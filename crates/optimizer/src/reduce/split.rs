//! The split of all parameters into sections, one for each thread of a step.

use crate::sync::Threads;
use distribute_base::Result;
use distribute_base::internal::{EitherFloat, lock, panicked};
use distribute_decisions::internal::BLOCK;
use distribute_tensor::partition::chunk_len;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

/// A range of parameters that can be split.
pub(crate) trait Splittable {
    /// Returns the number of elements that will be visited, which may be an estimate.
    fn len(&self) -> usize;

    /// Splits off the first `len` elements. If the range cannot be split there, splits off slightly more, but never
    /// fewer.
    fn split_front(&mut self, len: usize) -> Self;

    /// Returns `true` if the range cannot be split.
    fn is_whole(&self) -> bool {
        false
    }
}

impl<A: Splittable, B: Splittable> Splittable for EitherFloat<A, B> {
    fn len(&self) -> usize {
        match self {
            EitherFloat::F32(x) => x.len(),
            EitherFloat::F64(x) => x.len(),
        }
    }
    fn split_front(&mut self, len: usize) -> Self {
        match self {
            EitherFloat::F32(x) => EitherFloat::F32(x.split_front(len)),
            EitherFloat::F64(x) => EitherFloat::F64(x.split_front(len)),
        }
    }
    fn is_whole(&self) -> bool {
        match self {
            EitherFloat::F32(x) => x.is_whole(),
            EitherFloat::F64(x) => x.is_whole(),
        }
    }
}

/// The ranges for each thread. All parameters are treated as one sequence, and each thread gets a contiguous section of
/// it.
pub(crate) struct WorkSplit<P> {
    parts: Vec<Vec<P>>,
    blocks_each: usize,
    blocks_given: usize,
}

impl<P: Splittable + Send> WorkSplit<P> {
    /// Splits variables into sections of almost equal size for the given number of threads.
    pub(crate) fn partition(threads: usize, variables: Vec<P>) -> Self {
        let blocks: usize = variables.iter().map(|variable| variable.len().div_ceil(BLOCK)).sum();
        let parts = (0..threads).map(|_| Vec::new()).collect();
        let mut split = Self { parts, blocks_each: chunk_len(blocks, threads, 1), blocks_given: 0 };
        for mut rest in variables {
            while rest.len() > 0 {
                let thread = split.blocks_given / split.blocks_each;
                let room = (thread + 1) * split.blocks_each - split.blocks_given;
                let len = if rest.is_whole() { rest.len() } else { (room * BLOCK).min(rest.len()) };
                split.parts[thread].push(rest.split_front(len));
                split.blocks_given += len.div_ceil(BLOCK);
            }
        }
        split
    }

    /// Returns the ranges for one thread.
    pub(crate) fn of(mut self, thread: usize) -> Vec<P> {
        self.parts.get_mut(thread).map(std::mem::take).unwrap_or_default()
    }

    /// Calls `work` on each thread with its ranges. Returns the results in the order of the parameters.
    pub(crate) fn each<T: Send>(
        self,
        threads: &Threads<'_>,
        work: impl Fn(Vec<P>) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        let cells: Vec<_> = self.parts.into_iter().map(|parts| Mutex::new((Some(parts), None))).collect();
        (threads.broadcast)(&|thread| {
            if let Some(cell) = cells.get(thread) {
                let (parts, result) = &mut *lock(cell);
                // A custom rule may panic. The panic must not unwind through candle's locks.
                let work = |parts| catch_unwind(AssertUnwindSafe(|| work(parts)));
                *result =
                    parts.take().map(|parts| work(parts).unwrap_or_else(|panic| Err(panicked(&*panic))));
            }
        });
        let results =
            cells.into_iter().map(|cell| cell.into_inner().unwrap_or_else(PoisonError::into_inner).1);
        results.flatten().collect()
    }
}
