//! Every operation of every kind of variable in every context either works, or its error names the variable, the
//! context and the call to use instead. In that case nothing has been written.

use super::{AGGREGATIONS, Aggregation, Synchronization, copies, own, two};
use candle_core::{Device, Tensor};
use distribute::prelude::*;
use distribute::{ContextKind, Error, Result, Variable};
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

/// Returns the operations that are refused according to the tables of the documents.
fn refused(
    name: &str,
    synchronization: Synchronization,
    aggregation: Aggregation,
    found: ContextKind,
) -> bool {
    let scatter = name.starts_with("scatter");
    let write = scatter || name.starts_with("assign");
    let replica = found == ContextKind::Replica;
    let update = found == ContextKind::Update;
    match synchronization {
        Synchronization::OnWrite => {
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

/// The alternatives, one of which is in the advice.
const INSTEAD: [&str; 7] =
    ["merge_call", "aggregation", "assign", "ONLY_FIRST_REPLICA", "reduce_to", "copies()", "run"];

// INV-19
#[test]
fn every_operation_in_every_context_works_or_says_what_to_call_instead() {
    watched(|| {
        let strategy = two();
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
                        let case = format!("{name} of {synchronization}, {aggregation} in {found}");
                        if !refused(name, synchronization, aggregation, found) {
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
        assert_eq!((works, refusals), (232, 152));
    });
}

// WR-3: all replicas have to take part; who does not, is named.
#[test]
fn wr_3_a_write_that_not_all_replicas_make_names_who_did_not() {
    watched(|| {
        let strategy = two();
        let v = super::ten(&strategy, Synchronization::OnWrite, Aggregation::Sum);
        let error =
            strategy.run((), |ctx, ()| if own(ctx) == 1. { v.assign_add(1f32) } else { Ok(()) }).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("assign_add of v") && text.contains("replica 1"), "{text}");
        let error = strategy
            .run((), |ctx, ()| if own(ctx) == 1. { v.assign_add(1f32) } else { v.assign_sub(1f32) })
            .unwrap_err();
        assert!(error.to_string().contains("assign_sub of v"), "{error}");
        assert_eq!(copies(&v), [10., 10.]);
        strategy.run((), |_, ()| v.assign_add(1f32)).unwrap();
        assert_eq!(copies(&v), [12., 12.]);
    });
}

// VAR-11, INV-20
#[test]
fn var_11_a_value_that_does_not_fit_changes_nothing_on_any_copy() {
    watched(|| {
        let strategy = two();
        for (synchronization, aggregation) in
            [(Synchronization::OnWrite, Aggregation::Sum), (Synchronization::OnRead, Aggregation::Mean)]
        {
            let v = super::ten(&strategy, synchronization, aggregation);
            for error in [
                v.assign(HostTensor::vector(vec![1f32])).unwrap_err(),
                v.assign(1f64).unwrap_err(),
                strategy.run((), |_, ()| v.assign(HostTensor::vector(vec![1f32]))).unwrap_err(),
                strategy.update(&v, (), |v, ()| v.assign(1i32)).unwrap_err(),
            ] {
                assert!(matches!(error.root_cause(), Error::InvalidArgument { .. }), "{error}");
                assert!(error.to_string().contains("variable v is float32[]"), "{error}");
            }
            // Shapes that differ between replicas: the one that does not fit is named.
            let error = strategy.run((), |ctx, ()| match own(ctx) {
                1. => v.assign(1f32),
                _ => v.assign(HostTensor::vector(vec![1f32, 2.])),
            });
            assert!(error.unwrap_err().to_string().contains("replica 1"));
            if synchronization == Synchronization::OnWrite {
                assert_eq!(copies(&v), [10., 10.]);
            }
        }
    });
}

#[test]
fn t_1_a_replica_that_reads_sees_what_all_have_written_before() {
    watched(|| {
        let strategy = two();
        let v = super::ten(&strategy, Synchronization::OnWrite, Aggregation::Mean);
        let seen = strategy.run((), |ctx, ()| {
            (0..100)
                .map(|i| {
                    v.assign(own(ctx) + i as f32)?;
                    v.read::<f32>()
                })
                .collect::<Result<Vec<_>>>()
        });
        let expected: Vec<f32> = (0..100).map(|i| 1.5 + i as f32).collect();
        assert_eq!(seen.unwrap().into_values(), [expected.clone(), expected]);
    });
}

// Variables of one name are not one variable.
#[test]
fn wr_3_replicas_that_write_other_variables_of_one_name_are_refused() {
    watched(|| {
        let strategy = two();
        let [a, b] = [0, 1].map(|_| super::ten(&strategy, Synchronization::OnWrite, Aggregation::Sum));
        let error = strategy
            .run((), |ctx, ()| [&a, &b][ctx.replica_id_in_sync_group()].assign_add(1f32))
            .unwrap_err();
        assert!(error.blame().is_some() && error.to_string().contains("assign_add of v"), "{error}");
        assert_eq!((copies(&a), copies(&b)), (vec![10.; 2], vec![10.; 2]));
        let error = strategy.run((), |_, ()| a.deep_copy().map(drop)).unwrap_err();
        assert!(matches!(error.root_cause(), Error::WrongContext { .. }), "{error}");
    });
}

// candle's `set` would hold the lock of one while it waits for the other's.
#[test]
fn two_threads_may_assign_two_variables_to_each_other() {
    watched(|| {
        let strategy = two();
        let [a, b] = [0, 1].map(|_| strategy.scope(|| Variable::new("v", one())).unwrap());
        std::thread::scope(|threads| {
            threads.spawn(|| (0..2000).for_each(|_| a.assign(b.as_tensor().unwrap()).unwrap()));
            threads.spawn(|| (0..2000).for_each(|_| b.assign(a.as_tensor().unwrap()).unwrap()));
        });
        // A view of the variable itself, too.
        a.assign(a.as_tensor().unwrap().flip(&[0]).unwrap()).unwrap();
    });
}

// INV-20
#[test]
fn two_threads_that_write_one_variable_leave_its_copies_equal() {
    watched(|| {
        let strategy = two();
        let big = |x: f32| HostTensor::vector(vec![x; 20_000]);
        let v = strategy.scope(|| Variable::new("v", big(0.))).unwrap();
        for round in 0..50 {
            std::thread::scope(|threads| {
                threads.spawn(|| v.assign(big(round as f32)).unwrap());
                threads.spawn(|| v.assign(big(-round as f32)).unwrap());
            });
            assert!(v.copies_agree().unwrap());
        }
    });
}

#[test]
fn run_10_a_variable_is_created_the_same_on_all_replicas_in_every_respect() {
    watched(|| {
        let strategy = two();
        let error = strategy.run((), |ctx, ()| {
            let (synchronization, aggregation) = match ctx.replica_id_in_sync_group() {
                0 => (Synchronization::OnWrite, Aggregation::Sum),
                _ => (Synchronization::OnRead, Aggregation::Mean),
            };
            Variable::builder("v", 1f32).synchronization(synchronization).aggregation(aggregation).create()
        });
        let text = error.unwrap_err().to_string();
        assert!(text.contains("ON_WRITE") && text.contains("ON_READ"), "{text}");
    });
}
