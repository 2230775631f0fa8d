//! Checks that tables of parameter servers train bit-identically to variables of one process: dense and by row, with
//! any partition.

use crate::gradients::rows::{Brought, HEIGHT, WIDTH, train_table};
use distribute::HostTensor;
use distribute::optimizer::rules::{Adagrad, Adam, Ftrl, Momentum, Rule, Sgd};
use distribute::tensor::{DType, random::Distribution};
use distribute_ps_tables::{Initializer, Push, RowPartition, Table};
use distribute_testing::watched;
use std::sync::Arc;

/// Stores a table in the given number of shards, and returns it and its slots after the given steps.
fn train_shards<R: Rule + Clone>(rule: &R, steps: &[Brought], shards: usize) -> Vec<f64> {
    let cut = RowPartition::div(HEIGHT, shards);
    // The same first values as the model's.
    let uniform = Initializer::new(Distribution::Uniform { lo: -1., up: 1. }, 3, "table");
    let tables: Vec<Table> = (0..cut.shards())
        .map(|i| Table::initialized("table", &[HEIGHT, WIDTH], DType::F32, &uniform, (cut, i)).unwrap())
        .collect();
    tables.iter().for_each(|table| table.set_rule(Arc::new(rule.clone())).unwrap());
    for (step, brought) in steps.iter().enumerate() {
        let push = Push::at(distribute::optimizer::rules::Step::after(step as u64, 0.1));
        let seed = step * 1000;
        match brought {
            Brought::Nothing => {}
            Brought::Rows(rows) => {
                let ids: Vec<i64> = rows.iter().map(|row| *row as i64).collect();
                let split = cut.split("push", &ids).unwrap();
                for (i, table) in tables.iter().enumerate() {
                    let values = split.take(i, &Brought::values(rows.len(), seed), WIDTH);
                    let values = HostTensor::new(values, [split.of(i).len(), WIDTH]).unwrap();
                    table.push_rows(push, split.of(i), &values).unwrap();
                }
            }
            Brought::Dense => {
                let whole = HostTensor::new(Brought::values(HEIGHT, seed), [HEIGHT, WIDTH]).unwrap();
                for (table, range) in tables.iter().zip(cut.ranges()) {
                    table.push(push, &whole.narrow(0, range.start, range.len()).unwrap()).unwrap();
                }
            }
        }
    }
    let states: Vec<_> = tables.iter().map(|table| table.state().unwrap()).collect();
    let mut values: Vec<f64> = Vec::new();
    let mut add =
        |tensor: &HostTensor| values.extend(tensor.to_vec::<f32>().unwrap().into_iter().map(f64::from));
    states.iter().for_each(|state| add(&state.values));
    for slot in 0..states[0].slots.len() {
        states.iter().for_each(|state| add(&state.slots[slot].1));
    }
    values
}

// INV-7, INV-8, INV-11
#[test]
fn shards_on_servers_have_the_bits_of_one_process() {
    fn check<R: Rule + Clone>(rule: &R) {
        let all: Vec<usize> = (0..900).map(|i| i * 7919 % HEIGHT).collect();
        let steps = [
            Brought::Rows(vec![700, 3, 3, 0, 3]),
            Brought::Dense,
            Brought::Nothing,
            Brought::Rows(Vec::new()),
            Brought::Rows(all),
            Brought::Rows(vec![5]),
            Brought::Dense,
        ];
        let in_one: Vec<Vec<Brought>> = steps.iter().map(|brought| vec![brought.clone()]).collect();
        // The bias comes first.
        let (_, expected) = train_table(rule, &[], &in_one, true);
        for shards in [1, 2, 3, 5] {
            let found = train_shards(rule, &steps, shards);
            let same = expected[7..].iter().zip(&found).position(|(a, b)| a.to_bits() != b.to_bits());
            assert_eq!((same, found.len()), (None, expected.len() - 7), "{} on {shards} shards", rule.name());
        }
    }
    watched(|| {
        check(&Sgd);
        check(&Momentum::new(0.9));
        check(&Momentum::nesterov(0.9));
        check(&Adam::default());
        check(&Adam::lazy());
        check(&Adagrad::default());
        check(&Ftrl { l1: 0.01, ..Ftrl::default() });
    });
}
