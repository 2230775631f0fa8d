//! Checkpoints of some servers, restored on another number of servers, in other shards, and on one device.

use crate::parameter_servers::support::{Net, servers, state, train};
use distribute::optimizer::rules::{Adam, Ftrl, Rule};
use distribute::{Checkpoint, HostTensor, OneDeviceStrategy, Optimizer, Replicated, Strategy, Variable};
use distribute_testing::watched;
use std::path::Path;

/// A training with a variable of the program in addition to the model.
struct Training<R> {
    strategy: Strategy,
    model: Replicated<Net>,
    optimizer: Optimizer<R>,
    seen: Variable,
}

impl<R: Rule> Training<R> {
    fn new(strategy: Strategy, rule: R, seed: u64) -> Self {
        let model = strategy.replicate_seeded(seed, Net::new).unwrap();
        let optimizer = Optimizer::with_rule(rule, &model.variables, 0.05).unwrap();
        let seen = strategy
            .scope(|| Variable::new("seen", HostTensor::new(vec![seed as i64; 18], [9, 2])?))
            .unwrap();
        Self { strategy, model, optimizer, seen }
    }

    fn checkpoint(&self) -> Checkpoint<'_> {
        Checkpoint::new()
            .part("model", &self.model.variables)
            .part("optimizer", &self.optimizer)
            .part("seen", &self.seen)
    }

    fn save(&self, path: &Path) {
        self.checkpoint().save(path).unwrap();
    }

    fn state(&self) -> (Vec<(String, Vec<u32>)>, HostTensor, u64) {
        (state(&self.model, &self.optimizer), self.seen.read().unwrap(), self.optimizer.finished_steps())
    }
}

fn of(shards: usize) -> Strategy {
    match shards {
        0 => OneDeviceStrategy::new("cpu:0").unwrap(),
        shards => servers(shards, shards).into(),
    }
}

// CKPT-4: 0 is one device, without servers.
#[test]
fn ckpt_4_saved_on_some_shards_and_restored_on_any_others() {
    const COUNTS: [usize; 6] = [0, 1, 2, 3, 5, 8];
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = |shards: usize| folder.path().join(format!("of_{shards}"));
        let mut expected = None;
        for shards in COUNTS {
            let training = Training::new(of(shards), Adam::default(), 7);
            train(&training.strategy, &training.model, &training.optimizer, 0..2);
            training
                .seen
                .assign_add(HostTensor::new((0..18).collect::<Vec<i64>>(), [9, 2]).unwrap())
                .unwrap();
            training.save(&path(shards));
            let state = training.state();
            assert_eq!(*expected.get_or_insert(state.clone()), state, "{shards} shards");
        }
        let expected = expected.unwrap();
        for to in COUNTS {
            for from in COUNTS {
                // The model has other values, and may have made a step: values that are not restored differ.
                let training = Training::new(of(to), Adam::default(), 8);
                if from % 2 == 0 {
                    train(&training.strategy, &training.model, &training.optimizer, 0..1);
                }
                training.checkpoint().restore(path(from)).unwrap();
                assert_eq!(training.state(), expected, "from {from} shards to {to}");
            }
        }
    });
}

// INV-56
#[test]
fn a_training_resumes_identically_on_other_servers() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("saved");
        let rule = Ftrl { l1: 0.01, ..Ftrl::default() };
        let through = Training::new(of(3), rule, 7);
        train(&through.strategy, &through.model, &through.optimizer, 0..3);
        through.save(&path);
        let losses = train(&through.strategy, &through.model, &through.optimizer, 3..6);
        for shards in [0, 2, 5] {
            let resumed = Training::new(of(shards), rule, 9);
            resumed.checkpoint().restore(&path).unwrap();
            assert_eq!(train(&resumed.strategy, &resumed.model, &resumed.optimizer, 3..6), losses);
            assert_eq!(resumed.state(), through.state(), "{shards} shards");
        }
    });
}

#[test]
fn another_shape_is_refused_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved");
    let make = |rows: usize| {
        let strategy = servers(2, 2);
        strategy.scope(|| Variable::new("t", HostTensor::new(vec![rows as f32; rows], [rows])?)).unwrap()
    };
    let (five, six) = (make(5), make(6));
    Checkpoint::new().part("t", &five).save(&path).unwrap();
    let error = Checkpoint::new().part("t", &six).restore(&path).unwrap_err();
    assert!(error.to_string().contains('t'), "{error}");
    assert_eq!(six.read::<HostTensor>().unwrap(), HostTensor::vector(vec![6f32; 6]));
}
