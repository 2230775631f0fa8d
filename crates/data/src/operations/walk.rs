//! Tests that the elements of a pass never depend on how they are requested, even if an element fails.

use super::model::{Step, on_dataset, step};
use crate::Dataset;
use distribute_tensor::Nest;
use distribute_testing::watched;
use proptest::prelude::*;

/// Returns the elements of a pass before its end or its first error, read one by one, and whether it ended
/// without an error.
fn one_by_one(data: &Dataset<i64>, epoch: u64) -> (Vec<i64>, bool) {
    let mut all = Vec::new();
    for element in data.epoch(epoch) {
        match element {
            Ok(element) => all.push(element),
            Err(_) => return (all, false),
        }
    }
    (all, true)
}

/// Reads and skips elements in turn, and compares each element with the expected one at its position. An error ends the
/// walk, because a skip may pass over the failing element, after which the elements are undefined.
fn walk(data: &Dataset<i64>, epoch: u64, (all, well): &(Vec<i64>, bool), ways: &[(bool, usize)]) {
    let (mut stage, mut at) = (data.pipeline().start(epoch), 0);
    for &(read, count) in ways.iter().cycle().take(400) {
        if read {
            let Some(chunk) = stage.next(count) else {
                assert!(at == all.len() || !well, "it ends at {at}");
                return;
            };
            let Ok(chunk) = chunk else {
                assert!(!well);
                return;
            };
            let values = chunk.into_values().unwrap();
            assert!((1..=count).contains(&values.len()));
            for value in values {
                let value = i64::from_tree(value).unwrap();
                assert!(!well || at < all.len(), "element {at} is behind the end");
                assert_eq!(value, all.get(at).copied().unwrap_or(value), "element {at}");
                at += 1;
            }
        } else {
            match stage.skip(count) {
                Ok(skipped) => {
                    at += skipped;
                    assert!(at <= all.len() || !well);
                    if skipped < count {
                        assert!(at == all.len() || !well, "it ends at {at}");
                        return;
                    }
                }
                Err(_) => {
                    assert!(!well);
                    return;
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn skipping_gives_the_same_elements_as_reading(
        n in 0i64..20,
        fails in proptest::option::weighted(0.3, 0i64..20),
        steps in proptest::collection::vec(step(), 0..6),
        buffer in 1usize..7,
        epoch in 0u64..3,
        ways in proptest::collection::vec((any::<bool>(), 1usize..9), 1..6),
    ) {
        watched(move || {
            let folder = tempfile::tempdir().unwrap();
            let mut data = Dataset::range(n);
            if let Some(fails) = fails {
                data = data.try_map(move |x| if x == fails { Err("bad") } else { Ok(x) });
            }
            for (i, step) in steps.iter().enumerate() {
                let shuffle = Step::Shuffle(buffer);
                let step = if matches!(step, Step::Shuffle(_)) { &shuffle } else { step };
                let len = one_by_one(&data, epoch).0.len();
                if len > 1000 {
                    return;
                }
                data = on_dataset(data, step, len, &folder.path().join(i.to_string()));
            }
            let all = one_by_one(&data, epoch);
            walk(&data, epoch, &all, &ways);
            let all = one_by_one(&data, epoch);
            walk(&data, epoch, &all, &ways);
        });
    }
}
