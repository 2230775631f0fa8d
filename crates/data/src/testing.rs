//! The helpers for this crate's tests.

use crate::{Dataset, Interleave};
use distribute_tensor::HostTensor;
use distribute_tensor::Nest;

/// Runs `body` without logging, because its many warnings would hide all other output.
pub(crate) fn quietly<R>(body: impl FnOnce() -> R) -> R {
    struct Deaf;
    impl tracing::Subscriber for Deaf {
        fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
            false
        }
        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::Id {
            tracing::Id::from_u64(1)
        }
        fn record(&self, _: &tracing::Id, _: &tracing::span::Record<'_>) {}
        fn record_follows_from(&self, _: &tracing::Id, _: &tracing::Id) {}
        fn event(&self, _: &tracing::Event<'_>) {}
        fn enter(&self, _: &tracing::Id) {}
        fn exit(&self, _: &tracing::Id) {}
    }
    tracing::subscriber::with_default(Deaf, body)
}

/// Returns the elements of a dataset of numbers.
pub(crate) fn values(data: &Dataset<i64>) -> Vec<i64> {
    data.iter().map(Result::unwrap).collect()
}

/// Returns the elements of a dataset of batches of numbers.
pub(crate) fn ids<T: Nest>(data: &Dataset<T>) -> Vec<Vec<i64>> {
    data.typed::<HostTensor>()
        .iter()
        .map(|batch| batch.unwrap().as_slice::<i64>().unwrap().to_vec())
        .collect()
}

/// Interleaves lists, as a model with which tests compare `interleave`.
pub(crate) fn in_turn(lists: &[Vec<i64>], turns: Interleave) -> Vec<i64> {
    let (mut lists, mut all) = (lists.iter().cloned(), Vec::new());
    let mut cycle: Vec<Option<std::vec::IntoIter<i64>>> =
        (0..turns.cycle_length.min(64)).map(|_| None).collect();
    let mut idle = 0;
    for turn in (0..cycle.len()).cycle() {
        if idle > cycle.len() {
            break;
        }
        let slot = &mut cycle[turn];
        if slot.is_none() {
            *slot = lists.next().map(Vec::into_iter);
        }
        idle = if slot.is_some() { 0 } else { idle + 1 };
        for _ in 0..turns.block_length {
            match slot.as_mut().and_then(Iterator::next) {
                Some(value) => all.push(value),
                None => {
                    *slot = None;
                    break;
                }
            }
        }
    }
    all
}
