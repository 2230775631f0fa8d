//! Writes of rows (section 2.3 of semantics/variables.md). The initial value is [1, 2, 3], and the replicas write 2, 4,
//! … to row 1.

use super::{AGGREGATIONS, Aggregation, Rules, Synchronization, everywhere, of_all};
use distribute::tensor::IndexedSlices;
use distribute::{Error, Result, prelude::*};
use distribute_testing::watched;

type Op = fn(&Variable, IndexedSlices) -> Result<()>;
type Effect = fn(f32, f32) -> f32;
/// The operations that write rows, and their effect on an element.
const OPS: [(&str, Op, Effect); 7] = [
    ("scatter_add", Variable::scatter_add, |old, x| old + x),
    ("scatter_sub", Variable::scatter_sub, |old, x| old - x),
    ("scatter_mul", Variable::scatter_mul, |old, x| old * x),
    ("scatter_div", Variable::scatter_div, |old, x| old / x),
    ("scatter_min", Variable::scatter_min, f32::min),
    ("scatter_max", Variable::scatter_max, f32::max),
    ("scatter_update", Variable::scatter_update, |_, x| x),
];
/// The operations whose result depends on the order of the replicas.
const ORDERED: [&str; 3] = ["scatter_min", "scatter_max", "scatter_update"];

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

/// Returns row 1 of each copy, and checks that the other rows have not changed.
fn rows(v: &Variable) -> Vec<f32> {
    let copies: Vec<distribute::tensor::Leaf> = v.copies().unwrap();
    let row = |copy: distribute::tensor::Leaf| match copy.to_host().unwrap().to_vec::<f32>().unwrap()[..] {
        [first, row, last] => {
            assert_eq!([first, last], [1., 3.]);
            row
        }
        _ => unreachable!(),
    };
    copies.into_iter().map(row).collect()
}

/// Returns the rows that are written if the replicas of all workers write `rows`; `None` if that is an error.
fn joined(rules: Rules, name: &str, aggregation: Aggregation, rows: &[f32]) -> Option<Vec<f32>> {
    match aggregation {
        _ if rules == Rules::Ordinary => Some(rows.to_vec()),
        Aggregation::OnlyFirstReplica => Some(vec![rows[0]]),
        Aggregation::None => None,
        // SC-3
        _ if ORDERED.contains(&name) => None,
        Aggregation::Sum => Some(rows.to_vec()),
        Aggregation::Mean => Some(rows.iter().map(|row| row / rows.len() as f32).collect()),
    }
}

#[test]
fn sc_1_and_sc_2_replicas_rows_are_joined_and_written_to_all_copies() {
    let check = |strategy: &Strategy| {
        let values = of_all(strategy, |id| 2. + 2. * id as f32);
        for (name, op, effect) in OPS {
            for aggregation in AGGREGATIONS {
                for host in [true, false] {
                    let case = format!("{name} {aggregation}: {strategy}");
                    let v = make(strategy, Synchronization::OnWrite, aggregation, host);
                    let result =
                        strategy.run((), |ctx, ()| op(&v, row(values[ctx.replica_id_in_sync_group()])));
                    let copies = v.devices().len();
                    match joined(Rules::of(strategy), name, aggregation, &values) {
                        Some(written) => {
                            result.unwrap();
                            let expected = written.into_iter().fold(2., effect);
                            assert_eq!(rows(&v), vec![expected; copies], "{case}");
                        }
                        None => {
                            let error = result.unwrap_err();
                            assert!(matches!(error.root_cause(), Error::VariableAccess { .. }), "{error}");
                            assert_eq!(rows(&v), vec![2.; copies], "{case}");
                        }
                    }
                }
            }
        }
    };
    // The table of the documents, for two replicas: SUM, MEAN, ONLY_FIRST_REPLICA.
    let table = [[8f32, 5., 4.], [-4., -1., 0.], [16., 4., 4.], [0.25, 1., 1.]];
    for ((name, _, effect), expected) in OPS.into_iter().zip(table) {
        let of = |aggregation| joined(Rules::Mirrored, name, aggregation, &[2., 4.]).unwrap();
        let found = AGGREGATIONS[1..].iter().map(|aggregation| of(*aggregation).into_iter().fold(2., effect));
        assert_eq!(found.collect::<Vec<_>>(), expected, "{name}");
    }
    watched(move || drop(everywhere(check)));
}

#[test]
fn sc_1_cross_replica_rows_are_written_to_all_copies() {
    let check = |strategy: &Strategy| {
        for (name, op, effect) in OPS {
            for host in [true, false] {
                let v = make(strategy, Synchronization::OnWrite, Aggregation::None, host);
                let expected = vec![effect(2., 4.); v.devices().len()];
                op(&v, row(4.)).unwrap();
                assert_eq!(rows(&v), expected, "{name}: {strategy}");
                let v = make(strategy, Synchronization::OnWrite, Aggregation::OnlyFirstReplica, host);
                strategy.update(&v, (), |v, ()| op(v, row(4.))).unwrap();
                assert_eq!(rows(&v), expected, "{name}, in update: {strategy}");
            }
        }
    };
    watched(move || drop(everywhere(check)));
}

// PSV-3: if replicas share one copy, its rows are written like those of ON_WRITE.
#[test]
fn sc_on_read_variables_have_no_rows_to_write() {
    let check = |strategy: &Strategy| {
        for aggregation in AGGREGATIONS {
            for (name, op, _) in OPS {
                let write = |synchronization| {
                    let v = make(strategy, synchronization, aggregation, true);
                    let in_run = strategy.run((), |_, ()| op(&v, row(4.))).map(drop);
                    let in_update = strategy.update(&v, (), |v, ()| op(v, row(4.))).map(drop);
                    ([in_run, in_update, op(&v, row(4.))], rows(&v))
                };
                let (results, after) = write(Synchronization::OnRead);
                if Rules::of(strategy) != Rules::Mirrored {
                    let (of_on_write, same) = write(Synchronization::OnWrite);
                    let is_ok = |results: [Result<()>; 3]| results.map(|result| result.is_ok());
                    assert_eq!(is_ok(results), is_ok(of_on_write), "{name} {aggregation}: {strategy}");
                    assert_eq!(after, same, "{name} {aggregation}: {strategy}");
                    continue;
                }
                for error in results.map(Result::unwrap_err) {
                    assert!(matches!(error.root_cause(), Error::VariableAccess { .. }), "{error}");
                    let text = error.to_string();
                    assert!(text.contains(name) && text.contains("assign"), "{text}");
                }
                assert!(after.iter().all(|row| *row == 2.), "{after:?}");
            }
        }
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn var_11_rows_that_do_not_fit_change_nothing() {
    let check = |strategy: &Strategy| {
        for host in [true, false] {
            let v = make(strategy, Synchronization::OnWrite, Aggregation::Sum, host);
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
                let error = v.scatter_add(wrong.clone()).unwrap_err().to_string();
                assert!(error.contains("scatter_add"), "{error}");
                strategy.run((), |_, ()| v.scatter_add(wrong.clone())).unwrap_err();
                strategy.update(&v, (), |v, ()| v.scatter_add(wrong.clone())).unwrap_err();
            }
            assert_eq!(rows(&v), vec![2.; v.devices().len()], "{strategy}");
        }
    };
    watched(move || drop(everywhere(check)));
}
