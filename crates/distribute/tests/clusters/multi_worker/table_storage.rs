//! The storage of tables that workers store together: ranges of rows in checkpoints, cached rows, and all weights.

use super::tables::{PLACEMENTS, Tables, WORDS, model, on_threads, train};
use candle_core::{DType, Device, Module, Tensor};
use candle_nn::VarBuilder;
use distribute::checkpoint::{Checkpoint, Checkpointed, Reader, Restore, Writer};
use distribute::nn::{Embedding, embedding};
use distribute::parameter_server::{RowCacheOptions, RowCacheUsage};
use distribute::strategy::{Links, RowFormat, TableHosts, TableOptions};
use distribute::{ErrorKind, HostTensor, Result, Strategy, prelude::*};
use distribute_testing::watched;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Returns the metadata and all tensors of a checkpoint, which do not depend on the number of its files.
fn contents(path: &Path) -> (String, BTreeMap<String, HostTensor>) {
    let reader = Reader::open(path).unwrap();
    let tensors = reader.names().map(|name| (name.to_owned(), reader.tensor(name).unwrap()));
    (format!("{:?}", reader.all_metadata()), tensors.collect())
}

/// Checks a table of several ranges of 8 MiB, whose checkpoint is the same as that of a mirrored table.
// INV-21, INV-23
#[test]
fn a_large_table_is_saved_and_restored_by_ranges_of_rows() {
    // Few rows of 4 KiB: the time of unoptimized code depends on their number.
    const ROWS: usize = 2301;
    fn train(
        strategy: &Strategy,
        steps: std::ops::Range<u32>,
        then: impl Fn(&Checkpoint<'_>) -> Result<()>,
    ) -> Result<String> {
        let model = strategy.replicate_seeded(3, |vb: VarBuilder| embedding(ROWS, 1024, vb.pp("words")))?;
        let optimizer = Adam::new(&model.variables, 0.05)?;
        let state = Checkpoint::new().part("model", &model.variables).part("optimizer", &optimizer);
        if steps.start > 0 {
            then(&state)?;
        }
        for step in steps.clone() {
            strategy.run(&model, |ctx, words: &Embedding| {
                let ids = Tensor::new(
                    &[step, ctx.replica_id_in_sync_group() as u32, ROWS as u32 - 1],
                    &Device::Cpu,
                )?;
                optimizer.minimize(ctx, words.forward(&ids)?.sqr()?.mean_all()?, 3)
            })?;
        }
        if steps.start == 0 {
            // A checksum takes longer than the save.
            return then(&state).map(|()| String::new());
        }
        model.variables.sha256()
    }
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let mirrored = MirroredStrategy::cpus(2).unwrap();
        train(&mirrored, 0..2, |state| state.save(path("mirrored")).map(drop)).unwrap();
        let expected = train(&mirrored, 2..3, |state| state.restore(path("mirrored")).map(drop)).unwrap();
        let saved = contents(&path("mirrored"));
        for tables in [PLACEMENTS[0], PLACEMENTS[1], PLACEMENTS[3]] {
            let name = format!("{tables:?}");
            on_threads(2, 1, tables, |strategy| {
                train(strategy, 0..2, |state| state.save(path(&name)).map(drop))
            })
            .unwrap();
            assert!(contents(&path(&name)) == saved, "{tables:?}");
            let all = on_threads(2, 1, tables, |strategy| {
                train(strategy, 2..3, |state| state.restore(path("mirrored")).map(drop))
            });
            assert!(all.unwrap().iter().all(|sum| *sum == expected), "{tables:?}");
        }
        // A flipped bit in the last range of the values is found before anything is written.
        let mut files = std::fs::read_dir(path("mirrored")).unwrap().map(|file| file.unwrap().path());
        let file = files.find(|file| file.extension().is_some_and(|end| end == "safetensors")).unwrap();
        let mut bytes = std::fs::read(&file).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&file, bytes).unwrap();
        let all = on_threads(2, 1, PLACEMENTS[0], |strategy| {
            let model =
                strategy.replicate_seeded(3, |vb: VarBuilder| embedding(ROWS, 1024, vb.pp("words")))?;
            let optimizer = Adam::new(&model.variables, 0.05)?;
            let before = model.variables.sha256()?;
            let state = Checkpoint::new().part("model", &model.variables).part("optimizer", &optimizer);
            let error = state.restore(path("mirrored")).unwrap_err().to_string();
            assert!(error.contains("checksum"), "{error}");
            assert_eq!(model.variables.sha256()?, before);
            Ok(())
        });
        all.unwrap();
    });
}

/// A component that truncates the files of the checkpoint in a folder, after the components before it were verified.
struct Damages<'a>(&'a Path);

impl Checkpointed for Damages<'_> {
    fn save(&self, _: &str, _: &mut Writer) -> Result<()> {
        Ok(())
    }

    fn restore<'a>(&'a self, _: &str, _: &Reader) -> Result<Restore<'a>> {
        for file in fs::read_dir(self.0).unwrap().map(|file| file.unwrap().path()) {
            if file.extension().is_some_and(|end| end == "safetensors") {
                fs::OpenOptions::new().write(true).open(file).unwrap().set_len(0).unwrap();
            }
        }
        Ok(Box::new(|| Ok(())))
    }
}

/// Checks a worker that cannot read its checkpoint again when rows are written. Values and slots may then be those of
/// different steps, so no step is made with them.
// INV-23, INV-86
#[test]
fn a_failed_restore_of_tables_ends_every_step_until_they_are_restored() {
    watched(|| {
        for (tables, slots_first) in [(PLACEMENTS[0], false), (PLACEMENTS[3], true)] {
            let folder = tempfile::tempdir().unwrap();
            let all = on_threads(2, 1, tables, |strategy| {
                let model = model(strategy)?;
                let optimizer = Adam::new(&model.variables, 0.05)?;
                let parts: [(&str, &dyn Checkpointed); 2] =
                    [("model", &model.variables), ("optimizer", &optimizer)];
                let state =
                    parts.into_iter().fold(Checkpoint::new(), |all, (name, part)| all.part(name, part));
                let (good, worker) = (folder.path().join("good"), strategy.world().worker());
                train(strategy, &model, &optimizer, 0..3)?;
                state.save(&good)?;
                train(strategy, &model, &optimizer, 3..6)?;
                let once = model.variables.sha256()?;

                // A copy for each worker; that of worker 1 is damaged.
                let copy = folder.path().join(format!("copy-{worker}"));
                fs::create_dir(&copy).unwrap();
                for name in distribute_testing::names_in(&good) {
                    fs::copy(good.join(&name), copy.join(&name)).unwrap();
                }
                let nowhere = folder.path().join(format!("nothing-{worker}"));
                fs::create_dir(&nowhere).unwrap();
                let damages = Damages(if worker == 1 { &copy } else { &nowhere });
                let order = if slots_first { [parts[1], parts[0]] } else { parts };
                let damaged =
                    order.into_iter().fold(Checkpoint::new(), |all, (name, part)| all.part(name, part));
                let error = damaged.part("damages", &damages).restore(&copy).unwrap_err().to_string();
                assert!(error.contains("worker 1 failed"), "{error}");
                for _ in 0..2 {
                    let error = train(strategy, &model, &optimizer, 3..4).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::RestoreNeeded, "{error}");
                    let text = error.to_string();
                    assert!(
                        text.contains("or a restore before it") && text.contains("worker 0, worker 1"),
                        "{text}"
                    );
                }
                state.restore(&good)?;
                train(strategy, &model, &optimizer, 3..6)?;
                Ok((once, model.variables.sha256()?))
            });
            assert!(all.unwrap().iter().all(|(once, twice)| once == twice), "{tables:?}");
        }
    });
}

/// Checks that rows within the age limit are read from the cache. The results depend only on the limit, and a write
/// outside steps is visible at once.
// INV-87
#[test]
fn cached_rows_lack_as_many_steps_as_the_bound_permits() {
    fn body(strategy: &Strategy) -> Result<(String, RowCacheUsage, u64)> {
        let model = model(strategy)?;
        let optimizer = distribute::Sgd::new(&model.variables, 0.05)?;
        let usage = || strategy.extended().parameter_servers().unwrap().row_cache_usage();
        train(strategy, &model, &optimizer, 0..20)?;
        let sum = model.variables.sha256()?;
        let (used, read) = (usage(), strategy.extended().parameter_servers().unwrap().usage()?);
        model.variables.set("words.weight", &Tensor::zeros((WORDS, 3), DType::F32, &Device::Cpu)?)?;
        let ids = Tensor::new(&[[0u32, 3, 6], [11, 14, 17]], &Device::Cpu)?;
        let rows = strategy
            .run(&model, |_, model| Ok(model.words.forward(&ids)?.flatten_all()?.to_vec1::<f32>()?))?;
        assert!(rows.values()[0].iter().all(|x| *x == 0.));
        Ok((sum, used, read.iter().map(|server| server.rows_read).sum()))
    }
    watched(|| {
        let of = |tables| on_threads(2, 2, tables, body).unwrap();
        let exact = of(PLACEMENTS[0]);
        assert!(exact.iter().all(|(_, used, _)| *used == RowCacheUsage::default()));
        let [now, old] = [of(Tables::Cached(0)), of(Tables::Cached(3))];
        assert!(now.iter().all(|(sum, used, _)| *sum == exact[0].0 && used.max_age == 0 && used.hits > 0));
        assert!(old.iter().all(|(sum, used, _)| *sum != exact[0].0 && (1..=3).contains(&used.max_age)));
        let read = |all: &[(_, RowCacheUsage, u64)]| all[0].2;
        assert!(read(&old) < read(&now) && read(&now) < read(&exact), "{old:?} {now:?} {exact:?}");
        let again = of(Tables::Cached(3));
        assert_eq!(again[0].0, old[0].0);
    });
}

/// Checks the counters of caches: they never fall, and saved bytes are the size that a message would have had.
#[test]
fn the_use_of_caches_still_counts_when_a_model_is_dropped() {
    watched(|| {
        for (format, width) in [(RowFormat::Full, 4), (RowFormat::Bf16 { seed: 7 }, 2)] {
            let row_cache = Some(RowCacheOptions { staleness: 3, ..Default::default() });
            let tables = TableOptions { row_cache, format, min_bytes: 0, ..TableHosts::Workers.into() };
            let builder = MultiWorkerMirroredStrategy::builder().tables(tables);
            let all = builder.on_threads(Links::Memory, 2, |strategy| {
                let usage = || strategy.extended().parameter_servers().unwrap().row_cache_usage();
                let used = {
                    let model = strategy.replicate(|vb: VarBuilder| embedding(50, 8, vb.pp("words")))?;
                    let optimizer = Sgd::new(&model.variables, 0.05)?;
                    let ids = Tensor::new(&[1u32, 7, 30], &Device::Cpu)?;
                    for _ in 0..5 {
                        strategy.run(&model, |ctx, words: &Embedding| {
                            optimizer.minimize(ctx, words.forward(&ids)?.sqr()?.mean_all()?, 3)
                        })?;
                    }
                    usage()
                };
                Ok((used, usage()))
            });
            for (used, after) in all.unwrap() {
                assert!(used.hits > 0 && used.saved_bytes == used.hits * 8 * width, "{format:?}: {used:?}");
                assert_eq!((after.hits, after.misses), (used.hits, used.misses));
                assert_eq!((after.saved_bytes, after.max_age), (used.saved_bytes, used.max_age));
                assert!(used.rows > 0 && after.rows == 0, "{after:?}");
            }
        }
    });
}

/// Checks that all weights are stored once, with their slots, and some of them on each server.
#[test]
fn all_weights_of_a_model_are_stored_on_workers_or_servers() {
    fn body(strategy: &Strategy) -> Result<(Vec<u64>, Vec<usize>)> {
        let model = model(strategy)?;
        let optimizer = Adam::new(&model.variables, 0.05)?;
        train(strategy, &model, &optimizer, 0..2)?;
        let shards = model.variables.names().into_iter().map(|name| {
            let variable = model.variables.variable(&name)?;
            Ok(variable.shards().len())
        });
        let shards = shards.collect::<Result<_>>()?;
        let usage = strategy.extended().parameter_servers().unwrap().usage()?;
        // Values and two slots.
        assert!(usage.iter().all(|server| server.bytes > 0 && server.bytes.is_multiple_of(3 * 4)));
        Ok((usage.iter().map(|server| server.rows).collect(), shards))
    }
    watched(|| {
        // Both tables have 57 rows; the layer has 2 rows and 2 biases.
        for (tables, rows, shards) in [
            (Tables::AllOnWorkers(0), vec![60, 58], vec![2; 4]),
            (Tables::AllOnWorkers(100), vec![60, 58], vec![2, 1, 1, 2]),
            (Tables::AllOnServers(2), vec![60, 58], vec![2; 4]),
        ] {
            for (found, parts) in on_threads(2, 1, tables, body).unwrap() {
                assert_eq!(found.iter().sum::<u64>(), rows.iter().sum::<u64>(), "{tables:?}");
                assert_eq!((found, parts), (rows.clone(), shards.clone()), "{tables:?}");
            }
        }
    });
}

/// Checks that a copy of the state keeps the values of its step, even if it is written after further steps.
#[test]
fn a_copy_of_the_state_is_not_changed_by_further_steps() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let all = on_threads(2, 1, PLACEMENTS[0], |strategy| {
            let model = model(strategy)?;
            let optimizer = Adam::new(&model.variables, 0.05)?;
            let state = Checkpoint::new().part("model", &model.variables).part("optimizer", &optimizer);
            train(strategy, &model, &optimizer, 0..2)?;
            state.save(path("saved"))?;
            let copy = state.writer()?;
            train(strategy, &model, &optimizer, 2..4)?;
            if strategy.is_chief() {
                copy.save(path("copy"), 1)?;
            }
            Ok(())
        });
        all.unwrap();
        assert!(contents(&path("copy")) == contents(&path("saved")));
    });
}
