//! Refusals of tables: the error names the cause, and nothing has changed.

use distribute_optim::{Adam, Averaged, Lamb, Momentum, Rule, Sgd, Step};
use distribute_ps_tables::{DynamicOptions, DynamicTable, Error, Initializer, Push, RowPartition, Table};
use distribute_tensor::random::Distribution;
use distribute_tensor::{DType, HostTensor, Write};
use std::sync::Arc;

fn assert_message(error: Error, text: &str) {
    assert!(error.to_string().starts_with(text), "{error} | {text}");
}

fn tensor(values: Vec<f32>, rows: usize, width: usize) -> HostTensor {
    HostTensor::new(values, [rows, width]).unwrap()
}

fn rows(values: Vec<f32>, width: usize) -> HostTensor {
    let rows = values.len() / width;
    tensor(values, rows, width)
}

/// A shard has only some rows, and LAMB needs the norm of all.
#[test]
fn rules_of_complete_variables_are_refused() {
    let table = Table::new("t", tensor(vec![1.; 6], 3, 2)).unwrap();
    let normal = Initializer::new(Distribution::Normal { mean: 0., stdev: 1. }, 1, "users");
    let ids = DynamicTable::new("t", &[2], DType::F32, normal, DynamicOptions::default()).unwrap();
    let rules: [Arc<dyn Rule>; 2] =
        [Arc::new(Lamb::default()), Arc::new(Averaged { rule: Arc::new(Lamb::default()), momentum: 0.5 })];
    for rule in rules {
        for error in [table.set_rule(rule.clone()).unwrap_err(), ids.set_rule(rule.clone()).unwrap_err()] {
            assert_message(error, "set_rule: lamb needs a complete variable, but table t may have only some");
        }
    }
    table.set_rule(Arc::new(Sgd)).unwrap();
    ids.set_rule(Arc::new(Sgd)).unwrap();
}

// INV-12
#[test]
fn a_refused_operation_of_a_table_explains_and_changes_nothing() {
    let table = Table::new("t", tensor(vec![1.; 6], 3, 2)).unwrap();
    let (one, all) = (tensor(vec![1.; 2], 1, 2), tensor(vec![1.; 6], 3, 2));
    let at = Push::at(Step::after(0, 0.1));
    let error = table.push(at, &all).unwrap_err().to_string();
    assert_eq!(error, "push: table t has no update rule; give it one with set_rule");
    table.set_rule(Arc::new(Adam::lazy())).unwrap();
    table.set_rule(Arc::new(Adam::lazy())).unwrap();
    let other = table.set_rule(Arc::new(Sgd)).unwrap_err().to_string();
    assert!(
        other.starts_with("set_rule: table t is already updated by Adam") && other.contains("by Sgd"),
        "{other}"
    );
    assert!(matches!(table.set_rule(Arc::new(Momentum::new(2.))), Err(Error::Rule(_))));

    let row = "row 3 at position 1 is outside table t, which has 3 rows; were global rows given to a shard?";
    let two = tensor(vec![1.; 4], 2, 2);
    assert_message(table.read_rows(&[0, 3]).unwrap_err(), &format!("read_rows: {row}"));
    assert_message(table.push_rows(at, &[0, 3], &two).unwrap_err(), &format!("push_rows: {row}"));
    assert_message(table.write_rows(Write::Add, &[0, 3], &two).unwrap_err(), &format!("add: {row}"));
    // SV-4: neither too few rows, nor too many, nor one for all.
    for shape in [&[2, 2][..], &[4, 2], &[2], &[]] {
        let value = HostTensor::zeros(DType::F32, shape).unwrap();
        assert_message(
            table.write(Write::Assign, &value).unwrap_err(),
            "assign: table t takes shape [3, 2], found [",
        );
        assert_message(table.push(at, &value).unwrap_err(), "push: table t takes shape [3, 2], found [");
    }
    assert_message(
        table.push_rows(at, &[1, 1], &one).unwrap_err(),
        "push_rows: table t takes shape [2, 2], found [1, 2]",
    );
    let wide = HostTensor::zeros(DType::F64, [3, 2]).unwrap();
    assert_message(
        table.push(at, &wide).unwrap_err(),
        "push: table t is float32, found float64; cast it first",
    );
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let gradient = tensor(vec![1., bad], 1, 2);
        let error = table.push_rows(at.finite(), &[1], &gradient).unwrap_err();
        assert_message(
            error,
            &format!("push_rows: the gradient of table t is {bad} at element 1; nothing was applied"),
        );
    }
    let rate = Push::at(Step::after(0, f64::NAN));
    assert_message(table.push(rate, &all).unwrap_err(), "push: table t: adam_lazy: learning_rate is NaN");
    assert_message(
        table.push_rows(rate, &[1], &one).unwrap_err(),
        "push_rows: table t: adam_lazy: learning_rate is NaN",
    );
    let slots = [("m".to_string(), all.clone())];
    assert_message(
        table.restore(&all, &slots).unwrap_err(),
        r#"restore: table t has slots ["m", "v"], found ["m"]"#,
    );
    let state = table.state().unwrap();
    assert_eq!(state.values, all);
    assert!(state.slots.iter().all(|(_, slot)| slot.as_slice::<f32>().unwrap() == [0.; 6]));

    let counts = Table::new("counts", HostTensor::vector(vec![4i32, 6])).unwrap();
    let error = counts.write(Write::Div, &HostTensor::vector(vec![2, 0])).unwrap_err();
    assert_message(error, "div: an integer of table counts would be divided by 0");
    let error = counts.write_rows(Write::Div, &[1, 0], &HostTensor::vector(vec![2, 0])).unwrap_err();
    assert_message(error, "div: an integer of table counts would be divided by 0");
    assert_eq!(counts.read().unwrap().value, HostTensor::vector(vec![4, 6]));

    let uniform = Initializer::new(Distribution::Uniform { lo: 0., up: 1. }, 0, "t");
    let initialized = |shape: &[usize], dtype, rows| {
        Table::initialized("t", shape, dtype, &uniform, (RowPartition::div(rows, 2), 0)).map(drop)
    };
    assert_message(
        initialized(&[3, 2], DType::F32, 4).unwrap_err(),
        "create: a variable of shape [3, 2] has 3 rows, but its partition divides 4; the shape is that of the complete \
         variable, also for a shard",
    );
    assert_message(
        initialized(&[3, 2], DType::I32, 3).unwrap_err(),
        "a random initial value is not defined for int32",
    );
    let huge = [1 << 40, 1 << 40];
    assert_message(
        initialized(&huge, DType::F32, 1 << 40).unwrap_err(),
        "table t: there is no memory for float32[",
    );
}

// INV-12
#[test]
fn a_refused_operation_of_a_dynamic_table_explains_and_changes_nothing() {
    let options = DynamicOptions::default();
    let normal = Initializer::new(Distribution::Normal { mean: 0., stdev: 1. }, 0, "users");
    let make = |dtype, options| DynamicTable::new("users", &[2], dtype, normal, options).map(drop);
    assert_message(
        make(DType::I32, options).unwrap_err(),
        "create is not defined for table users, which is int32",
    );
    let none = DynamicOptions { max_rows: Some(0), ..options };
    assert_message(
        make(DType::F32, none).unwrap_err(),
        "dynamic table users: max_rows is 0, but must be at least 1",
    );
    assert!(make(DType::F32, DynamicOptions { admit_after: 0, ..options }).is_err());
    assert!(make(DType::F32, DynamicOptions { waiting: 1, ..options }).is_err());

    let table = DynamicTable::new("users", &[2], DType::F32, normal, options).unwrap();
    let (at, one) = (Push::at(Step::after(0, 0.1)), rows(vec![1., 2.], 2));
    assert_message(table.push_rows(at, &[5], &one).unwrap_err(), "push_rows: table users has no update rule");
    let dense = table.set_rule(Arc::new(Adam::default())).unwrap_err();
    assert_message(dense, "set_rule: adam also moves rows without a gradient");
    table.set_rule(Arc::new(Adam::lazy())).unwrap();
    table.set_rule(Arc::new(Adam::lazy())).unwrap();
    assert!(matches!(table.set_rule(Arc::new(Sgd)), Err(Error::RuleSet { .. })));
    assert_message(
        table.push_rows(at, &[5, 6], &one).unwrap_err(),
        "push_rows: table users takes shape [2, 2], found [1, 2]",
    );
    let nan = rows(vec![1., f32::NAN], 2);
    assert_message(
        table.push_rows(at.finite(), &[5], &nan).unwrap_err(),
        "push_rows: the gradient of table users is NaN",
    );
    let rate = Push::at(Step::after(0, f64::INFINITY));
    assert_message(
        table.push_rows(rate, &[5], &one).unwrap_err(),
        "push_rows: table users: adam_lazy: learning_rate is inf",
    );
    assert!(table.is_empty());
    table.push_rows(at, &[5], &one).unwrap();
    let mut state = (0..table.parts()).map(|i| table.state(i).unwrap()).find(|s| !s.ids.is_empty()).unwrap();
    state.slots.pop();
    assert_message(
        table.restore(&state).unwrap_err(),
        r#"restore: table users has slots ["m", "v"], found ["m"]"#,
    );
    let twice = state.take(&[0, 0]).unwrap();
    assert_message(table.restore(&twice).unwrap_err(), "restore: dynamic table users was given id 5 twice");
    assert_eq!(table.len(), 1);
}
