//! Processes that are killed while several of them write a checkpoint.

use crate::parts::{check, own, save};
use distribute_checkpoint::{CheckpointManager, Error, PartFolder, Progress, Reader, RowPosition, Writer};
use distribute_tensor::HostTensor;
use distribute_testing::{child, names_in, watched};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// The number of bytes of the rows that a killed process writes, of which it has written a part.
const BYTES: usize = 24 << 20;

/// The work of a process that is killed.
#[derive(Serialize, Deserialize)]
enum Task {
    /// Writes part 1 of 2.
    Part { parent: PathBuf, folder: Vec<u8>, stop: Stop },
    /// Saves in parts, and waits for the parts of others.
    Chief { parent: PathBuf },
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
enum Stop {
    Created,
    Writing,
    Written,
}

/// Tells the test that this process has come to the point at which it is killed, and waits for that.
fn stop(text: &str) -> ! {
    println!("AT {text}");
    let _ = std::io::stdin().read(&mut [0]);
    std::process::exit(1);
}

/// Returns a part with rows that are read. Calls `act` after the first 8 MiB.
fn large(act: impl Fn() + Send + Sync + 'static) -> Writer {
    let mut writer = Writer::new().in_parts();
    let read = move |range: std::ops::Range<usize>| {
        if range.start > 0 {
            act();
        }
        Ok(HostTensor::vector(vec![7u8; range.len()]))
    };
    let (position, dtype) = (RowPosition::Next, distribute_tensor::DType::U8);
    writer.insert_own_read("next", position, dtype, [BYTES], read).unwrap();
    writer
}

fn work(task: &Task) {
    match task {
        Task::Part { parent, folder, stop: at } => {
            let at = *at;
            let file = PartFolder::from_bytes(folder).unwrap().create_part(parent, 1).unwrap();
            if at == Stop::Created {
                stop("created");
            }
            let writing = move || {
                if at == Stop::Writing {
                    stop("writing")
                }
            };
            large(writing).write_part(file, &mut || Ok(())).unwrap();
            stop("written");
        }
        Task::Chief { parent } => {
            let manager = CheckpointManager::new(parent).unwrap();
            let mut parts = |of: &PartFolder, _: &mut Progress<'_>| {
                own(0, 2, 7).write_part(of.create_part(parent, 0)?, &mut || Ok(()))?;
                stop(&String::from_utf8(of.to_bytes())?)
            };
            manager.save_parts_with(&Writer::new(), 1, (2, &mut parts), &mut || Ok(())).unwrap();
        }
    }
}

/// Starts a process that is killed when the result is dropped. Returns when it is at its point, with what it tells.
fn start(test: &str, task: &Task) -> (child::Killed, String) {
    let mut command = child::command(test, &serde_json::to_string(task).unwrap());
    let mut process = child::Killed(command.stderr(std::process::Stdio::inherit()).spawn().unwrap());
    let mut lines = BufReader::new(process.0.stdout.take().unwrap()).lines();
    let told = lines.find_map(|line| line.unwrap().split_once("AT ").map(|(_, told)| told.to_owned()));
    (process, told.expect("it ended before its point"))
}

fn size(folder: &Path, begin: &str) -> u64 {
    let name = names_in(folder).into_iter().find(|name| name.starts_with(begin)).unwrap();
    folder.join(name).metadata().unwrap().len()
}

// INV-111
#[test]
fn a_process_that_is_killed_at_its_part_leaves_the_checkpoint_before() {
    const TEST: &str = "killed::a_process_that_is_killed_at_its_part_leaves_the_checkpoint_before";
    if let Some(task) = child::part() {
        return work(&serde_json::from_str(&task).unwrap());
    }
    watched(|| {
        for (stop, sizes) in [
            (Stop::Created, 0..=0),
            (Stop::Writing, 1 << 20..=BYTES as u64 - 1),
            (Stop::Written, BYTES as u64..=u64::MAX),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let parent = folder.path().to_path_buf();
            let manager = CheckpointManager::new(&parent).unwrap();
            let old = save(&manager, 2, 7).unwrap();
            let mut parts = |of: &PartFolder, _: &mut Progress<'_>| {
                own(0, 2, 7).write_part(of.create_part(&parent, 0)?, &mut || Ok(()))?;
                let task = Task::Part { parent: parent.clone(), folder: of.to_bytes(), stop };
                let (killed, _) = start(TEST, &task);
                drop(killed);
                let size = size(&parent.join(".ckpt-000002.distribute-0.part"), "part-00002");
                assert!(sizes.contains(&size), "{size} bytes, {stop:?}");
                Err("process 1 is gone".into())
            };
            let saved = manager.save_parts_with(&Writer::new(), 1, (2, &mut parts), &mut || Ok(()));
            assert!(matches!(saved, Err(Error::Interrupted { .. })), "{saved:?}");
            assert_eq!(names_in(&parent), [".lock", "ckpt-000001"]);
            assert_eq!(manager.latest_undamaged().unwrap().unwrap().path(), old);
            check(&save(&manager, 2, 7).unwrap(), 2, 7);
        }
    });
}

// INV-111
#[test]
fn a_chief_that_is_killed_while_others_write_leaves_the_next_save_complete() {
    const TEST: &str = "killed::a_chief_that_is_killed_while_others_write_leaves_the_next_save_complete";
    if let Some(task) = child::part() {
        return work(&serde_json::from_str(&task).unwrap());
    }
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let parent = folder.path().to_path_buf();
        let old = save(&CheckpointManager::new(&parent).unwrap(), 2, 7).unwrap();
        let (chief, told) = start(TEST, &Task::Chief { parent: parent.clone() });
        let file = PartFolder::from_bytes(told.as_bytes()).unwrap().create_part(&parent, 1).unwrap();
        let chief = RefCell::new(Some(chief));
        let saved = RefCell::new(None);
        // The chief is killed after the first report of this process, and its successor saves.
        let mut progress = || {
            if let Some(killed) = chief.borrow_mut().take() {
                drop(killed);
                assert_eq!(CheckpointManager::new(&parent).unwrap().latest().unwrap().unwrap().path(), old);
                let manager = CheckpointManager::new(&parent).unwrap();
                let mut parts = |of: &PartFolder, _: &mut Progress<'_>| {
                    let name = names_in(&parent).into_iter().find(|name| name.ends_with(".part"));
                    assert_eq!(name.as_deref(), Some(".ckpt-000002.distribute-0.part"));
                    Ok(crate::parts::write(of, &parent, 2, 7)?)
                };
                let mut writer = Writer::new();
                writer.insert("mirrored", HostTensor::vector(vec![1.5f32, 2.5])).unwrap();
                let path = manager.save_parts_with(&writer, 1, (2, &mut parts), &mut || Ok(()));
                *saved.borrow_mut() = Some(path.unwrap());
            }
            Ok(())
        };
        let late = large(|| ()).write_part(file, &mut progress);
        let saved = saved.into_inner().expect("the process has reported its progress");
        check(&saved, 2, 7);
        assert_eq!(names_in(&saved).len(), 2 + 2, "{late:?}");
        assert_eq!(names_in(&parent), [".lock", "ckpt-000001", "ckpt-000002"]);
        assert!(Reader::open(&saved).is_ok());
    });
}
