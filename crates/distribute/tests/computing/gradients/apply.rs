//! `apply_gradients`: its results, its errors, and the learning rate of its steps.

use crate::gradients::{COUNTS, bits, loss, mirrored, model, numbers, one_weight, reduced};
use candle_core::{DType, Device, Tensor};
use distribute::optimizer::rules::{Adam, Sgd};
use distribute::optimizer::{Gradient, Gradients, Weighting, schedules};
use distribute::tensor::IndexedSlices;
use distribute::{Error, HostTensor, Optimizer, ReduceOp};
use distribute_testing::watched;

#[test]
fn minimize_is_gradients_of_the_loss_and_apply_gradients() {
    watched(|| {
        for n in COUNTS {
            let strategy = mirrored(n);
            let train = |way: usize| {
                let model = model(&strategy);
                let optimizer = Optimizer::with_rule(Adam::default(), &model.variables, 0.1).unwrap();
                for _ in 0..3 {
                    let step = strategy.run(&model, |ctx, weights| {
                        let replica = ctx.replica_id_in_sync_group();
                        // Some replicas get no example.
                        let (loss, examples) = (loss(weights, replica)?, (replica + 1) % 3);
                        let scaled = (&loss * examples as f64)?;
                        match way {
                            0 => optimizer.minimize(ctx, loss, examples).map(drop),
                            1 => optimizer.apply_gradients(ctx, Gradients::of(&optimizer, &loss)?, examples),
                            2 => {
                                let gradients = Gradients::of(&optimizer, &scaled)?;
                                optimizer.apply_gradients(ctx, gradients, Weighting::SumOver(examples))
                            }
                            _ => {
                                let gradients = Gradients::from_store(&optimizer, &loss.backward()?)?;
                                optimizer.apply_gradients(ctx, gradients, Weighting::MeanOver(examples))
                            }
                        }
                    });
                    step.unwrap();
                }
                model
            };
            let expected = train(0);
            // The same kind of weighting gives the same bits; another kind rounds otherwise.
            assert_eq!(bits(&train(if n == 1 { 1 } else { 2 })), bits(&expected), "{n} replicas");
            for way in [1, 2, 3] {
                for (got, want) in numbers(&train(way)).iter().zip(numbers(&expected)) {
                    assert!((got - want).abs() < 1e-12, "{n} replicas, way {way}: {got}, not {want}");
                }
            }
            assert_eq!(bits(&train(1)), bits(&train(3)), "{n} replicas");
        }
    });
}

#[test]
fn sum_and_mean_over_replicas_are_right() {
    watched(|| {
        for n in COUNTS {
            let gradient = |replica: usize| Some(vec![1. + replica as f64, -4.]);
            let sum = reduced(n, Ok, gradient, |_| ReduceOp::Sum.into()).unwrap();
            let total = (n * (n + 1) / 2) as f64;
            assert_eq!(sum, [total, -4. * n as f64]);
            let mean = reduced(n, Ok, gradient, |_| ReduceOp::Mean.into()).unwrap();
            assert!((mean[0] - total / n as f64).abs() < 1e-15 && (mean[1] + 4.).abs() < 1e-15, "{mean:?}");
            // A replica without a gradient counts as zero in the mean.
            let some = |replica: usize| (replica == 0).then(|| vec![6.]);
            let mean = reduced(n, Ok, some, |_| ReduceOp::Mean.into()).unwrap();
            assert_eq!(mean, [6. * (1. / n as f64)]);
        }
    });
}

// INV-9
#[test]
fn gradients_over_no_examples_have_no_weight_not_even_nan() {
    watched(|| {
        let gradient = |replica: usize| Some(vec![if replica == 1 { f64::NAN } else { 3. }]);
        for over in [Weighting::MeanOver, Weighting::SumOver] {
            let got = reduced(2, Ok, gradient, |replica| over(1 - replica)).unwrap();
            assert_eq!(got, [3.]);
            let error = reduced(2, Ok, gradient, |_| over(0)).unwrap_err().to_string();
            assert!(error.contains("no replica has an example"), "{error}");
        }
    });
}

#[test]
fn replicas_with_another_reduction_are_an_error() {
    watched(|| {
        let weighting = |replica: usize| match replica {
            0 => ReduceOp::Sum.into(),
            _ => Weighting::MeanOver(4),
        };
        let error = reduced(2, Ok, |_| Some(vec![1.]), weighting).unwrap_err();
        assert!(error.blame().is_some() && error.to_string().contains("SUM"), "{error}");
    });
}

#[test]
fn mismatched_values_are_refused_and_named() {
    watched(|| {
        let strategy = mirrored(2);
        let model = model(&strategy);
        let optimizer = Optimizer::with_rule(Sgd, &model.variables, 1.).unwrap();
        let mut gradients = Gradients::new(&optimizer);
        let zeros = |shape: &[usize], dtype| Tensor::zeros(shape, dtype, &Device::Cpu).unwrap();
        let rows = |values: usize, indices: Vec<i64>, whole| IndexedSlices {
            values: HostTensor::zeros(distribute::tensor::DType::F64, [indices.len(), values]).unwrap(),
            indices: HostTensor::vector(indices),
            dense_shape: whole,
        };
        let cases: [(&str, Gradient, &str); 8] = [
            ("c", zeros(&[3], DType::F64).into(), "no variable is named \"c\""),
            ("a", zeros(&[4], DType::F64).into(), "F64[4]"),
            ("a", zeros(&[3], DType::F32).into(), "F32[3]"),
            ("b", rows(2, vec![0], None).into(), "the gradient of b is"),
            ("b", rows(3, vec![4], None).into(), "not one of its rows"),
            ("b", rows(3, vec![-1], None).into(), "not one of its rows"),
            ("b", rows(3, vec![0], Some(vec![5, 3])).into(), "the gradient of b is"),
            (
                "b",
                IndexedSlices { indices: HostTensor::vector(vec![0u8]), ..rows(3, vec![0], None) }.into(),
                "b is",
            ),
        ];
        for (name, gradient, text) in cases {
            let error = gradients.insert(name, gradient).unwrap_err();
            assert!(
                matches!(error, Error::InvalidArgument { .. }) && error.to_string().contains(text),
                "{error}"
            );
        }
        assert_eq!(gradients.iter().count(), 0);

        let other = Optimizer::with_rule(Sgd, &model.variables, 1.).unwrap();
        let before = bits(&model);
        let error = strategy
            .run((), |ctx, ()| optimizer.apply_gradients(ctx, Gradients::new(&other), 1))
            .unwrap_err();
        assert!(error.to_string().contains("another optimizer"), "{error}");
        let error = strategy.run((), |ctx, ()| optimizer.apply_gradients(ctx, Gradients::new(&optimizer), 1));
        let error = error.unwrap_err().to_string();
        assert!(error.contains("apply_gradients: no replica has a gradient"), "{error}");
        assert_eq!((bits(&model), optimizer.finished_steps()), (before, 0));
    });
}

#[test]
fn a_variable_may_be_its_own_gradient() {
    watched(|| {
        let strategy = mirrored(2);
        let model = model(&strategy);
        let before = numbers(&model);
        let optimizer = Optimizer::with_rule(Sgd, &model.variables, 0.25).unwrap();
        let run = strategy.run(&model, |ctx, weights| {
            let mut gradients = Gradients::new(&optimizer);
            gradients.insert("a", weights[0].clone())?;
            gradients.insert("b", weights[1].clone())?;
            optimizer.apply_gradients(ctx, gradients, ReduceOp::Sum)
        });
        run.unwrap();
        assert!(numbers(&model).iter().zip(before).all(|(after, before)| *after == 0.5 * before));
    });
}

#[test]
fn the_learning_rate_follows_the_finished_steps() {
    watched(|| {
        let strategy = mirrored(2);
        let model = one_weight(&strategy, 1);
        let schedule = schedules::PiecewiseConstantDecay::new([1], [1., 0.25]);
        let optimizer =
            Optimizer::with_rule(Sgd, &model.variables, 7.).unwrap().with_schedule(schedule).unwrap();
        let mut seen = Vec::new();
        for _ in 0..4 {
            let rate = optimizer.learning_rate();
            strategy.run(&model, |ctx, w| optimizer.minimize(ctx, w.sum_all()?, 1)).unwrap();
            seen.push((rate, numbers(&model)[0]));
        }
        assert_eq!(seen, [(1., -1.), (1., -2.), (0.25, -2.25), (0.25, -2.5)]);
        let error = optimizer.set_learning_rate(1.).unwrap_err().to_string();
        assert!(error.contains("follows a schedule"), "{error}");

        let bad = Optimizer::with_rule(Sgd, &model.variables, 1.)
            .unwrap()
            .with_schedule(|_: u64| f64::NAN)
            .unwrap();
        let before = bits(&model);
        let error =
            strategy.run(&model, |ctx, w| bad.minimize(ctx, w.sum_all()?, 1)).unwrap_err().to_string();
        assert!(error.contains("the learning rate must be finite"), "{error}");
        assert_eq!((bits(&model), bad.finished_steps()), (before, 0));
        let refused = Optimizer::with_rule(Sgd, &model.variables, 1.).unwrap().with_schedule(-1.);
        assert!(matches!(refused, Err(Error::Hyperparameter(_))));
    });
}

#[test]
fn errors_name_the_call_that_was_made() {
    watched(|| {
        let strategy = mirrored(2);
        let model = one_weight(&strategy, 1);
        let optimizer = Optimizer::with_rule(Sgd, &model.variables, 1.).unwrap();
        let run = |call: usize| {
            strategy.run(&model, |ctx, w| match call {
                0 => optimizer.minimize(ctx, w.sum_all()?, 0).map(drop),
                1 => optimizer.minimize_each(ctx, [Ok((w.sum_all()?, 0))]).map(drop),
                2 => optimizer.skip(ctx).map(drop),
                _ => optimizer.apply_gradients(ctx, Gradients::new(&optimizer), 0),
            })
        };
        for (call, name) in ["minimize", "minimize_each", "skip", "apply_gradients"].iter().enumerate() {
            let error = run(call).unwrap_err().root_cause().to_string();
            assert_eq!(
                error,
                format!("{name}: no replica has an example; a global batch needs at least one")
            );
        }
        let stale = distribute::context::get_replica_context().unwrap();
        let error = strategy.run((), |_, ()| optimizer.skip(&stale)).unwrap_err().root_cause().to_string();
        assert!(error.starts_with("skip: "), "{error}");
    });
}

#[test]
fn more_examples_than_can_be_counted_are_weighed_or_refused() {
    watched(|| {
        // Weights of nearly 1 and 0.
        let over = |replica: usize| Weighting::MeanOver([usize::MAX, 1][replica]);
        assert_eq!(reduced(2, Ok, |replica| Some(vec![2. + replica as f64]), over).unwrap(), [2.]);
        let strategy = mirrored(2);
        let model = one_weight(&strategy, 1);
        let optimizer = Optimizer::with_rule(Sgd, &model.variables, 1.).unwrap();
        let run = strategy.run(&model, |ctx, w| {
            optimizer.minimize_each(ctx, [Ok((w.sum_all()?, usize::MAX)), Ok((w.sum_all()?, 1))])
        });
        let error = run.unwrap_err();
        assert!(matches!(error.root_cause(), Error::InvalidArgument { .. }), "{error}");
        assert_eq!(optimizer.finished_steps(), 0);
    });
}

#[test]
fn if_graphs_contain_collectives_all_replicas_need_the_same_number_of_micro_batches() {
    watched(|| {
        let strategy = mirrored(2);
        let model = one_weight(&strategy, 1);
        let optimizer = Optimizer::with_rule(Sgd, &model.variables, 1.).unwrap();
        let step = |detached: bool, equal: bool| {
            strategy.run(&model, |ctx, w| {
                let logged = if detached { w.sum_all()?.detach() } else { w.sum_all()? };
                let logged = ctx.all_reduce(ReduceOp::Sum, logged)?;
                let mine = 1 + ctx.replica_id_in_sync_group();
                let losses = (0..if equal { 2 } else { mine })
                    .map(|i| Ok(((w.sum_all()? * [1., 2., 4.][mine + i - 1])?, usize::from(i < mine))));
                optimizer.minimize_each(ctx, losses)?;
                // The tensor exists until the step ends.
                Ok(logged.dims().len())
            })
        };
        let error = step(false, false).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("one more loss or micro-batch, whose graph may contain collectives")
                && text.contains("sgd")
                && text.contains("apply.rs:"),
            "{error}"
        );
        assert_eq!(numbers(&model), [0.]);
        // 1 of replica 0, 2 and 4 of replica 1.
        step(true, false).unwrap();
        step(false, true).unwrap();
        assert!((numbers(&model)[0] + 2. * 7. / 3.).abs() < 1e-15);
    });
}

// INV-7: (16777216 + 0) + (1 + 1), and not one after another, where each 1 would vanish in f32.
#[test]
fn a_replica_without_a_gradient_keeps_its_place_in_the_tree_of_sums() {
    watched(|| {
        let strategy = mirrored(4);
        let parts = [Some(16_777_216f32), None, Some(1.), Some(1.)];
        for by_row in [false, true] {
            let model = strategy
                .replicate(|vb: candle_nn::VarBuilder| {
                    vb.get_with_hints((1, 1), "w", candle_nn::Init::Const(0.))
                })
                .unwrap();
            let optimizer = Optimizer::with_rule(Sgd, &model.variables, 1.).unwrap();
            let step = strategy.run((), |ctx, ()| {
                let mut gradients = Gradients::new(&optimizer);
                if let Some(part) = parts[ctx.replica_id_in_sync_group()] {
                    let row = HostTensor::new(vec![part], [1, 1])?;
                    if by_row {
                        let index = HostTensor::vector(vec![0i64]);
                        gradients.insert("w", IndexedSlices::new(row, index, None)?)?;
                    } else {
                        gradients.insert("w", row.to_candle(&Device::Cpu)?)?
                    }
                }
                optimizer.apply_gradients(ctx, gradients, ReduceOp::Sum)
            });
            step.unwrap();
            let w = model.variables.get("w").unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
            assert_eq!(w, [-16_777_218.], "by row: {by_row}");
        }
    });
}
