//! The split of all parameters over threads.

use crate::partition::BLOCK;
use crate::sync::Threads;
use distribute_base::Result;
use distribute_base::internal::{Any, lock, panicked};
use distribute_tensor::partition::chunk_len;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

/// Something that lies along the parameters and can be cut.
pub(crate) trait Splittable {
    /// Returns the number of elements that will be visited.
    fn len(&self) -> usize;

    /// Takes the first `len` elements off; where it is not cut anywhere, a few more, but never less.
    fn cut(&mut self, len: usize) -> Self;
}

impl<A: Splittable, B: Splittable> Splittable for Any<A, B> {
    fn len(&self) -> usize {
        match self {
            Any::F32(x) => x.len(),
            Any::F64(x) => x.len(),
        }
    }
    fn cut(&mut self, len: usize) -> Self {
        match self {
            Any::F32(x) => Any::F32(x.cut(len)),
            Any::F64(x) => Any::F64(x.cut(len)),
        }
    }
}

/// The pieces of each thread: contiguous ranges of all parameters taken together.
pub(crate) struct WorkSplit<P> {
    pieces: Vec<Vec<P>>,
    blocks_each: usize,
    blocks_given: usize,
}

impl<P: Splittable + Send> WorkSplit<P> {
    /// Deals whole variables to threads, cut at the borders between them.
    pub(crate) fn partition(threads: usize, variables: Vec<P>) -> Self {
        let blocks: usize = variables.iter().map(|variable| variable.len().div_ceil(BLOCK)).sum();
        let pieces = (0..threads).map(|_| Vec::new()).collect();
        let mut owners = Self { pieces, blocks_each: chunk_len(blocks, threads, 1), blocks_given: 0 };
        for mut rest in variables {
            while rest.len() > 0 {
                let owner = owners.blocks_given / owners.blocks_each;
                let room = (owner + 1) * owners.blocks_each - owners.blocks_given;
                let len = (room * BLOCK).min(rest.len());
                owners.pieces[owner].push(rest.cut(len));
                owners.blocks_given += len.div_ceil(BLOCK);
            }
        }
        owners
    }

    /// The pieces of one thread.
    pub(crate) fn of(mut self, thread: usize) -> Vec<P> {
        self.pieces.get_mut(thread).map(std::mem::take).unwrap_or_default()
    }

    /// Runs `work` on each thread with its pieces. Results are in the order of the parameters.
    pub(crate) fn each<T: Send>(
        self,
        threads: &Threads<'_>,
        work: impl Fn(Vec<P>) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        let cells: Vec<_> = self.pieces.into_iter().map(|pieces| Mutex::new((Some(pieces), None))).collect();
        (threads.broadcast)(&|thread| {
            if let Some(cell) = cells.get(thread) {
                let (pieces, result) = &mut *lock(cell);
                // A rule of the user's own may panic: that must not unwind through candle's locks.
                let work = |pieces| catch_unwind(AssertUnwindSafe(|| work(pieces)));
                *result =
                    pieces.take().map(|pieces| work(pieces).unwrap_or_else(|panic| Err(panicked(&*panic))));
            }
        });
        let results =
            cells.into_iter().map(|cell| cell.into_inner().unwrap_or_else(PoisonError::into_inner).1);
        results.flatten().collect()
    }
}
