//! Tests of statements in the documentation of Strategy about `scope`, which no other test checks as strictly.

use crate::contexts::{central, everywhere, mirrored, servers, tensor};
use candle_core::{Module, Tensor};
use candle_nn::{Linear, VarBuilder, linear};
use distribute::context::{get_strategy, in_cross_replica_context};
use distribute::data::Dataset;
use distribute::metrics::Mean;
use distribute::optimizer::rules::Momentum;
use distribute::strategy::DeviceName;
use distribute::variables::{VariableAggregation as Aggregation, VariableSynchronization as Synchronization};
use distribute::{Checkpoint, Error, OneDeviceStrategy, Optimizer, Replicated, Result, Strategy, Variable};
use distribute_testing::watched;
use std::sync::Mutex;
use std::thread::ThreadId;

/// Calls `body` inside the strategy's scope, or outside it.
fn within<T>(strategy: &Strategy, is_inside: bool, body: impl FnOnce() -> Result<T>) -> Result<T> {
    if is_inside { strategy.scope(body) } else { body() }
}

// What entering it does

#[test]
fn scope_7_each_strategy_decides_where_variables_made_in_its_scope_are() {
    let made = |strategy: &Strategy| {
        let both = strategy.scope(|| Ok([Variable::new("a", 1f32)?, Variable::new("b", 1f32)?])).unwrap();
        assert!(both.iter().all(|v| strategy.variable_created_in_scope(v)));
        both.map(|v| v.devices())
    };
    let cpus = |indices: &[usize]| indices.iter().map(|i| DeviceName::cpu(*i)).collect::<Vec<_>>();
    assert_eq!(made(&mirrored(3)), [cpus(&[0, 1, 2]), cpus(&[0, 1, 2])]);
    assert_eq!(made(&central()), [cpus(&[1]), cpus(&[1])]);
    assert_eq!(made(&OneDeviceStrategy::new("cpu:1").unwrap()), [cpus(&[1]), cpus(&[1])]);
    assert_eq!(made(&servers(2)), [0, 1].map(|task| vec![DeviceName::of_server(task)]));
    // A variable that is created outside any scope is ordinary, and belongs to no strategy.
    let outside = Variable::new("v", 1f32).unwrap();
    assert_eq!((outside.devices(), outside.copy_names().len()), (cpus(&[0]), 1));
    assert!(!mirrored(2).variable_created_in_scope(&outside));
}

#[test]
fn scope_9_entering_a_scope_distributes_nothing_and_run_does() {
    watched(|| {
        let strategy = mirrored(3);
        let calls = Mutex::new(Vec::<(ThreadId, bool)>::new());
        let note = || {
            calls.lock().unwrap().push((std::thread::current().id(), in_cross_replica_context()));
            Ok(())
        };
        strategy.scope(note).unwrap();
        assert_eq!(std::mem::take(&mut *calls.lock().unwrap()), [(std::thread::current().id(), true)]);
        strategy.scope(|| strategy.run((), |_, ()| note())).unwrap();
        let calls = calls.into_inner().unwrap();
        assert!(calls.len() == 3 && calls.iter().all(|(_, is_cross_replica)| !is_cross_replica), "{calls:?}");
    });
}

// What should be in scope, and what outside

#[test]
fn scope_9_a_variable_made_outside_is_not_distributed() {
    watched(|| {
        let strategy = mirrored(2);
        let outside = Variable::builder("v", 1f32).aggregation(Aggregation::Sum).create().unwrap();
        // Each replica can read the variable. None can write it, because there is a single copy.
        assert_eq!(strategy.run(&outside, |_, v| v.read::<f32>()).unwrap().values(), [1., 1.]);
        let error = strategy.run(&outside, |_, v| v.assign_add(1f32)).unwrap_err();
        assert!(matches!(error.root_cause(), Error::MixedStrategies { .. }), "{error}");
        assert_eq!(outside.copies::<f32>().unwrap(), [1.]);
    });
}

#[test]
fn var_8_variables_are_read_and_written_outside_the_scope_as_inside() {
    let check = |strategy: &Strategy| {
        for is_inside in [true, false] {
            let make = |synchronization| {
                let v = Variable::builder("v", 1f32).synchronization(synchronization);
                strategy.scope(|| v.aggregation(Aggregation::Sum).create()).unwrap()
            };
            let (written, read) = (make(Synchronization::OnWrite), make(Synchronization::OnRead));
            let seen = within(strategy, is_inside, || {
                written.assign(5f32)?;
                written.assign_sub(1f32)?;
                strategy.run((), |ctx, ()| {
                    written.assign_add(1f32)?;
                    read.assign(ctx.replica_id_in_sync_group() as f32 + 1.)
                })?;
                Ok((written.read::<f32>()?, written.copies::<f32>()?, read.read::<f32>()?))
            });
            let count = strategy.num_replicas_in_sync() as f32;
            let copies = vec![4. + count; written.devices().len()];
            let expected = (4. + count, copies, count * (count + 1.) / 2.);
            assert_eq!(seen.unwrap(), expected, "{strategy}, inside: {is_inside}");
        }
    };
    watched(move || drop(everywhere(check)));
}

/// A model and its optimizer.
struct Training {
    strategy: Strategy,
    model: Replicated<Linear>,
    optimizer: Optimizer<Momentum>,
    loss: Mean,
}

impl Training {
    fn new(strategy: Strategy) -> Result<Self> {
        let model = strategy.replicate(|vb: VarBuilder| linear(2, 1, vb))?;
        let optimizer = Optimizer::with_rule(Momentum::default(), &model.variables, 0.1)?;
        let loss = Mean::new(&strategy, "loss")?;
        Ok(Self { strategy, model, optimizer, loss })
    }

    fn data() -> Result<Dataset<Tensor>> {
        Ok(Dataset::from_slices(tensor(&[1., 2., 3., -1., 0.5, -2., 4., 1.]).reshape((4, 2))?)?.batch(4))
    }

    /// Makes a step for each batch. The dataset and the function are created inside or outside the scope.
    fn train(&self, [data_inside, function_inside]: [bool; 2]) -> Result<()> {
        let batches =
            within(&self.strategy, data_inside, || self.strategy.distribute_dataset(Self::data()?))?;
        let step = within(&self.strategy, function_inside, || {
            Ok(|ctx: &distribute::ReplicaContext, (model, x): (&Linear, Tensor)| {
                let loss = model.forward(&x)?.sqr()?.sum_all()?;
                self.loss.update(&loss)?;
                self.optimizer.minimize(ctx, loss, x.dim(0)?)
            })
        })?;
        for batch in &batches {
            self.strategy.run((&self.model, batch?), step)?;
        }
        Ok(())
    }

    fn parts(&self) -> Checkpoint<'_> {
        let parts = Checkpoint::new().part("model", &self.model.variables);
        parts.part("optimizer", &self.optimizer).part("loss", self.loss.variable())
    }

    /// Returns weights, slots and metrics.
    fn state(&self) -> Result<(String, Vec<f32>, u64, f64)> {
        let slot = self.optimizer.slot("weight", self.optimizer.slot_names().next().unwrap_or_default())?;
        let slot = slot.flatten_all()?.to_vec1()?;
        Ok((self.model.variables.sha256()?, slot, self.optimizer.finished_steps(), self.loss.result()?))
    }
}

#[test]
fn scope_9_models_optimizers_metrics_datasets_and_steps_are_made_inside_or_outside() {
    let check = |strategy: &Strategy| {
        let mut all = Vec::new();
        for case in 0..8 {
            let [made, data, function] = [1, 2, 4].map(|bit| case & bit != 0);
            let training = within(strategy, made, || Training::new(strategy.clone())).unwrap();
            training.train([data, function]).unwrap();
            let weight = training.model.variables.variable("weight").unwrap();
            assert!(strategy.variable_created_in_scope(&weight), "{strategy}");
            assert!(strategy.variable_created_in_scope(training.loss.variable()), "{strategy}");
            all.push(training.state().unwrap());
        }
        assert!(all.iter().all(|state| *state == all[0]), "{strategy}: {all:?}");
    };
    watched(move || drop(everywhere(check)));
}

/// Checks that a checkpoint can be saved inside and outside a scope, and is loaded in the scope of the strategy that
/// continues.
#[test]
fn ckpt_1_a_checkpoint_saved_in_one_scope_is_loaded_in_another() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let through = Training::new(mirrored(2)).unwrap();
        let path = |is_inside: bool| folder.path().join(format!("inside {is_inside}"));
        through.train([false; 2]).unwrap();
        for is_inside in [true, false] {
            within(&through.strategy, is_inside, || through.parts().save(path(is_inside))).unwrap();
        }
        let saved = through.state().unwrap();
        through.train([false; 2]).unwrap();
        let gone_on = through.state().unwrap();
        let restore = |strategy: &Strategy, saved_inside: bool, loaded_inside: bool| {
            let restored = within(strategy, loaded_inside, || {
                let training = Training::new(strategy.clone())?;
                training.parts().restore(path(saved_inside))?;
                Ok(training)
            });
            let restored = restored.unwrap();
            assert_eq!(restored.state().unwrap(), saved, "{strategy}");
            restored
        };
        for (saved_inside, loaded_inside) in [(true, true), (true, false), (false, true), (false, false)] {
            everywhere(|strategy| drop(restore(strategy, saved_inside, loaded_inside)));
            let restored = restore(&mirrored(2), saved_inside, loaded_inside);
            restored.train([false; 2]).unwrap();
            assert_eq!(restored.state().unwrap(), gone_on);
        }
        // In the scope of another strategy, variables can be neither saved nor restored.
        let other = mirrored(2);
        let save = other.scope(|| through.parts().save(folder.path().join("mixed"))).unwrap_err();
        let load = other.scope(|| through.parts().restore(path(true)).map(drop)).unwrap_err();
        for error in [save, load] {
            assert!(matches!(error.root_cause(), Error::MixedStrategies { .. }), "{error}");
        }
        assert_eq!(through.state().unwrap(), gone_on);
    });
}

/// Checks variables that are created after a checkpoint was opened, which get their values from it, and slots that no
/// step has created.
#[test]
fn scope_9_an_open_checkpoint_restores_variables_that_are_created_later() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("saved");
        let trained = Training::new(mirrored(2)).unwrap();
        trained.train([false; 2]).unwrap();
        trained.parts().save(&path).unwrap();

        let strategy = mirrored(2);
        let model = strategy.replicate(|vb: VarBuilder| linear(2, 1, vb)).unwrap();
        let open = Checkpoint::new().part("model", &model.variables).restore(&path).unwrap();
        let optimizer = Optimizer::with_rule(Momentum::default(), &model.variables, 0.1).unwrap();
        let loss = Mean::new(&strategy, "loss").unwrap();
        let later = Training { strategy, model, optimizer, loss };
        let rest = Checkpoint::new().part("optimizer", &later.optimizer).part("loss", later.loss.variable());
        rest.restore_from(&open).unwrap();
        assert_eq!(later.state().unwrap(), trained.state().unwrap());
        // A part that the file does not contain is an error with its name.
        let error = Checkpoint::new().part("other", &later.optimizer).restore(&path).unwrap_err();
        assert!(error.to_string().contains("other"), "{error}");
        assert!(get_strategy() != later.strategy);
    });
}
