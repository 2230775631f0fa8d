//! Checks that a save in the background contains the state at the time of its call, although training continues at
//! once.

use super::{Net, Training};
use crate::support::gate::Gate;
use candle_core::{DType, Device, Tensor};
use distribute::checkpoint::{
    CheckpointManager, Checkpointed, HeldTensors, LiveTensors, Reader, Restore, SourceError, Writer,
};
use distribute::optimizer::rules::{Adam, Rule, Sgd};
use distribute::{Checkpoint, Error, HostTensor, ReplicaContext, Result, Variable};
use distribute_testing::{names_in, watched};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

fn assert_same_files(a: &Path, b: &Path) {
    let names = names_in(a);
    assert_eq!((names.len(), &names), (2, &names_in(b)));
    for name in names {
        assert!(std::fs::read(a.join(&name)).unwrap() == std::fs::read(b.join(&name)).unwrap(), "{name}");
    }
}

/// Checks that after three steps, a save in the background writes the same files as one that waits. The first tensor is
/// not copied before the forward pass of the next step.
fn saves_the_step_of_the_call<R: Rule + Clone>(rule: R) {
    for (replicas, norm, dtype) in [(1, false, DType::F64), (3, true, DType::F32)] {
        let rule = rule.clone();
        watched(move || {
            let one = Training::new(replicas, 1, dtype, norm, rule);
            one.train(0, 3);
            let (gate, permit) = Gate::new();
            // Its name is the first, so all other components are held until it is copied.
            let parts = one.parts().part("a", &gate);
            let folder = tempfile::tempdir().unwrap();
            let waited = folder.path().join("waited");
            permit.send(Ok(())).unwrap();
            parts.save(&waited).unwrap();

            let manager = CheckpointManager::new(folder.path()).unwrap();
            let saving = parts.save_async(&manager).unwrap();
            assert!(!saving.is_finished());
            let error = saving.wait(Duration::ZERO).unwrap_err();
            assert!(error.to_string().contains("is still being saved after 0ns"), "{error}");
            let x = Tensor::ones((6, 3), dtype, &Device::Cpu).unwrap();
            let y = Tensor::zeros(6, DType::U32, &Device::Cpu).unwrap();
            let step = |ctx: &ReplicaContext, net: &Net| {
                let loss = net.loss(&x, &y)?;
                permit.send(Ok(())).unwrap();
                one.optimizer.minimize(ctx, loss, 6)
            };
            let before = one.bits();
            one.strategy.run(&one.model, step).unwrap();
            one.train(3, 5);
            assert_ne!(one.bits(), before);
            assert_same_files(&saving.wait(LIMIT).unwrap(), &waited);

            // A restored training is that of the call.
            one.parts().restore(saving.path()).unwrap();
            assert_eq!(one.bits(), before);
        });
    }
}

// INV-96
#[test]
fn a_save_in_the_background_has_the_bits_of_its_step_while_training_continues() {
    saves_the_step_of_the_call(Adam::default());
    saves_the_step_of_the_call(Sgd);
}

/// Returns the bits of a variable of f32. The read does not wait for a save.
fn bits_of(variable: &Variable) -> Vec<u32> {
    let values = variable.read::<Tensor>().unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    values.into_iter().map(f32::to_bits).collect()
}

// INV-96, INV-3
#[test]
fn every_write_of_a_variable_waits_for_its_copy() {
    watched(|| {
        let one = Training::new(1, 1, DType::F32, false, Adam::default());
        one.train(0, 2);
        let name = "out.weight";
        let variable = one.model.variables.variable(name).unwrap();
        let var = one.model.variables.trainable().unwrap().into_iter().find(|(of, _)| of == name).unwrap().1;
        let zeros = var.zeros_like().unwrap();
        let writes: [&(dyn Fn() + Sync); 3] =
            [&|| var.set(&zeros).unwrap(), &|| one.model.variables.set(name, &zeros).unwrap(), &|| {
                variable.assign(zeros.clone()).unwrap()
            }];
        let folder = tempfile::tempdir().unwrap();
        let manager = CheckpointManager::new(folder.path()).unwrap();
        for write in writes {
            let (before, held) = (one.bits(), bits_of(&variable));
            let (gate, permit) = Gate::new();
            // One of the variables twice: its lock is taken once.
            let parts = one.parts().part("a", &gate).part("one", &variable);
            let saving = parts.save_async(&manager).unwrap();
            thread::scope(|scope| {
                let (ends, ended) = channel();
                scope.spawn(move || {
                    write();
                    ends.send(()).unwrap();
                });
                // A write that did not wait would end at once.
                let early = ended.recv_timeout(Duration::from_millis(100));
                assert!(early.is_err() && !saving.is_finished());
                assert_eq!(bits_of(&variable), held);
                permit.send(Ok(())).unwrap();
                ended.recv_timeout(LIMIT).unwrap();
            });
            let path = saving.wait(LIMIT).unwrap();
            assert_ne!(one.bits(), before);
            one.parts().restore(&path).unwrap();
            assert_eq!(one.bits(), before);
        }
    });
}

// INV-96
#[test]
fn a_failure_is_the_error_of_the_next_save_which_is_made() {
    watched(|| {
        let one = Training::new(2, 1, DType::F32, true, Adam::default());
        let folder = tempfile::tempdir().unwrap();
        let manager = CheckpointManager::new(folder.path()).unwrap();
        let (gate, permit) = Gate::new();
        permit.send(Err("the memory is gone".into())).unwrap();
        drop(one.parts().part("a", &gate).save_async(&manager).unwrap());
        one.train(0, 1);
        let error = one.parts().save_to(&manager).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Checkpoint(_)) && text.contains("the memory is gone"), "{text}");
        assert_eq!(manager.paths().unwrap().len(), 1);
        one.parts().restore_latest(&manager).unwrap().unwrap();
        one.parts().save_to(&manager).unwrap();
    });
}

/// A component that adds a live tensor to every checkpoint.
struct Counter(Arc<Count>);

struct Count(AtomicI64);

impl LiveTensors for Count {
    fn hold(&self) -> Result<Box<dyn HeldTensors + '_>, SourceError> {
        Ok(Box::new(self))
    }
}

impl HeldTensors for &Count {
    fn copy(&self, _: usize) -> Result<HostTensor, SourceError> {
        Ok(HostTensor::scalar(self.0.load(Ordering::Relaxed)))
    }
}

impl Checkpointed for Counter {
    fn save(&self, prefix: &str, writer: &mut Writer) -> Result<()> {
        let live: Arc<dyn LiveTensors> = self.0.clone();
        Ok(writer.insert_live(prefix, distribute::tensor::DType::I64, [], &live, 0)?)
    }
    fn restore<'a>(&'a self, _: &str, _: &Reader) -> Result<Restore<'a>> {
        Ok(Box::new(|| Ok(())))
    }
}

// INV-96
#[test]
fn a_writer_is_a_copy_of_live_tensors_of_custom_components() {
    watched(|| {
        let counter = Counter(Arc::new(Count(AtomicI64::new(1))));
        let writer = Checkpoint::new().part("count", &counter).writer().unwrap();
        counter.0.0.store(2, Ordering::Relaxed);
        let folder = tempfile::tempdir().unwrap();
        for name in ["first", "second"] {
            let path = folder.path().join(name);
            writer.save(&path, 1).unwrap();
            assert_eq!(Reader::open(&path).unwrap().tensor("count").unwrap().item::<i64>().unwrap(), 1);
        }
    });
}

/// A component whose rows are read while the checkpoint is being written.
struct Table;

impl Checkpointed for Table {
    fn save(&self, prefix: &str, writer: &mut Writer) -> Result<()> {
        let rows = |rows: std::ops::Range<usize>| Ok(HostTensor::vector(vec![1u8; rows.len()]));
        Ok(writer.insert_read(prefix, distribute::tensor::DType::U8, [3], rows)?)
    }
    fn restore<'a>(&'a self, _: &str, _: &Reader) -> Result<Restore<'a>> {
        Ok(Box::new(|| Ok(())))
    }
}

#[test]
fn a_save_that_was_made_at_once_is_complete_also_after_its_removal() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let manager = CheckpointManager::new(folder.path()).unwrap().keep(1);
        let parts = Checkpoint::new().part("table", &Table);
        let saves = [(); 2].map(|()| parts.save_async(&manager).unwrap());
        let names = ["ckpt-000001", "ckpt-000002"];
        for (saving, name) in saves.iter().zip(names) {
            assert!(saving.is_finished());
            assert_eq!(saving.wait(LIMIT).unwrap(), folder.path().join(name));
        }
        assert!(!saves[0].path().exists());
    });
}
