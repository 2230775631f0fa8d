//! Servers that come back: from logs and snapshots, whole, cut off and damaged.

use super::*;

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

// INV-53
#[test]
fn a_server_that_comes_back_is_what_it_was_wherever_it_was_saved() {
    // Saved never, now and then, and after each change.
    for (saved_each, changes) in [(u64::MAX, 150), (37, 150), (1, 40)] {
        let folder = tempfile::tempdir().unwrap();
        let mut core = open(folder.path());
        ask(&core, 0, tables());
        let mut was = contents(&core);
        for i in 1..changes {
            let answer = ask(&core, i * 4, change(i));
            assert_eq!(answer[0].is_err(), is_refused(i), "{i}: {answer:?}");
            if i % saved_each == 0 {
                core.snapshot().unwrap();
            }
            if i % 10 == 3 {
                was = contents(&core);
                drop(core);
                core = open(folder.path());
                assert_eq!(contents(&core), was, "{i}");
            }
        }
        assert!(was[0].len() > 100);
        // What is asked for again is known to be done, and was done once.
        let count = contents(&core)[0].clone();
        let counted =
            (1..changes).filter(|i| matches!(&change(*i), Request::Write { table, .. } if table == "count"));
        for i in counted.clone() {
            assert_eq!(ask(&core, i * 4, change(i)), [Ok(Response::Done)]);
        }
        assert_eq!(contents(&core)[0], count);
        assert!(count.contains(&format!("[{}]", counted.count())), "{count}");
    }
}

// INV-53
#[test]
fn tables_are_saved_while_they_are_changed() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let open = |durability| {
            Arc::new(Core::open(options(folder.path()).durability(durability), Arc::new(open_disk)).unwrap())
        };
        let mut core = open(Durability::System);
        ask(&core, 0, tables());
        for round in 0..12 {
            let threads: Vec<_> = (0..3)
                .map(|thread| {
                    let core = core.clone();
                    std::thread::spawn(move || {
                        for i in 0..60 {
                            let i = round * 60 + i;
                            let message = Encoded::new(change(i), false).unwrap().message(thread, i).unwrap();
                            core.answer(&Call::decode(message).unwrap());
                        }
                    })
                })
                .collect();
            while !threads.iter().all(|thread| thread.is_finished()) {
                core.snapshot().unwrap();
            }
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            let was = contents(&core);
            drop(core);
            // The same bits, since changes of a table are made in the order of the log.
            core = open(if round % 2 == 0 { Durability::Disk } else { Durability::System });
            assert_eq!(contents(&core), was, "{round}");
        }
    });
}

// INV-54
#[test]
fn what_was_being_written_at_the_end_is_cut_off_and_the_server_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let core = open(folder.path());
    ask(&core, 0, tables());
    (1..20).for_each(|i| drop(ask(&core, i * 4, change(i))));
    let was = contents(&core);
    ask(&core, 80, change(20));
    drop(core);
    let path = log::path(folder.path(), 0);
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let core = open(folder.path());
    assert_eq!(contents(&core), was);
    // The change that was cut off comes again.
    ask(&core, 80, change(20));
    let was = contents(&core);
    drop(core);
    assert_eq!(contents(&open(folder.path())), was);
}

#[test]
fn a_log_that_is_damaged_in_the_middle_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let core = open(folder.path());
    ask(&core, 0, tables());
    (1..20).for_each(|i| drop(ask(&core, i * 4, change(i))));
    assert!(matches!(Core::open(options(folder.path()), Arc::new(open_disk)), Err(OpenError::InUse { .. })));
    drop(core);
    let path = log::path(folder.path(), 0);
    let bytes = fs::read(&path).unwrap();
    let mut damaged = bytes.clone();
    damaged[40] ^= 1;
    fs::write(&path, &damaged).unwrap();
    let error = Core::open(options(folder.path()), Arc::new(open_disk)).unwrap_err().to_string();
    assert!(error.contains("has a record with another checksum at byte 0"), "{error}");
    // One is missing.
    fs::write(&path, &bytes).unwrap();
    let core = open(folder.path());
    core.snapshot().unwrap();
    ask(&core, 80, change(20));
    drop(core);
    let first = names(folder.path()).iter().find_map(|name| log::first(name)).unwrap();
    fs::rename(log::path(folder.path(), first), log::path(folder.path(), first + 1)).unwrap();
    let error = Core::open(options(folder.path()), Arc::new(open_disk)).unwrap_err().to_string();
    assert!(error.contains(&format!("begins with record {}, and {first} is missing", first + 1)), "{error}");
    // A snapshot that cannot be read is no reason to begin anew.
    fs::rename(log::path(folder.path(), first + 1), log::path(folder.path(), first)).unwrap();
    let table = folder.path().join(format!("tables-{first:020}/1/index.json"));
    fs::write(&table, "{}").unwrap();
    let error = Core::open(options(folder.path()), Arc::new(open_disk)).unwrap_err();
    assert!(matches!(&error, OpenError::Snapshot { path, .. } if path.ends_with("1")), "{error}");
}

#[test]
fn a_snapshot_replaces_what_was_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let core = open(folder.path());
    ask(&core, 0, tables());
    core.snapshot().unwrap();
    core.snapshot().unwrap();
    ask(&core, 4, change(1));
    core.snapshot().unwrap();
    let name = |kind: &str| format!("{kind}-{:020}", 5);
    let expected = [name("changes") + ".log", "lock".to_owned(), name("snapshot"), name("tables")];
    assert_eq!(names(folder.path()), expected);
    // What a server left that ended while it was saving goes.
    drop(core);
    fs::create_dir(folder.path().join(format!("tables-{:020}", 9))).unwrap();
    fs::create_dir(folder.path().join(format!(".snapshot-{:020}.distribute-0.part", 9))).unwrap();
    fs::write(folder.path().join("notes.txt"), "mine").unwrap();
    drop(open(folder.path()));
    assert_eq!(names(folder.path())[2..], ["notes.txt".to_owned(), name("snapshot"), name("tables")]);
}

// INV-57
#[test]
fn a_state_that_another_takes_the_place_of_is_set_aside() {
    let folder = tempfile::tempdir().unwrap();
    let core = open(folder.path());
    ask(&core, 0, tables());
    core.snapshot().unwrap();
    (1..20).for_each(|i| drop(ask(&core, i * 4, change(i))));
    core.set_life(3).unwrap();
    let was = contents(&core);
    core.replace(Vec::new(), Known { job: 5, ..Known::default() }).unwrap();
    // Twice, as where the server was killed before it had another life.
    core.replace(Vec::new(), Known { job: 5, ..Known::default() }).unwrap();
    drop(core);
    let core = open(folder.path());
    assert!(core.known().tables.is_empty() && core.known().job == 5);
    drop(core);
    let aside = folder.path().join("replaced-3");
    assert!(names(folder.path()).contains(&"replaced-3".to_owned()));
    assert!(contents(&open(&aside)) == was);
}
