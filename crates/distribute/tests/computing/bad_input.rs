//! Bad input: a typed error describes the cause and the fix, and nothing has changed.

use candle_core::{DType, Device, Tensor};
use candle_nn::{VarBuilder, linear};
use distribute::data::{Csv, Dataset, Error as DataError};
use distribute::optimizer::{Transform, rules};
use distribute::strategy::{DeviceName, StrategyExtended};
use distribute::{
    Error, HostTensor, MirroredStrategy, OneDeviceStrategy, Optimizer, PerReplica, ReduceOp, Replicated,
    Result, Sgd, Strategy,
};
use distribute_testing::watched;
use std::path::PathBuf;

fn strategy() -> Strategy {
    MirroredStrategy::cpus(2).unwrap()
}

fn model(strategy: &Strategy) -> Replicated<candle_nn::Linear> {
    strategy.replicate(|vb: VarBuilder| linear(2, 1, vb)).unwrap()
}

fn invalid<T: std::fmt::Debug>(result: Result<T>, texts: &[&str]) {
    let error = result.unwrap_err();
    assert!(matches!(error.root_cause(), Error::InvalidArgument { .. }), "{error:?}");
    for text in texts {
        assert!(error.to_string().contains(text), "{text:?} is not in {error}");
    }
}

#[test]
fn devices_that_are_unknown_not_here_or_named_twice() {
    for (names, text) in [
        (&["tpu:0"][..], "unknown kind"),
        (&["cpu:zero"], "not a number"),
        (&["cpu:-1"], "not a number"),
        (&["cpu:99999999999999999999999"], "not a number"),
        (&["cpu:0", "cpu:1", "/CPU:0"], "named twice"),
        (&["gpu:0"], "this build cannot use it"),
    ] {
        let error = MirroredStrategy::new(names.iter().copied()).unwrap_err();
        let Error::Device { name, .. } = &error else { panic!("{error:?}") };
        assert!(names.contains(&name.as_str()) && error.to_string().contains(text), "{error}");
    }
    assert!(matches!(OneDeviceStrategy::new("").unwrap_err(), Error::Device { .. }));
}

#[test]
fn a_strategy_without_devices() {
    invalid(MirroredStrategy::new([]), &["no device", "all_cores"]);
    invalid(MirroredStrategy::cpus(0), &["MirroredStrategy::cpus", "at least one replica"]);

    #[derive(Debug)]
    struct Empty;
    impl StrategyExtended for Empty {
        fn kind(&self) -> &'static str {
            "Empty"
        }
        fn worker_devices(&self) -> &[DeviceName] {
            &[]
        }
    }
    invalid(Strategy::new(Empty), &["Empty", "no replica"]);
}

#[test]
fn values_made_for_another_number_of_replicas() {
    watched(|| {
        let strategy = strategy();
        let three = || PerReplica::from_values(vec![1f32, 2., 3.]);
        fn parts<T: std::fmt::Debug>(result: Result<T>, texts: &[&str]) {
            let error = result.unwrap_err();
            assert!(matches!(error, Error::Parts { replicas: 2, .. }), "{error:?}");
            texts
                .iter()
                .for_each(|text| assert!(error.to_string().contains(text), "{text:?} is not in {error}"));
        }
        parts(strategy.run(three(), |_, _| Ok(())), &["3 parts", "2 local replicas"]);
        parts(strategy.run(&three(), |_, _| Ok(())), &["3 parts"]);
        parts(strategy.run((1, vec![three()]), |_, _| Ok(())), &["args.1[0]", "3 parts"]);
        invalid(strategy.reduce(ReduceOp::Sum, three(), None), &["3 parts", "2 replicas"]);
        invalid(strategy.gather(three(), 0), &["3 parts"]);
        parts(strategy.local_results(three()), &["value", "3 parts"]);
        let wide: Strategy = MirroredStrategy::cpus(3).unwrap();
        parts(strategy.run(&model(&wide), |_, _| Ok(())), &["a model Linear of MirroredStrategy", "3 parts"]);
        // Nothing ran.
        let steps = strategy.run((), |ctx, ()| Ok(ctx.step())).unwrap();
        assert_eq!(steps.values(), [1, 1]);
    });
}

#[test]
fn ranks_and_axes_that_do_not_exist() {
    watched(|| {
        let strategy = strategy();
        let value =
            || PerReplica::from_values(vec![HostTensor::vector(vec![1f32]), HostTensor::vector(vec![2f32])]);
        for axis in [1, -2, i64::MAX, i64::MIN] {
            let error = strategy.reduce(ReduceOp::Mean, value(), axis).unwrap_err();
            assert!(matches!(error, Error::Tensor { operation: "reduce", .. }), "{error}");
            assert!(error.to_string().contains(&format!("axis {axis}")), "{error}");
        }
        assert!(matches!(
            strategy.gather(value(), usize::MAX).unwrap_err(),
            Error::Tensor { operation: "gather", .. }
        ));
        let error =
            strategy.run((), |ctx, ()| ctx.all_gather(HostTensor::vector(vec![1f32]), 1)).unwrap_err();
        assert!(matches!(error.root_cause(), Error::Tensor { operation: "all_gather", .. }), "{error}");
    });
}

#[test]
fn a_dataset_that_is_not_batched() {
    let error = strategy().distribute_dataset(Dataset::range(4)).unwrap_err();
    assert!(
        matches!(error, Error::Data(DataError::NotBatched { .. })) && error.to_string().contains(".batch("),
        "{error}"
    );
}

#[test]
fn a_broken_row_of_csv_names_file_line_and_column() {
    watched(|| {
        for (row, column) in [("3,x", 2), ("3", 2), ("3,4,5", 3), ("\"3,4", 1)] {
            let text = format!("a,b\n1,2\n{row}\n5,6\n");
            let rows = Csv::bytes("rows.csv", text.into_bytes()).features().unwrap();
            let batches = strategy().distribute_dataset(rows.batch(1)).unwrap();
            let mut pass = batches.iter();
            assert!(pass.next().unwrap().is_ok(), "the first row is whole");
            let error = pass.next().unwrap().unwrap_err();
            let Error::Data(DataError::Csv { path, line, column: found, .. }) = &error else {
                panic!("{error:?}")
            };
            assert_eq!((path.as_str(), *line, *found), ("rows.csv", 3, column), "{row}: {error}");
            assert!(error.to_string().contains("'rows.csv', line 3, column"), "{error}");
            assert!(pass.next().is_none(), "after an error the pass is over");
        }
        let error = Error::from(Csv::file("/nowhere/rows.csv").features().unwrap_err());
        assert!(
            matches!(error, Error::Data(DataError::Io { .. }))
                && error.to_string().contains("/nowhere/rows.csv")
        );
        let error = Error::from(Csv::bytes("rows.csv", b"a,b\n1,2\n").labelled("label").unwrap_err());
        assert!(error.to_string().contains("no column") && error.to_string().contains("label"), "{error}");
    });
}

#[test]
fn hyperparameters_out_of_range() {
    let model = model(&strategy());
    let variables = &model.variables;
    for rate in [-0.1, f64::NAN, f64::INFINITY] {
        invalid(Sgd::new(variables, rate), &["learning rate"]);
        let optimizer = Sgd::new(variables, 0.5).unwrap();
        invalid(optimizer.set_learning_rate(rate), &["learning rate"]);
        assert_eq!(optimizer.learning_rate(), 0.5);
    }
    for norm in [0., -1., f64::NAN] {
        invalid(
            Sgd::new(variables, 0.1).unwrap().after_reduce(Transform::clip_by_global_norm(norm)),
            &["positive"],
        );
    }
    fn refused<R: distribute::optimizer::rules::Rule>(
        rule: R,
        variables: &distribute::Variables,
        text: &str,
    ) {
        let error = Optimizer::with_rule(rule, variables, 0.1).unwrap_err();
        assert!(matches!(error, Error::Hyperparameter(_)) && error.to_string().contains(text), "{error}");
    }
    refused(rules::Momentum::new(1.5), variables, "momentum");
    refused(rules::Adam { beta1: 1., ..Default::default() }, variables, "beta1");
    refused(rules::Adam { epsilon: -1., ..Default::default() }, variables, "epsilon");
    refused(rules::RmsProp { rho: f64::NAN, ..Default::default() }, variables, "rho");
    refused(rules::Ftrl { l1: -1., ..Default::default() }, variables, "l1");
    refused(
        rules::Adagrad { initial_accumulator_value: -1., ..Default::default() },
        variables,
        "initial_accumulator",
    );
    let empty = strategy().replicate(|_: VarBuilder| Ok::<_, Error>(())).unwrap();
    invalid(Sgd::new(&empty.variables, 0.1), &["no variables"]);
    let half = strategy().replicate(|vb: VarBuilder| vb.to_dtype(DType::F16).get(1, "w")).unwrap();
    invalid(Sgd::new(&half.variables, 0.1), &["only variables of F16: w", "f32 and f64"]);
}

#[test]
fn a_loss_that_is_no_scalar_or_no_mean_of_anything() {
    watched(|| {
        let strategy = strategy();
        let model = model(&strategy);
        let optimizer = Sgd::new(&model.variables, 0.1).unwrap();
        let before = model.variables.sha256().unwrap();
        let shaped = strategy.run(&model, |ctx, model| optimizer.minimize(ctx, model.weight().clone(), 1));
        invalid(shaped, &["shape [1, 2]", "scalar"]);
        let none = strategy.run(&model, |ctx, model| optimizer.minimize(ctx, model.weight().sum_all()?, 0));
        invalid(none, &["no replica has an example"]);
        // The text names the operation once, not once for each layer.
        let error = strategy.run((), |ctx, ()| optimizer.skip(ctx)).unwrap_err();
        assert_eq!(error.root_cause().to_string().matches("skip:").count(), 1, "{error}");
        assert_eq!((model.variables.sha256().unwrap(), optimizer.finished_steps()), (before, 0));
    });
}

#[test]
fn variables_that_do_not_exist_or_do_not_fit() {
    let model = model(&strategy());
    let before = model.variables.sha256().unwrap();
    invalid(model.variables.get("wait"), &["\"wait\"", "\"weight\""]);
    let value = Tensor::zeros((2, 2), DType::F32, &Device::Cpu).unwrap();
    invalid(model.variables.set("wait", &value), &["\"wait\""]);
    invalid(model.variables.set("weight", &value), &["F32[1, 2]", "F32[2, 2]"]);
    let double = Tensor::zeros((1, 2), DType::F64, &Device::Cpu).unwrap();
    invalid(model.variables.set("weight", &double), &["F64"]);
    assert_eq!(model.variables.sha256().unwrap(), before);
}

#[test]
fn a_value_read_before_a_step_does_not_change_with_it() {
    watched(|| {
        let strategy = strategy();
        let model = model(&strategy);
        let optimizer = Sgd::new(&model.variables, 0.5).unwrap();
        let before = model.variables.get("weight").unwrap();
        let copy = before.to_vec2::<f32>().unwrap();
        strategy.run(&model, |ctx, model| optimizer.minimize(ctx, model.weight().sum_all()?, 1)).unwrap();
        assert_eq!(before.to_vec2::<f32>().unwrap(), copy);
        assert_ne!(model.variables.get("weight").unwrap().to_vec2::<f32>().unwrap(), copy);
    });
}

/// A temporary directory, which is removed when this is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("distribute-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn files_that_cannot_be_loaded_change_nothing_and_are_named() {
    let scratch = Scratch::new("load");
    let good = scratch.0.join("good.safetensors");
    let model = model(&strategy());
    let saved = model.variables.sha256().unwrap();
    model.variables.save(&good).unwrap();
    let bytes = std::fs::read(&good).unwrap();
    let twos = Tensor::full(2f32, (1, 2), &Device::Cpu).unwrap();
    model.variables.set("weight", &twos).unwrap();
    let before = model.variables.sha256().unwrap();
    assert_ne!(before, saved);

    let file = scratch.0.join("bad.safetensors");
    let load = |bytes: &[u8]| {
        std::fs::write(&file, bytes).unwrap();
        let error = model.variables.load(&file).unwrap_err();
        assert!(error.to_string().contains("bad.safetensors"), "{error}");
        assert_eq!(model.variables.sha256().unwrap(), before);
        error
    };
    // A file that is cut anywhere cannot be read, nor can one with changed bytes in its header.
    for len in 0..bytes.len() {
        assert!(matches!(load(&bytes[..len]), Error::Candle(_)), "cut at {len}");
    }
    for at in 0..8 {
        let mut broken = bytes.clone();
        broken[at] = 0xff;
        assert!(matches!(load(&broken), Error::Candle(_)), "byte {at}");
    }
    let save = |tensors: &[(&str, Tensor)]| {
        let tensors = tensors.iter().map(|(name, tensor)| (name.to_string(), tensor.clone())).collect();
        candle_core::safetensors::save(&tensors, &file).unwrap();
        std::fs::read(&file).unwrap()
    };
    let bias = Tensor::zeros(1, DType::F32, &Device::Cpu).unwrap();
    let missing = load(&save(&[("bias", bias.clone())])).to_string();
    assert!(missing.contains("lacks the variables weight; it has bias; use load_some and RestoreFilter::named for names that differ"), "{missing}");
    for (bytes, is) in [
        (&b"PK\x03\x04...data.pkl......"[..], "PyTorch's (a .bin or .pt file); convert it"),
        (b"\x80\x02\x8a\x0al\xfc\x9c", "PyTorch's"),
        (b"GGUF\x03\0\0\0\0\0", "a GGUF file"),
        (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "a Git LFS pointer"),
        (b"<!doctype html><html>", "a web page"),
        (b"{\"weight_map\": {}}", "JSON; if it is an index"),
    ] {
        let error = load(bytes);
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
        assert!(error.to_string().contains(&format!("is not a safetensors file: it is {is}")), "{error}");
    }
    // The bias has the right shape and comes first, but must not be set.
    let one = Tensor::ones(1, DType::F32, &Device::Cpu).unwrap();
    let shape = load(&save(&[("bias", one.clone()), ("weight", twos.t().unwrap().contiguous().unwrap())]))
        .to_string();
    assert!(
        shape.contains("weight is F32[1, 2]") && shape.contains("bad.safetensors it is F32[2, 1]"),
        "{shape}"
    );
    let dtype = load(&save(&[("bias", one), ("weight", twos.to_dtype(DType::F64).unwrap())])).to_string();
    assert!(dtype.contains("F64"), "{dtype}");

    let absent = scratch.0.join("absent.safetensors");
    assert!(model.variables.load(&absent).unwrap_err().to_string().contains("absent.safetensors"));
    let nowhere = scratch.0.join("no").join("where.safetensors");
    assert!(model.variables.save(&nowhere).unwrap_err().to_string().contains("where.safetensors"));

    // An intact file restores the weights. Names that the model does not have are ignored.
    model.variables.load(&good).unwrap();
    assert_eq!(model.variables.sha256().unwrap(), saved);
    std::fs::write(&file, save(&[("bias", bias), ("weight", twos.clone()), ("other", twos)])).unwrap();
    model.variables.load(&file).unwrap();
}

#[test]
fn a_closure_that_fails_on_an_empty_batch_gets_advice() {
    watched(|| {
        let strategy = strategy();
        let batches = strategy.distribute_dataset(Dataset::range(1).batch(2)).unwrap();
        let batch = batches.iter().next().unwrap().unwrap();
        let error = strategy.run(batch, |_, numbers| {
            let tensor = numbers.to_candle(&Device::Cpu)?;
            Ok(tensor.get(0)?)
        });
        let error = error.unwrap_err();
        let text = error.to_string();
        let Error::Replica { replica: 1, source, .. } = error else { panic!("{text}") };
        assert!(matches!(*source, Error::EmptyPiece { replica: 1, .. }), "{text}");
        assert!(text.contains("optimizer.skip(ctx)"), "{text}");
    });
}
