//! Section 2.3: rows. Start [1, 2, 3], replicas' rows at index 1: 2 and 4.

use super::{AGGREGATIONS, Aggregation, Synchronization, two};
use distribute::prelude::*;
use distribute::{Error, Result, Variable};
use distribute_testing::watched;

type Op = fn(&Variable, IndexedSlices) -> Result<()>;
const OPS: [(&str, Op); 7] = [
    ("scatter_add", Variable::scatter_add),
    ("scatter_sub", Variable::scatter_sub),
    ("scatter_mul", Variable::scatter_mul),
    ("scatter_div", Variable::scatter_div),
    ("scatter_min", Variable::scatter_min),
    ("scatter_max", Variable::scatter_max),
    ("scatter_update", Variable::scatter_update),
];

fn row(value: f32) -> IndexedSlices {
    let (values, indices) = (HostTensor::vector(vec![value]), HostTensor::vector(vec![1i64]));
    IndexedSlices::new(values, indices, None).unwrap()
}

fn make(
    strategy: &Strategy,
    synchronization: Synchronization,
    aggregation: Aggregation,
    host: bool,
) -> Variable {
    let initial = [1f32, 2., 3.];
    let variable = if host {
        Variable::builder("v", HostTensor::vector(initial.to_vec()))
    } else {
        Variable::builder("v", candle_core::Tensor::new(&initial, &candle_core::Device::Cpu).unwrap())
    };
    strategy.scope(|| variable.synchronization(synchronization).aggregation(aggregation).create()).unwrap()
}

/// Returns row 1 of each copy, and checks that the others have not changed.
fn rows(v: &Variable) -> Vec<f32> {
    let copies: Vec<distribute::Leaf> = v.copies().unwrap();
    let row = |copy: distribute::Leaf| match copy.to_host().unwrap().to_vec::<f32>().unwrap()[..] {
        [first, row, last] => {
            assert_eq!([first, last], [1., 3.]);
            row
        }
        _ => unreachable!(),
    };
    copies.into_iter().map(row).collect()
}

#[test]
fn sc_1_and_sc_2_replicas_rows_are_joined_and_written_to_all_copies() {
    watched(|| {
        let strategy = two();
        let table = [
            ("scatter_add", [Some(8f32), Some(5.), Some(4.)]),
            ("scatter_sub", [Some(-4.), Some(-1.), Some(0.)]),
            ("scatter_mul", [Some(16.), Some(4.), Some(4.)]),
            ("scatter_div", [Some(0.25), Some(1.), Some(1.)]),
            ("scatter_min", [None, None, Some(2.)]),
            ("scatter_max", [None, None, Some(2.)]),
            ("scatter_update", [None, None, Some(2.)]),
        ];
        for ((name, op), (same, expected)) in OPS.into_iter().zip(table) {
            assert_eq!(name, same);
            for (aggregation, expected) in AGGREGATIONS[1..].iter().zip(expected) {
                for host in [true, false] {
                    let v = make(&strategy, Synchronization::OnWrite, *aggregation, host);
                    let result = strategy
                        .run((), |ctx, ()| op(&v, row(2. + 2. * ctx.replica_id_in_sync_group() as f32)));
                    match expected {
                        Some(expected) => {
                            result.unwrap();
                            assert_eq!(rows(&v), [expected; 2], "{name} {aggregation}");
                        }
                        // SC-3
                        None => {
                            let error = result.unwrap_err();
                            assert!(matches!(error.root_cause(), Error::VariableAccess { .. }), "{error}");
                            assert_eq!(rows(&v), [2.; 2]);
                        }
                    }
                }
            }
        }
    });
}

#[test]
fn sc_1_cross_replica_rows_are_written_to_all_copies() {
    let strategy = two();
    for ((name, op), expected) in OPS.into_iter().zip([6f32, -2., 8., 0.5, 2., 4., 4.]) {
        for host in [true, false] {
            let v = make(&strategy, Synchronization::OnWrite, Aggregation::None, host);
            op(&v, row(4.)).unwrap();
            assert_eq!(rows(&v), [expected; 2], "{name}");
            let v = make(&strategy, Synchronization::OnWrite, Aggregation::OnlyFirstReplica, host);
            strategy.update(&v, (), |v, ()| op(v, row(4.))).unwrap();
            assert_eq!(rows(&v), [expected; 2], "{name}, in update");
        }
    }
}

#[test]
fn sc_on_read_variables_have_no_rows_to_write() {
    watched(|| {
        let strategy = two();
        for aggregation in AGGREGATIONS {
            for (name, op) in OPS {
                let v = make(&strategy, Synchronization::OnRead, aggregation, true);
                let in_run = strategy.run((), |_, ()| op(&v, row(4.))).unwrap_err();
                let in_update = strategy.update(&v, (), |v, ()| op(v, row(4.))).unwrap_err();
                for error in [in_run, in_update, op(&v, row(4.)).unwrap_err()] {
                    assert!(matches!(error.root_cause(), Error::VariableAccess { .. }), "{error}");
                    assert!(
                        error.to_string().contains(name) && error.to_string().contains("assign"),
                        "{error}"
                    );
                }
                assert_eq!(rows(&v), [2.; 2]);
            }
        }
    });
}

#[test]
fn var_11_rows_that_do_not_fit_change_nothing() {
    let strategy = two();
    for host in [true, false] {
        let v = make(&strategy, Synchronization::OnWrite, Aggregation::Sum, host);
        let slices = |values: HostTensor, index: i64| IndexedSlices {
            values,
            indices: HostTensor::vector(vec![index]),
            dense_shape: None,
        };
        for wrong in [
            slices(HostTensor::vector(vec![1f32]), 3),
            slices(HostTensor::vector(vec![1f32]), -1),
            slices(HostTensor::vector(vec![1f64]), 1),
            slices(HostTensor::new(vec![1f32, 2.], [1, 2]).unwrap(), 1),
        ] {
            v.scatter_add(wrong).unwrap_err();
        }
        assert_eq!(rows(&v), [2.; 2]);
    }
}
