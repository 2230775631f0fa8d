//! Requests to a server's tables, as data.

use super::*;
use crate::{
    DynamicOptions, DynamicState, Error, Initializer, PartitionStrategy, Push, RowPartition, StateColumn,
};
use distribute_optim::{Adam, Momentum, RowAdagrad, RuleSpec, Sgd, Step, StochasticRounding};
use distribute_tensor::random::Distribution;
use distribute_tensor::{DType, HostTensor, Write};
use distribute_testing::watched;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

fn matrix(values: &[f32], width: usize) -> HostTensor {
    HostTensor::new(values.to_vec(), [values.len() / width, width]).unwrap()
}

fn push(finished: u64) -> Push {
    Push::at(Step::after(finished, 0.5))
}

fn dynamic(name: &str) -> TableSpec {
    let initializer = Initializer::new(Distribution::Constant(1.), 7, name);
    let options = DynamicOptions { max_age: Some(2), ..DynamicOptions::default() };
    let contents = Contents::Dynamic { row_shape: vec![2], dtype: DType::F32, initializer, options };
    TableSpec { name: name.to_owned(), contents, rule: Some(RuleSpec::Sgd(Sgd)), rounding: None }
}

#[test]
fn a_table_is_made_once_and_by_one_specification() {
    let tables = Tables::new();
    let spec = TableSpec::values("w", matrix(&[1., 2., 3., 4.], 2)).rule(RuleSpec::Sgd(Sgd));
    let create = |spec: &TableSpec| tables.handle(&Request::Create(spec.clone()));
    assert_eq!(create(&spec).unwrap(), Response::Created { new: true });
    let ones = matrix(&[1.; 4], 2);
    let request = Request::Push { table: "w".into(), push: push(0), gradient: ones };
    assert_eq!(tables.handle(&request).unwrap(), Response::Done);
    // The table keeps its current value, not its initial one.
    assert_eq!(create(&spec).unwrap(), Response::Created { new: false });
    let rows = Request::ReadRows { table: "w".into(), rows: vec![1, 0] };
    assert_eq!(tables.handle(&rows).unwrap(), Response::Rows(matrix(&[2.5, 3.5, 0.5, 1.5], 2)));

    let initializer = Initializer::new(Distribution::Constant(1.), 7, "w");
    let (shape, partition) = (vec![2, 2], RowPartition::div(2, 1));
    let initialized = Contents::Initialized { shape, dtype: DType::F32, initializer, partition, shard: 0 };
    for other in [
        TableSpec::values("w", matrix(&[1., 2., 3., 5.], 2)).rule(RuleSpec::Sgd(Sgd)),
        TableSpec::values("w", matrix(&[1., 2., 3., 4.], 4)).rule(RuleSpec::Sgd(Sgd)),
        TableSpec::values("w", matrix(&[1., 2., 3., 4.], 2)),
        TableSpec { contents: initialized, ..spec.clone() },
        dynamic("w"),
    ] {
        let error = create(&other).unwrap_err();
        assert!(
            error.to_string().starts_with("create: table w exists already, float32[2, 2] with sgd, but "),
            "{error}"
        );
    }
    let long = create(&TableSpec { name: "x".repeat(4097), ..spec.clone() });
    assert!(matches!(long, Err(Error::TableName { length: 4097, .. })));
    // An invalid rule leaves no table behind.
    let bad = TableSpec::values("bad", matrix(&[1.], 1)).rule(RuleSpec::Momentum(Momentum::new(2.)));
    assert!(matches!(create(&bad), Err(Error::Rule(_))));
    assert_eq!(tables.handle(&Request::Remove { table: "w".into() }).unwrap(), Response::Done);
    assert_eq!(tables.handle(&Request::List).unwrap(), Response::Tables(Vec::new()));
    assert_eq!(create(&dynamic("w")).unwrap(), Response::Created { new: true });
}

/// An image continues with the same bits.
// INV-95
#[test]
fn an_image_of_a_table_in_bf16_continues_with_the_same_rounding() {
    let rounding = StochasticRounding::new(3, 4);
    let initializer = Initializer::new(Distribution::Normal { mean: 0., stdev: 1. }, 7, "w");
    let partition = RowPartition::new(PartitionStrategy::Mod, 7, 2);
    let contents =
        Contents::Initialized { shape: vec![7, 2], dtype: DType::F32, initializer, partition, shard: 1 };
    let rule = Some(RuleSpec::Momentum(Momentum::new(0.5)));
    let dense = TableSpec { name: "w".into(), contents, rule, rounding: None }.rounding(rounding);
    let ids = dynamic("ids").rounding(rounding);
    let tables = Tables::new();
    for spec in [&dense, &ids] {
        tables.handle(&Request::Create(spec.clone())).unwrap();
        let other = TableSpec { rounding: None, ..spec.clone() };
        let error = tables.handle(&Request::Create(other)).unwrap_err().to_string();
        assert!(error.contains("exists already") && error.contains(" in bf16 with"), "{error}");
        let other = TableSpec { rounding: Some(StochasticRounding::new(5, 4)), ..spec.clone() };
        let error = tables.handle(&Request::Create(other)).unwrap_err().to_string();
        assert!(error.contains("in bf16 with seed 3") && error.contains("in bf16 with seed 5"), "{error}");
    }
    let change = |tables: &Tables, finished| {
        for (name, rows) in [("w", vec![2, 0, 2]), ("ids", vec![-4, 1 << 40, 5])] {
            let gradient = matrix(&[0.001, 0.3, -0.7, 0.1, 0.2, -0.004], 2);
            let request = Request::PushRows { table: name.into(), push: push(finished), rows, gradient };
            tables.handle(&request).unwrap();
        }
    };
    change(&tables, 0);
    let copy = Tables::new();
    for name in ["w", "ids"] {
        copy.restore_image(tables.image(name).unwrap().unwrap()).unwrap();
    }
    change(&tables, 1);
    change(&copy, 1);
    for (name, rows) in [("w", vec![0, 1, 2]), ("ids", vec![-4, 1 << 40, 5, 6])] {
        let read = |tables: &Tables| {
            tables.handle(&Request::ReadRows { table: name.into(), rows: rows.clone() }).unwrap()
        };
        assert_eq!(read(&tables), read(&copy));
        let Response::Rows(values) = read(&tables) else { panic!("no rows") };
        assert!(values.as_slice::<f32>().unwrap().iter().all(|value| value.to_bits() & 0xffff == 0));
    }
}

// INV-51
#[test]
fn an_unchanged_table_is_not_sent_and_a_new_one_is_different() {
    let tables = Tables::new();
    let create = Request::Create(TableSpec::values("w", matrix(&[1.; 4], 2)));
    tables.handle(&create).unwrap();
    let read = |known| tables.handle(&Request::Read { table: "w".into(), known, may_round: false }).unwrap();
    let Response::Value(first) = read(None) else { panic!("no value") };
    assert_eq!(read(Some(first.version)), Response::Unchanged);
    let value = matrix(&[2.; 4], 2);
    tables.handle(&Request::Write { table: "w".into(), how: Write::Add, value }).unwrap();
    let Response::Value(second) = read(Some(first.version)) else { panic!("it has changed") };
    assert_eq!(second.value, matrix(&[3.; 4], 2));
    // The new table has as many writes as the previous one.
    tables.handle(&Request::Remove { table: "w".into() }).unwrap();
    tables.handle(&create).unwrap();
    assert!(matches!(read(Some(first.version)), Response::Value(_)));
}

#[test]
fn a_batch_answers_each_request_by_itself() {
    let tables = Tables::new();
    let read = |table: &str| Request::ReadRows { table: table.into(), rows: vec![0] };
    let batch = vec![
        Request::Create(TableSpec::values("a", matrix(&[1., 2.], 2))),
        read("b"),
        Request::Create(dynamic("b")),
        read("b"),
        Request::ReadRows { table: "a".into(), rows: vec![-1] },
    ];
    let Response::Batch(answers) = tables.handle(&Request::Batch(batch)).unwrap() else { panic!("no batch") };
    assert_eq!(answers[0], Ok(Response::Created { new: true }));
    let refusal = answers[1].as_ref().unwrap_err();
    assert_eq!(refusal.kind, RefusalKind::NoSuchTable);
    assert_eq!(refusal.to_string(), "read_rows: there is no table b; create it first, on this server");
    assert_eq!(answers[3], Ok(Response::Rows(matrix(&[1., 1.], 2))));
    let refusal = answers[4].as_ref().unwrap_err();
    assert_eq!(refusal.kind, RefusalKind::Argument);
    assert!(refusal.text.starts_with("read_rows: id -1 at position 0 is outside the table"), "{refusal}");
    let nested = Request::Batch(vec![Request::List, Request::Batch(Vec::new())]);
    assert!(matches!(tables.handle(&nested), Err(Error::NestedBatch { position: 1 })));
}

#[test]
fn tables_are_saved_and_restored_in_pieces() {
    let (one, other) = (Tables::new(), Tables::new());
    let adam = RuleSpec::Adam(Adam::default());
    let values: Vec<f32> = (0..5000 * 2).map(|x| x as f32).collect();
    let ids = dynamic("ids").rule(RuleSpec::Momentum(Momentum::new(0.5)));
    let specs = [TableSpec::values("w", matrix(&values, 2)).rule(adam), ids];
    for spec in specs {
        one.handle(&Request::Create(spec.clone())).unwrap();
        other.handle(&Request::Create(spec)).unwrap();
    }
    let gradient = matrix(&values, 2);
    one.handle(&Request::Push { table: "w".into(), push: push(0), gradient }).unwrap();
    let ids: Vec<i64> = (0..300).map(|i| i * i * 1_000_003).collect();
    let gradient = matrix(&values[..600], 2);
    one.handle(&Request::PushRows { table: "ids".into(), push: push(0), rows: ids.clone(), gradient })
        .unwrap();

    let state = |tables: &Tables| {
        let Response::Tables(infos) = tables.handle(&Request::List).unwrap() else { panic!("no list") };
        let mut states = Vec::new();
        for info in infos {
            let rows = (info.kind == TableKind::Dense).then_some((0..info.rows).step_by(1234));
            let table = info.name.clone();
            for first in rows.into_iter().flatten() {
                let rows = first..info.rows.min(first + 1234);
                states.push(Request::StateRows { table: table.clone(), rows });
            }
            states.extend((0..info.parts).map(|part| Request::StatePart { table: table.clone(), part }));
        }
        let answer = |request: Request| match tables.handle(&request).unwrap() {
            Response::State(state) => (request.table().unwrap().to_owned(), state),
            other => panic!("{}", other.name()),
        };
        states.into_iter().map(answer).collect::<Vec<_>>()
    };
    let saved = state(&one);
    assert!(saved.len() > 5);
    for (table, state) in saved.iter().rev().cloned() {
        let restored = other.handle(&Request::Restore { table, state }).unwrap();
        assert_eq!(restored, Response::Restored { left_out: 0 });
    }
    assert_eq!(state(&other), saved);
    // The restored table continues like the original.
    for tables in [&one, &other] {
        let rows = ids.iter().map(|id| id % 5000).collect();
        let gradient = matrix(&values[600..1200], 2);
        tables.handle(&Request::PushRows { table: "w".into(), push: push(1), rows, gradient }).unwrap();
    }
    assert_eq!(state(&other), state(&one));
    assert_ne!(state(&other), saved);

    for (rows, row) in [(4999..5001, 5000), (6000..6000, 5999)] {
        let error = one.handle(&Request::StateRows { table: "w".into(), rows }).unwrap_err();
        assert!(matches!(error, Error::Row { row: found, rows: 5000, .. } if found == row), "{error}");
    }
    for part in 0..64 {
        let ask = |request| match one.handle(&request).unwrap() {
            Response::State(State::Ids(state)) => state,
            other => panic!("{}", other.name()),
        };
        let table = || "ids".to_owned();
        let complete = ask(Request::StatePart { table: table(), part });
        let column = |column| ask(Request::StateColumn { table: table(), part, column });
        let none = HostTensor::zeros(DType::F32, [complete.ids.len(), 0]).unwrap();
        let uses = DynamicState { values: none, slots: Vec::new(), ..complete.clone() };
        assert_eq!(column(StateColumn::Uses), uses);
        let values = DynamicState { slots: Vec::new(), ..complete.clone() };
        assert_eq!(column(StateColumn::Values), values);
        for slot in &complete.slots {
            let one = DynamicState { slots: vec![slot.clone()], ..uses.clone() };
            assert_eq!(column(StateColumn::Slot(slot.0.clone())), one);
        }
    }
    let column = |part, name: &str| {
        let column = StateColumn::Slot(name.to_owned());
        one.handle(&Request::StateColumn { table: "ids".to_owned(), part, column }).unwrap_err()
    };
    assert!(matches!(column(0, "nothing"), Error::Slots { .. }));
    assert!(matches!(column(64, "accum"), Error::NoPart { parts: 64, .. }));
    let (table, part) = ("ids".to_owned(), 64);
    assert!(matches!(one.handle(&Request::StatePart { table, part }), Err(Error::NoPart { parts: 64, .. })));
}

#[test]
fn unsupported_operations_of_a_table_are_refused_with_advice() {
    let tables = Tables::new();
    tables.handle(&Request::Create(dynamic("ids"))).unwrap();
    tables.handle(&Request::Create(TableSpec::values("w", HostTensor::scalar(1f32)))).unwrap();
    let (ids, w) = (|| "ids".to_owned(), || "w".to_owned());
    for (request, says) in [
        (
            Request::Read { table: ids(), known: None, may_round: false },
            "read is not defined for dynamic table ids; read its rows",
        ),
        (
            Request::Write { table: ids(), how: Write::Assign, value: HostTensor::scalar(1f32) },
            "assign is not defined for dynamic table ids",
        ),
        (Request::Evict { table: w(), now: 1 }, "evict is not defined for dense table w; its rows stay"),
        (
            Request::StatePart { table: w(), part: 0 },
            "state is not defined for dense table w; ask for its rows",
        ),
        (Request::StateRows { table: ids(), rows: 0..1 }, "state is not defined for dynamic table ids"),
    ] {
        let error = tables.handle(&request).unwrap_err().to_string();
        assert!(error.starts_with(says), "{error}");
    }
    // A scalar is one row.
    let state = tables.handle(&Request::StateRows { table: w(), rows: 0..1 }).unwrap();
    let Response::State(state) = state else { panic!("no state") };
    let write = Request::Write { table: w(), how: Write::Assign, value: HostTensor::scalar(5f32) };
    tables.handle(&write).unwrap();
    tables.handle(&Request::Restore { table: w(), state }).unwrap();
    let Response::Value(read) =
        tables.handle(&Request::Read { table: w(), known: None, may_round: false }).unwrap()
    else {
        panic!("no value")
    };
    assert_eq!(read.value, HostTensor::scalar(1f32));
}

#[test]
fn rows_of_ids_are_evicted_when_they_are_asked_to_be() {
    let tables = Tables::new();
    tables.handle(&Request::Create(dynamic("ids"))).unwrap();
    for step in 0..2 {
        let (table, gradient) = ("ids".into(), matrix(&[1., 1.], 2));
        let rows = vec![i64::from(step == 0) - 9];
        let answer = tables.handle(&Request::PushRows { table, push: push(step), rows, gradient }).unwrap();
        assert!(matches!(answer, Response::Pushed(pushed) if pushed.created == 1), "{answer:?}");
    }
    let evict = |now| tables.handle(&Request::Evict { table: "ids".into(), now }).unwrap();
    assert_eq!([evict(3), evict(4), evict(9)], [0, 1, 1].map(Response::Evicted));
}

#[test]
fn a_channel_in_memory_names_the_server() {
    let channel: Arc<dyn Channel> = Arc::new(LocalChannel::new(3, Arc::new(Tables::new())));
    let request = Request::ReadRows { table: "w".into(), rows: vec![0] };
    let error = channel.call(request, Duration::from_secs(1)).unwrap_err();
    assert_eq!(error.to_string(), "ps 3: read_rows: there is no table w; create it first, on this server");
    assert!(
        matches!(error, ChannelError::Refused { refusal, .. } if refusal.kind == RefusalKind::NoSuchTable)
    );
}

#[test]
fn changes_are_distinguished_from_reads() {
    let read = Request::ReadRows { table: "w".into(), rows: vec![0] };
    let remove = Request::Remove { table: "w".into() };
    assert!(!read.is_change() && remove.is_change());
    assert!(!Request::Batch(vec![read.clone(), Request::List]).is_change());
    let batch = Request::Batch(vec![read, remove]);
    assert!(batch.is_change());
    assert_eq!(batch.describe(), "batch of 2, the first of them read_rows of table w");
}

#[test]
fn a_table_goes_on_from_its_image() {
    let (one, other) = (Tables::new(), Tables::new());
    let adam = RuleSpec::Adam(Adam::default());
    let mut ids = dynamic("ids");
    let Contents::Dynamic { options, .. } = &mut ids.contents else { panic!("it is dynamic") };
    (options.admit_after, options.max_rows, options.waiting) = (3, Some(130), 64);
    let rule = RuleSpec::RowAdagrad(RowAdagrad::default());
    let averaged = RuleSpec::Averaged { ema_momentum: 0.9, of: Box::new(rule.clone()) };
    let dense = |name, rule| TableSpec::values(name, matrix(&[0.5; 60], 2)).rule(rule);
    let by_row = dynamic("ids by row").rule(averaged);
    for spec in [dense("w", adam), dense("w by row", rule), ids.clone(), by_row] {
        one.handle(&Request::Create(spec)).unwrap();
    }
    let train = |tables: &Tables, steps: std::ops::Range<u64>| {
        for step in steps {
            let rows: Vec<i64> = (0..40).map(|i| (i * step as i64 * 7) % 97).collect();
            let gradient = matrix(&rows.iter().flat_map(|id| [*id as f32, 1.]).collect::<Vec<_>>(), 2);
            let push = |table: &str, rows| Request::PushRows {
                table: table.into(),
                push: push(step),
                rows,
                gradient: gradient.clone(),
            };
            for name in ["ids", "ids by row"] {
                tables.handle(&push(name, rows.clone())).unwrap();
            }
            for name in ["w", "w by row"] {
                tables.handle(&push(name, rows.iter().map(|id| id % 30).collect())).unwrap();
            }
        }
    };
    train(&one, 0..9);
    let images = |tables: &Tables| -> Vec<_> {
        tables.names().iter().map(|name| tables.image(name).unwrap().unwrap()).collect()
    };
    let saved = images(&one);
    saved.iter().for_each(|image| other.restore_image(image.clone()).unwrap());
    // The counts of ids without a row are part of it.
    assert!(matches!(&saved[0].contents, ImageContents::Dynamic { parts, .. } if !parts[0].1[0].is_empty()));
    train(&one, 9..30);
    train(&other, 9..30);
    let same = |a: &TableImage, b: &TableImage| match (&a.contents, &b.contents) {
        // Versions are specific to a process.
        (ImageContents::Dense(a), ImageContents::Dense(b)) => (&a.values, &a.slots) == (&b.values, &b.slots),
        (a, b) => a == b,
    };
    for (a, b) in images(&one).iter().zip(&images(&other)) {
        assert!(same(a, b), "{a:?}\n{b:?}");
    }
    // It is identified by its specification.
    assert_eq!(other.handle(&Request::Create(ids)).unwrap(), Response::Created { new: false });
    assert_eq!(other.image("none").unwrap(), None);
}

#[test]
fn a_table_that_many_request_at_the_same_time_is_made_by_one_of_them() {
    const THREADS: usize = 8;
    watched(|| {
        let tables = Tables::new();
        let spec = TableSpec::values("w", matrix(&[1.; 4], 2));
        let (requested, made) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let request = || {
            requested.fetch_add(1, Ordering::SeqCst);
            let make = |spec: &TableSpec| {
                made.fetch_add(1, Ordering::SeqCst);
                // The others have time to begin as well.
                while requested.load(Ordering::SeqCst) < THREADS {
                    std::thread::yield_now();
                }
                (0..1000).for_each(|_| std::thread::yield_now());
                spec.create()
            };
            tables.create_by(&spec, make).unwrap()
        };
        let answers: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(request)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(made.load(Ordering::SeqCst), 1);
        let new = answers.iter().filter(|answer| **answer == Response::Created { new: true });
        assert_eq!(new.count(), 1);
    });
}
