//! Checkpoints that several processes write together: each writes the rows that it stores.

use distribute_checkpoint::{
    CheckpointManager, Error, Part, PartFolder, Progress, Reader, Result, RowPosition, Writer,
};
use distribute_tensor::{DType, HostTensor};
use proptest::prelude::*;
use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};

/// The rows of a table: row r has the elements 2r and 2r + 1.
fn rows(rows: impl Iterator<Item = usize>) -> HostTensor {
    let all: Vec<i64> = rows.flat_map(|row| [2 * row as i64, 2 * row as i64 + 1]).collect();
    HostTensor::new(all.clone(), [all.len() / 2, 2]).unwrap()
}

/// Returns what process `number` of `count` saves of a table with `total` rows: every nth row, a range of rows, and
/// rows that follow those of the processes before.
pub(crate) fn own(number: usize, count: usize, total: usize) -> Writer {
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

/// Returns the path of a part in a folder. Parts have the numbers from 1 on.
fn part_in(folder: &Path, number: usize) -> PathBuf {
    let begin = format!("part-{number:05}-of-");
    let name = distribute_testing::names_in(folder).into_iter().find(|name| name.starts_with(&begin));
    folder.join(name.unwrap())
}

/// Lets `count` processes, of which this is the only one, write their parts into the folder.
pub(crate) fn write(folder: &PartFolder, parent: &Path, count: usize, total: usize) -> Result<Vec<Part>> {
    let one = |number| {
        let sent = PartFolder::from_bytes(&folder.to_bytes()).unwrap();
        let file = sent.create_part(parent, number)?;
        let part = own(number, count, total).write_part(file, &mut || Ok(()))?;
        Ok(Part::from_bytes(&part.to_bytes()).unwrap())
    };
    (0..count).map(one).collect()
}

pub(crate) fn save(manager: &CheckpointManager, count: usize, total: usize) -> Result<std::path::PathBuf> {
    let mut writer = Writer::new();
    writer.insert("mirrored", HostTensor::vector(vec![1.5f32, 2.5])).unwrap();
    let parent = manager.folder().to_path_buf();
    let mut parts = |folder: &PartFolder, _: &mut Progress<'_>| Ok(write(folder, &parent, count, total)?);
    manager.save_parts_with(&writer, 1, (count, &mut parts), &mut || Ok(()))
}

pub(crate) fn check(path: &Path, count: usize, total: usize) {
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

// INV-111
#[test]
fn parts_of_any_number_of_processes_are_one_checkpoint_of_the_manager() {
    for (count, total) in [(1, 5), (2, 5), (3, 7), (3, 2), (5, 16)] {
        let folder = tempfile::tempdir().unwrap();
        let manager = CheckpointManager::new(folder.path()).unwrap().keep(2);
        for number in 1..=3 {
            let path = save(&manager, count, total).unwrap();
            assert!(path.ends_with(format!("ckpt-00000{number}")));
            check(&path, count, total);
            let names = distribute_testing::names_in(&path);
            assert_eq!(names.len(), count + 2, "{names:?}");
            assert_eq!((&*names[0], &*names[count + 1]), ("index.json", "shard-00001-of-00001.safetensors"));
            for (part, name) in names[1..=count].iter().enumerate() {
                assert!(name.starts_with(&format!("part-{:05}-of-{count:05}-", part + 1)), "{name}");
            }
        }
        // The same contents give the same bytes.
        let bytes = |number: usize| {
            let path = folder.path().join(format!("ckpt-00000{number}"));
            (1..=count).map(|part| fs::read(part_in(&path, part)).unwrap()).collect::<Vec<_>>()
        };
        assert!(bytes(2) == bytes(3));
        // The parts of the oldest one are removed with it.
        assert_eq!(distribute_testing::names_in(folder.path()), [".lock", "ckpt-000002", "ckpt-000003"]);
    }
}

// INV-22, INV-111
#[test]
fn a_part_that_is_missing_short_or_altered_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let manager = CheckpointManager::new(folder.path()).unwrap();
    let path = save(&manager, 3, 7).unwrap();
    let part = part_in(&path, 2);
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

// INV-111
#[test]
fn parts_that_are_not_as_they_were_written_save_nothing() {
    type Change = fn(&Path, &mut Vec<Part>);
    let changes: [(Change, &str); 8] = [
        (|_, parts| drop(parts.remove(1)), "2 parts were written, of 3"),
        (|_, parts| parts.push(parts[0].clone()), "4 parts were written, of 3"),
        (|_, parts| parts[1] = parts[0].clone(), "the part of process 1"),
        (|_, parts| parts.swap(1, 2), "the part of process 1"),
        (|folder, _| fs::remove_file(part_in(folder, 2)).unwrap(), "part-00002"),
        (|folder, _| fs::write(part_in(folder, 3), b"x").unwrap(), "part-00003"),
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
        let mut parts = |of: &PartFolder, _: &mut Progress<'_>| {
            let mut parts = write(of, parent, 3, 7)?;
            change(&parent.join(".ckpt-000002.distribute-0.part"), &mut parts);
            Ok(parts)
        };
        let saved = manager.save_parts_with(&Writer::new(), 1, (3, &mut parts), &mut || Ok(()));
        let error = saved.unwrap_err();
        assert!(matches!(error, Error::Parts { .. }), "{error:?}");
        assert!(error.to_string().contains(expected), "{error}, not {expected}");
        assert_eq!(distribute_testing::names_in(parent), [".lock", "ckpt-000001"]);
        assert_eq!(manager.latest_undamaged().unwrap().unwrap().path(), old);
    }
}

// INV-111
#[test]
fn a_process_that_sees_another_folder_creates_nothing_there() {
    let folder = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    let manager = CheckpointManager::new(folder.path()).unwrap();
    let name = ".ckpt-000001.distribute-0.part";
    let mut parts = |of: &PartFolder, _: &mut Progress<'_>| {
        let error = of.create_part(other.path(), 1).unwrap_err();
        assert!(matches!(error, Error::NotShared { .. }), "{error}");
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
        // Nor is anything but a folder that is not there a reason to save without this process.
        let looped = other.path().join("looped");
        std::os::unix::fs::symlink(&looped, &looped)?;
        let error = of.create_part(&looped, 1).unwrap_err();
        assert!(matches!(error, Error::Io { .. }), "{error}");
        let climbs = String::from_utf8(of.to_bytes())?.replace(name, "../up");
        let climbs = PartFolder::from_bytes(climbs.as_bytes()).ok_or("it cannot be read")?;
        assert!(matches!(climbs.create_part(folder.path(), 0), Err(Error::NotShared { .. })));
        Err("not shared".into())
    };
    let error = manager.save_parts_with(&Writer::new(), 1, (2, &mut parts), &mut || Ok(())).unwrap_err();
    assert!(matches!(error, Error::Interrupted { .. }), "{error}");
    assert_eq!(distribute_testing::names_in(folder.path()), [".lock"]);
}

/// A part with rows that follow those of the processes before. No number of rows is known before all parts are written.
fn next(folder: &PartFolder, parent: &Path, number: usize) -> Result<Part> {
    let mut writer = Writer::new().in_parts();
    writer.insert_own("ids", RowPosition::Next, HostTensor::vector(vec![number as i64; 3])).unwrap();
    writer.write_part(folder.create_part(parent, number)?, &mut || Ok(()))
}

// INV-111
#[test]
fn rows_of_unknown_number_are_saved_only_with_the_parts_of_all_processes() {
    type Choose = fn(Vec<Part>) -> Vec<Part>;
    let wrong: [Choose; 4] = [
        |parts| parts[..2].to_vec(),
        |parts| [&parts[..], &parts[..1]].concat(),
        |parts| vec![parts[0].clone(), parts[1].clone(), parts[1].clone()],
        |parts| vec![parts[0].clone(), parts[2].clone(), parts[1].clone()],
    ];
    let folder = tempfile::tempdir().unwrap();
    let manager = CheckpointManager::new(folder.path()).unwrap();
    let save = |choose: Choose| {
        let mut parts = |of: &PartFolder, _: &mut Progress<'_>| {
            let all: Result<Vec<_>> = (0..3).map(|number| next(of, folder.path(), number)).collect();
            Ok(choose(all?))
        };
        manager.save_parts_with(&Writer::new(), 1, (3, &mut parts), &mut || Ok(()))
    };
    for choose in wrong {
        let error = save(choose).unwrap_err();
        assert!(matches!(error, Error::Parts { .. }), "{error:?}");
        assert_eq!(distribute_testing::names_in(folder.path()), [".lock"]);
    }
    let reader = Reader::open(save(|parts| parts).unwrap()).unwrap();
    assert_eq!(reader.tensor("ids").unwrap().to_vec::<i64>().unwrap(), [0, 0, 0, 1, 1, 1, 2, 2, 2]);
}

// INV-111
#[test]
fn a_process_of_an_earlier_save_changes_nothing_in_a_folder_of_the_same_name() {
    for writes in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let manager = CheckpointManager::new(folder.path()).unwrap();
        let (mut late, mut earlier) = (None, None);
        let mut fails = |of: &PartFolder, _: &mut Progress<'_>| {
            earlier = Some(of.clone());
            late = Some(of.create_part(folder.path(), 1)?);
            Err("process 0 is gone".into())
        };
        manager.save_parts_with(&Writer::new(), 1, (3, &mut fails), &mut || Ok(())).unwrap_err();
        let (mut late, earlier) = (late, earlier.unwrap());
        let mut parts = |of: &PartFolder, _: &mut Progress<'_>| {
            let parts = write(of, folder.path(), 3, 7)?;
            assert!(matches!(earlier.create_part(folder.path(), 1), Err(Error::NotShared { .. })));
            let late = late.take().unwrap();
            if writes {
                // It writes into its own file, which has no name any more. Its rows are others.
                own(1, 3, 40).write_part(late, &mut || Ok(()))?;
            }
            Ok(parts)
        };
        let saved = manager.save_parts_with(&Writer::new(), 1, (3, &mut parts), &mut || Ok(())).unwrap();
        let reader = Reader::open(&saved).unwrap();
        reader.verify().unwrap();
        assert_eq!(reader.tensor("mod").unwrap(), rows(0..7));
        assert_eq!(distribute_testing::names_in(&saved).len(), 3 + 1);
    }
}

/// A part is compared by its length and header when it is saved, and completely when it is read.
// INV-22, INV-111
#[test]
fn a_part_with_other_contents_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let manager = CheckpointManager::new(folder.path()).unwrap();
    let old = save(&manager, 1, 5).unwrap();
    let parent = folder.path();
    let mut parts = |of: &PartFolder, _: &mut Progress<'_>| {
        let mut writer = Writer::new().in_parts();
        writer.insert_own("next", RowPosition::Next, HostTensor::vector(vec![7u8; 3 << 20]))?;
        let part = writer.write_part(of.create_part(parent, 0)?, &mut || Ok(()))?;
        let path = part_in(&parent.join(".ckpt-000002.distribute-0.part"), 1);
        let mut bytes = fs::read(&path)?;
        *bytes.last_mut().unwrap() = 8;
        fs::write(&path, bytes)?;
        Ok(vec![part])
    };
    let new = manager.save_parts_with(&Writer::new(), 1, (1, &mut parts), &mut || Ok(())).unwrap();
    let error = Reader::open(new).unwrap().tensor("next").unwrap_err();
    assert!(matches!(error, Error::Damaged { .. }), "{error:?}");
    assert!(error.to_string().contains("part-00001-of-00001"), "{error}");
    assert_eq!(manager.latest_undamaged().unwrap().unwrap().path(), old);
}

// INV-111
#[test]
fn rows_of_one_process_are_saved_only_in_parts() {
    let mut alone = Writer::new();
    let error = alone.insert_own("t", RowPosition::Next, rows(0..3)).unwrap_err();
    assert!(matches!(error, Error::Entry { .. }), "{error}");
    let read = |_| Ok(rows(0..3));
    assert!(alone.insert_own_read("t", RowPosition::Next, DType::I64, [3, 2], read).is_err());
    assert!(!alone.has_own_rows());

    let mut writer = Writer::new().in_parts();
    writer.insert_own("t", RowPosition::Next, rows(0..3)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let manager = CheckpointManager::new(folder.path()).unwrap();
    let errors = [
        writer.save(folder.path().join("saved"), 1).err(),
        writer.image().err(),
        manager.save(&writer, 1).err(),
        manager.save_async(writer, 1).err(),
    ];
    for error in errors {
        assert!(matches!(error, Some(Error::Entry { .. })), "{error:?}");
    }
    assert_eq!(distribute_testing::names_in(folder.path()), [".lock"]);
}

// INV-111
#[test]
fn progress_is_counted_while_parts_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let manager = CheckpointManager::new(folder.path()).unwrap();
    let (writing, mut counted) = (Cell::new(false), 0);
    let mut parts = |of: &PartFolder, progress: &mut Progress<'_>| {
        let mut writer = Writer::new().in_parts();
        writer.insert_own("next", RowPosition::Next, HostTensor::vector(vec![7u8; 20 << 20]))?;
        writing.set(true);
        let part = writer.write_part(of.create_part(folder.path(), 0)?, progress)?;
        writing.set(false);
        Ok(vec![part])
    };
    let mut progress = || {
        counted += usize::from(writing.get());
        Ok(())
    };
    manager.save_parts_with(&Writer::new(), 1, (1, &mut parts), &mut progress).unwrap();
    // Two of 8 MiB, and the sync.
    assert_eq!(counted, 3);
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
    let two = || HostTensor::new(vec![1i64, 2, 3, 4], [2, 2]).unwrap();
    for position in [at(0, 2, 5), at(1, 2, 6), at(1, 1, 5), RowPosition::Next] {
        let error = writer.insert_own("t", position, two()).unwrap_err();
        assert!(matches!(error, Error::Entry { .. }), "{error}");
    }
    writer.insert_own("t", at(1, 2, 5), two()).unwrap();
    assert!(writer.insert_own("t", at(1, 2, 5), HostTensor::vector(vec![1i64])).is_err());
    assert!(writer.insert("t", own()).is_err());
    writer.insert("whole", own()).unwrap();
    assert!(writer.insert_own("whole", RowPosition::Next, own()).is_err());
    assert!(writer.has_own_rows() && writer.is_in_parts());
}

proptest! {
    // INV-111
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
