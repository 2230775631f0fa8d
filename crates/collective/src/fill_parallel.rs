//! A vector whose chunks are written by several threads, without being zeroed first. Zeroing 64 MiB takes a third of
//! the time of summing them.
//!
//! This is the only `unsafe` code of the operations.

use crate::sync::{Mutex, lock};
use distribute_tensor::partition::chunk_len;
use std::mem::MaybeUninit;
use std::ops::Range;

/// A chunk of a vector, to be written from start to end.
pub(crate) struct Chunk<'a, T> {
    start: usize,
    spare: &'a mut [MaybeUninit<T>],
    written: usize,
}

impl<T: Copy> Chunk<'_, T> {
    /// Returns the range in the vector of the next elements to write, at most `max`. It is empty if the chunk is full.
    pub(crate) fn next(&self, max: usize) -> Range<usize> {
        let start = self.start + self.written;
        start..start + max.min(self.spare.len() - self.written)
    }

    /// Writes the next elements.
    ///
    /// # Panics
    /// Panics if the chunk does not have enough space for all of them.
    pub(crate) fn write(&mut self, block: &[T]) {
        let end = self.written + block.len();
        self.spare[self.written..end].write_copy_of_slice(block);
        self.written = end;
    }

    /// Writes the next elements one by one, until the chunk is full or `elements` ends.
    pub(crate) fn extend(&mut self, elements: impl Iterator<Item = T>) {
        let mut count = 0;
        for (spare, element) in self.spare[self.written..].iter_mut().zip(elements) {
            spare.write(element);
            count += 1;
        }
        self.written += count;
    }

    fn is_full(&self) -> bool {
        self.written == self.spare.len()
    }
}

/// Returns a vector of `len` elements, which `fill` writes in at most `chunks` chunks. `broadcast` runs a closure once
/// with each number below `chunks`, on any threads, and returns when all calls have finished.
///
/// # Panics
/// Panics if `fill` does not fill a chunk completely, or if `broadcast` skips a number.
pub(crate) fn fill_parallel<T: Copy + Send>(
    len: usize,
    chunks: usize,
    broadcast: impl FnOnce(&(dyn Fn(usize) + Sync)),
    fill: impl Fn(&mut Chunk<'_, T>) + Sync,
) -> Vec<T> {
    /// The granularity of chunks in elements. It is at least a cache line, so that no two threads write to the same
    /// one.
    const GRAIN: usize = 64;
    let mut out = Vec::with_capacity(len);
    let each = chunk_len(len, chunks, GRAIN);
    let spare = &mut out.spare_capacity_mut()[..len];
    let cells: Vec<_> = spare
        .chunks_mut(each)
        .enumerate()
        .map(|(i, spare)| Mutex::new(Chunk { start: i * each, spare, written: 0 }))
        .collect();
    broadcast(&|worker| {
        if let Some(cell) = cells.get(worker) {
            fill(&mut lock(cell));
        }
    });
    assert!(cells.iter().all(|cell| lock(cell).is_full()), "every chunk of the vector has been written");
    drop(cells);
    // SAFETY: the chunks are all of `spare_capacity_mut()[..len]`, and each of them is full. `written` moves only in
    // `Chunk::write` and `Chunk::extend`, which have then initialised that many elements from the start.
    unsafe { out.set_len(len) };
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(len: usize, chunks: usize, block: usize) -> Vec<usize> {
        let broadcast = |work: &(dyn Fn(usize) + Sync)| {
            std::thread::scope(|s| (0..chunks).for_each(|i| drop(s.spawn(move || work(i)))));
        };
        fill_parallel(len, chunks, broadcast, |chunk| {
            for round in 0.. {
                let next = chunk.next(block);
                if next.is_empty() {
                    break;
                }
                match round % 2 {
                    0 => chunk.write(&next.collect::<Vec<_>>()),
                    // There is no room for the additional element, so it is ignored.
                    _ => chunk.extend(next.start..next.end + usize::from(next.len() < block)),
                }
            }
        })
    }

    #[test]
    fn all_elements_are_written_each_in_its_place() {
        for len in [0, 1, 63, 64, 65, 200] {
            for chunks in 1..5 {
                assert_eq!(numbers(len, chunks, 7), (0..len).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    #[should_panic(expected = "every chunk")]
    fn an_unfinished_chunk_is_not_given_out() {
        fill_parallel(100, 1, |work| work(0), |chunk| chunk.write(&[1; 99]));
    }

    #[test]
    #[should_panic(expected = "every chunk")]
    fn a_chunk_left_out_is_not_given_out() {
        fill_parallel(100, 2, |work| work(0), |chunk| chunk.write(&vec![1; chunk.next(100).len()]));
    }
}
