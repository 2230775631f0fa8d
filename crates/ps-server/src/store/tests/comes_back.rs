//! Restarted servers: from complete, truncated and damaged logs and snapshots.

use super::*;
use distribute_testing::names_in;

// INV-53
#[test]
fn a_restarted_server_has_its_state_from_any_storage() {
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
        // Repeated changes are recognized, and were applied once.
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
                            let message =
                                Encoded::new(change(i), Wire::Full).unwrap().message(thread, i).unwrap();
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
            // Bit-identical, because changes of a table are applied in the order of the log.
            core = open(if round % 2 == 0 { Durability::Disk } else { Durability::System });
            assert_eq!(contents(&core), was, "{round}");
        }
    });
}

// INV-54
#[test]
fn a_torn_write_at_the_end_is_set_aside_and_the_server_continues() {
    let folder = tempfile::tempdir().unwrap();
    let core = open(folder.path());
    ask(&core, 0, tables());
    (1..20).for_each(|i| drop(ask(&core, i * 4, change(i))));
    let was = contents(&core);
    let whole = core.log.as_ref().unwrap().journal.bytes() as usize;
    ask(&core, 80, change(20));
    let torn = core.log.as_ref().unwrap().journal.bytes() as usize - 1;
    drop(core);
    let path = log::path(folder.path(), 0);
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..torn]).unwrap();
    let core = open(folder.path());
    assert_eq!(contents(&core), was);
    let backup = folder.path().join(format!("set-aside/changes-{:020}.log-from-byte-{whole}", 0));
    assert_eq!(fs::read(backup).unwrap(), bytes[whole..torn]);
    // The change that was cut off is sent again.
    ask(&core, 80, change(20));
    let was = contents(&core);
    drop(core);
    assert_eq!(contents(&open(folder.path())), was);
}

/// Opens a server that must not start, and returns the error. Checks that the folder is unchanged.
fn refused(folder: &Path) -> OpenError {
    let all = |folder: &Path| -> Vec<(String, Vec<u8>)> {
        let read = |name: &String| (name.clone(), fs::read(folder.join(name)).unwrap_or_default());
        names_in(folder).iter().map(read).collect()
    };
    let before = all(folder);
    let error = Core::open(options(folder), Arc::new(open_disk)).unwrap_err();
    assert!(all(folder) == before, "{error}");
    error
}

// INV-54
#[test]
fn a_damaged_log_is_refused_by_file_and_byte_and_opens_after_its_repair() {
    let folder = tempfile::tempdir().unwrap();
    let core = open(folder.path());
    ask(&core, 0, tables());
    (1..20).for_each(|i| drop(ask(&core, i * 4, change(i))));
    assert!(matches!(Core::open(options(folder.path()), Arc::new(open_disk)), Err(OpenError::InUse { .. })));
    assert!(matches!(inspect(folder.path()), Err(OpenError::InUse { .. })));
    let changes = core.log.as_ref().unwrap().journal.next();
    drop(core);
    let path = log::path(folder.path(), 0);
    let bytes = fs::read(&path).unwrap();
    let mut damaged = bytes.clone();
    // A part of the last change, which was acknowledged.
    let last = bytes.len() - 56 - 30;
    damaged[last] ^= 1;
    fs::write(&path, &damaged).unwrap();
    let error = refused(folder.path());
    let OpenError::Damaged { path: named, offset, .. } = &error else { panic!("{error}") };
    assert!(*named == path && *offset as usize <= last && *offset > 0, "{error}");
    for part in ["is missing", "acknowledged changes are lost", "distribute repair"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    let found = inspect(folder.path()).unwrap();
    assert_eq!((found.changes(), found.damage().len(), found.damage()[0].lost), (changes - 1, 1, Some(1)));
    assert!(found.to_string().contains("1 change is lost"), "{found}");
    let backups = found.repair().unwrap();
    assert_eq!(backups.iter().map(|backup| fs::read(backup).unwrap()).collect::<Vec<_>>(), [damaged]);
    assert!(inspect(folder.path()).unwrap().damage().is_empty());
    let core = open(folder.path());
    ask(&core, 96, change(20));
    let was = contents(&core);
    drop(core);
    assert_eq!(contents(&open(folder.path())), was);
}

// INV-54
#[test]
fn files_that_are_missing_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let core = open(folder.path());
    ask(&core, 0, tables());
    drop(core);
    let path = log::path(folder.path(), 0);
    let first = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let error = refused(folder.path()).to_string();
    assert!(error.starts_with(&format!("{} is missing, at byte 0", path.display())), "{error}");
    fs::write(&path, first).unwrap();
    let core = open(folder.path());
    core.snapshot().unwrap();
    ask(&core, 80, change(20));
    drop(core);
    let first = names_in(folder.path()).iter().find_map(|name| log::first(name)).unwrap();
    let path = log::path(folder.path(), first);
    fs::rename(&path, log::path(folder.path(), first + 1)).unwrap();
    let error = refused(folder.path()).to_string();
    assert!(
        error.contains(&format!("is named after change {}, and begins with {first}", first + 1)),
        "{error}"
    );
    fs::remove_file(log::path(folder.path(), first + 1)).unwrap();
    let error = refused(folder.path()).to_string();
    assert!(error.starts_with(&format!("{} is missing", path.display())), "{error}");
    // Its changes are lost, and the server resumes with the saved tables.
    inspect(folder.path()).unwrap().repair().unwrap();
    let core = open(folder.path());
    ask(&core, 80, change(20));
    let was = contents(&core);
    drop(core);
    // If a snapshot is unreadable or missing, the server does not start without it, and removes nothing.
    let table = folder.path().join(format!("tables-{first:020}/1/index.json"));
    let index = fs::read(&table).unwrap();
    fs::write(&table, "{}").unwrap();
    let error = refused(folder.path());
    assert!(matches!(&error, OpenError::Snapshot { path, .. } if path.ends_with("1")), "{error}");
    fs::write(&table, index).unwrap();
    let tables = folder.path().join(format!("tables-{first:020}"));
    for [one, other] in [["0", "1"], ["1", "0"]] {
        fs::rename(tables.join(one), tables.join("away")).unwrap();
        fs::rename(tables.join(other), tables.join(one)).unwrap();
        let error = refused(folder.path());
        assert!(matches!(&error, OpenError::Snapshot { .. }), "{error}");
        fs::rename(tables.join(one), tables.join(other)).unwrap();
        fs::rename(tables.join("away"), tables.join(one)).unwrap();
    }
    let snapshot = folder.path().join(format!("snapshot-{first:020}"));
    let away = folder.path().join("away");
    fs::rename(&snapshot, &away).unwrap();
    let error = refused(folder.path());
    assert!(matches!(&error, OpenError::Snapshot { path, .. } if *path == snapshot), "{error}");
    fs::rename(&away, &snapshot).unwrap();
    assert_eq!(contents(&open(folder.path())), was);
}

// INV-54
#[test]
fn a_folder_of_another_version_is_refused_as_such() {
    let folder = tempfile::tempdir().unwrap();
    drop(open(folder.path()));
    fs::write(folder.path().join("format"), "4").unwrap();
    let error = refused(folder.path());
    assert!(matches!(&error, OpenError::Version { path } if path.ends_with("format")), "{error}");
    // A folder of version 1 has no version file.
    fs::remove_file(folder.path().join("format")).unwrap();
    let mut header = [0; 40];
    header[0] = 8;
    let sum = crc32c::crc32c(&header[..28]);
    header[28..32].copy_from_slice(&sum.to_le_bytes());
    fs::write(log::path(folder.path(), 0), header).unwrap();
    let error = refused(folder.path());
    assert!(
        matches!(&error, OpenError::Version { path } if path.ends_with(format!("changes-{:020}.log", 0))),
        "{error}"
    );
    // A folder whose log is empty is accepted.
    fs::write(log::path(folder.path(), 0), "").unwrap();
    drop(open(folder.path()));
    assert_eq!(fs::read(folder.path().join("format")).unwrap(), b"3");
}

#[test]
fn a_snapshot_replaces_the_earlier_log() {
    let folder = tempfile::tempdir().unwrap();
    let core = open(folder.path());
    ask(&core, 0, tables());
    core.snapshot().unwrap();
    core.snapshot().unwrap();
    ask(&core, 4, change(1));
    core.snapshot().unwrap();
    let name = |kind: &str| format!("{kind}-{:020}", 5);
    let expected =
        [name("changes") + ".log", "format".to_owned(), "lock".to_owned(), name("snapshot"), name("tables")];
    assert_eq!(names_in(folder.path()), expected);
    // Files of a snapshot that was interrupted are removed.
    drop(core);
    fs::create_dir(folder.path().join(format!("tables-{:020}", 9))).unwrap();
    fs::create_dir(folder.path().join(format!(".snapshot-{:020}.distribute-0.part", 9))).unwrap();
    fs::write(folder.path().join("notes.txt"), "mine").unwrap();
    drop(open(folder.path()));
    assert_eq!(names_in(folder.path())[3..], ["notes.txt".to_owned(), name("snapshot"), name("tables")]);
}

// INV-24
#[cfg(unix)]
#[test]
fn a_log_that_is_a_link_is_refused_and_its_target_is_unchanged() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    drop(open(&at("ps-0")));
    let log = log::path(&at("ps-0"), 0);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&at("ps-0")), mode(&log)), (0o700, 0o600));
    for text in ["precious", ""] {
        fs::write(at("other"), text).unwrap();
        fs::remove_file(&log).unwrap();
        symlink(at("other"), &log).unwrap();
        let error = refused(&at("ps-0")).to_string();
        assert!(
            error.contains("this is a symbolic link, not a file") && error.contains("changes-"),
            "{error}"
        );
        assert_eq!(fs::read_to_string(at("other")).unwrap(), text);
    }
}

#[cfg(unix)]
#[test]
fn files_of_tables_are_private_even_in_a_readable_folder() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let folder = tempfile::tempdir().unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let core = open(folder.path());
    ask(&core, 0, tables());
    core.snapshot().unwrap();
    let modes = |kind: &str| -> Vec<u32> {
        let all = names_in(folder.path()).into_iter().filter(|name| name.starts_with(kind));
        all.map(|name| mode(&folder.path().join(name))).collect()
    };
    assert_eq!((modes("tables-"), modes("changes-")), (vec![0o700], vec![0o600]));
    core.replace(Vec::new(), StateHeader { job: 5, ..StateHeader::default() }).unwrap();
    assert_eq!(modes("replaced-"), [0o700]);
    assert!(modes("changes-").iter().all(|mode| *mode == 0o600));
    assert_eq!(mode(folder.path()), 0o755);
    // Files are not written through a folder that is a link.
    let at = folder.path().join("elsewhere");
    symlink(folder.path().join("nowhere"), &at).unwrap();
    assert!(distribute_files::create_private_folder(&at).is_err());
}

// INV-57
#[test]
fn a_replaced_state_is_set_aside() {
    let folder = tempfile::tempdir().unwrap();
    let core = open(folder.path());
    ask(&core, 0, tables());
    core.snapshot().unwrap();
    (1..20).for_each(|i| drop(ask(&core, i * 4, change(i))));
    core.set_life(3).unwrap();
    let was = contents(&core);
    core.replace(Vec::new(), StateHeader { job: 5, ..StateHeader::default() }).unwrap();
    // Twice, as if the server was killed before it had another life.
    core.replace(Vec::new(), StateHeader { job: 5, ..StateHeader::default() }).unwrap();
    drop(core);
    let core = open(folder.path());
    assert!(core.header().tables.is_empty() && core.header().job == 5);
    drop(core);
    let backup = folder.path().join("replaced-3");
    assert!(names_in(folder.path()).contains(&"replaced-3".to_owned()));
    assert!(contents(&open(&backup)) == was);
}

// INV-57
#[test]
fn a_folder_of_another_training_is_refused_to_clients_whose_changes_it_lacks() {
    let [own, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let call = |core: &Core, client: u64, acknowledged: bool, request: Request| {
        let encoded = Encoded::new(request, Wire::Full).unwrap().acknowledged(acknowledged);
        core.answer(&Call::decode(encoded.message(client, 50).unwrap()).unwrap()).remove(0)
    };
    for (folder, client) in [(&own, 5), (&other, 6)] {
        call(&open(folder.path()), client, false, tables()).unwrap();
    }
    let read = || Request::Read { table: "count".into(), known: None, may_round: false };
    let add = || Request::Write { table: "count".into(), how: Write::Add, value: HostTensor::scalar(1i64) };
    assert!(call(&open(own.path()), 5, true, read()).is_ok());

    let core = open(other.path());
    let was = contents(&core);
    for request in [read(), add()] {
        let refusal = call(&core, 5, true, request).unwrap_err();
        assert!(
            refusal.kind == RefusalKind::Lost && refusal.text.contains("belongs to another training"),
            "{refusal}"
        );
    }
    assert_eq!(contents(&core), was);
    // A known client, and a new one.
    assert!(call(&core, 6, true, add()).is_ok() && call(&core, 7, false, read()).is_ok());
    // A coordinator that begins a job restores its state, and its workers continue.
    call(&core, 8, false, Request::BeginJob { job: 1 }).unwrap();
    assert!(call(&core, 5, true, read()).is_ok());
    // If there are no tables at all, the error names the missing one.
    let empty = tempfile::tempdir().unwrap();
    assert_eq!(call(&open(empty.path()), 5, true, read()).unwrap_err().kind, RefusalKind::NoSuchTable);
}
