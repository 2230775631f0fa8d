//! Tests: pipelines do what the same operations do on a `Vec`.

use crate::Dataset;
use crate::testing::{ids, values, watchdog};
use proptest::prelude::*;

/// A transformation.
#[derive(Clone, Debug)]
enum Step {
    Take(usize),
    Skip(usize),
    Repeat(usize),
    Filter(i64),
    Map(i64),
    Shuffle,
    Prefetch(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0usize..30).prop_map(Step::Take),
        (0usize..10).prop_map(Step::Skip),
        (0usize..4).prop_map(Step::Repeat),
        (1i64..4).prop_map(Step::Filter),
        (0i64..5).prop_map(Step::Map),
        Just(Step::Shuffle),
        (0usize..3).prop_map(Step::Prefetch),
    ]
}

fn on_dataset(data: Dataset<i64>, step: &Step) -> Dataset<i64> {
    match *step {
        Step::Take(n) => data.take(n),
        Step::Skip(n) => data.skip(n),
        Step::Repeat(n) => data.repeat(n),
        Step::Filter(k) => data.filter(move |x| x % k == 0),
        Step::Map(k) => data.map(move |x| x + k),
        // With a buffer of 1 a shuffle keeps the order: the model stays simple.
        Step::Shuffle => data.shuffle(1, 7),
        Step::Prefetch(n) => data.prefetch(n),
    }
}

fn on_vec(data: Vec<i64>, step: &Step) -> Vec<i64> {
    match *step {
        Step::Take(n) => data.into_iter().take(n).collect(),
        Step::Skip(n) => data.into_iter().skip(n).collect(),
        Step::Repeat(n) => data.repeat(n),
        Step::Filter(k) => data.into_iter().filter(|x| x % k == 0).collect(),
        Step::Map(k) => data.into_iter().map(|x| x + k).collect(),
        Step::Shuffle | Step::Prefetch(_) => data,
    }
}

proptest! {
    #[test]
    fn transformations_compose_as_on_a_vec(
        n in 0i64..20,
        steps in proptest::collection::vec(step(), 0..6),
        batch in 1usize..7,
        exact: bool,
    ) {
        let test = move || {
            let data = steps.iter().fold(Dataset::range(n), on_dataset);
            let model = steps.iter().fold((0..n).collect(), on_vec);
            assert_eq!(values(&data), model);
            if let Some(known) = data.cardinality().finite() {
                assert_eq!(known, model.len());
            }
            let batches = if exact { data.batch_exact(batch) } else { data.batch(batch) };
            let keep = if exact { model.len() / batch * batch } else { model.len() };
            assert_eq!(ids(&batches), model[..keep].chunks(batch).map(<[i64]>::to_vec).collect::<Vec<_>>());
        };
        watchdog(test);
    }
}
