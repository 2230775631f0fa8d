//! The operation that prepares elements early, on a thread.

use super::ahead::AheadStage;
use crate::pipeline::{self, Operation, Pipeline, Sharding, WorkerShard, one_input};
use crate::stage::Stage;
use crate::{Cardinality, Dataset};
use distribute_tensor::Nest;

impl<T: Nest> Dataset<T> {
    /// Prepares up to `buffer` elements before they are requested, on a thread. The thread starts with the first
    /// requested element. It exits with the pass: at the end, at an error, or when the iterator is dropped (once
    /// a running user function has returned). A `buffer` of 0 has no effect.
    ///
    /// If the thread cannot be started, the pass returns [`Error::Thread`](crate::Error::Thread).
    #[doc(alias = "tf.data.Dataset.prefetch")]
    pub fn prefetch(&self, buffer: usize) -> Self {
        Self::of(Prefetch { input: self.pipeline().clone(), buffer })
    }
}

#[derive(Clone)]
struct Prefetch {
    input: Pipeline,
    buffer: usize,
}

impl Operation for Prefetch {
    one_input!();

    fn lean(&self) -> Option<Pipeline> {
        Some(self.input.clone())
    }

    fn describe(&self) -> String {
        format!("prefetch {}", self.buffer)
    }

    /// Returns an empty string, because the operation changes only the timing.
    fn identity(&self) -> String {
        String::new()
    }

    fn cardinality(&self) -> Cardinality {
        self.input.cardinality()
    }

    fn sharding(&self) -> Sharding {
        Sharding::Through
    }

    /// Returns the sharded input without this operation, if files are dealt. The complete pass must run on one
    /// thread, so that each request for a file has a fixed position among the elements.
    fn shard(&self, worker: &WorkerShard) -> Option<Pipeline> {
        matches!(worker, WorkerShard::Dealt(_)).then(|| pipeline::shard(&self.input, worker))
    }

    fn costly(&self) -> bool {
        self.buffer == 0 && self.input.costly()
    }

    fn start(&self, epoch: u64) -> Box<dyn Stage> {
        match self.buffer {
            0 => self.input.start(epoch),
            buffer => Box::new(AheadStage::new(self.input.start(epoch), buffer, "prefetch")),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{ids, values};
    use crate::{Dataset, Result};
    use distribute_testing::watched;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, mpsc};
    use std::time::Duration;

    #[test]
    fn prefetch_changes_nothing_but_the_time() {
        watched(|| {
            for buffer in [0, 1, 2, 7, usize::MAX] {
                assert_eq!(values(&Dataset::range(20).prefetch(buffer)), (0..20).collect::<Vec<_>>());
                let batched = Dataset::range(20).shuffle(20, 1).batch(6);
                assert_eq!(ids(&batched.prefetch(buffer)), ids(&batched));
                let inner = Dataset::range(20).shuffle(20, 1).prefetch(buffer).batch(6).repeat(2);
                assert_eq!(ids(&inner).concat(), ids(&batched.repeat(2)).concat());
            }
        });
    }

    // INV-3
    #[test]
    fn an_error_comes_where_it_would_have_come_and_the_thread_ends() {
        watched(|| {
            let data = Dataset::range(9).try_map(|x| if x == 4 { Err("four") } else { Ok(x) }).prefetch(3);
            let mut iter = data.iter();
            assert_eq!(iter.by_ref().take(4).map(Result::unwrap).collect::<Vec<_>>(), [0, 1, 2, 3]);
            assert_eq!(iter.next().unwrap().unwrap_err().to_string(), "map failed at element 4: four");
            assert!(iter.next().is_none());
            let panics = Dataset::range(9).map(|x| if x == 4 { panic!("at four") } else { x }).prefetch(3);
            assert!(panics.iter().last().unwrap().unwrap_err().to_string().contains("at four"));
        });
    }

    /// A source that counts its elements and sends a message when it is dropped.
    struct Watched(Arc<AtomicUsize>, mpsc::Sender<()>, i64);

    impl Iterator for Watched {
        type Item = Result<i64, String>;
        fn next(&mut self) -> Option<Self::Item> {
            self.0.fetch_add(1, Ordering::SeqCst);
            self.2 += 1;
            Some(Ok(self.2))
        }
    }
    impl Drop for Watched {
        fn drop(&mut self) {
            let _ = self.1.send(());
        }
    }

    // INV-3
    #[test]
    fn dropping_the_consumer_ends_the_thread_and_it_never_ran_far_ahead() {
        watched(|| {
            let count = Arc::new(AtomicUsize::new(0));
            let (sender, dropped) = mpsc::channel();
            let seen = count.clone();
            let data = Dataset::from_generator(move || Watched(count.clone(), sender.clone(), 0)).prefetch(4);
            let mut iter = data.iter();
            assert_eq!(seen.load(Ordering::SeqCst), 0, "nothing runs before it is asked for");
            for expected in 1..=10 {
                assert_eq!(iter.next().unwrap().unwrap(), expected);
            }
            drop(iter);
            dropped.recv_timeout(Duration::from_secs(20)).expect("the thread has not let go of its source");
            assert!((10..=15).contains(&seen.load(Ordering::SeqCst)), "ran ahead: {seen:?}");
        });
    }
}
