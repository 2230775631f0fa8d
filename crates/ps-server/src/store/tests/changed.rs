//! The rows that have changed: exactly these, over restarts and snapshots.

use super::*;
use distribute_ps_tables::{ChangedRows, LogPosition, State};
use std::collections::{BTreeMap, BTreeSet};

fn changed(core: &Core, table: &str, since: Option<LogPosition>) -> ChangedRows {
    match ask(core, 0, Request::Changed { table: table.into(), since }).remove(0) {
        Ok(Response::Changed(changed)) => changed,
        other => panic!("{other:?}"),
    }
}

/// A reader of one table: the values that it has, and the log position up to which they include changes.
#[derive(Default)]
struct Reader {
    values: BTreeMap<i64, f64>,
    position: Option<LogPosition>,
}

impl Reader {
    /// Requests changes, and returns the rows if they are not all rows.
    fn read(&mut self, core: &Core, table: &str) -> Option<BTreeSet<i64>> {
        let ChangedRows { position, complete, rows, numbers, values } = changed(core, table, self.position);
        assert!(rows.is_sorted_by(|a, b| a < b) && numbers.iter().all(|number| *number < position.next));
        if let (Some(before), false) = (self.position, complete) {
            assert!(numbers.iter().all(|number| *number >= before.next), "{numbers:?} since {before:?}");
        }
        if complete {
            self.values.clear();
        }
        let values: Vec<f64> = values.cast(DType::F64).unwrap().into_vec().unwrap();
        self.values.extend(rows.iter().copied().zip(values));
        self.position = Some(position);
        (!complete).then(|| rows.into_iter().collect())
    }
}

// INV-89
#[test]
fn exactly_the_changed_rows_are_read_over_restarts_and_snapshots() {
    for seed in 0..3 {
        let folder = tempfile::tempdir().unwrap();
        let mut core = open(folder.path());
        let mut random = SplitMix(seed);
        let initializer = Initializer::new(Distribution::Constant(0.), 7, "ids");
        let options = DynamicOptions { admit_after: 1, ..DynamicOptions::default() };
        let contents = Contents::Dynamic { row_shape: vec![], dtype: DType::F64, initializer, options };
        let sgd = RuleSpec::Sgd(distribute_optim::Sgd);
        let spec = TableSpec { name: "ids".into(), contents, rule: Some(sgd), rounding: None };
        let counters = TableSpec::values("n", HostTensor::vector(vec![0i64; 50]));
        ask(&core, 0, Request::Batch(vec![Request::Create(spec), Request::Create(counters)]));
        if random.below(2) == 0 {
            // A snapshot from before changes are recorded.
            core.snapshot().unwrap();
        }
        let mut readers: Vec<BTreeMap<&str, Reader>> = (0..2).map(|_| BTreeMap::new()).collect();
        // What each reader has not read yet; `None` for all rows.
        let mut unread: Vec<BTreeMap<&str, Option<BTreeSet<i64>>>> =
            vec![BTreeMap::from([("n", None), ("ids", None)]); 2];
        for i in 1..300 {
            let rows: Vec<i64> = (0..1 + random.below(3)).map(|_| random.below(50) as i64).collect();
            let ones = |count| HostTensor::vector(vec![-1f64; count]);
            match random.below(12) {
                0 => core.snapshot().unwrap(),
                1 => {
                    drop(core);
                    core = open(folder.path());
                }
                2 => {
                    ask(
                        &core,
                        i,
                        Request::Write {
                            table: "n".into(),
                            how: Write::Add,
                            value: HostTensor::vector(vec![1i64; 50]),
                        },
                    );
                    unread.iter_mut().for_each(|unread| drop(unread.insert("n", None)));
                }
                // A refused change.
                3 => drop(ask(
                    &core,
                    i,
                    Request::WriteRows {
                        table: "n".into(),
                        how: Write::Add,
                        rows: vec![50],
                        values: HostTensor::vector(vec![1i64]),
                    },
                )),
                table @ (4 | 5) => {
                    let state = State::Slots { first: 0, slots: Vec::new() };
                    let table = if table == 4 { "n" } else { "ids" };
                    // Slots are not values, so no row has changed.
                    drop(ask(&core, i, Request::Restore { table: table.into(), state }));
                }
                6 | 7 => {
                    let push = Push::at(Step::after(i, 1.));
                    let request = Request::PushRows {
                        table: "ids".into(),
                        push,
                        gradient: ones(rows.len()),
                        rows: rows.clone(),
                    };
                    assert!(ask(&core, i, request)[0].is_ok());
                    unread.iter_mut().for_each(|unread| {
                        if let Some(Some(of)) = unread.get_mut("ids") {
                            of.extend(&rows)
                        }
                    });
                }
                8 | 9 => {
                    let values = HostTensor::vector(vec![1i64; rows.len()]);
                    let request =
                        Request::WriteRows { table: "n".into(), how: Write::Add, values, rows: rows.clone() };
                    assert!(ask(&core, i, request)[0].is_ok());
                    unread.iter_mut().for_each(|unread| {
                        if let Some(Some(of)) = unread.get_mut("n") {
                            of.extend(&rows)
                        }
                    });
                }
                _ => {
                    let (reader, table) = (random.below(2), ["n", "ids"][random.below(2)]);
                    let read = readers[reader].entry(table).or_default().read(&core, table);
                    let expected = unread[reader].insert(table, Some(BTreeSet::new())).unwrap();
                    assert_eq!(read, expected, "seed {seed}, {i}: table {table}, reader {reader}");
                }
            }
        }
        for reader in &mut readers {
            for table in ["n", "ids"] {
                let reader = reader.entry(table).or_default();
                reader.read(&core, table);
                let mut all = Reader::default();
                all.read(&core, table);
                assert_eq!(reader.values, all.values);
            }
        }
    }
}

// INV-28
#[test]
fn ids_without_a_row_are_not_recorded_for_good() {
    let folder = tempfile::tempdir().unwrap();
    let core = open(folder.path());
    let initializer = Initializer::new(Distribution::Constant(0.), 7, "ids");
    let options = DynamicOptions { admit_after: 2, ..DynamicOptions::default() };
    let contents = Contents::Dynamic { row_shape: vec![], dtype: DType::F64, initializer, options };
    let rule = Some(RuleSpec::Sgd(distribute_optim::Sgd));
    ask(&core, 0, Request::Create(TableSpec { name: "ids".into(), contents, rule, rounding: None }));
    let first = changed(&core, "ids", None);
    let push = |i: u64, rows: Vec<i64>| {
        let (push, gradient) = (Push::at(Step::after(i, 1.)), HostTensor::vector(vec![1f64; rows.len()]));
        assert!(ask(&core, i, Request::PushRows { table: "ids".into(), push, gradient, rows })[0].is_ok());
    };
    let recorded = || core.changes.get().unwrap().of("ids").unwrap().lock().rows.len();
    push(1, vec![7]);
    push(2, vec![7]);
    for (i, begin) in [100_000, 200_000, 300_000].into_iter().enumerate() {
        push(3 + i as u64, (begin..begin + 40_000).collect());
    }
    assert_eq!(recorded(), 40_001, "after two pushes, the ids of neither have a row");
    // A row that the server creates later is sent.
    push(6, vec![100_000]);
    assert_eq!(changed(&core, "ids", Some(first.position)).rows, [7, 100_000]);
}

// INV-89
#[test]
fn after_lost_changes_all_rows_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let core = open(folder.path());
    ask(&core, 0, Request::Create(TableSpec::values("n", HostTensor::vector(vec![0i64; 5]))));
    let first = changed(&core, "n", None);
    assert!(first.complete && first.rows == [0, 1, 2, 3, 4]);
    let none = changed(&core, "n", Some(first.position));
    assert_eq!((none.complete, none.rows.len(), none.values.dims()), (false, 0, &[0][..]));
    // Another history, such as after a restart of the machine, or a position that this log has not reached.
    let other = LogPosition { history: first.position.history ^ 1, ..first.position };
    let later = LogPosition { next: first.position.next + 1, ..first.position };
    assert!([other, later].iter().all(|since| changed(&core, "n", Some(*since)).complete));
    drop(core);
    inspect(folder.path()).unwrap().repair().unwrap();
    let core = open(folder.path());
    assert!(changed(&core, "n", Some(first.position)).complete);
    // A server without a folder has no log.
    let memory = Core::in_memory();
    let request = Request::Changed { table: "n".into(), since: None };
    let refusal = ask(&memory, 0, request).remove(0).unwrap_err();
    assert!(
        refusal.text.contains("this server does not record which rows change, because it has no folder"),
        "{refusal}"
    );
    let missing = ask(&core, 0, Request::Changed { table: "m".into(), since: None }).remove(0).unwrap_err();
    assert_eq!(missing.kind, RefusalKind::NoSuchTable);
}
