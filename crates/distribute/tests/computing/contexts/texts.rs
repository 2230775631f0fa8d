//! Error messages: they name the strategy of a value and the wrong argument, and contain no repetition.

use crate::contexts::{mirrored, one_device, per_replica};
use candle_core::{Device, Tensor};
use candle_nn::{Linear, Module, VarBuilder, linear};
use distribute::tensor::Tree;
use distribute::{Adam, Error, MirroredStrategy, PerReplica, ReduceOp, Strategy, Variable};
use distribute_testing::watched;
use std::collections::BTreeMap;
use std::sync::Mutex;

fn assert_message(error: &Error, texts: &[&str]) {
    for text in texts {
        assert!(error.to_string().contains(text), "{text:?} is not in {error}");
    }
}

/// Makes a step with an optimizer that may belong to another strategy, and returns the error.
fn step(of_run: &Strategy, of_optimizer: &Strategy) -> Error {
    let model = of_run.replicate(|vb| linear(1, 1, vb.pp("fc"))).unwrap();
    let other = of_optimizer.replicate(|vb| linear(1, 1, vb.pp("fc"))).unwrap();
    let optimizer = Adam::new(&other.variables, 0.1).unwrap();
    let result = of_run.run(&model, |ctx, model: &Linear| {
        let loss = model.forward(&Tensor::ones((1, 1), candle_core::DType::F32, &Device::Cpu)?)?;
        optimizer.minimize(ctx, loss.sum_all()?, 1)
    });
    result.unwrap_err()
}

#[test]
fn mixed_strategies_are_distinguished_by_the_line_that_created_them() {
    watched(|| {
        let first: Strategy = MirroredStrategy::cpus(2).unwrap();
        let line = line!() - 1;
        let second: Strategy = MirroredStrategy::cpus(2).unwrap();
        let at = |line: u32| format!("made at {}:{line}:", file!());
        for (strategy, line) in [(&first, line), (&second, line + 2)] {
            let text = strategy.to_string();
            assert!(
                text.starts_with("MirroredStrategy (2 replicas, #") && text.contains(&at(line)),
                "{text}"
            );
        }
        assert_ne!(first.to_string(), second.to_string());
        assert_eq!(first.to_string(), first.clone().to_string());
        let one = one_device().to_string();
        assert!(one.starts_with("OneDeviceStrategy (1 replica, #"), "{one}");

        // A run was entered, but no scope. The optimizer belongs to another strategy.
        let error = step(&first, &second);
        assert!(
            matches!(error.root_cause(), Error::MixedStrategies { operation: "minimize", .. }),
            "{error}"
        );
        assert_message(
            &error,
            &[
                &format!("this is a run of {first}"),
                &format!("the adam optimizer of fc.bias and 1 more belongs to {second}"),
                "call run of the other one",
            ],
        );
        assert!(!error.to_string().contains("scope"), "{error}");

        let error = first.scope(|| second.run((), |_, ()| Ok(()))).unwrap_err();
        assert_message(
            &error,
            &[&format!("inside a scope of {first}"), &format!("called on {second}"), "leave its scope"],
        );
    });
}

#[test]
fn without_a_strategy_the_error_states_that_none_was_entered() {
    let strategy = mirrored(2);
    let model = strategy.replicate(|vb| linear(1, 1, vb)).unwrap();
    let optimizer = Adam::new(&model.variables, 0.1).unwrap();
    let context = distribute::context::get_replica_context().unwrap();
    let loss = Tensor::new(1f32, &Device::Cpu).unwrap();
    let error = optimizer.minimize(&context, loss, 1).unwrap_err();
    assert_message(
        &error,
        &["no scope or run was entered", "the adam optimizer", "call it in the run of that strategy"],
    );
}

#[test]
fn variables_without_a_strategy_and_of_another_are_named() {
    watched(|| {
        let (ours, other) = (mirrored(2), mirrored(2));
        let theirs = other.scope(|| Variable::new("theirs", 1f32)).unwrap();
        let plain = Variable::new("plain", 1f32).unwrap();
        let error = ours.run((), |_, ()| theirs.read::<f32>()).unwrap_err();
        assert_message(
            &error,
            &[&format!("a run of {ours}"), &format!("variable theirs belongs to {other}")],
        );
        let error = ours.run((), |_, ()| plain.assign(3f32)).unwrap_err();
        assert_message(&error, &["variable plain was made without a strategy"]);
    });
}

#[test]
fn an_argument_of_another_number_of_replicas_is_named_by_its_path() {
    watched(|| {
        let (one, two) = (one_device(), mirrored(2));
        let pair = || per_replica([1f32, 2.]);
        let parts = |error: Error, texts: &[&str]| {
            assert!(matches!(error, Error::Parts { .. }), "{error}");
            assert_message(&error, texts);
        };
        let error = one.run((1f32, vec![per_replica([0f32]), pair()]), |_, _| Ok(())).unwrap_err();
        parts(error, &["run: args.1[1] is a PerReplica of 2 parts, but there is 1 local replica;"]);
        parts(one.run(pair(), |_, _| Ok(())).unwrap_err(), &["run: args is a PerReplica of 2 parts"]);
        let leaves = BTreeMap::from([("a", Tree::Leaf(per_replica([1f32]))), ("b", Tree::Leaf(pair()))]);
        let tree = Tree::Dict(leaves.into_iter().map(|(k, v)| (k.to_string(), v)).collect());
        parts(one.run((tree,), |_, _| Ok(())).unwrap_err(), &["run: args.0.b is a PerReplica of 2 parts"]);
        // The text names the strategy of the model.
        let model = two.replicate(|vb| linear(1, 1, vb)).unwrap();
        let error = one.run((&model, 1f32), |_, _| Ok(())).unwrap_err();
        parts(error, &[&format!("run: args.0 is a model Linear of {two} of 2 parts")]);
        let error = two.local_results((per_replica([1f32]), 2f32)).unwrap_err();
        parts(error, &["local_results: value.0 is a PerReplica of 1 part, but there are 2 local replicas"]);
    });
}

#[test]
fn a_path_that_two_layers_use_is_named() {
    let strategy = mirrored(2);
    let twice = |vb: VarBuilder| -> candle_core::Result<(Linear, Linear)> {
        Ok((linear(2, 3, vb.pp("fc"))?, linear(3, 2, vb.pp("fc"))?))
    };
    let error = strategy.replicate(twice).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { operation: "replicate", .. }), "{error}");
    assert_message(&error, &["variable fc.weight", "[3, 2]", "[2, 3]", "two layers", "vb.pp("]);
    // With equal shapes the layers share the variable, as in candle. The log reports this once for all replicas.
    let file = tempfile::NamedTempFile::new().unwrap();
    let log = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).with_ansi(false);
    let log = log.with_writer(Mutex::new(file.reopen().unwrap())).finish();
    let tied = tracing::subscriber::with_default(log, || {
        strategy.replicate(|vb| distribute::Ok((linear(2, 2, vb.pp("fc"))?, linear(2, 2, vb.pp("fc"))?)))
    });
    assert_eq!(tied.unwrap().variables.names(), ["fc.bias", "fc.weight"]);
    let log = std::fs::read_to_string(file.path()).unwrap();
    assert_eq!(log.matches("share variable fc.weight").count(), 1, "{log}");
}

#[test]
fn an_error_of_candle_about_a_variable_names_the_variable() {
    let strategy = mirrored(2);
    let model = strategy.replicate(|vb| linear(2, 2, vb.pp("fc"))).unwrap();
    let its_own = model.models().values()[0].weight().clone();
    let error = model.variables.set("fc.weight", &its_own).unwrap_err();
    assert!(matches!(error, Error::Candle(_)), "{error}");
    assert_message(&error, &["variable fc.weight: ", "cannot set"]);
}

#[cfg(not(feature = "cuda"))]
#[test]
fn a_gpu_without_the_feature_names_the_feature() {
    for name in ["cuda:0", "gpu:0", "/job:localhost/replica:0/task:0/device:GPU:1"] {
        let error = MirroredStrategy::new([name]).unwrap_err();
        assert!(matches!(&error, Error::Device { name: found, .. } if found == name), "{error}");
        assert_message(&error, &["lacks the cargo feature \"cuda\"", "features = [\"cuda\"]"]);
    }
}

#[test]
fn the_error_names_the_step_once() {
    watched(|| {
        let strategy = mirrored(2);
        let error = strategy.run((), |ctx, ()| match ctx.replica_id_in_sync_group() {
            0 => ctx.all_reduce(ReduceOp::Sum, 1f32),
            _ => Ok(1.),
        });
        let text = error.unwrap_err().to_string();
        assert!(text.contains("failed in step 1, call 1: replica 0 waits"), "{text}");
        assert_eq!(text.matches("step 1").count(), 1, "{text}");
        // A closure's own text stays as it is.
        let own = strategy.run((), |_, ()| Err::<(), _>(Error::other("step 2: no"))).unwrap_err().to_string();
        assert!(own.contains("failed in step 2: step 2: no"), "{own}");
    });
}

#[test]
fn a_scalar_of_all_replicas_is_read_in_one_call() {
    let scalars = |values: &[f32]| -> PerReplica<Tensor> {
        per_replica(values.iter().map(|value| Tensor::new(*value, &Device::Cpu).unwrap()))
    };
    assert_eq!(scalars(&[0.5, 0.5]).to_scalar::<f32>().unwrap(), 0.5);
    assert!(scalars(&[f32::NAN, f32::NAN]).to_scalar::<f32>().unwrap().is_nan());
    let error = scalars(&[0.5, 0.25]).to_scalar::<f32>().unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { operation: "to_scalar", .. }), "{error}");
    assert_message(
        &error,
        &["0.5 on replica 0, 0.25 on replica 1", "strategy.reduce(ReduceOp::Mean", "values()[0]"],
    );
    assert!(matches!(scalars(&[1.]).to_scalar::<f64>(), Err(Error::Candle(_))));
    assert!(scalars(&[]).to_scalar::<f32>().is_err());
}

#[test]
fn closures_of_replicate_need_no_types() {
    struct Mlp {
        _fc: Linear,
    }
    impl Mlp {
        fn of_candle(vb: VarBuilder) -> candle_core::Result<Self> {
            Ok(Self { _fc: linear(2, 2, vb.pp("fc"))? })
        }
        fn of_ours(vb: VarBuilder) -> distribute::Result<Self> {
            Ok(Self { _fc: linear(2, 2, vb.pp("fc"))? })
        }
    }
    let strategy = mirrored(2);
    let names = [
        strategy.replicate(|vb| linear(2, 2, vb.pp("fc"))).unwrap().variables.names(),
        strategy.replicate(|vb| Mlp::of_candle(vb.pp("a"))).unwrap().variables.names(),
        strategy.replicate(|vb| Mlp::of_ours(vb.pp("a"))).unwrap().variables.names(),
        strategy.replicate(Mlp::of_candle).unwrap().variables.names(),
        strategy.replicate(Mlp::of_ours).unwrap().variables.names(),
        strategy.replicate(|vb| distribute::Ok(Mlp { _fc: linear(2, 2, vb)? })).unwrap().variables.names(),
    ];
    assert_eq!(names.map(|names| names.len()), [2; 6]);
}
