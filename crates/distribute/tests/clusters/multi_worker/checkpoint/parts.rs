//! Checkpoints in parts: workers that store tables together each write their own rows.

use super::{chief, warnings};
use crate::multi_worker::tables::{PLACEMENTS, Tables, on_threads};
use candle_core::{Device, Module, Tensor};
use candle_nn::{Linear, VarBuilder, linear};
use distribute::checkpoint::{
    Checkpoint, CheckpointManager, Checkpointed, HeldTensors, LiveTensors, Reader, Restore, RowPosition,
    SourceError, Writer,
};
use distribute::nn::{DynamicEmbedding, Embedding, dynamic_embedding, embedding};
use distribute::optimizer::rules::{self, Rule};
use distribute::parameter_server::DynamicOptions;
use distribute::tensor::DType;
use distribute::{Error, HostTensor, Result, Strategy, prelude::*};
use distribute_testing::{names_in, watched};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A model with a table of numbered rows, a table of ids and a layer.
struct Model {
    words: Embedding,
    users: DynamicEmbedding,
    out: Linear,
}

fn model(strategy: &Strategy, options: DynamicOptions) -> Result<Replicated<Model>> {
    strategy.replicate_seeded(3, move |vb: VarBuilder| {
        distribute::Ok(Model {
            words: embedding(13, 3, vb.pp("words"))?,
            users: dynamic_embedding(3, options, vb.pp("users"))?,
            out: linear(3, 2, vb.pp("out"))?,
        })
    })
}

fn train(
    strategy: &Strategy,
    model: &Replicated<Model>,
    optimizer: &Optimizer<impl Rule>,
    steps: std::ops::Range<i64>,
) -> Result<()> {
    for step in steps {
        strategy.run(model, |ctx, model| {
            let replica = ctx.replica_id_in_sync_group() as i64;
            let ids = Tensor::new(&[-7 * step, 1 << 40, replica + 100 * step, 5], &Device::Cpu)?;
            let words = Tensor::new(&[step as u32, 12, 2 * replica as u32, 1], &Device::Cpu)?;
            let x = (model.users.forward(&ids)? + model.words.forward(&words)?)?;
            optimizer.minimize(ctx, model.out.forward(&x)?.tanh()?.sqr()?.mean_all()?, 4)
        })?;
    }
    Ok(())
}

/// The bits of a model and of the slots of its ids.
fn bits(model: &Replicated<Model>) -> Result<(Vec<i64>, Vec<u32>)> {
    let rows = model.variables.variable("users.weight")?.dynamic_rows()?;
    let of = |tensor: &HostTensor| tensor.to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect();
    let mut all: Vec<Vec<u32>> = vec![of(&rows.values)];
    all.extend(rows.slots.iter().map(|(_, slot)| of(slot)));
    for name in ["words.weight", "out.weight", "out.bias"] {
        let value = model.variables.get(name)?.flatten_all()?.to_vec1::<f32>()?;
        all.push(value.into_iter().map(f32::to_bits).collect());
    }
    Ok((rows.ids, all.concat()))
}

/// Trains, saves with `save`, and trains on. Returns the bits at the end.
fn saved(
    strategy: &Strategy,
    save: impl FnOnce(&Checkpoint<'_>) -> Result<()>,
) -> Result<(Vec<i64>, Vec<u32>)> {
    let model = model(strategy, DynamicOptions::default())?;
    let rule = rules::Adam { lazy: true, ..Default::default() };
    let optimizer = Optimizer::with_rule(rule, &model.variables, 0.05)?;
    train(strategy, &model, &optimizer, 0..3)?;
    save(&Checkpoint::new().part("model", &model.variables).part("optimizer", &optimizer))?;
    train(strategy, &model, &optimizer, 3..5)?;
    bits(&model)
}

/// Restores, and trains on. Returns the bits at the end.
fn resumed(strategy: &Strategy, path: &Path) -> Result<(Vec<i64>, Vec<u32>)> {
    let model = model(strategy, DynamicOptions::default())?;
    let rule = rules::Adam { lazy: true, ..Default::default() };
    let optimizer = Optimizer::with_rule(rule, &model.variables, 0.05)?;
    // Rows of ids that the checkpoint does not have.
    train(strategy, &model, &optimizer, 7..8)?;
    Checkpoint::new().part("model", &model.variables).part("optimizer", &optimizer).restore(path)?;
    train(strategy, &model, &optimizer, 3..5)?;
    bits(&model)
}

/// Returns all tensors of a checkpoint. Rows of ids are sorted by id.
fn tensors(path: &Path) -> BTreeMap<String, HostTensor> {
    let reader = Reader::open(path).unwrap();
    reader.verify().unwrap();
    let ids_of = |name: &str| {
        let slot = name.strip_prefix("optimizer/").and_then(|rest| rest.split_once('/'));
        let of_ids = name.contains("users.weight");
        of_ids.then(|| match slot {
            Some((_, "ids")) => name.to_owned(),
            Some((_, _)) => "optimizer/users.weight/ids".to_owned(),
            None => "model/users.weight/ids".to_owned(),
        })
    };
    let one = |name: &str| {
        let tensor = reader.tensor(name).unwrap();
        let Some(ids) = ids_of(name) else { return tensor };
        let ids = reader.tensor(&ids).unwrap().to_vec::<i64>().unwrap();
        let mut order: Vec<_> = (0..ids.len()).collect();
        order.sort_by_key(|at| ids[*at]);
        tensor.take_rows(&order).unwrap()
    };
    reader.names().map(|name| (name.to_owned(), one(name))).collect()
}

fn parts(path: &Path) -> Vec<String> {
    names_in(path).into_iter().filter(|name| name.starts_with("part-")).collect()
}

const SERVERS: Tables = Tables::OnServers(3);
const ALL: Tables = Tables::AllOnWorkers(0);

// INV-111, INV-86
#[test]
fn tables_and_ids_that_are_saved_in_parts_are_resumed_on_any_workers_and_servers() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let alone = folder.path().join("alone");
        let save = |strategy: &Strategy, path: &Path| saved(strategy, |state| state.save(path));
        let expected = on_threads(1, 6, PLACEMENTS[0], |strategy| save(strategy, &alone)).unwrap().remove(0);
        assert_eq!(parts(&alone), Vec::<String>::new());
        let worlds = [(2, PLACEMENTS[0]), (3, PLACEMENTS[1]), (2, SERVERS), (6, PLACEMENTS[0]), (3, ALL)];
        for (number, (workers, tables)) in worlds.into_iter().enumerate() {
            let path = folder.path().join(format!("{number}"));
            let all = on_threads(workers, 6 / workers, tables, |strategy| save(strategy, &path)).unwrap();
            assert!(all.iter().all(|bits| *bits == expected), "{workers} {tables:?}");
            assert_eq!(parts(&path).len(), workers, "{tables:?}");
            assert_eq!(tensors(&path), tensors(&alone), "{workers} {tables:?}");
            for (workers, tables) in
                [(1, PLACEMENTS[0]), (3, SERVERS), (2, PLACEMENTS[1]), (3, PLACEMENTS[0])]
            {
                let all =
                    on_threads(workers, 6 / workers, tables, |strategy| resumed(strategy, &path)).unwrap();
                assert!(all.iter().all(|bits| *bits == expected), "{number} on {workers} {tables:?}");
            }
            // A checkpoint without parts, as earlier versions wrote it.
            let all = on_threads(workers, 6 / workers, tables, |strategy| resumed(strategy, &alone)).unwrap();
            assert!(all.iter().all(|bits| *bits == expected), "without parts on {workers} {tables:?}");
        }
    });
}

/// Checks that the rows that do not fit into a limited table are those that would be evicted first, although the file
/// has them in another order.
// INV-111
#[test]
fn the_rows_that_are_evicted_first_are_left_out_of_a_table_without_space() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let (path, limit) =
            (folder.path().join("saved"), DynamicOptions { max_rows: Some(8), ..Default::default() });
        // Three ranges of rows of 2 KiB. The earliest ids of the file were used last.
        const ROWS: usize = 10_000;
        let used: Vec<u64> = (0..ROWS as u64).rev().collect();
        let mut writer = Writer::new();
        let ids: Vec<i64> = (0..ROWS as i64).map(|id| id * 3 - 5000).collect();
        writer.insert("model/users.weight/ids", HostTensor::vector(ids.clone())).unwrap();
        writer.insert("model/users.weight/last_used", HostTensor::vector(used)).unwrap();
        let value = |at: usize| (0..512).map(move |i| (at * 512 + i) as f32);
        let values: Vec<f32> = (0..ROWS).flat_map(value).collect();
        writer.insert("model/users.weight", HostTensor::new(values, [ROWS, 512]).unwrap()).unwrap();
        writer.metadata("model:variables", 1);
        writer.save(&path, 1).unwrap();
        let mut all = Vec::new();
        for workers in [1, 2] {
            let rows = on_threads(workers, 1, PLACEMENTS[0], |strategy| {
                let model = strategy
                    .replicate(move |vb: VarBuilder| dynamic_embedding(512, limit, vb.pp("users")))?;
                Checkpoint::new().part("model", &model.variables).restore(&path)?;
                model.variables.variable("users.weight")?.dynamic_rows()
            });
            let rows = rows.unwrap().remove(0);
            assert!(!rows.ids.is_empty() && rows.ids.len() <= 8 * workers, "{:?}", rows.ids);
            // Each is among the first ids of its shard, and has its values.
            for (row, id) in rows.ids.iter().enumerate() {
                let at = ids.iter().position(|found| found == id).unwrap();
                assert!(at < 200, "{id} is row {at}");
                let found = rows.values.row(row).unwrap().to_vec::<f32>().unwrap();
                assert!(found.into_iter().eq(value(at)), "{id}");
            }
            all.push(rows.ids.len());
        }
        assert!(all[1] >= all[0]);
    });
}

// INV-111
#[test]
fn workers_that_do_not_share_the_folder_save_by_the_chief_and_are_told_so() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let chiefs = folder.path().join("chiefs");
        std::fs::create_dir(&chiefs).unwrap();
        let expected = folder.path().join("shared");
        on_threads(2, 1, PLACEMENTS[0], |strategy| saved(strategy, |state| state.save(&expected))).unwrap();
        let other = folder.path().join("nowhere").join("at all");
        for _ in 0..2 {
            let texts = on_threads(2, 1, PLACEMENTS[0], |strategy| {
                let path = if chief(strategy) { &chiefs } else { &other };
                let mut text = String::new();
                saved(strategy, |state| {
                    text = warnings(|| {
                        state.save(path.join("first"))?;
                        state.save(path.join("second"))
                    })?;
                    Ok(())
                })?;
                Ok(text)
            });
            let texts = texts.unwrap();
            let told = "because they do not share the folder";
            assert_eq!(texts[0].matches(told).count(), 2, "{}", texts[0]);
            assert!(texts[0].contains("worker 1") && texts[0].contains("nowhere/at all"), "{}", texts[0]);
            assert!(!texts[1].contains(told), "{}", texts[1]);
            for name in ["first", "second"] {
                assert_eq!(parts(&chiefs.join(name)), Vec::<String>::new());
                assert_eq!(tensors(&chiefs.join(name)), tensors(&expected));
                std::fs::remove_dir_all(chiefs.join(name)).unwrap();
            }
            assert_eq!(names_in(&chiefs), Vec::<String>::new());
            // The folder exists on worker 1, but it is another one.
            std::fs::create_dir_all(&other).unwrap();
        }
    });
}

/// A failure that does not mean that the folder is another one, such as that of a full disk.
// INV-111, INV-2
#[cfg(unix)]
#[test]
fn a_worker_that_cannot_create_its_part_is_named_and_the_chief_does_not_save_alone() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let (chiefs, looped) = (folder.path().join("chiefs"), folder.path().join("looped"));
        std::fs::create_dir(&chiefs).unwrap();
        std::os::unix::fs::symlink(&looped, &looped).unwrap();
        let errors = on_threads(2, 1, PLACEMENTS[0], |strategy| {
            let path = if chief(strategy) { &chiefs } else { &looped };
            let model = model(strategy, DynamicOptions::default())?;
            let state = Checkpoint::new().part("model", &model.variables);
            let error = state.save(path.join("saved")).unwrap_err();
            // All are still in step.
            state.save(chiefs.join("next"))?;
            Ok(error)
        });
        for error in errors.unwrap() {
            let text = error.to_string();
            assert!(text.contains("worker 1") && text.contains("looped"), "{text}");
        }
        assert_eq!(names_in(&chiefs), ["next"]);
    });
}

// INV-111
#[test]
fn a_save_in_the_background_is_in_parts_and_complete_when_it_returns() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let (alone, managed) = (folder.path().join("alone"), folder.path().join("managed"));
        let save = |strategy: &Strategy| saved(strategy, |state| state.save(&alone));
        on_threads(1, 2, PLACEMENTS[0], save).unwrap();
        let begin = |strategy: &Strategy| {
            saved(strategy, |state| {
                let saving = state.save_async(&CheckpointManager::new(&managed)?)?;
                let path = managed.join("ckpt-000001");
                assert!(saving.is_finished() && saving.path() == path && path.exists());
                assert_eq!(saving.wait(Duration::from_secs(60))?, path);
                Ok(())
            })
        };
        on_threads(2, 1, PLACEMENTS[0], begin).unwrap();
        let path = managed.join("ckpt-000001");
        assert_eq!(parts(&path).len(), 2);
        assert_eq!(tensors(&path), tensors(&alone));
    });
}

/// A component of the chief. While it is written, which is after all parts, another worker is lost.
struct Loses(Arc<Mutex<Option<Strategy>>>);

impl Checkpointed for Loses {
    fn save(&self, prefix: &str, writer: &mut Writer) -> Result<()> {
        let live: Arc<dyn LiveTensors> = Arc::new(Loses(self.0.clone()));
        Ok(writer.insert_live(prefix, DType::I64, [], &live, 0)?)
    }

    fn restore<'a>(&'a self, _: &str, _: &Reader) -> Result<Restore<'a>> {
        Ok(Box::new(|| Ok(())))
    }
}

impl LiveTensors for Loses {
    fn hold(&self) -> Result<Box<dyn HeldTensors + '_>, SourceError> {
        Ok(Box::new(Loses(self.0.clone())))
    }
}

impl HeldTensors for Loses {
    fn copy(&self, _: usize) -> Result<HostTensor, SourceError> {
        let lost = self.0.lock().unwrap().take().ok_or("the other worker has not begun")?;
        lost.extended().group().ok_or("it has no group")?.end();
        Ok(HostTensor::scalar(7i64))
    }
}

// INV-107, INV-111
#[test]
fn a_worker_that_is_lost_after_all_parts_does_not_end_the_save_of_the_chief() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let lost = Arc::new(Mutex::new(None));
        let errors = on_threads(2, 1, PLACEMENTS[0], |strategy| {
            if !chief(strategy) {
                *lost.lock().unwrap() = Some(strategy.clone());
            }
            let manager = CheckpointManager::new(folder.path())?;
            let model = model(strategy, DynamicOptions::default())?;
            let loses = Loses(lost.clone());
            let state = Checkpoint::new().part("model", &model.variables).part("loses", &loses);
            Ok(state.save_to(&manager).unwrap_err())
        });
        let errors = errors.unwrap();
        assert!(errors[0].to_string().contains("worker 1"), "{}", errors[0]);
        let path = folder.path().join("ckpt-000001");
        assert_eq!(parts(&path).len(), 2);
        assert_eq!(tensors(&path)["loses"], HostTensor::scalar(7i64));
        assert_eq!(names_in(folder.path()), [".lock", "ckpt-000001"]);
    });
}

/// A component with rows on each worker. Reading those of one worker calls `fail`.
struct Fails<'a> {
    strategy: &'a Strategy,
    worker: usize,
    fail: fn(&Strategy) -> Result<()>,
}

impl Checkpointed for Fails<'_> {
    fn save(&self, prefix: &str, writer: &mut Writer) -> Result<()> {
        let (strategy, fail) = (self.strategy.clone(), self.fail);
        let fails = strategy.world().worker() == self.worker;
        let read = move |rows: std::ops::Range<usize>| {
            if fails && rows.start > 0 {
                fail(&strategy)?;
            }
            Ok(HostTensor::zeros(DType::F32, [rows.len(), 1 << 20])?)
        };
        Ok(writer.insert_own_read(prefix, RowPosition::Next, DType::F32, [6, 1 << 20], read)?)
    }

    fn restore<'a>(&'a self, _: &str, _: &Reader) -> Result<Restore<'a>> {
        Ok(Box::new(|| Ok(())))
    }
}

fn fails_to_save(worker: usize, fail: fn(&Strategy) -> Result<()>, is_lost: bool) -> Vec<Error> {
    watched(move || {
        let folder = tempfile::tempdir().unwrap();
        let errors = on_threads(3, 1, PLACEMENTS[0], |strategy| {
            let manager = CheckpointManager::new(folder.path())?;
            let model = model(strategy, DynamicOptions::default())?;
            let state = Checkpoint::new().part("model", &model.variables);
            let first = state.save_to(&manager)?;
            let fails = Fails { strategy, worker, fail };
            let error = state.clone().part("fails", &fails).save_to(&manager).unwrap_err();
            assert_eq!(manager.paths()?, [&*first]);
            if !is_lost {
                // All are still in step.
                let next = state.save_to(&manager)?;
                assert_eq!(tensors(&first), tensors(&next));
            }
            Ok(error)
        });
        let left = names_in(folder.path());
        assert!(left.iter().all(|name| !name.ends_with(".part")), "{left:?}");
        errors.unwrap()
    })
}

// INV-111, INV-2
#[test]
fn a_worker_that_cannot_write_its_part_is_named_on_all_and_no_checkpoint_is_left() {
    for worker in [0, 1] {
        let errors = fails_to_save(worker, |_| Err(Error::other("the disk is gone")), false);
        for error in errors {
            let text = error.to_string();
            assert!(text.contains(&format!("worker {worker} failed: ")), "{text}");
            assert!(text.contains("the disk is gone"), "{text}");
        }
    }
}

// INV-111, INV-3
#[test]
fn a_worker_that_is_lost_while_it_writes_its_part_ends_the_save() {
    let end = |strategy: &Strategy| {
        strategy.extended().group().expect("workers have a group").end();
        Err(Error::other("this worker leaves"))
    };
    let errors = fails_to_save(1, end, true);
    for worker in [0, 2] {
        assert!(errors[worker].to_string().contains("worker 1"), "{}", errors[worker]);
    }
}
