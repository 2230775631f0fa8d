//! Checks that other files in a manager's folder do not fail a save, are not touched, and are reported.

use distribute_checkpoint::{CheckpointManager, Error, Writer};
use distribute_tensor::HostTensor;
use distribute_testing::{names_in, watched};
use std::fs;
use std::process::Command;
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, span};

/// The warnings that were logged.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

impl Visit for Warnings {
    fn record_debug(&mut self, _: &Field, value: &dyn std::fmt::Debug) {
        self.0.lock().unwrap().push(format!("{value:?}"));
    }
}

fn step(step: u64) -> Writer {
    let mut writer = Writer::new();
    writer.metadata("step", step);
    writer
}

fn latest(manager: &CheckpointManager) -> f64 {
    manager.latest().unwrap().unwrap().number("step").unwrap()
}

// INV-24
#[test]
fn a_lock_that_is_no_file_is_refused_at_once_and_nothing_is_written_through_it() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("run");
        let manager = CheckpointManager::new(&run).unwrap();
        let (lock, precious) = (run.join(".lock"), folder.path().join("precious"));
        fs::write(&precious, "text").unwrap();
        let refused = |what: &str| {
            let error = manager.save(&step(1), 1).unwrap_err();
            assert!(matches!(&error, Error::Io { path, .. } if *path == lock), "{error}");
            assert!(error.to_string().contains(what), "{error}");
        };
        std::os::unix::fs::symlink(&precious, &lock).unwrap();
        refused("a symbolic link");
        assert_eq!(fs::read_to_string(&precious).unwrap(), "text");
        fs::remove_file(&lock).unwrap();
        assert!(Command::new("mkfifo").arg(&lock).status().unwrap().success());
        refused("a named pipe");
        fs::remove_file(&lock).unwrap();
        fs::create_dir(&lock).unwrap();
        refused("a folder");
        fs::remove_dir(&lock).unwrap();
        // The content of the file is ignored.
        fs::write(&lock, "text").unwrap();
        manager.save(&step(1), 1).unwrap();
        assert_eq!((latest(&manager), fs::read_to_string(&lock).unwrap()), (1., "text".into()));
    });
}

#[test]
fn foreign_files_are_skipped_with_one_warning() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let manager = CheckpointManager::new(folder.path()).unwrap().keep(2);
    let files = ["ckpt-000002", "ckpt-000009", ".ckpt-x.part", ".ckpt-000001.distribute-0.part"];
    let folders = ["ckpt-18446744073709551615", "ckpt-7", "ckpt-last"];
    files.iter().for_each(|name| fs::write(at(name), "text").unwrap());
    folders.iter().for_each(|name| fs::create_dir(at(name)).unwrap());
    // Ours, left by a process that was killed.
    fs::create_dir(at(".ckpt-000001.distribute-1.part")).unwrap();
    let warnings = Warnings::default();
    tracing::subscriber::with_default(warnings.clone(), || {
        for number in 1..=4 {
            manager.save(&step(number), 1).unwrap();
            assert_eq!(latest(&manager), number as f64);
        }
    });
    let theirs = || files.iter().chain(&folders).map(|name| name.to_string());
    let mut expected: Vec<_> =
        theirs().chain([".lock", "ckpt-000004", "ckpt-000005"].map(String::from)).collect();
    expected.sort();
    assert_eq!(names_in(folder.path()), expected);
    let told = warnings.0.lock().unwrap();
    for name in theirs().filter(|name| name != ".ckpt-000001.distribute-0.part") {
        let path = at(&name).display().to_string();
        assert_eq!(told.iter().filter(|text| text.contains(&path)).count(), 1, "{name}: {told:?}");
    }
    assert!(told.iter().any(|text| text.contains(".ckpt-000001.distribute-0.part")), "{told:?}");
}

/// The environment variable that contains the folder to save in, for a process without a subscriber.
const UNHEARD: &str = "DISTRIBUTE_TEST_UNHEARD";

#[test]
fn warnings_reach_standard_error_without_a_subscriber() {
    const NAME: &str = "manager::warnings_reach_standard_error_without_a_subscriber";
    if let Some(folder) = std::env::var_os(UNHEARD) {
        CheckpointManager::new(folder).unwrap().save(&step(1), 1).unwrap();
        return;
    }
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        // The first is no checkpoint; in place of the second the manager makes a part.
        fs::write(at("ckpt-last"), "text").unwrap();
        fs::write(at(".ckpt-000001.distribute-0.part"), "text").unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", NAME, "--nocapture"]).env(UNHEARD, folder.path());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let told = String::from_utf8(output.stderr).unwrap();
        for text in [
            format!("distribute: warning: {} is not a checkpoint of this folder", at("ckpt-last")),
            format!("distribute: warning: {} is a file,", at(".ckpt-000001.distribute-0.part")),
        ] {
            assert!(told.lines().any(|line| line.starts_with(&text)), "{text}: {told}");
        }
    });
}

#[test]
fn the_last_number_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let manager = CheckpointManager::new(folder.path()).unwrap();
    step(1).save(folder.path().join("ckpt-999999999999"), 1).unwrap();
    let error = manager.save(&step(2), 1).unwrap_err().to_string();
    assert!(error.contains("there are no more numbers") && error.contains("ckpt-999999999999"), "{error}");
    assert_eq!(latest(&manager), 1.);
}

#[test]
fn five_are_kept_unless_another_number_is_given() {
    let folder = tempfile::tempdir().unwrap();
    let manager = CheckpointManager::new(folder.path()).unwrap();
    (1..=7).for_each(|number| drop(manager.save(&step(number), 1).unwrap()));
    assert_eq!(manager.paths().unwrap().len(), 5);
    let all = manager.keep(usize::MAX);
    (8..=10).for_each(|number| drop(all.save(&step(number), 1).unwrap()));
    assert_eq!((all.paths().unwrap().len(), latest(&all)), (8, 10.));
}

#[test]
fn the_newest_complete_checkpoint_is_found_and_damaged_ones_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let manager = CheckpointManager::new(folder.path()).unwrap();
    assert!(manager.latest_undamaged().unwrap().is_none());
    let with_weights = |number| {
        let mut writer = step(number);
        writer.insert("weights", HostTensor::vector(vec![number as f32; 8])).unwrap();
        writer
    };
    (1..=4).for_each(|number| drop(manager.save(&with_weights(number), 1).unwrap()));
    let damage = |number: u64, file: &str, change: fn(&mut Vec<u8>)| {
        let path = folder.path().join(format!("ckpt-{number:06}")).join(file);
        let mut bytes = fs::read(&path).unwrap();
        change(&mut bytes);
        fs::write(path, bytes).unwrap();
    };
    let whole = || manager.latest_undamaged().map(|found| found.unwrap().path().to_path_buf());
    let at = |number: u64| folder.path().join(format!("ckpt-{number:06}"));
    assert_eq!(whole().unwrap(), at(4));
    let shard = "shard-00001-of-00001.safetensors";
    // A flipped bit of an element, which opening does not detect, and a file that is cut.
    damage(4, shard, |bytes| *bytes.last_mut().unwrap() ^= 1);
    damage(3, "index.json", |bytes| bytes.truncate(bytes.len() / 2));
    let warnings = Warnings::default();
    tracing::subscriber::with_default(warnings.clone(), || assert_eq!(whole().unwrap(), at(2)));
    let told = warnings.0.lock().unwrap().clone();
    assert_eq!(told.len(), 1, "{told:?}");
    let says = format!("continues from {}, the latest undamaged checkpoint", at(2).display());
    assert!(
        told[0].contains(&at(4).join(shard).display().to_string()) && told[0].contains(&says),
        "{told:?}"
    );
    // Nothing is removed, and the next save has the next number.
    assert_eq!(manager.save(&with_weights(5), 1).unwrap(), at(5));
    assert_eq!(whole().unwrap(), at(5));
    fs::remove_file(at(5).join("index.json")).unwrap();
    assert_eq!(whole().unwrap(), at(2));
    // If none is intact, the error is that of the latest.
    for number in [1, 2] {
        fs::remove_file(at(number).join(shard)).unwrap();
    }
    let error = manager.latest_undamaged().err().unwrap().to_string();
    assert!(
        error.starts_with(&format!("{} is not a checkpoint: it has no index.json", at(5).display())),
        "{error}"
    );
    let folder = distribute_checkpoint::Reader::open(folder.path()).err().unwrap().to_string();
    assert!(folder.contains("the latest of which is") && folder.contains("ckpt-000005"), "{folder}");
}
