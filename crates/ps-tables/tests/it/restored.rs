//! Restored parts of a table: its slots, or rows of ids, while other workers push.

use distribute_optim::{Momentum, RuleSpec, Step};
use distribute_ps_tables::{
    Contents, DynamicOptions, DynamicState, Initializer, Push, Refusal, RefusalKind, Request, Response,
    State, TableSpec, Tables,
};
use distribute_tensor::random::Distribution;
use distribute_tensor::{DType, HostTensor};

fn matrix(values: &[f32]) -> HostTensor {
    HostTensor::new(values.to_vec(), [values.len() / 2, 2]).unwrap()
}

/// Creates a table of two rows, and one of ids. Both are trained with momentum.
fn tables() -> Tables {
    let tables = Tables::new();
    let initializer = Initializer::new(Distribution::Constant(1.), 7, "ids");
    let (row_shape, dtype, options) = (vec![2], DType::F32, DynamicOptions::default());
    let contents = Contents::Dynamic { row_shape, dtype, initializer, options };
    let rule = RuleSpec::Momentum(Momentum::new(0.5));
    let ids = TableSpec { name: "ids".into(), contents, rule: Some(rule.clone()), rounding: None };
    for spec in [TableSpec::values("w", matrix(&[1.; 4])).rule(rule), ids] {
        tables.handle(&Request::Create(spec)).unwrap();
    }
    tables
}

fn ask(tables: &Tables, request: &Request) -> Response {
    tables.handle(request).unwrap_or_else(|error| panic!("{error}"))
}

fn push(tables: &Tables, table: &str, step: u64, rows: &[i64], gradient: f32) {
    let (push, rows) = (Push::at(Step::after(step, 1.)), rows.to_vec());
    let gradient = matrix(&vec![gradient; rows.len() * 2]);
    ask(tables, &Request::PushRows { table: table.into(), push, rows, gradient });
}

fn dense(tables: &Tables) -> (HostTensor, HostTensor) {
    match ask(tables, &Request::StateRows { table: "w".into(), rows: 0..2 }) {
        Response::State(State::Rows { values, slots, .. }) => (values, slots[0].1.clone()),
        other => panic!("{other:?}"),
    }
}

/// Returns all rows of ids, each with its slot and the time of its last use.
fn ids(tables: &Tables) -> Vec<(i64, u64, f32, f32)> {
    let mut all = Vec::new();
    for part in 0..64 {
        let answer = ask(tables, &Request::StatePart { table: "ids".into(), part });
        let Response::State(State::Ids(DynamicState { ids, used, values, slots })) = answer else {
            panic!("{answer:?}")
        };
        let (values, slot) =
            (values.into_vec::<f32>().unwrap(), slots[0].1.clone().into_vec::<f32>().unwrap());
        all.extend(
            ids.iter().zip(used).enumerate().map(|(i, (id, used))| (*id, used, values[2 * i], slot[2 * i])),
        );
    }
    all.sort_unstable_by_key(|(id, ..)| *id);
    all
}

fn restore(tables: &Tables, table: &str, state: State) -> Response {
    ask(tables, &Request::Restore { table: table.into(), state })
}

#[test]
fn restored_slots_keep_concurrent_pushes() {
    let tables = tables();
    push(&tables, "w", 0, &[0, 1], 1.);
    let (_, saved) = dense(&tables);
    push(&tables, "w", 1, &[1], 1.);
    let (values, _) = dense(&tables);
    let slots = vec![("accum".to_owned(), saved.narrow(0, 1, 1).unwrap())];
    assert_eq!(restore(&tables, "w", State::Slots { first: 1, slots }), Response::Restored { left_out: 0 });
    assert_eq!(dense(&tables), (values, saved));

    push(&tables, "ids", 0, &[-3, 5], 1.);
    push(&tables, "ids", 1, &[5], 1.);
    let slots = vec![("accum".to_owned(), matrix(&[7., 7., 8., 8.]))];
    restore(&tables, "ids", State::IdSlots { ids: vec![5, 6], slots });
    // One that had no row has one of its first values.
    assert_eq!(ids(&tables), [(-3, 1, 0., 1.), (5, 2, -1.5, 7.), (6, 0, 1., 8.)]);
}

#[test]
fn restored_rows_keep_their_slots_and_others_are_placed_as_requested() {
    let tables = tables();
    push(&tables, "ids", 0, &[-3, 5, 9, i64::MIN, i64::MAX], 1.);
    let keep = |between, ids: &[i64]| {
        ask(&tables, &Request::Keep { table: "ids".into(), between, ids: ids.to_vec() })
    };
    assert_eq!(keep((-3, 9), &[5, 6]), Response::Evicted(2));
    assert_eq!(keep((6, i64::MAX), &[i64::MAX]), Response::Evicted(0));
    assert_eq!(keep((i64::MIN, -1), &[]), Response::Evicted(1));
    let values = matrix(&[4., 4., 3., 3.]);
    restore(&tables, "ids", State::IdValues { ids: vec![5, 6], used: vec![9, 8], values });
    assert_eq!(ids(&tables), [(5, 9, 4., 1.), (6, 8, 3., 0.), (i64::MAX, 1, 0., 1.)]);
}

#[test]
fn mismatched_values_are_refused_and_nothing_has_changed() {
    let tables = tables();
    push(&tables, "w", 0, &[0, 1], 1.);
    push(&tables, "ids", 0, &[5], 1.);
    let before = (dense(&tables), ids(&tables));
    let slots = |name: &str, values: &[f32]| vec![(name.to_owned(), matrix(values))];
    for (table, state) in [
        ("w", State::Slots { first: 2, slots: slots("accum", &[1.; 2]) }),
        ("w", State::Slots { first: 0, slots: slots("m", &[1.; 2]) }),
        ("w", State::Slots { first: 0, slots: vec![("accum".to_owned(), HostTensor::vector(vec![1f32]))] }),
        ("w", State::IdSlots { ids: vec![5], slots: slots("accum", &[1.; 2]) }),
        ("ids", State::Slots { first: 0, slots: slots("accum", &[1.; 2]) }),
        ("ids", State::IdSlots { ids: vec![5], slots: slots("m", &[1.; 2]) }),
        ("ids", State::IdSlots { ids: vec![5, 5], slots: slots("accum", &[1.; 4]) }),
        ("ids", State::IdSlots { ids: vec![5], slots: slots("accum", &[1.; 4]) }),
        ("ids", State::IdValues { ids: vec![5, 5], used: vec![0, 0], values: matrix(&[1.; 4]) }),
        ("ids", State::IdValues { ids: vec![5], used: vec![], values: matrix(&[1.; 2]) }),
        ("ids", State::IdValues { ids: vec![5], used: vec![0], values: matrix(&[1.; 4]) }),
    ] {
        let refusal =
            Refusal::from(tables.handle(&Request::Restore { table: table.into(), state }).unwrap_err());
        assert_eq!(refusal.kind, RefusalKind::Argument, "{refusal}");
    }
    assert_eq!((dense(&tables), ids(&tables)), before);
}
