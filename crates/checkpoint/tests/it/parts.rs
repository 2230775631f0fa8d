//! Checkpoints that several processes write together: each writes the rows that it stores.

use distribute_checkpoint::{
    CheckpointManager, Error, Part, PartFolder, Reader, Result, RowPosition, Writer,
};
use distribute_tensor::{DType, HostTensor};
use proptest::prelude::*;
use std::fs;
use std::path::Path;

/// The rows of a table: row r has the elements 2r and 2r + 1.
fn rows(rows: impl Iterator<Item = usize>) -> HostTensor {
    let all: Vec<i64> = rows.flat_map(|row| [2 * row as i64, 2 * row as i64 + 1]).collect();
    HostTensor::new(all.clone(), [all.len() / 2, 2]).unwrap()
}

/// Returns what process `number` of `count` saves of a table with `total` rows: every nth row, a range of rows, and
/// rows that follow those of the processes before.
fn own(number: usize, count: usize, total: usize) -> Writer {
    let mut writer = Writer::new().in_parts();
    if number < count.min(total) {
        let step = count.min(total);
        let of_step = RowPosition::Every { first: number, step, rows: total };
        let mine = (number..total).step_by(step);
        writer
            .insert_own_read("mod", of_step, DType::I64, [mine.clone().count(), 2], move |range| {
                let mine = (number..total).step_by(step).skip(range.start).take(range.len());
                Ok(rows(mine))
            })
            .unwrap();
    }
    let range = number * total / count..(number + 1) * total / count;
    let position = RowPosition::Every { first: range.start, step: 1, rows: total };
    writer.insert_own("div", position, rows(range.clone())).unwrap();
    writer.insert_own("next", RowPosition::Next, rows(range.rev())).unwrap();
    writer
}

/// Lets `count` processes, of which this is the only one, write their parts into the folder.
fn write(folder: &PartFolder, parent: &Path, count: usize, total: usize) -> Result<Vec<Part>> {
    let one = |number| {
        let sent = PartFolder::from_bytes(&folder.to_bytes()).unwrap();
        let file = sent.create_part(parent, number)?;
        let part = own(number, count, total).write_part(file, &mut || Ok(()))?;
        Ok(Part::from_bytes(&part.to_bytes()).unwrap())
    };
    (0..count).map(one).collect()
}

fn save(manager: &CheckpointManager, count: usize, total: usize) -> Result<std::path::PathBuf> {
    let mut writer = Writer::new();
    writer.insert("mirrored", HostTensor::vector(vec![1.5f32, 2.5])).unwrap();
    let parent = manager.folder().to_path_buf();
    let mut parts = |folder: &PartFolder| Ok(write(folder, &parent, count, total)?);
    manager.save_parts_with(&writer, 1, (count, &mut parts), &mut || Ok(()))
}

fn check(path: &Path, count: usize, total: usize) {
    let reader = Reader::open(path).unwrap();
    reader.verify().unwrap();
    assert!(reader.names().eq(["div", "mirrored", "mod", "next"]));
    assert_eq!(reader.tensor("mod").unwrap(), rows(0..total));
    assert_eq!(reader.tensor("div").unwrap(), rows(0..total));
    let next = (0..count).flat_map(|n| (n * total / count..(n + 1) * total / count).rev());
    assert_eq!(reader.tensor("next").unwrap(), rows(next));
    for start in 0..total {
        for end in start..=total {
            assert_eq!(reader.rows("mod", start..end).unwrap(), rows(start..end), "{start}..{end}");
        }
    }
}

// INV-110
#[test]
fn parts_of_any_number_of_processes_are_one_checkpoint_of_the_manager() {
    for (count, total) in [(1, 5), (2, 5), (3, 7), (3, 2), (5, 16)] {
        let folder = tempfile::tempdir().unwrap();
        let manager = CheckpointManager::new(folder.path()).unwrap().keep(2);
        for number in 1..=3 {
            let path = save(&manager, count, total).unwrap();
            assert!(path.ends_with(format!("ckpt-00000{number}")));
            check(&path, count, total);
            let mut names = vec!["index.json".to_owned()];
            names.extend((1..=count).map(|part| format!("part-{part:05}-of-{count:05}.safetensors")));
            names.push("shard-00001-of-00001.safetensors".into());
            assert_eq!(distribute_testing::names_in(&path), names);
        }
        // The parts of the oldest one are removed with it.
        assert_eq!(distribute_testing::names_in(folder.path()), [".lock", "ckpt-000002", "ckpt-000003"]);
    }
}

// INV-22, INV-110
#[test]
fn a_part_that_is_missing_short_or_altered_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let manager = CheckpointManager::new(folder.path()).unwrap();
    let path = save(&manager, 3, 7).unwrap();
    let part = path.join("part-00002-of-00003.safetensors");
    let whole = fs::read(&part).unwrap();
    let read = || Reader::open(&path).and_then(|reader| reader.verify()).unwrap_err();
    let name = |error: &Error| assert!(error.to_string().contains("part-00002-of-00003"), "{error}");
    fs::remove_file(&part).unwrap();
    let error = read();
    assert!(matches!(error, Error::Io { .. }), "{error}");
    name(&error);
    for cut in 0..whole.len() {
        fs::write(&part, &whole[..cut]).unwrap();
        let error = read();
        assert!(matches!(error, Error::Damaged { .. }), "{error}");
        name(&error);
        let mut altered = whole.clone();
        altered[cut] ^= 1;
        fs::write(&part, altered).unwrap();
        name(&read());
    }
    fs::write(&part, whole).unwrap();
    check(&path, 3, 7);
}

// INV-110
#[test]
fn parts_that_are_not_as_they_were_written_save_nothing() {
    type Change = fn(&Path, &mut Vec<Part>);
    let changes: [(Change, &str); 6] = [
        (|_, parts| drop(parts.remove(1)), "missing"),
        (|_, parts| parts.push(parts[0].clone()), "3 parts"),
        (|folder, _| fs::remove_file(folder.join("part-00002-of-00003.safetensors")).unwrap(), "part-00002"),
        (|folder, _| fs::write(folder.join("part-00003-of-00003.safetensors"), b"x").unwrap(), "part-00003"),
        (
            |_, parts| {
                let text = String::from_utf8(parts[1].to_bytes()).unwrap();
                parts[1] = Part::from_bytes(text.replace("int64", "int32").as_bytes()).unwrap();
            },
            "other parts are of",
        ),
        (
            |_, parts| {
                let text = String::from_utf8(parts[1].to_bytes()).unwrap();
                parts[1] = Part::from_bytes(text.replace("\"step\":3", "\"step\":2").as_bytes()).unwrap();
            },
            "in steps of",
        ),
    ];
    for (change, expected) in changes {
        let folder = tempfile::tempdir().unwrap();
        let manager = CheckpointManager::new(folder.path()).unwrap();
        let old = save(&manager, 3, 7).unwrap();
        let parent = folder.path();
        let mut parts = |of: &PartFolder| {
            let mut parts = write(of, parent, 3, 7)?;
            change(&parent.join(".ckpt-000002.distribute-0.part"), &mut parts);
            Ok(parts)
        };
        let saved = manager.save_parts_with(&Writer::new(), 1, (3, &mut parts), &mut || Ok(()));
        let error = saved.unwrap_err();
        assert!(matches!(error, Error::Parts { .. }), "{error:?}");
        if expected != "3 parts" {
            assert!(error.to_string().contains(expected), "{error}, not {expected}");
        }
        assert_eq!(distribute_testing::names_in(parent), [".lock", "ckpt-000001"]);
        assert_eq!(manager.latest_undamaged().unwrap().unwrap().path(), old);
    }
}

// INV-110
#[test]
fn a_process_that_sees_another_folder_creates_nothing_there() {
    let folder = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    let manager = CheckpointManager::new(folder.path()).unwrap();
    let name = ".ckpt-000001.distribute-0.part";
    let mut parts = |of: &PartFolder| {
        let error = of.create_part(other.path(), 1).unwrap_err();
        assert!(matches!(error, Error::Io { .. }), "{error}");
        // A save of this process that was interrupted has left a folder of this name.
        fs::create_dir(other.path().join(name)).unwrap();
        fs::write(other.path().join(name).join("token"), "0123456789abcdef\n").unwrap();
        let error = of.create_part(other.path(), 1).unwrap_err();
        assert!(matches!(error, Error::NotShared { .. }), "{error}");
        assert_eq!(distribute_testing::names_in(&other.path().join(name)), ["token"]);
        // A part is created once.
        let file = of.create_part(folder.path(), 1)?;
        assert!(of.create_part(folder.path(), 1).is_err());
        drop(file);
        assert_eq!(distribute_testing::names_in(&folder.path().join(name)), ["token"]);
        let climbs = String::from_utf8(of.to_bytes())?.replace(name, "../up");
        let climbs = PartFolder::from_bytes(climbs.as_bytes()).ok_or("it cannot be read")?;
        assert!(matches!(climbs.create_part(folder.path(), 0), Err(Error::NotShared { .. })));
        Err("not shared".into())
    };
    let error = manager.save_parts_with(&Writer::new(), 1, (2, &mut parts), &mut || Ok(())).unwrap_err();
    assert!(matches!(error, Error::Interrupted { .. }), "{error}");
    assert_eq!(distribute_testing::names_in(folder.path()), [".lock"]);
}

#[test]
fn rows_without_a_position_are_refused() {
    let mut writer = Writer::new().in_parts();
    let at = |first, step, rows| RowPosition::Every { first, step, rows };
    let own = || rows(0..3);
    for position in
        [at(0, 1, 2), at(1, 1, 3), at(0, 2, 4), at(0, 0, 9), at(usize::MAX, 2, 9), at(0, usize::MAX, 9)]
    {
        let error = writer.insert_own("t", position, own()).unwrap_err();
        assert!(matches!(error, Error::Entry { .. }), "{error}");
    }
    assert!(!writer.has_own_rows());
    let flags = HostTensor::vector(vec![true, false]);
    assert!(writer.insert_own("flags", at(0, 2, 4), flags.clone()).is_err());
    assert!(writer.insert_own("texts", RowPosition::Next, HostTensor::vector(vec![b"a".to_vec()])).is_err());
    assert!(writer.insert_own("scalar", RowPosition::Next, HostTensor::scalar(1i64)).is_err());
    writer.insert_own("flags", RowPosition::Next, flags).unwrap();
    writer.insert_own("t", at(0, 2, 5), own()).unwrap();
    assert!(writer.insert_own("t", at(1, 2, 5), HostTensor::vector(vec![1i64])).is_err());
    assert!(writer.insert("t", own()).is_err());
    writer.insert("whole", own()).unwrap();
    assert!(writer.insert_own("whole", RowPosition::Next, own()).is_err());
    assert!(writer.has_own_rows() && writer.is_in_parts());
}

proptest! {
    // INV-110
    #[test]
    fn rows_of_all_processes_are_read_in_any_range(
        count in 1usize..6, total in 1usize..40, a in 0usize..40, b in 0usize..40,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let manager = CheckpointManager::new(folder.path()).unwrap();
        let reader = Reader::open(save(&manager, count, total).unwrap()).unwrap();
        let range = a.min(b).min(total)..a.max(b).min(total);
        prop_assert_eq!(reader.rows("mod", range.clone()).unwrap(), rows(range.clone()));
        prop_assert_eq!(reader.rows("div", range.clone()).unwrap(), rows(range));
    }
}
