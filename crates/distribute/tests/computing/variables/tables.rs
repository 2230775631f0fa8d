//! The tables in section 2 of semantics/variables.md. The initial value is 10, replicas write 1, 2, …, and all other
//! contexts write 3.

use super::{
    AGGREGATIONS, Aggregation, Rules, Synchronization, copies, everywhere, of_all, on_copies, own,
    own_of_all, ten,
};
use distribute::tensor::Leaf;
use distribute::{Error, Result, prelude::*};
use distribute_testing::watched;

type Op = fn(&Variable, f32) -> Result<()>;
type Effect = fn(f32, f32) -> f32;
/// The operations that write, and their effect on a value.
const OPS: [(&str, Op, Effect); 3] = [
    ("assign", |v, x| v.assign(x), |_, x| x),
    ("assign_add", |v, x| v.assign_add(x), |old, x| old + x),
    ("assign_sub", |v, x| v.assign_sub(x), |old, x| old - x),
];

fn is_refused(error: &Error) -> bool {
    matches!(error.root_cause(), Error::VariableAccess { .. })
}

/// Checks writes of ON_WRITE variables in `run`. `values` are the values that the replicas of all workers write.
fn check_replica_writes(strategy: &Strategy, value: fn(&ReplicaContext) -> f32, values: &[f32]) {
    for aggregation in AGGREGATIONS {
        for (name, op, effect) in OPS {
            let case = format!("{name} {aggregation}: {strategy}");
            let v = ten(strategy, Synchronization::OnWrite, aggregation);
            let result = strategy.run((), |ctx, ()| op(&v, value(ctx)));
            match Rules::of(strategy).aggregate(aggregation, values) {
                Some(written) => {
                    result.unwrap();
                    assert_eq!(copies(&v), on_copies(&v, effect(10., written)), "{case}");
                }
                // T1: TensorFlow lets the copies drift apart.
                None => {
                    assert!(is_refused(&result.unwrap_err()), "{case}");
                    assert_eq!(copies(&v), on_copies(&v, 10.), "{case}");
                }
            }
        }
    }
}

#[test]
fn wr_3_and_wr_4_replica_writes_of_on_write_variables_are_aggregated() {
    let check = |strategy: &Strategy| check_replica_writes(strategy, own, &own_of_all(strategy));
    watched(move || drop(everywhere(check)));
}

// WR-4, T3: TensorFlow refuses the sum of one object that all replicas pass, and returns it as a mean.
#[test]
fn wr_4_a_constant_counts_once_for_each_replica() {
    let check = |strategy: &Strategy| check_replica_writes(strategy, |_| 3., &of_all(strategy, |_| 3.));
    watched(move || drop(everywhere(check)));
}

#[test]
fn wr_1_cross_replica_writes_of_on_write_variables_reach_all_copies() {
    let check = |strategy: &Strategy| {
        for aggregation in AGGREGATIONS {
            for (name, op, effect) in OPS {
                let inside = ten(strategy, Synchronization::OnWrite, aggregation);
                strategy.scope(|| op(&inside, 3.)).unwrap();
                // VAR-8: an operation outside any scope enters the scope of the variable's strategy.
                let outside = ten(strategy, Synchronization::OnWrite, aggregation);
                op(&outside, 3.).unwrap();
                let expected = on_copies(&inside, effect(10., 3.));
                assert_eq!(copies(&inside), expected, "{name} {aggregation}: {strategy}");
                assert_eq!(copies(&outside), expected, "{name} {aggregation}: {strategy}");
            }
        }
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn wr_1_in_update_context_only_the_marked_copy_is_written() {
    let check = |strategy: &Strategy| {
        for synchronization in [Synchronization::OnWrite, Synchronization::OnRead] {
            for aggregation in AGGREGATIONS {
                for (name, op, effect) in OPS {
                    let v = ten(strategy, synchronization, aggregation);
                    let mut seen = Vec::new();
                    let update = |v: &Variable, x| {
                        op(v, x)?;
                        seen.push(copies(v));
                        Ok(())
                    };
                    strategy.update(&v, 3f32, update).unwrap();
                    let count = v.devices().len();
                    let value = |copy, updated| if copy <= updated { effect(10., 3.) } else { 10. };
                    let expected = (0..count)
                        .map(|updated| (0..count).map(|copy| value(copy, updated)).collect::<Vec<_>>());
                    let case = format!("{name} {synchronization} {aggregation}: {strategy}");
                    assert_eq!(seen, expected.collect::<Vec<_>>(), "{case}");
                }
            }
        }
    };
    watched(move || drop(everywhere(check)));
}

// PSV-3: if replicas share one copy, it is written like ON_WRITE.
#[test]
fn onr_replica_writes_of_on_read_variables_stay_local() {
    let check = |strategy: &Strategy| {
        let rules = Rules::of(strategy);
        for aggregation in AGGREGATIONS {
            for (name, op, effect) in OPS {
                let case = format!("{name} {aggregation}: {strategy}");
                let v = ten(strategy, Synchronization::OnRead, aggregation);
                let read = strategy.run((), |ctx, ()| {
                    op(&v, own(ctx))?;
                    v.read::<f32>()
                });
                let expected: Vec<f32> = match rules.aggregate(aggregation, &own_of_all(strategy)) {
                    _ if rules == Rules::Mirrored => {
                        strategy.world().local_replicas().map(|id| effect(10., 1. + id as f32)).collect()
                    }
                    Some(written) => on_copies(&v, effect(10., written)),
                    None => {
                        assert!(is_refused(&read.unwrap_err()), "{case}");
                        continue;
                    }
                };
                assert_eq!(copies(&v), expected, "{case}");
                let of_replica = |local: usize| expected[local.min(expected.len() - 1)];
                let seen: Vec<f32> = (0..strategy.world().replicas()).map(of_replica).collect();
                assert_eq!(read.unwrap().values(), seen, "a replica reads its own copy: {case}");
            }
        }
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn onr_3_cross_replica_reads_of_on_read_variables_aggregate() {
    let check = |strategy: &Strategy| {
        let rules = Rules::of(strategy);
        for aggregation in AGGREGATIONS {
            let case = format!("{aggregation}: {strategy}");
            let v = ten(strategy, Synchronization::OnRead, aggregation);
            let aggregated = rules.aggregate(aggregation, &own_of_all(strategy));
            let written = strategy.run((), |ctx, ()| v.assign(own(ctx)));
            // PSV-3: if replicas share one copy, the write is refused, and a read returns the single value.
            if rules == Rules::Shared && aggregated.is_none() {
                assert!(is_refused(&written.unwrap_err()), "{case}");
                assert_eq!(v.read::<f32>().unwrap(), 10., "{case}");
                continue;
            }
            written.unwrap();
            for read in [v.read::<f32>(), strategy.scope(|| v.read::<f32>())] {
                match aggregated {
                    Some(expected) => assert_eq!(read.unwrap(), expected, "{case}"),
                    None => assert!(is_refused(&read.unwrap_err()), "{case}"),
                }
            }
        }
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn onr_1_and_onr_2_cross_replica_writes_of_on_read_variables() {
    let check = |strategy: &Strategy| {
        let replicas = strategy.num_replicas_in_sync() as f32;
        for aggregation in AGGREGATIONS {
            for (name, op, effect) in OPS {
                let case = format!("{name} {aggregation}: {strategy}");
                let v = ten(strategy, Synchronization::OnRead, aggregation);
                let result = op(&v, 3.);
                let is_sum_of_copies =
                    Rules::of(strategy) == Rules::Mirrored && aggregation == Aggregation::Sum;
                let expected = match name {
                    _ if !is_sum_of_copies => effect(10., 3.),
                    "assign" => 3. / replicas,
                    _ => {
                        assert!(is_refused(&result.unwrap_err()), "{case}");
                        assert_eq!(copies(&v), on_copies(&v, 10.), "{case}");
                        continue;
                    }
                };
                result.unwrap();
                assert_eq!(copies(&v), on_copies(&v, expected), "{case}");
            }
        }
    };
    watched(move || drop(everywhere(check)));
}

// T5: TensorFlow cuts the remainder off.
#[test]
fn onr_1_an_integer_that_is_assigned_is_read_back() {
    let check = |strategy: &Strategy| {
        for value in [7i64, -7, 8, 0, 1] {
            let v = strategy.scope(|| {
                let v = Variable::builder("v", 0i64).synchronization(Synchronization::OnRead);
                v.aggregation(Aggregation::Sum).create()
            });
            let v = v.unwrap();
            v.assign(value).unwrap();
            assert_eq!(v.read::<i64>().unwrap(), value, "{strategy}");
        }
    };
    watched(move || {
        check(&MirroredStrategy::cpus(8).unwrap());
        everywhere(check);
    });
}

#[test]
fn red_9_reduce_of_a_variable_combines_its_copies() {
    let check = |strategy: &Strategy| {
        let replicas = strategy.num_replicas_in_sync() as f32;
        let reduce = |op, v: &Variable| {
            let reduced: Leaf = strategy.reduce(op, v, None).unwrap();
            reduced.to_host().unwrap().item::<f32>().unwrap()
        };
        let v = ten(strategy, Synchronization::OnRead, Aggregation::OnlyFirstReplica);
        strategy.run((), |ctx, ()| v.assign(own(ctx))).unwrap();
        let sum = match Rules::of(strategy) {
            Rules::Mirrored => own_of_all(strategy).iter().sum(),
            // PSV-3: each replica has the single value.
            _ => replicas,
        };
        assert_eq!(reduce(ReduceOp::Sum, &v), sum, "{strategy}");
        assert_eq!(reduce(ReduceOp::Mean, &v), sum / replicas, "{strategy}");
        // T8: TensorFlow fails with a bare assertion; each replica has the value.
        let v = ten(strategy, Synchronization::OnWrite, Aggregation::None);
        assert_eq!(reduce(ReduceOp::Sum, &v), 10. * replicas, "{strategy}");
        assert_eq!(reduce(ReduceOp::Mean, &v), 10., "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}
