//! A save in the background has the state at the time of its call, although training continues at once.

use super::{Net, Training};
use candle_core::{DType, Device, Tensor};
use distribute::checkpoint::{
    CheckpointManager, Checkpointed, HeldTensors, LiveTensors, Reader, Restore, SourceError, Writer,
};
use distribute::optimizer::rules::{Adam, Rule, Sgd};
use distribute::{Error, HostTensor, ReplicaContext, Result};
use distribute_testing::{names_in, watched};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// A component whose copy is made when the test permits it.
struct Gate(Arc<dyn LiveTensors>);

struct Permits(Mutex<Receiver<()>>);

impl LiveTensors for Permits {
    fn hold(&self) -> Result<Box<dyn HeldTensors + '_>, SourceError> {
        Ok(Box::new(self))
    }
}

impl HeldTensors for &Permits {
    fn copy(&self, _: usize) -> Result<HostTensor, SourceError> {
        self.0.lock().unwrap().recv_timeout(LIMIT)?;
        Ok(HostTensor::scalar(1i64))
    }
}

impl Gate {
    fn new() -> (Self, Sender<()>) {
        let (permit, permitted) = channel();
        (Self(Arc::new(Permits(Mutex::new(permitted)))), permit)
    }
}

impl Checkpointed for Gate {
    fn save(&self, prefix: &str, writer: &mut Writer) -> Result<()> {
        Ok(writer.insert_live(prefix, distribute::tensor::DType::I64, [], &self.0, 0)?)
    }
    fn restore<'a>(&'a self, _: &str, _: &Reader) -> Result<Restore<'a>> {
        Ok(Box::new(|| Ok(())))
    }
}

fn assert_same_files(a: &Path, b: &Path) {
    let names = names_in(a);
    assert_eq!((names.len(), &names), (2, &names_in(b)));
    for name in names {
        assert!(std::fs::read(a.join(&name)).unwrap() == std::fs::read(b.join(&name)).unwrap(), "{name}");
    }
}

/// Saves in both ways after three steps. Nothing is copied before the forward pass of the next step.
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
            permit.send(()).unwrap();
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
                permit.send(()).unwrap();
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
            let before = one.bits();
            let (gate, permit) = Gate::new();
            // One of the variables twice: its lock is taken once.
            let parts = one.parts().part("a", &gate).part("one", &variable);
            let saving = parts.save_async(&manager).unwrap();
            thread::scope(|scope| {
                let (begins, begun) = channel();
                scope.spawn(move || {
                    begins.send(()).unwrap();
                    write();
                });
                begun.recv_timeout(LIMIT).unwrap();
                permit.send(()).unwrap();
            });
            let path = saving.wait(LIMIT).unwrap();
            assert_ne!(one.bits(), before);
            one.parts().restore(&path).unwrap();
            assert_eq!(one.bits(), before);
        }
    });
}

/// A component that cannot be copied.
struct Broken;

impl LiveTensors for Broken {
    fn hold(&self) -> Result<Box<dyn HeldTensors + '_>, SourceError> {
        Ok(Box::new(Self))
    }
}

impl HeldTensors for Broken {
    fn copy(&self, _: usize) -> Result<HostTensor, SourceError> {
        Err("the memory is gone".into())
    }
}

// INV-96
#[test]
fn a_failure_is_the_error_of_the_next_save_which_is_made() {
    watched(|| {
        let one = Training::new(2, 1, DType::F32, true, Adam::default());
        let folder = tempfile::tempdir().unwrap();
        let manager = CheckpointManager::new(folder.path()).unwrap();
        let broken = Gate(Arc::new(Broken));
        drop(one.parts().part("a", &broken).save_async(&manager).unwrap());
        one.train(0, 1);
        let error = one.parts().save_to(&manager).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Checkpoint(_)) && text.contains("the memory is gone"), "{text}");
        assert_eq!(manager.paths().unwrap().len(), 1);
        one.parts().restore_latest(&manager).unwrap().unwrap();
        one.parts().save_to(&manager).unwrap();
    });
}
