//! The operation that keeps elements in memory for later passes.

use crate::chunk::{Chunk, append};
use crate::pipeline::{Operation, Pipeline, Sharding};
use crate::stage::Stage;
use crate::{Cardinality, Dataset, Error, Result};
use distribute_tensor::Nest;
use std::sync::{Arc, OnceLock};

impl<T: Nest> Dataset<T> {
    /// Keeps all elements of the first complete pass in memory, for later passes. A pass that ends early keeps nothing.
    /// An infinite dataset results in [`Error::Endless`].
    ///
    /// Every pass has the same elements as pass 0 of the input, in the same order. A [`shuffle`](Dataset::shuffle)
    /// should therefore come after the cache, not before it. Tensors are shared, and rows in memory are kept as
    /// indices.
    #[doc(alias = "tf.data.Dataset.cache")]
    pub fn cache(&self) -> Self {
        Self::of(Cache { input: self.pipeline().clone(), cached: Arc::default() })
    }
}

struct Cache {
    input: Pipeline,
    cached: Arc<OnceLock<CachedElements>>,
}

/// The elements of a pass that have been kept.
#[derive(Default)]
struct CachedElements {
    chunks: Vec<Chunk>,
    len: usize,
}

impl CachedElements {
    /// Adds the elements of a chunk to the last chunk. If that is not possible, compacts the last chunk and starts a
    /// new one.
    fn push(&mut self, chunk: &Chunk) -> Result<()> {
        self.len += chunk.len();
        append(&mut self.chunks, chunk.slice(0..chunk.len()))
    }

    /// Compacts the last chunk. Call this when no more elements follow.
    fn end(&mut self) -> Result<()> {
        if let Some(last) = self.chunks.pop() {
            self.chunks.push(last.compact()?);
        }
        Ok(())
    }
}

impl Operation for Cache {
    fn inputs(&self) -> &[Pipeline] {
        std::slice::from_ref(&self.input)
    }

    fn lean(&self) -> Option<Pipeline> {
        Some(self.input.clone())
    }

    /// Returns the operation with an empty cache, because the elements of a different input differ.
    fn over(&self, f: &mut dyn FnMut(&Pipeline) -> Pipeline) -> Option<Pipeline> {
        Some(Arc::new(Cache { input: f(&self.input), cached: Arc::default() }))
    }

    fn describe(&self) -> String {
        "cache in memory".into()
    }

    fn identity(&self) -> String {
        "cache".into()
    }

    fn cardinality(&self) -> Cardinality {
        match self.cached.get() {
            Some(cached) => Cardinality::Finite(cached.len),
            None => self.input.cardinality(),
        }
    }

    fn check(&self) -> Result<()> {
        ends("cache", &self.input)
    }

    fn sharding(&self) -> Sharding {
        Sharding::Through
    }

    fn reads_once(&self) -> bool {
        false
    }

    fn costly(&self) -> bool {
        self.cached.get().is_none() && self.input.costly()
    }

    fn start(&self, _epoch: u64) -> Box<dyn Stage> {
        match self.cached.get() {
            Some(_) => Box::new(CachedStage { cached: self.cached.clone(), chunk: 0, start: 0 }),
            None => {
                let (input, cached) = (self.input.start(0), self.cached.clone());
                Box::new(FillStage { input, cached, seen: CachedElements::default() })
            }
        }
    }
}

/// Checks that a dataset is finite. Caching an infinite one would keep more and more elements without ever using
/// them.
pub(super) fn ends(operation: &'static str, input: &Pipeline) -> Result<()> {
    match input.cardinality() {
        Cardinality::Infinite => Err(Error::Endless { operation }),
        _ => Ok(()),
    }
}

/// A stage that passes on the elements of the input. When the input ends, it stores them in the cache.
struct FillStage {
    input: Box<dyn Stage>,
    cached: Arc<OnceLock<CachedElements>>,
    seen: CachedElements,
}

impl Stage for FillStage {
    fn next(&mut self, max: usize) -> Option<Result<Chunk>> {
        let Some(chunk) = self.input.next(max) else {
            if let Err(error) = self.seen.end() {
                return Some(Err(error));
            }
            // If two passes run at once, the first to end is kept. They have the same elements.
            let _ = self.cached.set(std::mem::take(&mut self.seen));
            return None;
        };
        // Batches are assembled once, before they are kept.
        let chunk = chunk.and_then(Chunk::assembled).and_then(|chunk| {
            self.seen.push(&chunk)?;
            Ok(chunk)
        });
        Some(chunk)
    }
}

/// A stage that yields the elements in the cache.
struct CachedStage {
    cached: Arc<OnceLock<CachedElements>>,
    chunk: usize,
    start: usize,
}

impl CachedStage {
    /// Moves past up to `max` elements, and returns their position: the index of a chunk, and a range of elements in
    /// it. Returns `None` at the end.
    fn advance(&mut self, max: usize) -> Option<(usize, std::ops::Range<usize>)> {
        let chunks = &self.cached.get()?.chunks;
        while self.start == chunks.get(self.chunk)?.len() {
            (self.chunk, self.start) = (self.chunk + 1, 0);
        }
        let (chunk, start) = (self.chunk, self.start);
        self.start = chunks.get(chunk)?.len().min(start.saturating_add(max));
        Some((chunk, start..self.start))
    }
}

impl Stage for CachedStage {
    fn next(&mut self, max: usize) -> Option<Result<Chunk>> {
        let (chunk, range) = self.advance(max)?;
        Some(Ok(self.cached.get()?.chunks.get(chunk)?.slice(range)))
    }

    fn skip(&mut self, count: usize) -> Result<usize> {
        let mut left = count;
        while left > 0 {
            match self.advance(left) {
                Some((_, range)) => left -= range.len(),
                None => break,
            }
        }
        Ok(count - left)
    }
}

#[cfg(test)]
mod tests {
    use super::Cache;
    use crate::chunk::Chunk;
    use crate::pipeline::Operation;
    use crate::testing::{ids, values};
    use crate::{Cardinality, Dataset, Error};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Returns a dataset of five numbers, and a count of the numbers that were made.
    fn counted() -> (Dataset<i64>, Arc<AtomicUsize>) {
        let made = Arc::new(AtomicUsize::new(0));
        let count = made.clone();
        let data = Dataset::range(5).map(move |x| {
            count.fetch_add(1, Ordering::Relaxed);
            x
        });
        (data, made)
    }

    #[test]
    fn elements_are_made_once() {
        let (data, made) = counted();
        let cached = data.cache();
        for _ in 0..3 {
            assert_eq!(values(&cached), [0, 1, 2, 3, 4]);
            assert_eq!(ids(&cached.batch(2)), [vec![0, 1], vec![2, 3], vec![4]]);
            assert_eq!(values(&cached.skip(3)), [3, 4]);
        }
        assert_eq!(made.load(Ordering::Relaxed), 5);
        assert_eq!(values(&cached.shuffle(5, 1).repeat(4)).len(), 20);
        assert_eq!(made.load(Ordering::Relaxed), 5);
    }

    #[test]
    fn only_a_whole_pass_is_kept() {
        let (data, made) = counted();
        let cached = data.filter(|_| true).cache();
        assert_eq!(values(&cached.take(2)), [0, 1]);
        assert_eq!(cached.cardinality(), Cardinality::Unknown);
        let mut both = [cached.iter(), cached.iter()];
        for _ in 0..6 {
            both.iter_mut().for_each(|pass| drop(pass.next()));
        }
        assert_eq!(made.load(Ordering::Relaxed), 12);
        assert_eq!(cached.cardinality(), Cardinality::Finite(5));
        assert_eq!(values(&cached), [0, 1, 2, 3, 4]);
        assert_eq!(made.load(Ordering::Relaxed), 12);
    }

    /// Checks that every pass equals pass 0 of the input. Otherwise a new process that resumes in epoch 1 would cache
    /// the elements of that epoch, and positions would refer to other elements than before.
    #[test]
    fn every_pass_is_the_inputs_pass_0() {
        let shuffled = Dataset::range(20).shuffle(20, 3);
        let first: Vec<i64> = shuffled.epoch(0).map(Result::unwrap).collect();
        let cached = shuffled.cache();
        assert_eq!(cached.epoch(7).map(Result::unwrap).collect::<Vec<_>>(), first);
        assert_eq!(values(&cached), first);
    }

    #[test]
    fn rows_stay_rows_of_their_source() {
        let x = distribute_tensor::HostTensor::vector((0..6i64).collect());
        let cached = Dataset::from_slices(x.clone()).unwrap().cache();
        assert_eq!(cached.iter().count(), 6);
        let whole = cached.batch(6).iter().next().unwrap().unwrap();
        assert!(std::ptr::eq(whole.as_slice::<i64>().unwrap(), x.as_slice::<i64>().unwrap()), "copied");
    }

    /// Checks that a cache keeps only the chosen rows of a section, whether a filter or `shard` has chosen them.
    #[test]
    fn of_a_section_no_more_is_kept_than_its_elements() {
        let rows = || Dataset::range(1000).batch(100).unbatch::<i64>();
        // 10 consecutive rows of each section match, so a filter has no reason to copy them.
        for (few, count) in [(rows().filter(|x| x % 100 < 10), 100), (rows().shard(8, 1), 125)] {
            let cache = Cache { input: few.pipeline().clone(), cached: Arc::default() };
            let mut stage = cache.start(0);
            while let Some(chunk) = stage.next(10) {
                chunk.unwrap();
            }
            let cached = cache.cached.get().unwrap();
            let sources = cached.chunks.iter().map(|chunk| match chunk {
                Chunk::Rows(source, _) => source.len(),
                _ => panic!("rows stay rows"),
            });
            assert_eq!((cached.len, sources.sum::<usize>()), (count, count));
            assert_eq!(values(&few.cache()), values(&few));
        }
        let batches = rows().filter(|x| x % 100 < 10).batch(25);
        assert_eq!(ids(&batches).concat(), values(&rows().filter(|x| x % 100 < 10)));
    }

    #[test]
    fn infinite_passes_are_not_cached() {
        let endless = Dataset::range(3).repeat_forever();
        assert!(matches!(endless.cache().check(), Err(Error::Endless { operation: "cache" })));
        assert!(matches!(endless.cache_to("x").check(), Err(Error::Endless { operation: "cache_to" })));
        endless.take(7).cache().check().unwrap();
    }
}
