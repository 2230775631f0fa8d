//! The operation that applies a function to several elements at once, on threads.

use super::map::{Map, MapFn, on_trees};
use crate::chunk::Chunk;
use crate::error::at_least_one;
use crate::pipeline::{self, Batching, Look, Operation, Pipeline, Sharding, WorkerShard, one_input};
use crate::stage::{Stage, read_over};
use crate::worker_pool::{JOBS, WorkerPool, check_threads};
use crate::{Cardinality, Cause, Dataset, ElementSpec, Error, Result};
use distribute_tensor::{Leaf, Nest, Tree};
use std::convert::Infallible;
use std::sync::Arc;

impl<T: Nest> Dataset<T> {
    /// Maps like [`map`](Dataset::map), but on `threads` threads. The elements and their order are the same. A
    /// few elements per thread are prepared early. The threads start with the first requested element, and exit
    /// with the pass.
    ///
    /// This is worthwhile for functions that take microseconds or more. If `threads` is 0 or more than 1024, the pass
    /// returns [`Error::Parameter`].
    ///
    /// ```
    /// # use distribute_data::Dataset;
    /// let squares: Vec<i64> = Dataset::range(4).map_parallel(2, |x| x * x).iter().collect::<Result<_, _>>()?;
    /// assert_eq!(squares, [0, 1, 4, 9]);
    /// # Ok::<(), distribute_data::Error>(())
    /// ```
    #[doc(alias = "num_parallel_calls")]
    pub fn map_parallel<U, F>(&self, threads: usize, function: F) -> Dataset<U>
    where
        T: 'static,
        U: Nest,
        F: Fn(T) -> U + Send + Sync + 'static,
    {
        self.try_map_parallel(threads, move |value| Ok::<U, Infallible>(function(value)))
    }

    /// Maps like [`try_map`](Dataset::try_map), but on `threads` threads. An error is returned at its position in
    /// the order, after all elements before it.
    #[doc(alias = "num_parallel_calls")]
    pub fn try_map_parallel<U, E, F>(&self, threads: usize, function: F) -> Dataset<U>
    where
        T: 'static,
        U: Nest,
        E: Into<Cause>,
        F: Fn(T) -> Result<U, E> + Send + Sync + 'static,
    {
        let map = Map::new::<U>(self.pipeline().clone(), on_trees("map_parallel", function));
        Dataset::of(MapParallel { map, threads, ordered: true, dealt: false })
    }

    /// Maps like [`map_parallel`](Dataset::map_parallel), but returns elements in the order of completion, so that a
    /// slow element does not delay others. The order may differ from pass to pass, so a pass cannot be resumed in the
    /// middle.
    #[doc(alias = "deterministic")]
    pub fn map_unordered<U, F>(&self, threads: usize, function: F) -> Dataset<U>
    where
        T: 'static,
        U: Nest,
        F: Fn(T) -> U + Send + Sync + 'static,
    {
        self.try_map_unordered(threads, move |value| Ok::<U, Infallible>(function(value)))
    }

    /// Maps like [`map_unordered`](Dataset::map_unordered), but `function` may fail. An error of `function` ends the
    /// pass with [`Error::Function`], even if earlier elements of the input have not been returned yet.
    #[doc(alias = "deterministic")]
    pub fn try_map_unordered<U, E, F>(&self, threads: usize, function: F) -> Dataset<U>
    where
        T: 'static,
        U: Nest,
        E: Into<Cause>,
        F: Fn(T) -> Result<U, E> + Send + Sync + 'static,
    {
        let map = Map::new::<U>(self.pipeline().clone(), on_trees("map_unordered", function));
        Dataset::of(MapParallel { map, threads, ordered: false, dealt: false })
    }
}

#[derive(Clone)]
struct MapParallel {
    /// The input and the function, as a `map` on one thread.
    map: Map,
    threads: usize,
    ordered: bool,
    /// Whether files are dealt to the source of the pipeline.
    dealt: bool,
}

impl MapParallel {
    fn name(&self) -> &'static str {
        if self.ordered { "map_parallel" } else { "map_unordered" }
    }
}

impl Operation for MapParallel {
    one_input!(map.input);

    fn describe(&self) -> String {
        format!("{} on {} threads", self.name(), self.threads)
    }

    /// Returns the identity of `map` if the order is kept, because the elements are then the same on any number
    /// of threads.
    fn identity(&self) -> String {
        if self.ordered { "map".into() } else { self.name().into() }
    }

    fn cardinality(&self) -> Cardinality {
        self.map.cardinality()
    }

    fn batching(&self) -> Batching {
        Batching::Unknown
    }

    fn spec(&self, look: Look) -> Option<ElementSpec> {
        self.map.spec(look)
    }

    fn lean(&self) -> Option<Pipeline> {
        Some(Arc::new(self.map.clone()))
    }

    fn check(&self) -> Result<()> {
        at_least_one(self.name(), "the number of threads", self.threads)?;
        check_threads(self.name(), self.threads)
    }

    fn sharding(&self) -> Sharding {
        Sharding::Through
    }

    /// Returns the same operation with one element per job, if files are dealt. With several, the number of elements
    /// that are taken early would depend on timing, and so would the batch after which the worker needs its next file.
    fn shard(&self, worker: &WorkerShard) -> Option<Pipeline> {
        matches!(worker, WorkerShard::Dealt(_)).then(|| {
            let mut operation = self.clone();
            operation.map.input = pipeline::shard(&self.map.input, worker);
            operation.dealt = true;
            Arc::new(operation) as Pipeline
        })
    }

    fn repeatable(&self) -> bool {
        self.ordered
    }

    fn takes_ahead(&self) -> bool {
        true
    }

    fn costly(&self) -> bool {
        true
    }

    fn start(&self, epoch: u64) -> Box<dyn Stage> {
        Box::new(MapParallelStage {
            operation: self.name(),
            input: self.map.input.start(epoch),
            function: self.map.function.clone(),
            threads: self.threads,
            ordered: self.ordered,
            most: if self.dealt { 1 } else { MAX_AT_ONCE },
            index: 0,
            pool: None,
            ended: false,
            failed: None,
            done: Done::default(),
        })
    }
}

/// A job for a thread: elements, and the index of the first one.
struct Job {
    chunk: Chunk,
    first: usize,
    /// The number of [passes](Stage::passes) that the input had completed after these elements.
    passes: usize,
}

/// The result of a job: the results before the first element that failed, and the error of that element.
#[derive(Default)]
struct Done {
    values: Vec<Tree<Leaf>>,
    failed: Option<Error>,
    /// The number of completed passes, from the job.
    passes: usize,
}

fn apply(function: &MapFn, job: Job) -> Done {
    let mut done = Done { passes: job.passes, ..Done::default() };
    let values = match job.chunk.into_values() {
        Ok(values) => values,
        Err(error) => return Done { failed: Some(error), ..done },
    };
    for (i, value) in values.into_iter().enumerate() {
        match function(value, job.first + i) {
            Ok(mapped) => done.values.push(mapped),
            Err(error) => {
                done.failed = Some(error);
                break;
            }
        }
    }
    done
}

struct MapParallelStage {
    operation: &'static str,
    input: Box<dyn Stage>,
    function: MapFn,
    threads: usize,
    ordered: bool,
    /// The maximum number of elements in one job.
    most: usize,
    index: usize,
    /// The pool of threads; `None` until it is started.
    pool: Option<WorkerPool<Job, Done>>,
    ended: bool,
    /// The error with which the input ended. It is returned after all elements before it.
    failed: Option<Error>,
    /// The results that have been received but not returned yet.
    done: Done,
}

/// The maximum number of elements in one job, unless files are dealt.
const MAX_AT_ONCE: usize = 64;

impl MapParallelStage {
    /// Sends jobs to the threads until their queues are full.
    fn feed(&mut self, max: usize) -> Result<()> {
        let pool = match &mut self.pool {
            Some(pool) => pool,
            none => {
                let function = self.function.clone();
                let work = move |job| apply(&function, job);
                none.insert(WorkerPool::start(self.operation, self.threads, self.ordered, work)?)
            }
        };
        // Just enough to keep all threads busy with the requested elements, but more if many are requested.
        let together = (max / (JOBS * self.threads)).clamp(1, self.most);
        while !self.ended && pool.has_room() {
            match self.input.next(together) {
                Some(Ok(chunk)) => {
                    let first = self.index;
                    self.index += chunk.len();
                    pool.send(Job { chunk, first, passes: self.input.passes() });
                }
                Some(Err(error)) => {
                    self.ended = true;
                    self.failed = Some(error);
                }
                None => self.ended = true,
            }
        }
        Ok(())
    }

    fn read(&mut self, max: usize) -> Result<Option<Chunk>> {
        while self.done.values.is_empty() {
            if let Some(error) = self.done.failed.take() {
                return Err(error);
            }
            self.feed(max)?;
            self.done = match self.pool.as_mut().and_then(WorkerPool::receive) {
                Some(done) => done?,
                None => return self.failed.take().map_or(Ok(None), Err),
            };
        }
        let rest = if max < self.done.values.len() { self.done.values.split_off(max) } else { Vec::new() };
        Ok(Some(Chunk::Values(std::mem::replace(&mut self.done.values, rest))))
    }
}

impl Stage for MapParallelStage {
    fn next(&mut self, max: usize) -> Option<Result<Chunk>> {
        self.read(max).transpose()
    }

    /// Skips in the input, without calling the function, if the threads have not been started yet.
    fn skip(&mut self, count: usize) -> Result<usize> {
        if self.pool.is_some() || self.ended {
            return read_over(self, count);
        }
        let skipped = self.input.skip(count)?;
        self.index = self.index.saturating_add(skipped);
        self.ended = skipped < count;
        Ok(skipped)
    }

    fn passes(&self) -> usize {
        self.done.passes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hand::{Hand, HandSlot, NewFiles};
    use crate::testing::{ids, values};
    use crate::{Distribution, Layout};
    use distribute_testing::watched;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Mutex, mpsc};

    #[test]
    fn it_equals_map() {
        watched(|| {
            for threads in [1, 2, 5] {
                let square = Dataset::range(300).map_parallel(threads, |x| x * x);
                let expected: Vec<i64> = (0..300).map(|x| x * x).collect();
                assert_eq!(values(&square), expected);
                assert_eq!(ids(&square.batch(128)).concat(), expected);
                assert_eq!(values(&square.skip(290)), expected[290..]);
                assert_eq!(values(&square.take(3)), expected[..3]);
                assert_eq!(values(&square.shuffle(300, 1)).iter().sum::<i64>(), expected.iter().sum::<i64>());
                let mut unordered = values(&Dataset::range(300).map_unordered(threads, |x| x * x));
                unordered.sort_unstable();
                assert_eq!(unordered, expected);
            }
            assert_eq!(values(&Dataset::range(0).map_parallel(2, |x| x)), [0i64; 0]);
            assert!(matches!(Dataset::range(1).map_parallel(0, |x| x).check(), Err(Error::Parameter { .. })));
        });
    }

    // INV-13
    #[test]
    fn an_error_or_panic_comes_at_its_place_and_names_the_element() {
        watched(|| {
            let unordered =
                Dataset::range(9).try_map_unordered(2, |x| if x == 4 { Err("four") } else { Ok(x) });
            let error = unordered.iter().find_map(Result::err).unwrap();
            assert_eq!(error.to_string(), "map_unordered failed at element 4: four");
            for batch in [1, 7, 100] {
                let fails = |x| if x == 40 { Err("forty") } else { Ok(x) };
                let data = Dataset::range(100).try_map_parallel(3, fails);
                let mut seen = Vec::new();
                let mut error = None;
                for part in &data.batch(batch) {
                    match part {
                        Ok(part) => seen.extend(part.to_vec::<i64>().unwrap()),
                        Err(e) => error = Some(e),
                    }
                }
                assert_eq!(seen, (0..40 / batch as i64 * batch as i64).collect::<Vec<_>>());
                assert_eq!(error.unwrap().to_string(), "map_parallel failed at element 40: forty");
            }
            let data = Dataset::range(9).map_parallel(2, |x| 8 / (4 - x));
            assert_eq!(data.iter().filter(Result::is_ok).count(), 4);
            let error = data.iter().last().unwrap().unwrap_err();
            assert!(
                matches!(error, Error::Panicked { operation: "map_parallel", index: 4, .. }),
                "{error:?}"
            );
            // An error of the input is reported at its position as well.
            let broken = Dataset::range(50).try_map(|x| if x == 20 { Err("twenty") } else { Ok(x) });
            let parallel = broken.map_parallel(2, |x| x);
            assert_eq!(parallel.iter().filter(Result::is_ok).count(), 20);
            assert_eq!(
                parallel.iter().last().unwrap().unwrap_err().to_string(),
                "map failed at element 20: twenty"
            );
        });
    }

    /// Checks that elements are processed at the same time: two calls wait for each other, so that one thread would
    /// wait forever.
    #[test]
    fn elements_are_worked_on_at_once() {
        watched(|| {
            for ordered in [true, false] {
                let (sender, receiver) = mpsc::sync_channel::<()>(0);
                let receiver = Mutex::new(receiver);
                let meet = move |x: i64| {
                    match x {
                        0 => sender.send(()).unwrap(),
                        _ => receiver.lock().unwrap().iter().next().unwrap(),
                    }
                    x
                };
                let range = Dataset::range(2);
                let data = if ordered { range.map_parallel(2, meet) } else { range.map_unordered(2, meet) };
                let mut both = values(&data);
                both.sort_unstable();
                assert_eq!(both, [0, 1]);
            }
        });
    }

    #[test]
    fn only_a_few_elements_are_under_way() {
        watched(|| {
            let calls = Arc::new(AtomicUsize::new(0));
            let count = calls.clone();
            let data = Dataset::range(1i64 << 40).map_parallel(2, move |x| {
                count.fetch_add(1, Ordering::Relaxed);
                x
            });
            let mut pass = data.iter();
            assert_eq!(pass.next().unwrap().unwrap(), 0);
            drop(pass);
            assert!(calls.load(Ordering::Relaxed) <= 9);
        });
    }

    /// Checks that the number of elements that are taken ahead depends neither on how many are requested nor on how
    /// many the input returns at once.
    // INV-99
    #[test]
    fn elements_are_taken_ahead_one_by_one_if_files_are_dealt() {
        watched(|| {
            let taken = Arc::new(AtomicUsize::new(0));
            let count = taken.clone();
            let counted = Dataset::range(1i64 << 40).map(move |x| {
                count.fetch_add(1, Ordering::Relaxed);
                x
            });
            let (output, _requests) = mpsc::sync_channel(1);
            let (_answers, answers) = mpsc::channel();
            let hand = HandSlot::new(Hand::new(NewFiles::default(), output, answers));
            let parallel = counted.map_parallel(2, |x| x);
            let mut stage = pipeline::shard(parallel.pipeline(), &WorkerShard::Dealt(hand)).start(0);
            for returned in 0..9 {
                assert_eq!(stage.next(1 + 500 * returned).unwrap().unwrap().len(), 1);
                assert_eq!(taken.load(Ordering::Relaxed), 2 * JOBS + returned);
            }
        });
    }

    #[test]
    fn a_pass_without_order_is_not_restored_in_the_middle() {
        watched(|| {
            let plan = |data: Dataset<i64>| {
                Distribution::new(&data.batch(2), Layout::one_worker(1), Default::default()).unwrap()
            };
            let ordered = plan(Dataset::range(9).map_parallel(2, |x| x));
            let mut pass = ordered.worker(0, 0).unwrap();
            pass.step().unwrap();
            assert!(ordered.resume(0, &pass.position()).is_ok());
            let error =
                plan(Dataset::range(9).map_unordered(2, |x| x)).check_position(&pass.position()).unwrap_err();
            assert!(
                error.to_string().contains("\"map_unordered on 2 threads\" may return other elements"),
                "{error}"
            );
        });
    }
}
