//! Checkpoints of several workers: the chief writes, all read, and the outcome is the same on all.

mod background;
mod killed;
mod lost;
mod parts;
mod positions;

use crate::multi_worker::{errors, on_threads, on_workers, one_message};
use candle_nn::{Init, VarBuilder};
use distribute::checkpoint::{CheckpointManager, Checkpointed, Reader, Restore, Writer};
use distribute::tensor::DType;
use distribute::variables::{VariableAggregation, VariableSynchronization};
use distribute::{Checkpoint, Error, HostTensor, MirroredStrategy, Replicated, Result, Strategy, Variable};
use distribute_testing::watched;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};
use tempfile::TempDir;

/// Creates a model with one variable, whose elements are all `value`.
fn model(strategy: &Strategy, value: f64) -> Result<Replicated<candle_core::Tensor>> {
    let model = strategy.replicate(|vb: VarBuilder| vb.get_with_hints(3, "w", Init::Const(0.)))?;
    let value = candle_core::Tensor::full(value as f32, 3, &candle_core::Device::Cpu)?;
    model.variables.set("w", &value)?;
    Ok(model)
}

fn value(model: &Replicated<candle_core::Tensor>) -> Result<f32> {
    Ok(model.variables.get("w")?.to_vec1::<f32>()?[0])
}

/// Returns a temporary folder, and a path in it at which a checkpoint can be saved.
fn new_path() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved");
    (folder, path)
}

/// Returns the warnings and errors that `body` logs.
fn warnings(body: impl FnOnce() -> Result<()>) -> Result<String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    let log = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_ansi(false);
    let log = log.with_writer(Mutex::new(file.reopen().unwrap())).finish();
    tracing::subscriber::with_default(log, body)?;
    Ok(std::fs::read_to_string(file.path()).unwrap())
}

fn chief(strategy: &Strategy) -> bool {
    strategy.world().worker() == 0
}

#[test]
fn ckpt_only_the_chief_writes_the_checkpoint_that_all_workers_save_and_restore() {
    let (folder, path) = new_path();
    let saved = path.clone();
    on_workers(3, 2, move |strategy| {
        let model = model(strategy, 7.)?;
        strategy.run((), |_, ()| Ok(()))?;
        assert_eq!(strategy.is_chief(), chief(strategy));
        // On other workers the folder may be another one: nothing is written there, and a warning says so.
        let path = if chief(strategy) { saved.clone() } else { PathBuf::from("/nowhere/at/all") };
        let parts = Checkpoint::new().part("model", &model.variables).part("steps", strategy);
        let told = warnings(|| parts.metadata("epoch", 4).save(path))?;
        let told: Vec<_> = told.lines().collect();
        assert_eq!(told.len(), usize::from(!chief(strategy)), "{told:?}");
        let says = |text: &&str| {
            text.contains("nothing is at /nowhere/at/all: the chief has saved for all workers, at ")
        };
        assert!(told.iter().all(says), "{told:?}");
        Ok(())
    });
    let saved = path.clone();
    let restored = move |strategy: &Strategy| {
        let model = model(strategy, 0.)?;
        let parts = Checkpoint::new().part("model", &model.variables).part("steps", strategy);
        let reader = parts.restore(&saved)?;
        assert_eq!(reader.metadata("epoch").and_then(|epoch| epoch.as_u64()), Some(4));
        Ok((value(&model)?, strategy.steps()))
    };
    assert_eq!(restored(&MirroredStrategy::cpus(2).unwrap()).unwrap(), (7., 1));
    assert_eq!(on_workers(2, 1, restored), [(7., 1); 2]);
    drop(folder);
}

#[test]
fn an_error_of_the_chief_is_that_of_all_workers() {
    let (folder, path) = new_path();
    std::fs::create_dir(&path).unwrap();
    let taken = path.clone();
    let errors = errors(3, 1, move |strategy| {
        let model = model(strategy, 1.)?;
        let saved = Checkpoint::new().part("model", &model.variables).save(&taken);
        let file = model.variables.save(taken.join("no/folder/weights.safetensors"));
        one_message(&[file.unwrap_err()], &["worker 0 failed: writing "]);
        // The workers are still in step.
        assert_eq!(
            strategy.run((), |ctx, ()| ctx.all_reduce(distribute::ReduceOp::Sum, 1f32))?.values(),
            [3.]
        );
        saved
    });
    one_message(&errors, &["worker 0 failed: ", "exists: a checkpoint is never overwritten"]);
    assert!(matches!(errors[0].root_cause(), Error::Checkpoint(_)));
    drop(folder);
}

/// A component that cannot be read on one worker.
struct Broken<'a>(&'a Strategy);

impl Checkpointed for Broken<'_> {
    fn save(&self, _: &str, _: &mut Writer) -> Result<()> {
        self.read()
    }
    fn restore<'a>(&'a self, _: &str, _: &Reader) -> Result<Restore<'a>> {
        self.read()?;
        Ok(Box::new(|| Ok(())))
    }
}

impl Broken<'_> {
    fn read(&self) -> Result<()> {
        match self.0.world().worker() {
            1 => Err(Error::other("the tokenizer is gone")),
            _ => Ok(()),
        }
    }
}

/// Checks INV-23 over workers: nothing is written or changed if one worker cannot access its component.
#[test]
fn inv_23_a_worker_that_cannot_read_its_parts_keeps_all_from_saving_and_restoring() {
    let (folder, path) = new_path();
    let (whole, half) = (path.clone(), folder.path().join("half"));
    let not_there = half.clone();
    let errors = on_workers(2, 1, move |strategy| {
        let model = model(strategy, 5.)?;
        Checkpoint::new().part("model", &model.variables).save(&whole)?;
        let w = candle_core::Tensor::zeros(3, candle_core::DType::F32, &candle_core::Device::Cpu)?;
        model.variables.set("w", &w)?;
        let broken = Broken(strategy);
        let parts = Checkpoint::new().part("model", &model.variables).part("tokens", &broken);
        let errors = [parts.save(&half).unwrap_err(), parts.restore(&whole).unwrap_err()];
        assert_eq!(value(&model)?, 0.);
        Ok(errors)
    });
    for i in [0, 1] {
        let pair: Vec<_> = errors.iter().map(|errors| errors[i].to_string()).collect();
        assert_eq!(pair, ["worker 1 failed: the tokenizer is gone"; 2]);
    }
    assert!(!not_there.exists());
}

/// A component with three ranges of 8 MiB. When the chief reads the second range, worker 1 leaves the group.
struct Large {
    first: Strategy,
    other: Arc<OnceLock<Strategy>>,
}

impl Checkpointed for Large {
    fn save(&self, prefix: &str, writer: &mut Writer) -> Result<()> {
        let Self { first, other } = self;
        let (is_chief, other) = (chief(first), other.clone());
        let read = move |rows: std::ops::Range<usize>| {
            if let (2, true, Some(other)) = (rows.start, is_chief, other.get()) {
                other.extended().group().expect("workers have a group").end();
            }
            Ok(HostTensor::zeros(DType::F32, [rows.len(), 1 << 20])?)
        };
        Ok(writer.insert_read(prefix, DType::F32, [6, 1 << 20], read)?)
    }

    fn restore<'a>(&'a self, _: &str, _: &Reader) -> Result<Restore<'a>> {
        Ok(Box::new(|| Ok(())))
    }

    fn strategy(&self) -> Option<&Strategy> {
        Some(&self.first)
    }
}

/// Checks that the other workers wait while the chief reports progress, and that the chief notices the loss of one of
/// them before the save ends.
// INV-3, INV-21
#[test]
fn a_worker_that_is_lost_while_the_chief_writes_ends_the_save_and_leaves_no_file() {
    watched(|| {
        let (folder, path) = new_path();
        let other = Arc::new(OnceLock::new());
        let errors = on_threads(2, 1, |strategy| {
            if !chief(strategy) {
                other.get_or_init(|| strategy.clone());
            }
            let large = Large { first: strategy.clone(), other: other.clone() };
            let saved = Checkpoint::new().part("large", &large).save(&path);
            Ok(saved.unwrap_err())
        });
        let errors = errors.unwrap();
        assert!(errors[0].to_string().contains("worker 1"), "{}", errors[0]);
        assert!(errors[0].blame().is_some(), "{:?}", errors[0]);
        assert_eq!(distribute_testing::names_in(folder.path()), Vec::<String>::new());
    });
}

#[test]
fn a_worker_that_misses_a_save_is_named() {
    let (folder, path) = new_path();
    let results = on_workers(3, 1, move |strategy| {
        let model = model(strategy, 1.)?;
        match strategy.world().worker() {
            2 => Ok(None),
            _ => Ok(Some(Checkpoint::new().part("model", &model.variables).save(&path).unwrap_err())),
        }
    });
    for error in results.iter().flatten() {
        assert_eq!(error.blame().expect("a blame").culprits, [2], "{error}");
        assert!(error.to_string().contains("save (parts model) at "), "{error}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was written");
}

#[test]
fn a_manager_keeps_the_last_ones_and_all_workers_restore_the_chiefs_latest() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_path_buf();
    let paths = on_workers(2, 2, move |strategy| {
        let model = model(strategy, 0.)?;
        let parts = Checkpoint::new().part("model", &model.variables);
        let manager = CheckpointManager::new(&path)?.keep(2);
        assert!(parts.restore_latest(&manager)?.is_none());
        let mut paths = Vec::new();
        for number in 1..=3 {
            let w = candle_core::Tensor::full(number as f32, 3, &candle_core::Device::Cpu)?;
            model.variables.set("w", &w)?;
            paths.push(parts.save_to(&manager)?);
        }
        let left = manager.paths()?;
        let latest = parts.restore_latest(&manager)?.expect("three were saved");
        assert_eq!((latest.path(), value(&model)?), (&*paths[2], 3.));
        assert_eq!(left, paths[1..]);
        Ok(paths)
    });
    assert_eq!(paths[0], paths[1]);
    assert!(paths[0][2].ends_with("ckpt-000003"));
}

/// Returns the results of workers with separate folders. The folder of worker w contains the checkpoints 1 to
/// `counts[w]`, which are the same on all workers if `same` is `true`.
fn apart(counts: [u64; 2], same: bool) -> Vec<Result<(String, f32), String>> {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    for (worker, folder) in folders.iter().enumerate() {
        let strategy = MirroredStrategy::cpus(1).unwrap();
        let model = model(&strategy, 0.).unwrap();
        let manager = CheckpointManager::new(folder.path()).unwrap();
        for number in 1..=counts[worker] {
            let value = number as f32 + if same { 0. } else { worker as f32 / 8. };
            let w = candle_core::Tensor::full(value, 3, &candle_core::Device::Cpu).unwrap();
            model.variables.set("w", &w).unwrap();
            Checkpoint::new().part("model", &model.variables).save_to(&manager).unwrap();
        }
    }
    on_workers(2, 1, move |strategy| {
        let model = model(strategy, 0.)?;
        let manager = CheckpointManager::new(folders[strategy.world().worker()].path())?;
        let latest = Checkpoint::new().part("model", &model.variables).restore_latest(&manager);
        let name = |reader: Option<Reader>| {
            let path = reader.map(|reader| reader.path().file_name().unwrap().to_string_lossy().into_owned());
            path.unwrap_or_default()
        };
        let value = value(&model)?;
        Ok(latest.map(|latest| (name(latest), value)).map_err(|error| {
            assert_eq!(value, 0., "nothing has changed");
            error.to_string()
        }))
    })
}

/// Checks workers whose folder contains more or fewer checkpoints than the chief's, or other ones.
#[test]
fn all_workers_restore_the_checkpoint_that_the_chief_calls_the_latest() {
    let restored = |name: &str, value| vec![Ok((name.to_string(), value)); 2];
    assert_eq!(apart([2, 3], true), restored("ckpt-000002", 2.));
    assert_eq!(apart([0, 3], true), restored("", 0.));
    let lacks = apart([3, 2], true);
    assert_eq!(lacks[0], lacks[1]);
    let text = lacks[0].clone().unwrap_err();
    assert!(text.starts_with("worker 1 failed: ") && text.contains("has no ckpt-000003"), "{text}");
    let other = apart([2, 2], false);
    assert_eq!(other[0], other[1]);
    let text = other[0].clone().unwrap_err();
    for part in
        ["Checkpoint::restore: the checkpoint of worker 1 is one with checksum", "of worker 0", "one folder"]
    {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn weights_alone_are_written_by_the_chief_and_compared_by_all() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let results = on_workers(2, 1, move |strategy| {
        let worker = strategy.world().worker();
        let (mine, shared) = (folders[worker].path().join("w"), folders[0].path().join("w"));
        let model = model(strategy, 6.)?;
        model.variables.save(&mine)?;
        assert!(!folders[1].path().join("w").exists());
        let zeros = candle_core::Tensor::zeros(3, candle_core::DType::F32, &candle_core::Device::Cpu)?;
        model.variables.set("w", &zeros)?;
        let alone = model.variables.load(&mine).unwrap_err().to_string();
        model.variables.load(&shared)?;
        let loaded = value(&model)?;
        // The file of the other worker has other values.
        strategy.run((), |_, ()| Ok(()))?;
        if worker == 1 {
            let one = MirroredStrategy::cpus(1)?;
            self::model(&one, 8.)?.variables.save(&mine)?;
        }
        let other = model.variables.load(&mine).unwrap_err().to_string();
        let some = model
            .variables
            .load_some([&mine], &distribute::checkpoint::RestoreFilter::all())
            .unwrap_err()
            .to_string();
        assert_eq!(value(&model)?, 6.);
        Ok((loaded, alone, other, some))
    });
    assert_eq!(results[0], results[1]);
    let (loaded, alone, other, some) = &results[0];
    assert_eq!(*loaded, 6.);
    assert!(alone.starts_with("worker 1 failed: "), "{alone}");
    assert!(other.starts_with("load: what was read of worker 1 is of SHA-256 "), "{other}");
    assert!(some.starts_with("load_some: what was read of worker 1"), "{some}");
}

/// Checks the copies of an ON_READ variable on the replicas of all workers, in the order of replica ids.
#[test]
fn copies_of_all_workers_are_saved_and_restored_on_the_same_number() {
    let (folder, path) = new_path();
    let variable = |strategy: &Strategy| {
        let new = Variable::builder("seen", HostTensor::scalar(0i64))
            .synchronization(VariableSynchronization::OnRead);
        strategy.scope(|| new.aggregation(VariableAggregation::OnlyFirstReplica).create())
    };
    let saved = path.clone();
    on_workers(2, 2, move |strategy| {
        let seen = variable(strategy)?;
        strategy
            .run((), |ctx, ()| seen.assign(HostTensor::scalar(10 + ctx.replica_id_in_sync_group() as i64)))?;
        Checkpoint::new().part("seen", &seen).save(&saved)
    });
    let saved = Reader::open(&path).unwrap().tensor("seen/per_replica").unwrap();
    assert_eq!(saved.to_vec::<i64>().unwrap(), [10, 11, 12, 13]);
    for (workers, replicas) in [(1, 4), (2, 2), (4, 1)] {
        let path = path.clone();
        let copies = on_workers(workers, replicas, move |strategy| {
            let seen = variable(strategy)?;
            Checkpoint::new().part("seen", &seen).restore(&path)?;
            let copies = seen.copies::<HostTensor>()?;
            copies.iter().map(|copy| Ok(copy.to_vec::<i64>()?[0])).collect::<Result<Vec<_>>>()
        });
        assert_eq!(copies.concat(), [10, 11, 12, 13], "{workers} × {replicas}");
    }
    drop(folder);
}
