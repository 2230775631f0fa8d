//! Passes: their ends, their positions, and the contexts in which they may be iterated.

use crate::input::{everywhere, ids, mirrored, steps};
use distribute::context::{ContextKind, in_cross_replica_context};
use distribute::data::{Cardinality, Dataset};
use distribute::{Error, ReduceOp};
use distribute_testing::watched;

#[test]
fn iter_2_next_returns_none_at_the_end() {
    let data = mirrored(2).distribute_dataset(Dataset::range(3).batch(2)).unwrap();
    let mut pass = data.iter();
    assert_eq!(ids(pass.next().unwrap()), [[0], [1]]);
    assert_eq!(ids(pass.next().unwrap()), [vec![2], vec![]]);
    assert!((0..3).all(|_| pass.next().is_none()));
}

#[test]
fn iter_5_an_optional_stays_empty_after_the_end() {
    let data = mirrored(2).distribute_dataset(Dataset::range(2).batch_exact(2)).unwrap();
    let mut pass = data.iter();
    assert_eq!(ids(pass.next().unwrap()), [[0], [1]]);
    assert!((0..3).all(|_| pass.next().is_none()));
    let empty = mirrored(2).distribute_dataset(Dataset::range(0).batch(2)).unwrap();
    assert!(empty.iter().next().is_none());
    let endless = mirrored(2).distribute_dataset(Dataset::range(2).repeat_forever().batch(2)).unwrap();
    let mut pass = endless.iter();
    assert!((0..10).all(|_| pass.next().is_some()));
}

#[test]
fn iter_6_steps_are_taken_outside_run() {
    let strategy = mirrored(2);
    let data = strategy.distribute_dataset(Dataset::range(4).batch(2)).unwrap();
    let errors = strategy.run((), |_, ()| Ok(data.iter().next().unwrap().unwrap_err())).unwrap();
    for error in errors {
        let Error::WrongContext { found: ContextKind::Replica, .. } = error else { panic!("{error}") };
    }
    // The refused calls have changed nothing.
    let mut pass = strategy.scope(|| Ok(data.iter())).unwrap();
    let inside = strategy.scope(|| pass.next().unwrap());
    assert_eq!(ids(inside), [[0], [1]]);
}

#[test]
fn iter_7_batches_are_always_per_replica() {
    watched(|| {
        everywhere(|strategy| {
            let data = strategy.distribute_dataset(Dataset::range(4).batch(4)).unwrap();
            let pieces = data.iter().next().unwrap().unwrap().len();
            assert_eq!(pieces, strategy.world().replicas(), "{strategy}");
        });
    });
}

#[test]
fn iter_8_each_pass_starts_again_with_the_next_epochs_order() {
    let range = Dataset::range(40).shuffle(40, 7);
    let data = mirrored(2).distribute_dataset(range.batch(4)).unwrap();
    assert_eq!(data.cardinality(), Cardinality::Finite(10));
    for epoch in 0..3 {
        let flat: Vec<i64> = steps(&data).concat().concat();
        let expected: Vec<i64> = range.epoch(epoch).map(Result::unwrap).collect();
        assert_eq!(flat, expected, "epoch {epoch}");
    }
    // Passes of clones count together, and so does an incomplete pass.
    data.clone().iter().next();
    assert_eq!(data.position().epoch, 3);
    assert_eq!(data.iter().position().epoch, 4);
    assert_eq!(
        mirrored(2).distribute_dataset(Dataset::range(5).batch(2)).unwrap().cardinality().finite(),
        Some(3)
    );
}

#[test]
fn iter_9_reduce_folds_the_steps_in_order() {
    let data = mirrored(2).distribute_dataset(Dataset::range(5).batch(2)).unwrap();
    let all = data.reduce(Vec::new(), |mut all, step| {
        all.push(ids(Ok(step)));
        Ok(all)
    });
    assert_eq!(all.unwrap(), steps(&data));
    let failed = data.reduce((), |(), _| Err(Error::other("enough")));
    assert_eq!(failed.unwrap_err().to_string(), "enough");
}

#[test]
fn the_position_is_after_the_last_step_of_the_latest_pass() {
    let data = mirrored(2).distribute_dataset(Dataset::range(6).batch(2)).unwrap();
    let at = |position: distribute::data::Position| (position.epoch, position.steps);
    assert_eq!(at(data.position()), (0, 0));
    let mut pass = data.iter();
    pass.next();
    assert_eq!((at(data.position()), at(pass.position())), ((0, 1), (0, 1)));
    let mut next = data.iter();
    pass.next();
    assert_eq!((at(data.position()), at(pass.position())), ((1, 0), (0, 2)));
    assert_eq!(next.by_ref().count(), 3);
    assert_eq!((at(data.position()), at(next.position())), ((2, 0), (1, 3)));
    assert_eq!(at(data.iter().position()), (2, 0));
}

#[test]
fn a_pass_resumes_at_a_position_and_later_passes_count_from_it() {
    let range = Dataset::range(8).shuffle(8, 3);
    let new = |replicas| mirrored(replicas).distribute_dataset(range.batch(2)).unwrap();
    let two = new(2);
    steps(&two);
    let seen: Vec<_> = two.iter().take(2).map(ids).collect::<Vec<_>>().concat().concat();
    for replicas in [1, 2, 3] {
        let other = new(replicas);
        other.resume(two.position()).unwrap();
        assert_eq!(other.position(), two.position());
        let rest = steps(&other).concat().concat();
        let whole: Vec<i64> = range.epoch(1).map(Result::unwrap).collect();
        assert_eq!([seen.clone(), rest].concat(), whole, "{replicas} replicas");
        let next: Vec<i64> = range.epoch(2).map(Result::unwrap).collect();
        assert_eq!(steps(&other).concat().concat(), next, "{replicas} replicas");
    }
}

#[test]
fn a_position_of_another_dataset_is_refused_and_changes_nothing() {
    let data = mirrored(2).distribute_dataset(Dataset::range(8).batch(2)).unwrap();
    data.iter().next();
    let before = data.position();
    let other = mirrored(2).distribute_dataset(Dataset::range(8).batch(4)).unwrap();
    let error = data.resume(other.position()).unwrap_err();
    assert!(matches!(&error, Error::Data(distribute::data::Error::Position { .. })), "{error}");
    assert_eq!(data.position(), before);
}

/// Checks the equivalent of `experimental_run`: each call takes a step of the iterator and passes it to the closure.
#[test]
fn run_13_a_step_takes_the_next_batch_of_an_iterator_in_replica_context() {
    distribute_testing::watched(|| {
        let strategy = crate::input::mirrored(2);
        let data = strategy.distribute_dataset(Dataset::range(6).batch(4)).unwrap();
        let mut input = data.iter();
        let mut experimental_run = || {
            let results = strategy.run(input.next()?.unwrap(), |ctx, mine| {
                assert!(!in_cross_replica_context() && *ctx.strategy() == strategy);
                Ok((ctx.replica_id_in_sync_group(), ctx.step(), mine.to_vec::<i64>()?))
            });
            Some(results.unwrap().into_values())
        };
        assert_eq!(experimental_run(), Some(vec![(0, 1, vec![0, 1]), (1, 1, vec![2, 3])]));
        assert_eq!(experimental_run(), Some(vec![(0, 2, vec![4]), (1, 2, vec![5])]));
        assert_eq!(experimental_run(), None);
        assert_eq!(strategy.steps(), 2, "without a batch there is no step");
    });
}

/// Checks the equivalent of `experimental_run_steps_on_iterator`: several steps are a loop, and the result of the last
/// one is kept.
#[test]
fn run_13_several_steps_are_a_loop_over_the_dataset() {
    distribute_testing::watched(|| {
        let strategy = crate::input::mirrored(2);
        let data = strategy.distribute_dataset(Dataset::range(12).batch(4)).unwrap();
        let mut last = None;
        for batch in (&data).into_iter().take(2) {
            let sums = strategy.run(batch.unwrap(), |ctx, mine| {
                let sum: i64 = mine.to_vec::<i64>()?.iter().sum();
                ctx.all_reduce(ReduceOp::Sum, sum)
            });
            last = Some(sums.unwrap());
        }
        assert_eq!(last.unwrap().values(), [22, 22]);
        assert_eq!((strategy.steps(), data.position().steps), (2, 2));
    });
}
