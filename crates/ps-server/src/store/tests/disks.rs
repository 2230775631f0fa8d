//! Full, failing and slow disks.

use super::*;
use crate::log::Faulty;
use crate::store::Store;
use crate::{Connection, ParameterServer, SERVICE};
use distribute_cluster::{ClusterSpec, Job};
use distribute_ps_tables::{Channel, ChannelError};
use distribute_rpc::{ClientBuilder, Server};
use std::sync::atomic::Ordering;

// INV-12, INV-54
#[test]
fn if_the_disk_is_full_changes_are_refused_and_nothing_has_changed() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Faulty::new();
    let core = Core::open(options(folder.path()).durability(Durability::Disk), disk.opens()).unwrap();
    ask(&core, 0, tables());
    let add = || Request::Write { table: "count".into(), how: Write::Add, value: HostTensor::scalar(1i64) };
    assert_eq!(ask(&core, 4, add()), [Ok(Response::Done)]);
    let was = contents(&core);
    for room in [0, 10, 50] {
        disk.room.store(room, Ordering::SeqCst);
        let refusal = ask(&core, 5, add()).remove(0).unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::Storage);
        let says =
            format!("add of table count: the log in {} cannot be written to: ", folder.path().display());
        assert!(refusal.text.starts_with(&says) && refusal.text.contains("nothing was changed"), "{refusal}");
        assert_eq!(contents(&core)[..3], was[..3]);
    }
    // Reads continue; after there is room again, the same change is applied.
    let read = ask(&core, 0, Request::ReadRows { table: "count".into(), rows: vec![0] });
    assert_eq!(read, [Ok(Response::Rows(HostTensor::vector(vec![1i64])))]);
    disk.room.store(u64::MAX / 2, Ordering::SeqCst);
    assert_eq!(ask(&core, 5, add()), [Ok(Response::Done)]);
    let was = contents(&core);
    drop(core);
    assert_eq!(contents(&open(folder.path())), was);
}

/// Checks what a client sees over a socket: the error names the table and the folder and says that nothing was changed,
/// a read returns the previous value, and changes succeed once there is room again.
#[test]
fn if_the_disk_is_full_the_call_fails_and_the_server_continues() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let disk = Faulty::new();
        let store = Store::open(options(folder.path()).durability(Durability::Disk), disk.opens()).unwrap();
        let served = ParameterServer::of(store);
        let cluster = ClusterSpec::from_lists([("chief", ["127.0.0.1:0"]), ("ps", ["127.0.0.1:0"])]).unwrap();
        let server = Server::builder(cluster).job_name("ps").service(SERVICE, served).start().unwrap();
        let clients = ClientBuilder::new(server.cluster().clone(), Job::Chief.task(0));
        let ps = Connection::new(clients, Job::Ps.task(0));
        let call = |request| ps.call(request, Duration::from_secs(60));

        call(tables()).unwrap();
        let add =
            || Request::Write { table: "count".into(), how: Write::Add, value: HostTensor::scalar(1i64) };
        call(add()).unwrap();
        disk.room.store(0, Ordering::SeqCst);
        let ChannelError::Refused { refusal, .. } = call(add()).unwrap_err() else { panic!("no refusal") };
        assert_eq!(refusal.kind, RefusalKind::Storage);
        for part in ["count", folder.path().to_str().unwrap(), "nothing was changed"] {
            assert!(refusal.text.contains(part), "{part}: {refusal}");
        }
        let read = || call(Request::ReadRows { table: "count".into(), rows: vec![0] });
        assert_eq!(read().unwrap(), Response::Rows(HostTensor::vector(vec![1i64])));
        // After there is room again.
        disk.room.store(u64::MAX / 2, Ordering::SeqCst);
        call(add()).unwrap();
        assert_eq!(read().unwrap(), Response::Rows(HostTensor::vector(vec![2i64])));
    });
}

#[test]
fn a_disk_that_was_full_is_forgotten_though_nothing_has_changed_since_tables_were_saved() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Faulty::new();
    let core = Core::open(options(folder.path()), disk.opens()).unwrap();
    ask(&core, 0, tables());
    core.snapshot().unwrap();
    disk.room.store(0, Ordering::SeqCst);
    let add = Request::Write { table: "count".into(), how: Write::Add, value: HostTensor::scalar(1i64) };
    assert!(ask(&core, 4, add)[0].is_err());
    disk.room.store(u64::MAX / 2, Ordering::SeqCst);
    let refuses = || core.log.as_ref().unwrap().journal.rejects_changes();
    assert!(refuses());
    core.snapshot().unwrap();
    assert!(!refuses(), "tables are saved every two seconds, for ever");
}

#[test]
fn if_the_disk_fails_changes_are_refused_until_all_tables_are_saved() {
    for durability in [Durability::Disk, Durability::Soon(Duration::from_secs(3600))] {
        let folder = tempfile::tempdir().unwrap();
        let disk = Faulty::new();
        let core = Core::open(options(folder.path()).durability(durability), disk.opens()).unwrap();
        ask(&core, 0, tables());
        let add =
            || Request::Write { table: "count".into(), how: Write::Add, value: HostTensor::scalar(1i64) };
        let says = |answers: Answers, text: &str| {
            let refusal = answers.into_iter().next().unwrap().unwrap_err();
            assert!(refusal.kind == RefusalKind::Storage && refusal.text.contains(text), "{refusal}");
        };
        disk.fails.store(true, Ordering::SeqCst);
        let first = ask(&core, 4, add());
        match durability {
            Durability::Disk => says(first, "the change was applied, but the disk of "),
            _ => {
                assert_eq!(first, [Ok(Response::Done)]);
                assert!(core.log.as_ref().unwrap().journal.sync(5).is_err());
            }
        }
        says(ask(&core, 5, add()), "earlier records may not be on the disk: bad sector; nothing was changed");
        assert!(core.snapshot().is_ok(), "what is saved is what is in memory");
        disk.fails.store(false, Ordering::SeqCst);
        // Each of both changes was applied once.
        assert_eq!(
            [ask(&core, 4, add()), ask(&core, 5, add())].concat(),
            [Ok(Response::Done), Ok(Response::Done)]
        );
        let read = ask(&core, 0, Request::ReadRows { table: "count".into(), rows: vec![0] });
        assert_eq!(read, [Ok(Response::Rows(HostTensor::vector(vec![2i64])))]);
        let was = contents(&core);
        drop(core);
        assert_eq!(contents(&open(folder.path())), was);
    }
}

#[test]
fn each_durability_setting_keeps_acknowledged_changes() {
    for durability in [Durability::Disk, Durability::Soon(Duration::from_millis(1)), Durability::System] {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(options(folder.path()).durability(durability), Arc::new(open_disk)).unwrap();
        ask(store.core(), 0, tables());
        (1..9).for_each(|i| drop(ask(store.core(), i * 4, change(i))));
        let was = contents(store.core());
        drop(store);
        assert_eq!(contents(&open(folder.path())), was);
    }
}

#[test]
fn if_tables_cannot_be_saved_the_log_continues() {
    let folder = tempfile::tempdir().unwrap();
    let core = open(folder.path());
    ask(&core, 0, tables());
    // A folder occupies the path of a snapshot.
    let taken = folder.path().join(format!("tables-{:020}", 4));
    fs::write(&taken, "").unwrap();
    let error = core.snapshot().unwrap_err().to_string();
    assert!(error.starts_with(&format!("snapshot: removing {}: ", taken.display())), "{error}");
    (1..9).for_each(|i| drop(ask(&core, i * 4, change(i))));
    let was = contents(&core);
    fs::remove_file(taken).unwrap();
    drop(core);
    let core = open(folder.path());
    assert_eq!(contents(&core), was);
    core.snapshot().unwrap();
    drop(core);
    assert_eq!(contents(&open(folder.path())), was);
}

#[test]
fn a_server_recovers_when_its_failed_disk_works_again() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let disk = Faulty::new();
        let options = options(folder.path()).durability(Durability::Disk);
        let store = Store::open(options, disk.opens()).unwrap();
        ask(store.core(), 0, tables());
        let add =
            || Request::Write { table: "count".into(), how: Write::Add, value: HostTensor::scalar(1i64) };
        disk.fails.store(true, Ordering::SeqCst);
        assert!(ask(store.core(), 4, add())[0].is_err() && ask(store.core(), 5, add())[0].is_err());
        disk.fails.store(false, Ordering::SeqCst);
        // Tables are saved each hour, but at once if changes are refused.
        while ask(store.core(), 5, add())[0].is_err() {
            std::thread::yield_now();
        }
        let read = ask(store.core(), 0, Request::ReadRows { table: "count".into(), rows: vec![0] });
        assert_eq!(read, [Ok(Response::Rows(HostTensor::vector(vec![2i64])))]);
    });
}
