//! The tables of section 2: two replicas, initial value 10, replicas write 1 and 2, others 3.

use super::{AGGREGATIONS, Aggregation, Synchronization, copies, own, ten, two};
use distribute::prelude::*;
use distribute::{Error, Result, Variable};
use distribute_testing::watched;

type Op = fn(&Variable, f32) -> Result<()>;
const OPS: [(&str, Op); 3] = [
    ("assign", |v, x| v.assign(x)),
    ("assign_add", |v, x| v.assign_add(x)),
    ("assign_sub", |v, x| v.assign_sub(x)),
];

fn refused(error: &Error) -> bool {
    matches!(error.root_cause(), Error::VariableAccess { .. })
}

#[test]
fn wr_3_and_wr_4_replica_writes_of_on_write_variables_are_aggregated() {
    watched(|| {
        let strategy = two();
        let expected = [None, Some([3f32, 13., 7.]), Some([1.5, 11.5, 8.5]), Some([1., 11., 9.])];
        for (aggregation, expected) in AGGREGATIONS.into_iter().zip(expected) {
            for (i, (name, op)) in OPS.into_iter().enumerate() {
                let v = ten(&strategy, Synchronization::OnWrite, aggregation);
                let result = strategy.run((), |ctx, ()| op(&v, own(ctx)));
                match expected {
                    Some(expected) => assert_eq!(copies(&v), [expected[i]; 2], "{name} {aggregation}"),
                    // T1: TensorFlow lets the copies drift apart.
                    None => assert!(refused(&result.unwrap_err()) && copies(&v) == [10., 10.], "{name}"),
                }
            }
        }
    });
}

// WR-4, T3: TensorFlow refuses a sum of what is the same object on all replicas, and gives a mean back.
#[test]
fn wr_4_a_constant_counts_once_for_each_replica() {
    watched(|| {
        let strategy = two();
        for (aggregation, expected) in
            [(Aggregation::Sum, 16f32), (Aggregation::Mean, 13.), (Aggregation::OnlyFirstReplica, 13.)]
        {
            let v = ten(&strategy, Synchronization::OnWrite, aggregation);
            strategy.run((), |_, ()| v.assign_add(3f32)).unwrap();
            assert_eq!(copies(&v), [expected; 2], "{aggregation}");
        }
    });
}

#[test]
fn wr_1_cross_replica_writes_of_on_write_variables_reach_all_copies() {
    let strategy = two();
    for aggregation in AGGREGATIONS {
        for ((name, op), expected) in OPS.into_iter().zip([3f32, 13., 7.]) {
            let inside = ten(&strategy, Synchronization::OnWrite, aggregation);
            strategy.scope(|| op(&inside, 3.)).unwrap();
            // VAR-8: an operation outside of any scope enters its strategy's.
            let outside = ten(&strategy, Synchronization::OnWrite, aggregation);
            op(&outside, 3.).unwrap();
            assert_eq!((copies(&inside), copies(&outside)), (vec![expected; 2], vec![expected; 2]), "{name}");
        }
    }
}

#[test]
fn wr_1_in_update_context_only_the_marked_copy_is_written() {
    let strategy = two();
    for synchronization in [Synchronization::OnWrite, Synchronization::OnRead] {
        for aggregation in AGGREGATIONS {
            for ((name, op), expected) in OPS.into_iter().zip([3f32, 13., 7.]) {
                let v = ten(&strategy, synchronization, aggregation);
                let mut seen = Vec::new();
                strategy
                    .update(&v, 3f32, |v, x| {
                        op(v, x)?;
                        seen.push(copies(v));
                        Ok(())
                    })
                    .unwrap();
                assert_eq!(
                    seen,
                    [[expected, 10.], [expected, expected]],
                    "{name} {synchronization} {aggregation}"
                );
            }
        }
    }
}

#[test]
fn onr_replica_writes_of_on_read_variables_stay_local() {
    watched(|| {
        let strategy = two();
        for aggregation in AGGREGATIONS {
            for ((name, op), expected) in OPS.into_iter().zip([[1f32, 2.], [11., 12.], [9., 8.]]) {
                let v = ten(&strategy, Synchronization::OnRead, aggregation);
                let read = strategy.run((), |ctx, ()| {
                    op(&v, own(ctx))?;
                    v.read::<f32>()
                });
                assert_eq!(copies(&v), expected, "{name} {aggregation}");
                assert_eq!(read.unwrap().values(), expected, "a replica reads its own copy");
            }
        }
    });
}

#[test]
fn onr_3_cross_replica_reads_of_on_read_variables_aggregate() {
    watched(|| {
        let strategy = two();
        for (aggregation, expected) in AGGREGATIONS.into_iter().zip([None, Some(3f32), Some(1.5), Some(1.)]) {
            let v = ten(&strategy, Synchronization::OnRead, aggregation);
            strategy.run((), |ctx, ()| v.assign(own(ctx))).unwrap();
            for read in [v.read::<f32>(), strategy.scope(|| v.read::<f32>())] {
                match expected {
                    Some(expected) => assert_eq!(read.unwrap(), expected, "{aggregation}"),
                    None => assert!(refused(&read.unwrap_err())),
                }
            }
        }
    });
}

#[test]
fn onr_1_and_onr_2_cross_replica_writes_of_on_read_variables() {
    let strategy = two();
    let sum = [Some([1.5f32; 2]), None, None];
    let all = [Some([3f32; 2]), Some([13.; 2]), Some([7.; 2])];
    for aggregation in AGGREGATIONS {
        let expected = if aggregation == Aggregation::Sum { sum } else { all };
        for ((name, op), expected) in OPS.into_iter().zip(expected) {
            let v = ten(&strategy, Synchronization::OnRead, aggregation);
            match expected {
                Some(expected) => {
                    op(&v, 3.).unwrap();
                    assert_eq!(copies(&v), expected, "{name} {aggregation}");
                }
                None => assert!(refused(&op(&v, 3.).unwrap_err()) && copies(&v) == [10.; 2], "{name}"),
            }
        }
    }
}

// T5: TensorFlow cuts the remainder off.
#[test]
fn onr_1_an_integer_that_is_assigned_is_read_back() {
    for replicas in [2, 3, 8] {
        let strategy = MirroredStrategy::cpus(replicas).unwrap();
        for value in [7i64, -7, 8, 0, 1] {
            let v = strategy.scope(|| {
                let v = Variable::builder("v", 0i64).synchronization(Synchronization::OnRead);
                v.aggregation(Aggregation::Sum).create()
            });
            let v = v.unwrap();
            v.assign(value).unwrap();
            assert_eq!(v.read::<i64>().unwrap(), value);
        }
    }
}

#[test]
fn red_9_reduce_of_a_variable_combines_its_copies() {
    watched(|| {
        let strategy = two();
        let v = ten(&strategy, Synchronization::OnRead, Aggregation::OnlyFirstReplica);
        strategy.run((), |ctx, ()| v.assign(own(ctx))).unwrap();
        let sum: Leaf = strategy.reduce(ReduceOp::Sum, &v, None).unwrap();
        assert_eq!(sum.to_host().unwrap().item::<f32>().unwrap(), 3.);
        // T8: TensorFlow fails with a bare assertion; each replica has the value.
        let mirrored = ten(&strategy, Synchronization::OnWrite, Aggregation::None);
        let sum: Leaf = strategy.reduce(ReduceOp::Sum, &mirrored, None).unwrap();
        assert_eq!(sum.to_host().unwrap().item::<f32>().unwrap(), 20.);
        let mean: Leaf = strategy.reduce(ReduceOp::Mean, &mirrored, None).unwrap();
        assert_eq!(mean.to_host().unwrap().item::<f32>().unwrap(), 10.);
    });
}

use distribute::Leaf;
