//! A training that stops and resumes from a checkpoint with new objects is bit-identical to an uninterrupted one. A
//! checkpoint that does not fit is an error before anything has changed. Test names contain the numbers of the rules.

mod background;
mod partial;

use crate::support::mirrored;
use candle_core::{DType, Device, Module, ModuleT, Tensor};
use candle_nn::{BatchNorm, Linear, VarBuilder, linear};
use distribute::checkpoint::RestoreFilter;
use distribute::data::Dataset;
use distribute::nn::loss;
use distribute::optimizer::rules::{
    Adafactor, Adagrad, Adam, AdamW, Averaged, Ftrl, Lamb, Lion, Momentum, NAdam, RmsProp, RowAdagrad, Rule,
    Sgd,
};
use distribute::tensor::Leaf;
use distribute::variables::{VariableAggregation, VariableSynchronization};
use distribute::{
    CentralStorageStrategy, Checkpoint, Error, HostTensor, MirroredStrategy, OneDeviceStrategy, Optimizer,
    Replicated, Strategy, Variable,
};
use distribute_testing::watched;
use std::path::{Path, PathBuf};

struct Net {
    hidden: Linear,
    norm: Option<BatchNorm>,
    out: Linear,
}

impl Net {
    fn loss(&self, x: &Tensor, y: &Tensor) -> candle_core::Result<Tensor> {
        let mut x = self.hidden.forward(x)?;
        if let Some(norm) = &self.norm {
            x = norm.forward_t(&x, true)?;
        }
        loss::cross_entropy(&self.out.forward(&x.tanh()?)?, y)
    }
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved");
    (folder, path)
}

/// Returns the copy of each replica.
fn copies(variable: &Variable) -> Vec<HostTensor> {
    let copies: Vec<Leaf> = variable.copies().unwrap();
    copies.iter().map(|copy| copy.to_host().unwrap()).collect()
}

struct Training<R> {
    strategy: Strategy,
    dtype: DType,
    model: Replicated<Net>,
    optimizer: Optimizer<R>,
}

impl<R: Rule> Training<R> {
    fn new(n: usize, seed: u64, dtype: DType, norm: bool, rule: R) -> Self {
        let strategy = mirrored(n);
        let model = strategy
            .replicate_seeded(seed, move |vb: VarBuilder| {
                let vb = vb.to_dtype(dtype);
                let norm = norm.then(|| candle_nn::batch_norm(5, 1e-5, vb.pp("norm"))).transpose()?;
                let (hidden, out) = (linear(3, 5, vb.pp("hidden"))?, linear(5, 3, vb.pp("out"))?);
                Ok::<_, candle_core::Error>(Net { hidden, norm, out })
            })
            .unwrap();
        let optimizer = Optimizer::with_rule(rule, &model.variables, 0.05).unwrap();
        Self { strategy, dtype, model, optimizer }
    }

    /// Trains the steps from `from` to `to`, with eight examples each.
    fn train(&self, from: usize, to: usize) {
        let rows = 8 * to;
        let x: Vec<f64> = (0..rows * 3).map(|i| ((i * 37 + 11) % 41) as f64 / 20. - 1.).collect();
        let x = Tensor::from_vec(x, (rows, 3), &Device::Cpu).unwrap().to_dtype(self.dtype).unwrap();
        let y: Vec<u32> = (0..rows).map(|i| ((i * 7 + 3) % 3) as u32).collect();
        let y = Tensor::from_vec(y, rows, &Device::Cpu).unwrap();
        let batches =
            self.strategy.distribute_dataset(Dataset::from_slices((x, y)).unwrap().batch(8)).unwrap();
        for (step, batch) in (&batches).into_iter().enumerate().skip(from) {
            if step == 2 {
                self.optimizer.set_learning_rate(0.03).unwrap();
            }
            let step = |ctx: &distribute::ReplicaContext, (model, (x, y)): (&Net, (Tensor, Tensor))| {
                self.optimizer.minimize(ctx, model.loss(&x, &y)?, y.dim(0)?)
            };
            self.strategy.run((&self.model, batch.unwrap()), step).unwrap();
        }
    }

    fn parts(&self) -> Checkpoint<'_> {
        Checkpoint::new().part("model", &self.model.variables).part("optimizer", &self.optimizer)
    }

    /// Returns the complete state as text that distinguishes all bits.
    fn bits(&self) -> Vec<String> {
        let show = |name: String, tensor: &HostTensor| {
            let exact = tensor.cast(distribute::tensor::DType::F64).unwrap().to_vec::<f64>().unwrap();
            format!("{name} {:?}", exact.iter().map(|x| x.to_bits()).collect::<Vec<_>>())
        };
        let variables = &self.model.variables;
        let mut bits = vec![
            variables.sha256().unwrap(),
            format!("{} {}", self.optimizer.finished_steps(), self.optimizer.learning_rate()),
        ];
        for name in variables.names() {
            let copies = copies(&variables.variable(&name).unwrap());
            bits.extend(copies.iter().map(|copy| show(name.clone(), copy)));
        }
        for slot in self.optimizer.slot_names() {
            for name in self.optimizer.variable_names() {
                let value = HostTensor::from_candle(&self.optimizer.slot(name, slot).unwrap()).unwrap();
                bits.push(show(format!("{slot} {name}"), &value));
            }
        }
        bits
    }
}

fn same_bits<R: Rule + Clone>(rule: R) {
    for (n, norm, dtype) in [(1, true, DType::F32), (2, true, DType::F32), (2, false, DType::F64)] {
        let rule = rule.clone();
        watched(move || {
            let new = |seed| Training::new(n, seed, dtype, norm, rule.clone());
            let (_folder, path) = folder();
            let through = new(1);
            through.train(0, 7);
            let stopped = new(1);
            stopped.train(0, 4);
            stopped.parts().metadata("epoch", 4).save(&path).unwrap();
            let at_stop = stopped.bits();
            drop(stopped);

            let resumed = new(2);
            let saved = resumed.parts().restore(&path).unwrap();
            assert_eq!(saved.metadata("epoch").unwrap().as_u64(), Some(4));
            assert_eq!(saved.metadata("model:variables").unwrap()["seed"].as_u64(), Some(1));
            assert_eq!(resumed.bits(), at_stop);
            resumed.train(4, 7);
            assert_eq!(resumed.bits(), through.bits(), "{rule:?} on {n}, batch-norm {norm}");
        });
    }
}

#[test]
fn a_resumed_training_with_sgd_has_the_same_bits() {
    same_bits(Sgd);
}

#[test]
fn a_resumed_training_with_momentum_has_the_same_bits() {
    same_bits(Momentum { momentum: 0.9, nesterov: false });
}

#[test]
fn a_resumed_training_with_nesterov_has_the_same_bits() {
    same_bits(Momentum { momentum: 0.9, nesterov: true });
}

#[test]
fn a_resumed_training_with_adam_has_the_same_bits() {
    same_bits(Adam::default());
}

#[test]
fn a_resumed_training_with_lazy_adam_has_the_same_bits() {
    same_bits(Adam { lazy: true, ..Adam::default() });
}

#[test]
fn a_resumed_training_with_adamw_has_the_same_bits() {
    same_bits(AdamW::default());
}

#[test]
fn a_resumed_training_with_adagrad_has_the_same_bits() {
    same_bits(Adagrad::default());
}

#[test]
fn a_resumed_training_with_rmsprop_has_the_same_bits() {
    same_bits(RmsProp { momentum: 0.5, ..RmsProp::default() });
}

#[test]
fn a_resumed_training_with_ftrl_has_the_same_bits() {
    same_bits(Ftrl { l1: 0.01, l2: 0.01, ..Ftrl::default() });
}

#[test]
fn a_resumed_training_with_nadam_has_the_same_bits() {
    same_bits(NAdam::default());
}

#[test]
fn a_resumed_training_with_lion_has_the_same_bits() {
    same_bits(Lion { weight_decay: 0.1, ..Lion::default() });
}

#[test]
fn a_resumed_training_with_row_adagrad_has_the_same_bits() {
    same_bits(RowAdagrad { initial_accumulator_value: 0.1, ..RowAdagrad::default() });
}

#[test]
fn a_resumed_training_with_lamb_has_the_same_bits() {
    same_bits(Lamb { weight_decay: 0.1, ..Lamb::default() });
}

#[test]
fn a_resumed_training_with_adafactor_has_the_same_bits() {
    same_bits(Adafactor::default());
}

#[test]
fn a_resumed_training_with_averages_has_the_same_bits() {
    same_bits(Averaged { rule: std::sync::Arc::new(Adam::default()), momentum: 0.9 });
}

#[test]
fn a_schedule_resumes_at_its_step() {
    use distribute::optimizer::schedules::ExponentialDecay;
    watched(|| {
        let new = |seed| {
            let mut training = Training::new(2, seed, DType::F32, false, Sgd);
            let optimizer = Optimizer::with_rule(Sgd, &training.model.variables, 0.1).unwrap();
            training.optimizer = optimizer.with_schedule(ExponentialDecay::new(0.1, 2, 0.5)).unwrap();
            training
        };
        let (_folder, path) = folder();
        let (through, resumed) = (new(1), new(2));
        through.train(0, 2);
        through.parts().save(&path).unwrap();
        resumed.parts().restore(&path).unwrap();
        assert_eq!(resumed.bits(), through.bits());
        assert_ne!(resumed.optimizer.learning_rate(), new(3).optimizer.learning_rate());
        // Other trainings set their learning rate by hand in step 2.
        through.train(3, 6);
        resumed.train(3, 6);
        assert_eq!(resumed.bits(), through.bits());
    });
}

// A replica that has seen no rows yet still counts as one after the restart.
#[test]
fn state_shared_by_replicas_is_saved() {
    watched(|| {
        let (_folder, path) = folder();
        let new = |seed| Training::new(2, seed, DType::F32, true, Sgd);
        let one_replica_trains = |training: &Training<Sgd>| {
            let x = Tensor::rand(-1f32, 1., (4, 3), &Device::Cpu).unwrap();
            let y = Tensor::new(&[0u32, 1, 2, 0], &Device::Cpu).unwrap();
            let run =
                training.strategy.run(&training.model, |ctx, model| match ctx.replica_id_in_sync_group() {
                    0 => training.optimizer.minimize(ctx, model.loss(&x, &y)?, 4),
                    _ => training.optimizer.skip(ctx),
                });
            run.unwrap();
        };
        let (first, second) = (new(1), new(1));
        // The value differs from that of a new model.
        let name = "norm.running_var";
        let before = Tensor::full(3f32, 5, &Device::Cpu).unwrap();
        first.model.variables.set(name, &before).unwrap();
        one_replica_trains(&first);
        first.parts().save(&path).unwrap();
        second.parts().restore(&path).unwrap();
        // The value is that of replica 0, not the mean with the unchanged copy of replica 1.
        let copies = copies(&first.model.variables.variable(name).unwrap());
        let read =
            |of: &Training<Sgd>| HostTensor::from_candle(&of.model.variables.get(name).unwrap()).unwrap();
        assert_eq!(read(&first), copies[0]);
        assert_eq!(read(&second), copies[0]);
        assert_eq!(second.bits(), first.bits());
    });
}

// A `Variable` is saved as its copies only, without a common value.
#[test]
fn running_statistics_start_at_the_saved_on_read_variable() {
    watched(|| {
        let (_folder, path) = folder();
        let name = "norm.running_mean";
        let (_, variable) = counts(2, VariableAggregation::Mean, 0f32);
        Checkpoint::new().part(format!("model/{name}"), &variable).save(&path).unwrap();
        for n in [1, 2, 3] {
            let model = mirrored(n).replicate(|vb: VarBuilder| vb.get((), name)).unwrap();
            let read = |value: f32| {
                assert_eq!(model.variables.get(name).unwrap().to_scalar::<f32>().unwrap(), value);
                assert_eq!(values(&model.variables.variable(name).unwrap()), vec![f64::from(value); n]);
            };
            let parts = Checkpoint::new().part("model", &model.variables);
            parts.restore(&path).unwrap();
            read(1.5);
            model.variables.set(name, &Tensor::new(9f32, &Device::Cpu).unwrap()).unwrap();
            let restored = parts.restore_some(&path, &RestoreFilter::all()).unwrap();
            assert!(restored.unrestored.is_empty() && restored.unused.is_empty(), "{restored}");
            read(1.5);
        }
        // The other way round, copies come back as they were.
        let model = mirrored(2).replicate(|vb: VarBuilder| vb.get((), name)).unwrap();
        model.variables.set(name, &Tensor::new(4f32, &Device::Cpu).unwrap()).unwrap();
        let path = path.with_extension("2");
        Checkpoint::new().part("model", &model.variables).save(&path).unwrap();
        Checkpoint::new().part(format!("model/{name}"), &variable).restore(&path).unwrap();
        assert_eq!(values(&variable), [4., 4.]);
    });
}

#[test]
fn a_variable_with_the_name_of_running_statistics_is_refused_when_it_is_saved() {
    watched(|| {
        for part in ["common", "per_replica"] {
            let (_folder, path) = folder();
            let taken = format!("running_var/{part}");
            let name = taken.clone();
            let build = move |vb: VarBuilder| Ok((vb.get(2, "running_var")?, vb.get(2, &name)?));
            let model = mirrored(2).replicate::<_, candle_core::Error>(build).unwrap();
            let error = Checkpoint::new().part("model", &model.variables).save(&path).unwrap_err();
            assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
            let text = format!("variable {taken} has a name under which the running statistic running_var");
            assert!(error.to_string().contains(&text) && !path.exists(), "{error}");
        }
    });
}

// CKPT-1, CKPT-2
#[test]
fn ckpt_1_a_checkpoint_of_two_replicas_resumes_with_one_and_with_three() {
    watched(|| {
        for norm in [false, true] {
            let (_folder, path) = folder();
            let two = Training::new(2, 1, DType::F64, norm, Adam::default());
            two.train(0, 4);
            two.parts().save(&path).unwrap();
            let weights = two.model.variables.sha256().unwrap();
            two.train(4, 7);
            for n in [1, 3] {
                let other = Training::new(n, 2, DType::F64, norm, Adam::default());
                other.parts().restore(&path).unwrap();
                assert_eq!(
                    other.model.variables.sha256().unwrap(),
                    weights,
                    "{n} replicas, batch-norm {norm}"
                );
                assert_eq!(other.optimizer.finished_steps(), 4);
                other.train(4, 7);
                // With batch-norm the results differ, because each replica normalizes by its own rows.
                for name in other.model.variables.names().into_iter().filter(|_| !norm) {
                    let flat = |training: &Training<Adam>| -> Vec<f64> {
                        let value = training.model.variables.get(&name).unwrap();
                        value.flatten_all().unwrap().to_vec1().unwrap()
                    };
                    for (a, b) in flat(&other).into_iter().zip(flat(&two)) {
                        assert!((a - b).abs() < 1e-10, "{name} on {n}: {a}, not {b}");
                    }
                }
            }
        }
    });
}

/// Restores into a training that does not fit, and returns the error. Checks that nothing has changed.
fn refused<R: Rule>(other: Training<R>, path: &Path) -> String {
    other.train(0, 1);
    let before = other.bits();
    let error = other.parts().restore(path).unwrap_err();
    assert_eq!(other.bits(), before, "{error}");
    assert!(error.to_string().contains("saved"), "the path is named: {error}");
    error.to_string()
}

// INV-23
#[test]
fn mismatched_values_are_refused_and_nothing_has_changed() {
    watched(|| {
        let (_folder, path) = folder();
        let saved = Training::new(2, 1, DType::F32, false, Adam::default());
        saved.train(0, 2);
        saved.parts().save(&path).unwrap();

        let text = refused(Training::new(2, 2, DType::F32, true, Adam::default()), &path);
        assert!(text.contains(r#"lacks ["model/norm.bias", "model/norm.running_mean""#), "{text}");
        let text = refused(Training::new(2, 2, DType::F64, false, Adam::default()), &path);
        assert!(text.contains("model/hidden.bias in"), "{text}");
        assert!(text.contains("is float32[5], but here it is float64[5]"), "{text}");
        // The model fits: it stays as it is because the optimizer does not.
        let text = refused(Training::new(2, 2, DType::F32, false, Ftrl::default()), &path);
        assert!(
            text.contains(r#"has the optimizer "optimizer" of rule adam, but here it is of ftrl"#),
            "{text}"
        );

        let other = Training::new(1, 2, DType::F32, false, Adam::default());
        let before = other.bits();
        let rename = Checkpoint::new().part("model", &other.model.variables).part("adam", &other.optimizer);
        let text = rename.restore(&path).unwrap_err().to_string();
        assert!(text.contains(r#"has no optimizer named "adam""#), "{text}");
        let twice = Checkpoint::new().part("a", &other.model.variables).part("a", &other.optimizer);
        assert!(twice.writer().unwrap_err().to_string().contains(r#"two components are named "a""#));

        // A damaged file: found before anything has changed.
        let file = path.join("shard-00001-of-00001.safetensors");
        let mut bytes = std::fs::read(&file).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&file, bytes).unwrap();
        let error = other.parts().restore(&path).unwrap_err();
        assert!(
            matches!(&error, Error::Checkpoint(distribute::checkpoint::CheckpointError::Damaged { .. })),
            "{error}"
        );
        assert_eq!(other.bits(), before);
    });
}

#[test]
fn saving_and_restoring_belong_between_runs() {
    watched(|| {
        let (_folder, path) = folder();
        let training = Training::new(2, 1, DType::F32, false, Sgd);
        training.parts().save(&path).unwrap();
        let both = training.strategy.run((), |_, ()| {
            let saved = training.parts().save(path.with_extension("2")).unwrap_err().to_string();
            let restored = training.parts().restore(&path).unwrap_err().to_string();
            Ok([saved, restored]
                .map(|text| text.contains("requires cross-replica context, but was called in replica")))
        });
        assert_eq!(both.unwrap().into_values(), [[true, true]; 2]);
        // In scope is between runs.
        training.strategy.scope(|| training.parts().restore(&path).map(drop)).unwrap();
    });
}

/// Creates an ON_READ variable that is 1 on replica 0, 2 on replica 1, …
fn counts<T: candle_core::WithDType>(
    n: usize,
    aggregation: VariableAggregation,
    first: T,
) -> (Strategy, Variable) {
    let strategy = mirrored(n);
    let zero = Tensor::new(first, &Device::Cpu).unwrap().zeros_like().unwrap();
    let variable = Variable::builder("count", zero.clone())
        .synchronization(VariableSynchronization::OnRead)
        .aggregation(aggregation);
    let variable = strategy.scope(|| variable.create()).unwrap();
    let set = strategy.run((), |ctx, ()| {
        let mine = Tensor::new((ctx.replica_id_in_sync_group() + 1) as f64, &Device::Cpu)?;
        variable.assign(mine.to_dtype(zero.dtype())?)
    });
    set.unwrap();
    (strategy, variable)
}

fn values(variable: &Variable) -> Vec<f64> {
    let number =
        |copy: &HostTensor| copy.cast(distribute::tensor::DType::F64).unwrap().item::<f64>().unwrap();
    copies(variable).iter().map(number).collect()
}

#[test]
fn ckpt_2_on_read_variables_are_saved_as_they_are_read_and_restored_as_they_are_assigned() {
    use VariableAggregation::{Mean, OnlyFirstReplica, Sum};
    watched(|| {
        for (aggregation, saved, on_one, on_three) in
            [(Sum, 3., 3., 1.), (Mean, 1.5, 1.5, 1.5), (OnlyFirstReplica, 1., 1., 1.)]
        {
            let (_folder, path) = folder();
            let (_, variable) = counts(2, aggregation, 0f32);
            Checkpoint::new().part("count", &variable).save(&path).unwrap();
            for (n, expected) in [(1, vec![on_one]), (2, vec![1., 2.]), (3, vec![on_three; 3])] {
                let (_, other) = counts(n, aggregation, 0f32);
                other.strategy().scope(|| other.assign(Tensor::new(9f32, &Device::Cpu)?)).unwrap();
                let reader = Checkpoint::new().part("count", &other).restore(&path).unwrap();
                assert_eq!(reader.tensor("count").unwrap(), HostTensor::scalar(saved as f32));
                assert_eq!(values(&other), expected, "{aggregation} on {n}");
            }
        }
        // TRAP T5: the remainder of an integer sum is lost on another number of replicas, but not on the same number.
        let (_folder, path) = folder();
        Checkpoint::new().part("count", &counts(2, Sum, 0i64).1).save(&path).unwrap();
        let (_, same) = counts(2, Sum, 0i64);
        Checkpoint::new().part("count", &same).restore(&path).unwrap();
        assert_eq!(values(&same), [1., 2.]);
    });
}

#[test]
fn ckpt_2_an_on_read_variable_without_aggregation_cannot_be_saved() {
    watched(|| {
        let (_folder, path) = folder();
        let (_, variable) = counts(2, VariableAggregation::None, 0f32);
        let error = Checkpoint::new().part("count", &variable).save(&path).unwrap_err();
        assert!(matches!(&error, Error::VariableAccess { .. }), "{error}");
        assert!(!path.exists());
    });
}

#[test]
fn every_type_of_strategy_is_a_part_of_a_checkpoint() {
    watched(|| {
        fn check(make: impl Fn() -> distribute::Result<Strategy>) {
            let (before, after) = (make().unwrap(), make().unwrap());
            before.run((), |_, ()| Ok(())).unwrap();
            let (_keep, path) = folder();
            Checkpoint::new().part("strategy", &before).save(&path).unwrap();
            Checkpoint::new().part("strategy", &after).restore(&path).unwrap();
            assert_eq!(after.steps(), 1);
        }
        check(|| MirroredStrategy::cpus(2));
        check(|| OneDeviceStrategy::new("cpu:0"));
        check(|| CentralStorageStrategy::new(["cpu:0", "cpu:1"], "cpu:0"));
    });
}

// INV-23: that a variable cannot be written here is found before the first part is changed.
#[test]
fn restoring_in_another_strategys_scope_changes_nothing() {
    watched(|| {
        let (a, b) = (mirrored(2), mirrored(2));
        let [first, second] = [1f32, 2.].map(|initial| a.scope(|| Variable::new("v", initial)).unwrap());
        let (_keep, path) = folder();
        let training = || Checkpoint::new().part("first", &first).part("second", &second);
        training().save(&path).unwrap();
        first.assign(5f32).unwrap();
        let error = b.scope(|| training().restore(&path).map(drop)).unwrap_err();
        assert!(matches!(error, Error::MixedStrategies { .. }), "{error}");
        assert_eq!(first.read::<f32>().unwrap(), 5.);
        training().restore(&path).unwrap();
        assert_eq!((first.read::<f32>().unwrap(), second.read::<f32>().unwrap()), (1., 2.));
    });
}
