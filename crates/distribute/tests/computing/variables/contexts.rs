//! Checks every operation of every kind of variable in every context: it works, or its error names the variable, the
//! context and the call to use instead, and nothing has been written.

use super::{
    AGGREGATIONS, Aggregation, Rules, Synchronization, copies, everywhere, on_copies, own, own_of_all, ten,
    two,
};
use candle_core::{Device, Tensor};
use distribute::context::ContextKind;
use distribute::tensor::IndexedSlices;
use distribute::{Error, Result, prelude::*};
use distribute_testing::watched;

type Operation = (&'static str, fn(&Variable) -> Result<()>);

fn rows() -> IndexedSlices {
    IndexedSlices::new(HostTensor::vector(vec![1f32]), HostTensor::vector(vec![0i64]), None).unwrap()
}

fn one() -> Tensor {
    Tensor::new(&[1f32], &Device::Cpu).unwrap()
}

const OPERATIONS: [Operation; 12] = [
    ("read", |v| v.read::<Tensor>().map(drop)),
    ("as_tensor", |v| v.as_tensor().map(drop)),
    ("assign", |v| v.assign(one())),
    ("assign_add", |v| v.assign_add(one())),
    ("assign_sub", |v| v.assign_sub(one())),
    ("scatter_add", |v| v.scatter_add(rows())),
    ("scatter_sub", |v| v.scatter_sub(rows())),
    ("scatter_mul", |v| v.scatter_mul(rows())),
    ("scatter_div", |v| v.scatter_div(rows())),
    ("scatter_min", |v| v.scatter_min(rows())),
    ("scatter_max", |v| v.scatter_max(rows())),
    ("scatter_update", |v| v.scatter_update(rows())),
];

/// Returns whether the operation is an error according to the tables of the documents.
fn is_refused(
    rules: Rules,
    name: &str,
    synchronization: Synchronization,
    aggregation: Aggregation,
    found: ContextKind,
) -> bool {
    let scatter = name.starts_with("scatter");
    let write = scatter || name.starts_with("assign");
    let replica = found == ContextKind::Replica;
    let update = found == ContextKind::Update;
    match (rules, synchronization) {
        (Rules::Ordinary, _) => false,
        (Rules::Shared, _) | (Rules::Mirrored, Synchronization::OnWrite) => {
            let ordered = ["scatter_min", "scatter_max", "scatter_update"].contains(&name);
            (replica && write && aggregation == Aggregation::None)
                || (ordered && [Aggregation::Sum, Aggregation::Mean].contains(&aggregation))
        }
        _ => {
            scatter
                || (!replica && !update && name == "read" && aggregation == Aggregation::None)
                || (!replica
                    && !update
                    && ["assign_add", "assign_sub"].contains(&name)
                    && aggregation == Aggregation::Sum)
        }
    }
}

/// The alternatives. The advice of each error contains at least one.
const INSTEAD: [&str; 7] =
    ["merge_call", "aggregation", "assign", "ONLY_FIRST_REPLICA", "reduce_to", "copies()", "run"];

// INV-19
#[test]
fn every_operation_in_every_context_works_or_names_an_alternative() {
    let check = |strategy: &Strategy| {
        let rules = Rules::of(strategy);
        let (mut works, mut refusals) = (0, 0);
        for synchronization in [Synchronization::OnWrite, Synchronization::OnRead] {
            for aggregation in AGGREGATIONS {
                for (name, operation) in OPERATIONS {
                    for found in [
                        ContextKind::Default,
                        ContextKind::CrossReplica,
                        ContextKind::Replica,
                        ContextKind::Update,
                    ] {
                        let three = Tensor::new(&[3f32], &Device::Cpu).unwrap();
                        let v = Variable::builder("weight", three);
                        let v = v.synchronization(synchronization).aggregation(aggregation);
                        let v = strategy.scope(|| v.create()).unwrap();
                        let result = match found {
                            ContextKind::Default => operation(&v),
                            ContextKind::CrossReplica => strategy.scope(|| operation(&v)),
                            ContextKind::Replica => strategy.run((), |_, ()| operation(&v)).map(drop),
                            _ => strategy.update(&v, (), |v, ()| operation(v)).map(drop),
                        };
                        let case =
                            format!("{name} of {synchronization}, {aggregation} in {found}: {strategy}");
                        if !is_refused(rules, name, synchronization, aggregation, found) {
                            result.unwrap_or_else(|error| panic!("{case}: {error}"));
                            works += 1;
                            continue;
                        }
                        let error = result.expect_err(&case);
                        let Error::VariableAccess {
                            operation,
                            variable,
                            synchronization: s,
                            aggregation: a,
                            found: f,
                            advice,
                        } = error.root_cause()
                        else {
                            panic!("{case}: {error}")
                        };
                        assert_eq!(
                            (*operation, &**variable, *s, *a, *f),
                            (name, "weight", synchronization, aggregation, found)
                        );
                        assert!(INSTEAD.iter().any(|call| advice.contains(call)), "{case}: {advice}");
                        let values = v.copies::<Tensor>().unwrap();
                        assert!(values.iter().all(|value| value.to_vec1::<f32>().unwrap() == [3.]), "{case}");
                        refusals += 1;
                    }
                }
            }
        }
        let expected = match rules {
            Rules::Ordinary => (384, 0),
            Rules::Shared => (316, 68),
            Rules::Mirrored => (232, 152),
        };
        assert_eq!((works, refusals), expected, "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

// WR-3: all replicas have to take part. The error names those that do not.
#[test]
fn wr_3_a_write_that_not_all_replicas_make_names_those_that_did_not() {
    let check = |strategy: &Strategy| {
        let v = ten(strategy, Synchronization::OnWrite, Aggregation::Sum);
        // A single replica writes without others.
        if Rules::of(strategy) == Rules::Ordinary {
            strategy.run((), |_, ()| v.assign_add(1f32)).unwrap();
            assert_eq!(copies(&v), [11.], "{strategy}");
            return;
        }
        let error =
            strategy.run((), |ctx, ()| if own(ctx) == 1. { v.assign_add(1f32) } else { Ok(()) }).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("assign_add of v") && text.contains("replica 1"), "{text}");
        let error = strategy
            .run((), |ctx, ()| if own(ctx) == 1. { v.assign_add(1f32) } else { v.assign_sub(1f32) })
            .unwrap_err();
        assert!(error.to_string().contains("assign_sub of v"), "{error}");
        assert_eq!(copies(&v), on_copies(&v, 10.), "{strategy}");
        strategy.run((), |_, ()| v.assign_add(1f32)).unwrap();
        let after = 10. + strategy.num_replicas_in_sync() as f32;
        assert_eq!(copies(&v), on_copies(&v, after), "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

// VAR-11, INV-20
#[test]
fn var_11_a_value_that_does_not_fit_changes_nothing_on_any_copy() {
    let check = |strategy: &Strategy| {
        for (synchronization, aggregation) in
            [(Synchronization::OnWrite, Aggregation::Sum), (Synchronization::OnRead, Aggregation::Mean)]
        {
            let v = ten(strategy, synchronization, aggregation);
            for error in [
                v.assign(HostTensor::vector(vec![1f32])).unwrap_err(),
                v.assign(1f64).unwrap_err(),
                strategy.run((), |_, ()| v.assign(HostTensor::vector(vec![1f32]))).unwrap_err(),
                strategy.update(&v, (), |v, ()| v.assign(1i32)).unwrap_err(),
            ] {
                assert!(matches!(error.root_cause(), Error::InvalidArgument { .. }), "{error}");
                assert!(error.to_string().contains("variable v is float32[]"), "{error}");
            }
            assert_eq!(copies(&v), on_copies(&v, 10.), "{strategy}");
            if strategy.num_replicas_in_sync() == 1 {
                continue;
            }
            // Shapes that differ between replicas: the one that does not fit is named.
            let error = strategy.run((), |ctx, ()| match own(ctx) {
                2. => v.assign(HostTensor::vector(vec![1f32, 2.])),
                _ => v.assign(1f32),
            });
            // Each replica writes its own copy without the others, so those of other workers have succeeded.
            let is_own = synchronization == Synchronization::OnRead && Rules::of(strategy) == Rules::Mirrored;
            if is_own && !strategy.world().local_replicas().contains(&1) {
                error.unwrap();
                continue;
            }
            let error = error.unwrap_err().to_string();
            assert!(error.contains("replica 1"), "{strategy}: {error}");
            if synchronization == Synchronization::OnWrite || Rules::of(strategy) == Rules::Shared {
                assert_eq!(copies(&v), on_copies(&v, 10.), "{strategy}");
            }
        }
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn t_1_a_read_in_a_replica_sees_all_earlier_writes() {
    let check = |strategy: &Strategy| {
        let v = ten(strategy, Synchronization::OnWrite, Aggregation::Mean);
        let seen = strategy.run((), |ctx, ()| {
            (0..100)
                .map(|i| {
                    v.assign(own(ctx) + i as f32)?;
                    v.read::<f32>()
                })
                .collect::<Result<Vec<_>>>()
        });
        let mean = Rules::of(strategy).aggregate(Aggregation::Mean, &own_of_all(strategy)).unwrap();
        let expected: Vec<f32> = (0..100).map(|i| mean + i as f32).collect();
        assert!(seen.unwrap().iter().all(|seen| *seen == expected), "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

// Variables of one name are not one variable.
#[test]
fn wr_3_replicas_that_write_other_variables_of_one_name_are_refused() {
    let check = |strategy: &Strategy| {
        let [a, b] = [0, 1].map(|_| ten(strategy, Synchronization::OnWrite, Aggregation::Sum));
        assert_ne!(a, b);
        if strategy.num_replicas_in_sync() > 1 {
            let write = |ctx: &ReplicaContext| if own(ctx) == 1. { &a } else { &b }.assign_add(1f32);
            let error = strategy.run((), |ctx, ()| write(ctx)).unwrap_err();
            assert!(error.blame().is_some() && error.to_string().contains("assign_add of v"), "{error}");
            assert_eq!(copies(&a), on_copies(&a, 10.), "{strategy}");
            assert_eq!(copies(&b), on_copies(&b, 10.), "{strategy}");
        }
        let error = strategy.run((), |_, ()| a.deep_copy().map(drop)).unwrap_err();
        assert!(matches!(error.root_cause(), Error::WrongContext { .. }), "{error}");
    };
    watched(move || drop(everywhere(check)));
}

// candle's `set` would hold the lock of one while it waits for the other's.
#[test]
fn two_threads_may_assign_two_variables_to_each_other() {
    let check = |strategy: &Strategy, times: usize| {
        let [a, b] = [0, 1].map(|_| strategy.scope(|| Variable::new("v", one())).unwrap());
        std::thread::scope(|threads| {
            threads.spawn(|| (0..times).for_each(|_| a.assign(b.as_tensor().unwrap()).unwrap()));
            threads.spawn(|| (0..times).for_each(|_| b.assign(a.as_tensor().unwrap()).unwrap()));
        });
        // A view of the variable itself.
        a.assign(a.as_tensor().unwrap().flip(&[0]).unwrap()).unwrap();
    };
    watched(move || {
        check(&two(), 2000);
        everywhere(|strategy| check(strategy, 50));
    });
}

// INV-20
#[test]
fn two_threads_that_write_one_variable_leave_its_copies_equal() {
    let check = |strategy: &Strategy, rounds: i32| {
        let big = |x: i32| HostTensor::vector(vec![x as f32; 20_000]);
        let v = strategy.scope(|| Variable::new("v", big(0))).unwrap();
        for round in 1..=rounds {
            std::thread::scope(|threads| {
                threads.spawn(|| v.assign(big(round)).unwrap());
                threads.spawn(|| v.assign(big(-round)).unwrap());
            });
            assert!(v.copies_agree().unwrap(), "{strategy}");
            // The value is that of one of the two writes, and not a mixture.
            let value = v.read::<HostTensor>().unwrap();
            assert!(value == big(round) || value == big(-round), "{strategy}");
        }
    };
    watched(move || {
        check(&two(), 50);
        everywhere(|strategy| check(strategy, 10));
    });
}

#[test]
fn run_10_a_variable_is_created_the_same_on_all_replicas_in_every_respect() {
    let check = |strategy: &Strategy| {
        let made = strategy.run((), |ctx, ()| {
            let (synchronization, aggregation) = match ctx.replica_id_in_sync_group() {
                0 => (Synchronization::OnWrite, Aggregation::Sum),
                _ => (Synchronization::OnRead, Aggregation::Mean),
            };
            Variable::builder("v", 1f32).synchronization(synchronization).aggregation(aggregation).create()
        });
        if strategy.num_replicas_in_sync() == 1 {
            assert_eq!(made.unwrap().values()[0].aggregation(), Aggregation::Sum, "{strategy}");
            return;
        }
        let text = made.unwrap_err().to_string();
        assert!(text.contains("ON_WRITE") && text.contains("ON_READ"), "{text}");
    };
    watched(move || drop(everywhere(check)));
}
