//! Several threads and processes that need the same file.

use crate::fake::{Fake, ID, bytes, sha256, text};
use distribute_cluster::Deadline;
use distribute_files::LockFile;
use distribute_hub::Hub;
use distribute_testing::{child, names_in, watched};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

const LARGE: usize = 3_000_000;

fn large() -> Fake {
    Fake::new(&[("model.safetensors", &bytes(LARGE), true)])
}

#[test]
fn threads_download_a_file_once() {
    watched(|| {
        let fake = large();
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..8).map(|_| scope.spawn(|| fake.model().file("model.safetensors").unwrap())).collect();
            for thread in threads {
                assert_eq!(fs::read(thread.join().unwrap()).unwrap(), bytes(LARGE));
            }
        });
        assert_eq!(fake.large(), ["all"]);
        assert_eq!(names_in(&fake.at("blobs")), [sha256(&bytes(LARGE))]);
    });
}

/// Returns a command that downloads the file in another process, by the settings of its environment.
fn process(fake: &Fake, test: &str) -> Command {
    let mut command = child::command(test, "download");
    command.env("HF_ENDPOINT", format!("http://{}", fake.hub.address)).env("HF_HUB_CACHE", fake.cache.path());
    command.env_remove("HF_HUB_OFFLINE");
    command
}

fn download() {
    let path = Hub::new().unwrap().model(ID).file("model.safetensors").unwrap();
    assert_eq!(fs::read(path).unwrap(), bytes(LARGE));
}

#[test]
fn processes_download_a_file_once() {
    if child::part().is_some() {
        return watched(download);
    }
    watched(|| {
        let fake = large();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let command = process(&fake, "concurrent::processes_download_a_file_once");
                scope.spawn(|| child::output(command, Duration::from_secs(50)));
            }
        });
        assert_eq!(fake.large(), ["all"]);
        assert_eq!(names_in(&fake.at("blobs")), [sha256(&bytes(LARGE))]);
    });
}

#[test]
fn a_killed_process_leaves_a_part_that_another_one_resumes() {
    const HALF: u64 = 1_500_000;
    if child::part().is_some() {
        return watched(download);
    }
    watched(|| {
        let fake = large();
        fake.answers(|request, mut reply| {
            if request.path.starts_with("/cdn/") {
                (reply.cut, reply.stalls) = (Some(HALF as usize), true);
            }
            reply
        });
        let mut command =
            process(&fake, "concurrent::a_killed_process_leaves_a_part_that_another_one_resumes");
        let killed = child::Killed(command.spawn().unwrap());
        let partial = fake.at(&format!("blobs/{}.incomplete", sha256(&bytes(LARGE))));
        until(|| fs::metadata(&partial).is_ok_and(|found| found.len() == HALF));
        drop(killed);
        fake.answers(|_, reply| reply);
        assert_eq!(fs::read(fake.model().file("model.safetensors").unwrap()).unwrap(), bytes(LARGE));
        assert_eq!(fake.large(), ["all", "bytes=1500000-"]);
    });
}

#[test]
fn a_download_of_another_process_is_waited_for_while_it_grows() {
    watched(|| {
        let fake = large();
        let hash = sha256(&bytes(LARGE));
        let locks = fake.cache.path().join(".locks/models--org--name");
        fs::create_dir_all(&locks).unwrap();
        fs::create_dir_all(fake.at("blobs")).unwrap();
        let lock = LockFile::acquire(locks.join(format!("{hash}.lock"))).unwrap().unwrap();
        let model = || fake.settings().timeout(Duration::from_millis(400)).model(ID);
        let error = text(model().file("model.safetensors"));
        assert!(error.contains(&format!("{hash}.lock is locked by another process")), "{error}");
        // Python's names have a random component.
        let other = fake.at(&format!("blobs/{hash}.0a1b2c3d.incomplete"));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| model().file("model.safetensors").unwrap());
            let (_open, closed) = mpsc::channel::<()>();
            for size in 1..=10 {
                // Longer than the timeout in all.
                assert_eq!(
                    closed.recv_timeout(Duration::from_millis(100)),
                    Err(mpsc::RecvTimeoutError::Timeout)
                );
                grow(&other, size);
                assert!(!waiting.is_finished());
            }
            drop(lock);
            assert_eq!(fs::read(waiting.join().unwrap()).unwrap(), bytes(LARGE));
        });
    });
}

fn grow(path: &Path, size: usize) {
    fs::write(path, bytes(size)).unwrap();
}

/// Waits until a condition is met.
fn until(condition: impl Fn() -> bool) {
    let deadline = Deadline::after(Duration::from_secs(30));
    while !condition() {
        assert!(!deadline.has_passed(), "the condition is not met");
        std::thread::park_timeout(Duration::from_millis(10));
    }
}
