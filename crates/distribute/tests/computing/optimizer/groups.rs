//! Variables that are frozen, or have other settings than the rest.

use crate::optimizer::{mirrored, value, vector, vectors};
use candle_core::{DType, Device, Module, Tensor};
use candle_nn::VarBuilder;
use distribute::nn::{Embedding, Linear, embedding, linear};
use distribute::optimizer::{Gradients, MissingGradients, Momentum, Transform, rules};
use distribute::{Error, Result, prelude::*};
use distribute_testing::watched;

const NAMES: &[&str] = &["a.bias", "a.weight", "b.weight"];

/// Makes a step in which every element of every gradient is 2.
fn step(strategy: &Strategy, optimizer: &Optimizer<impl rules::Rule>) -> Result<()> {
    let run = strategy.run((), |ctx, ()| {
        let mut gradients = Gradients::new(optimizer);
        for name in optimizer.variable_names() {
            gradients.insert(name, vector(&[2.; 3]))?;
        }
        optimizer.apply_gradients(ctx, gradients, ReduceOp::Mean)
    });
    run.map(drop)
}

#[test]
fn frozen_variables_are_neither_updated_nor_counted_in_norms_nor_saved() {
    watched(|| {
        let strategy = mirrored(2);
        let model = vectors(&strategy, NAMES);
        let optimizer = Momentum::new(&model.variables, 1.).unwrap();
        let optimizer = optimizer.freeze(|name| name.starts_with("a.")).unwrap();
        let optimizer = optimizer.after_reduce(Transform::clip_by_global_norm(3f64.sqrt())).unwrap();
        step(&strategy, &optimizer).unwrap();
        assert_eq!((value(&model, "a.bias"), value(&model, "a.weight")), (vec![1.; 3], vec![1.; 3]));
        // Its own norm is 2 · √3; with the frozen ones it would be 6.
        let moved = value(&model, "b.weight");
        assert!(moved.iter().all(|x| x.abs() < 1e-12), "{moved:?}");
        assert!(optimizer.variable_names().eq(["b.weight"]));
        let error = optimizer.slot("a.bias", "momentum").unwrap_err().to_string();
        assert!(error.contains("\"a.bias\" is frozen") && error.contains("b.weight"), "{error}");
        let error = Gradients::new(&optimizer).insert("a.bias", vector(&[1.])).unwrap_err().to_string();
        assert!(error.contains("\"a.bias\" is frozen"), "{error}");
        let error = Gradients::new(&optimizer).insert("a", vector(&[1.])).unwrap_err().to_string();
        assert!(error.contains("no variable is named \"a\""), "{error}");

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("saved");
        Checkpoint::new().part("o", &optimizer).part("m", &model.variables).save(&path).unwrap();
        let again =
            Momentum::new(&model.variables, 1.).unwrap().freeze(|name| name.starts_with("a.")).unwrap();
        Checkpoint::new().part("o", &again).part("m", &model.variables).restore(&path).unwrap();
        assert_eq!(again.finished_steps(), 1);
        let slot = again.slot_names().next().unwrap();
        let slot = |optimizer: &Momentum| optimizer.slot("b.weight", slot).unwrap().to_vec1::<f64>().unwrap();
        assert_eq!(slot(&again), slot(&optimizer));
        let all = Momentum::new(&model.variables, 1.).unwrap();
        let error = Checkpoint::new().part("o", &all).restore(&path).unwrap_err().to_string();
        assert!(error.contains("lacks") && error.contains("a.bias"), "{error}");
    });
}

#[test]
fn factors_multiply_the_rate_also_of_a_schedule() {
    watched(|| {
        let strategy = mirrored(2);
        let model = vectors(&strategy, NAMES);
        let optimizer = Sgd::new(&model.variables, 0.).unwrap();
        let optimizer = optimizer.rate_factor(|name| name.starts_with("a."), 0.5).unwrap();
        let optimizer = optimizer.rate_factor(|name| name.ends_with("bias"), 0.25).unwrap();
        let optimizer = optimizer.with_schedule(|finished: u64| 0.25 + finished as f64).unwrap();
        step(&strategy, &optimizer).unwrap();
        let now = || ["a.bias", "a.weight", "b.weight"].map(|name| value(&model, name)[0]);
        assert_eq!(now(), [1. - 0.0625, 0.75, 0.5]);
        step(&strategy, &optimizer).unwrap();
        assert_eq!(now(), [0.9375 - 0.3125, 0.75 - 1.25, 0.5 - 2.5]);
        // Freezing a variable does not change the factors of the others.
        let optimizer = optimizer.freeze(|name| name == "a.bias").unwrap();
        step(&strategy, &optimizer).unwrap();
        assert_eq!(now(), [0.625, -0.5 - 2.25, -2. - 4.5]);
    });
}

#[test]
fn a_group_may_have_separate_hyperparameters() {
    watched(|| {
        let strategy = mirrored(2);
        let model = vectors(&strategy, NAMES);
        let decays = rules::AdamW { weight_decay: 0.5, ..Default::default() };
        let still = rules::AdamW { weight_decay: 0., ..decays };
        let optimizer = Optimizer::with_rule(decays, &model.variables, 0.1).unwrap();
        let optimizer = optimizer.with_rule_for(|name| name.ends_with("bias"), still).unwrap();
        step(&strategy, &optimizer).unwrap();
        let [bias, weight] = ["a.bias", "a.weight"].map(|name| value(&model, name)[0]);
        assert!((bias - 0.9).abs() < 1e-6 && (weight - 0.85).abs() < 1e-6, "{bias} {weight}");
    });
}

#[test]
fn names_and_numbers_that_are_wrong_are_refused() {
    let model = vectors(&mirrored(2), NAMES);
    let new = || Adam::new(&model.variables, 0.1).unwrap();
    let refused = |result: Result<Adam>, parts: &[&str]| {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
        for part in parts {
            assert!(error.to_string().contains(part), "{part:?} is not in {error}");
        }
    };
    let there = ["no trained variable has such a name", "3 trained variables", "a.weight"];
    refused(new().freeze(|name| name == "a"), &there);
    refused(new().rate_factor(|_| false, 0.1), &there);
    refused(new().with_rule_for(|_| false, rules::Adam::default()), &there);
    refused(new().freeze(|_| true), &["none is left to train"]);
    let frozen = || new().freeze(|name| name == "a.bias").unwrap();
    let already = ["only frozen variables", "[\"a.bias\"]", "2 trained variables"];
    refused(frozen().freeze(|name| name == "a.bias"), &already);
    refused(frozen().rate_factor(|name| name == "a.bias", 0.1), &already);
    refused(frozen().with_rule_for(|name| name == "a.bias", rules::Adam::default()), &already);
    refused(
        frozen().rate_factor(|name| name == "a", 0.1),
        &["no trained variable", "the 2 trained variables"],
    );
    for factor in [0., -1., f64::NAN, f64::INFINITY] {
        refused(new().rate_factor(|_| true, factor), &["finite and positive", "freeze"]);
    }
    for factor in [1e200, 1e-200] {
        let twice = new().rate_factor(|_| true, factor).unwrap().rate_factor(|name| name == "a.bias", factor);
        refused(twice, &["variable a.bias multiply to", "1e", "200 after"]);
    }
    let wrong = rules::Adam { beta1: 2., ..Default::default() };
    assert!(matches!(new().with_rule_for(|_| true, wrong).unwrap_err(), Error::Hyperparameter(_)));
}

#[test]
fn a_rate_that_a_variable_cannot_hold_is_refused_by_name_and_nothing_has_changed() {
    watched(|| {
        for n in [1, 2] {
            let strategy = mirrored(n);
            // The variables are f64, and the rate exceeds the range of f64.
            let model = vectors(&strategy, NAMES);
            let optimizer = || {
                let optimizer = Sgd::new(&model.variables, 1e10).unwrap();
                optimizer.rate_factor(|name| name == "a.weight", 1e300).unwrap()
            };
            let error = step(&strategy, &optimizer()).unwrap_err();
            assert!(matches!(error.root_cause(), Error::InvalidArgument { .. }), "{error}");
            for part in ["variable a.weight", "1e10", "rate_factor 1e300", "the largest F64 is 1.80e308"] {
                assert!(error.to_string().contains(part), "{part:?} is not in {error}");
            }
            assert_eq!(NAMES.iter().map(|name| value(&model, name)).collect::<Vec<_>>(), [[1.; 3]; 3]);
            // The rate of a frozen variable is not checked.
            step(&strategy, &optimizer().freeze(|name| name == "a.weight").unwrap()).unwrap();

            let layer = strategy.replicate(|vb: VarBuilder| linear(1, 1, vb)).unwrap();
            let optimizer = Sgd::new(&layer.variables, 1e3).unwrap();
            let optimizer = optimizer.rate_factor(|name| name == "bias", 1e36).unwrap();
            let train = |optimizer: &Sgd| {
                strategy.run(&layer, |ctx, layer| {
                    let x = Tensor::ones((1, 1), DType::F32, &Device::Cpu)?;
                    optimizer.minimize(ctx, layer.forward(&x)?.sum_all()?, 1)
                })
            };
            let error = train(&optimizer).unwrap_err().to_string();
            for part in ["minimize: variable bias", "rate_factor 1e36", "the largest F32 is 3.40e38"] {
                assert!(error.contains(part), "{part:?} is not in {error}");
            }
            optimizer.set_learning_rate(1e-36).unwrap();
            train(&optimizer).unwrap();
        }
    });
}

/// A model of a table and two layers of `distribute::nn`.
struct Layers(Embedding, Linear, Linear);

#[test]
fn with_frozen_layers_any_number_of_replicas_trains_the_rest_identically() {
    watched(|| {
        let train = |n: usize, freeze: bool| {
            let strategy = mirrored(n);
            let model = strategy.replicate_seeded(3, |vb: VarBuilder| -> candle_core::Result<Layers> {
                let (table, body) = (embedding(5, 4, vb.pp("table"))?, linear(4, 4, vb.pp("body"))?);
                Ok(Layers(table, body, linear(4, 1, vb.pp("head"))?))
            });
            let model = model.unwrap();
            let mut optimizer =
                Adam::new(&model.variables, 0.1).unwrap().on_missing_gradients(MissingGradients::Error);
            if freeze {
                optimizer = optimizer.freeze(|name| !name.starts_with("body")).unwrap();
            }
            let before = [value(&model, "table.weight"), value(&model, "head.weight")];
            for _ in 0..3 {
                let run = strategy.run(&model, |ctx, Layers(table, body, head)| {
                    let all = [0u32, 3, 3, 1, 4, 2, 0, 1];
                    let mine = all.chunks(8 / n).nth(ctx.replica_id_in_sync_group()).unwrap();
                    let rows = table.forward(&Tensor::new(mine, &Device::Cpu)?)?;
                    let out = head.forward(&body.forward(&rows)?.tanh()?)?;
                    optimizer.minimize(ctx, out.sqr()?.mean_all()?.to_dtype(DType::F32)?, mine.len())
                });
                run.unwrap();
            }
            let after = [value(&model, "table.weight"), value(&model, "head.weight")];
            assert_eq!(before == after, freeze);
            value(&model, "body.weight")
        };
        let one = train(1, true);
        for n in [2, 4] {
            let many = train(n, true);
            assert!(one.iter().zip(&many).all(|(one, many)| (one - many).abs() < 1e-4), "{one:?} {many:?}");
        }
        assert_ne!(one, train(1, false));
    });
}
