//! Changes of closures that are retried, also after a restart of the server.

use super::*;
use distribute_ps_tables::ClosureChanges;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns a request that adds 1 to a table, as change `number` of a closure.
fn count(origin: Origin, number: u64, table: &str) -> Request {
    let change = Request::Write { table: table.into(), how: Write::Add, value: HostTensor::scalar(1i64) };
    Request::Once { origin, number, change: Box::new(change) }
}

fn counter(table: &str) -> Request {
    Request::Create(TableSpec::values(table, HostTensor::scalar(0i64)))
}

fn counted(core: &Core, table: &str) -> i64 {
    match core.tables.handle(&Request::ReadRows { table: table.into(), rows: vec![0] }) {
        Ok(Response::Rows(rows)) => rows.to_vec::<i64>().unwrap()[0],
        other => panic!("{other:?}"),
    }
}

fn closures(core: &Core, table: &str) -> ClosureChanges {
    core.tables.image(table).unwrap().unwrap().closures
}

fn kind(answers: Answers) -> Result<Response, RefusalKind> {
    answers.into_iter().next().unwrap().map_err(|refusal| refusal.kind)
}

// INV-59
#[test]
fn changes_of_closures_count_once_despite_reruns_and_restarts() {
    for seed in 0..6 {
        let folder = tempfile::tempdir().unwrap();
        let mut core = open(folder.path());
        let mut random = SplitMix(seed);
        let mut sequence = 0;
        // Each request is the first of its connection, as if it came from another worker.
        let mut ask = |core: &Core, request| {
            sequence += 1;
            kind(ask(core, sequence, request))
        };
        for table in ["a", "b"] {
            ask(&core, counter(table)).unwrap();
        }
        let (mut job, mut floor) = (0, 0u64);
        let mut made: BTreeSet<(&str, u64, u64, u64)> = BTreeSet::new();
        let mut heard = [0; 2];
        for i in 0..400 {
            let of = random.below(2);
            let table = ["a", "b"][of];
            let closure = (floor + random.below(6) as u64).saturating_sub(2);
            let number = random.below(3) as u64;
            let origin = Origin { job, closure, floor: floor.min(closure) };
            match ask(&core, count(origin, number, table)) {
                Ok(answer) => {
                    assert_eq!(answer, Response::Done);
                    made.insert((table, job, closure, number));
                    heard[of] = origin.floor.max(heard[of]);
                }
                Err(kind) => {
                    assert_eq!(kind, RefusalKind::Stale);
                    assert!(closure < heard[of]);
                }
            }
            match i % 20 {
                // Invalid changes are refused, and not remembered.
                3 => {
                    let value = HostTensor::scalar(1f32);
                    let change = Request::Write { table: "a".into(), how: Write::Add, value };
                    let origin = Origin { job, closure: floor + 9, floor };
                    let once = Request::Once { origin, number: 0, change: Box::new(change) };
                    assert_eq!(ask(&core, once), Err(RefusalKind::Argument));
                    assert!(!closures(&core, "a").has(origin, 0).unwrap());
                }
                7 => core.snapshot().unwrap(),
                11 => floor += random.below(3) as u64,
                13 => {
                    let was = contents(&core);
                    drop(core);
                    core = open(folder.path());
                    assert_eq!(contents(&core), was, "{i}");
                    assert_eq!(core.header().job, job);
                }
                _ => {}
            }
            if i % 100 == 50 {
                let before = Origin { job, closure: floor, floor };
                job += 1 + random.below(2) as u64;
                assert_eq!(ask(&core, Request::BeginJob { job }), Ok(Response::Job { newest: job }));
                assert_eq!(ask(&core, Request::BeginJob { job: 0 }), Ok(Response::Job { newest: job }));
                assert_eq!(ask(&core, count(before, 2, "a")), Err(RefusalKind::Stale));
                (floor, heard) = (0, [0; 2]);
            }
        }
        for table in ["a", "b"] {
            let expected = made.iter().filter(|change| change.0 == table).count();
            assert!(expected > 50);
            assert_eq!(counted(&core, table), expected as i64);
        }
    }
}

// INV-59
#[test]
fn closures_run_by_several_workers_at_once_are_counted_once_while_tables_are_saved() {
    const CLOSURES: u64 = 150;
    const TABLES: [&str; 3] = ["a", "b", "c"];
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        for has_folder in [true, false] {
            let core = Arc::new(if has_folder { open(folder.path()) } else { Core::new(None) });
            for (i, table) in (0..).zip(TABLES) {
                ask(&core, i, counter(table));
            }
            for job in 0..4 {
                ask(&core, 9 + job, Request::BeginJob { job });
                let next = Arc::new(AtomicU64::new(0));
                // The closure that each worker runs: all before the lowest of them have ended.
                let runs: Arc<[AtomicU64; 3]> = Arc::default();
                let threads: Vec<_> = (0..3)
                    .map(|worker| {
                        let (core, next, runs) = (core.clone(), next.clone(), runs.clone());
                        std::thread::spawn(move || {
                            let mut sequence = 0;
                            loop {
                                // Each closure is run by each worker, at about the same time.
                                let closure = next.fetch_add(1, Ordering::SeqCst) / 3;
                                if closure >= CLOSURES {
                                    return;
                                }
                                runs[worker as usize].store(closure, Ordering::SeqCst);
                                let floor = runs.iter().map(|run| run.load(Ordering::SeqCst)).min().unwrap();
                                let origin = Origin { job, closure, floor };
                                for table in TABLES {
                                    let request = count(origin, 70, table);
                                    let message = Encoded::new(request, Wire::Full).unwrap();
                                    let message = message.message(job * 10 + 20 + worker, sequence).unwrap();
                                    let answer = core.answer(&Call::decode(message).unwrap());
                                    assert_eq!(answer, [Ok(Response::Done)]);
                                    sequence += 1;
                                }
                            }
                        })
                    })
                    .collect();
                while has_folder && !threads.iter().all(|thread| thread.is_finished()) {
                    core.snapshot().unwrap();
                }
                threads.into_iter().for_each(|thread| thread.join().unwrap());
            }
            let expected = (4 * CLOSURES) as i64;
            assert_eq!(TABLES.map(|table| counted(&core, table)), [expected; 3]);
            if has_folder {
                let was = contents(&core);
                drop(core);
                assert_eq!(contents(&open(folder.path())), was);
            }
        }
    });
}
