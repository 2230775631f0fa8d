//! Gradients of the user's own: `apply_gradients` as `minimize` does it, transforms before and after the reduction, and
//! gradients by row, which train as dense ones do.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/watched.rs"]
mod watched;

use candle_core::{DType, Device, Tensor};
use candle_nn::{Init, VarBuilder};
use distribute::optimizer::rules::{Adagrad, Adam, Ftrl, Momentum, RmsProp, Rule, Sgd};
use distribute::optimizer::{Gradient, Gradients, Transform, Weighting, schedules};
use distribute::{
    Error, HostTensor, IndexedSlices, MirroredStrategy, Optimizer, ReduceOp, Replicated, Result, Strategy,
};
use proptest::prelude::*;
use proptest::strategy::Strategy as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use watched::watched;

const COUNTS: [usize; 5] = [1, 2, 3, 4, 8];

fn replicas(n: usize) -> Strategy {
    MirroredStrategy::cpus(n).unwrap().into()
}

/// A model of a vector and a matrix.
fn model(strategy: &Strategy) -> Replicated<Vec<Tensor>> {
    let build = |vb: VarBuilder| -> candle_core::Result<Vec<Tensor>> {
        let vb = vb.to_dtype(DType::F64);
        let init = Init::Uniform { lo: -1., up: 1. };
        Ok(vec![vb.get_with_hints(3, "a", init)?, vb.get_with_hints((4, 3), "b", init)?])
    };
    strategy.replicate_seeded(5, build).unwrap()
}

/// A loss in which every weight counts, with other gradients on every replica.
fn loss(weights: &[Tensor], replica: usize) -> Result<Tensor> {
    let x = (Tensor::arange(1f64, 4., &Device::Cpu)? * (replica as f64 - 1.5))?;
    let out = weights[1].broadcast_mul(&x)?.sum(1)?.tanh()?;
    Ok((out.mean_all()? + weights[0].mul(&x)?.sin()?.sum_all()?)?)
}

fn bits<M>(model: &Replicated<M>) -> Vec<u64> {
    let mut all = Vec::new();
    for name in model.variables.names() {
        let value = model.variables.get(&name).unwrap().to_dtype(DType::F64).unwrap();
        all.extend(value.flatten_all().unwrap().to_vec1::<f64>().unwrap());
    }
    all.into_iter().map(f64::to_bits).collect()
}

fn numbers<M>(model: &Replicated<M>) -> Vec<f64> {
    bits(model).into_iter().map(f64::from_bits).collect()
}

/// One weight, which starts at 0.
fn one_weight(strategy: &Strategy, shape: impl Into<candle_core::Shape>) -> Replicated<Tensor> {
    let shape = shape.into();
    let build =
        move |vb: VarBuilder| vb.get_with_hints_dtype(shape.clone(), "w", Init::Const(0.), DType::F64);
    strategy.replicate(build).unwrap()
}

fn vector(values: &[f64]) -> Tensor {
    Tensor::from_slice(values, values.len(), &Device::Cpu).unwrap()
}

/// What plain descent with rate 1 takes off weights of 0 in one step: the reduced gradient.
fn reduced(
    n: usize,
    prepare: impl Fn(Optimizer<Sgd>) -> Result<Optimizer<Sgd>>,
    gradient: impl Fn(usize) -> Option<Vec<f64>> + Sync,
    weighting: impl Fn(usize) -> Weighting + Sync,
) -> Result<Vec<f64>> {
    let strategy = replicas(n);
    let len = (0..n).find_map(&gradient).map_or(1, |gradient| gradient.len());
    let model = one_weight(&strategy, len);
    let optimizer = prepare(Optimizer::with_rule(Sgd, &model.variables, 1.)?)?;
    strategy.run((), |ctx, ()| {
        let replica = ctx.replica_id_in_sync_group();
        let mut gradients = Gradients::new(&optimizer);
        if let Some(gradient) = gradient(replica) {
            gradients.insert("w", vector(&gradient))?;
        }
        optimizer.apply_gradients(ctx, gradients, weighting(replica))
    })?;
    Ok(numbers(&model).into_iter().map(|x| 0. - x).collect())
}

#[test]
fn minimize_is_gradients_of_the_loss_and_apply_gradients() {
    watched(|| {
        for n in COUNTS {
            let strategy = replicas(n);
            let train = |way: usize| {
                let model = model(&strategy);
                let optimizer = Optimizer::with_rule(Adam::default(), &model.variables, 0.1).unwrap();
                for _ in 0..3 {
                    let step = strategy.run(&model, |ctx, weights| {
                        let replica = ctx.replica_id_in_sync_group();
                        // Some get no example.
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
            // The same way to the bit; another way of weighting rounds otherwise.
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
fn sum_and_mean_over_replicas_are_what_they_say() {
    watched(|| {
        for n in COUNTS {
            let gradient = |replica: usize| Some(vec![1. + replica as f64, -4.]);
            let sum = reduced(n, Ok, gradient, |_| ReduceOp::Sum.into()).unwrap();
            let total = (n * (n + 1) / 2) as f64;
            assert_eq!(sum, [total, -4. * n as f64]);
            let mean = reduced(n, Ok, gradient, |_| ReduceOp::Mean.into()).unwrap();
            assert!((mean[0] - total / n as f64).abs() < 1e-15 && (mean[1] + 4.).abs() < 1e-15, "{mean:?}");
            // A replica without a gradient counts as zero: it is one of those that the mean is over.
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
fn replicas_that_reduce_otherwise_are_told_so() {
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
fn what_does_not_fit_is_refused_and_named() {
    watched(|| {
        let strategy = replicas(2);
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
        assert!(error.unwrap_err().to_string().contains("none of this optimizer's variables"));
        assert_eq!((bits(&model), optimizer.finished_steps()), (before, 0));
    });
}

#[test]
fn a_variable_may_be_its_own_gradient() {
    watched(|| {
        let strategy = replicas(2);
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
fn clips_before_are_of_each_replica_and_clips_after_of_the_global_batch() {
    watched(|| {
        // Norms 5 and 0.5; their mean has the norm 2.75.
        let gradient = |replica: usize| Some([vec![3., 4.], vec![0.3, 0.4]][replica].clone());
        let weighting = |_| ReduceOp::Mean.into();
        let near = |got: Vec<f64>, want: [f64; 2]| {
            assert!(
                got.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-15),
                "{got:?}, not {want:?}"
            );
        };
        let clip = Transform::clip_by_norm(1.);
        near(reduced(2, |o| o.before_reduce(clip.clone()), gradient, weighting).unwrap(), [0.45, 0.6]);
        near(reduced(2, |o| o.after_reduce(clip.clone()), gradient, weighting).unwrap(), [0.6, 0.8]);
        let clip = Transform::clip_by_value(-1., 2.);
        near(reduced(2, |o| o.before_reduce(clip.clone()), gradient, weighting).unwrap(), [1.15, 1.2]);
        near(reduced(2, |o| o.after_reduce(clip.clone()), gradient, weighting).unwrap(), [1.65, 2.]);
        // In the order that they are given.
        let both =
            |o: Optimizer<Sgd>| o.after_reduce(clip.clone())?.after_reduce(Transform::clip_by_norm(1.));
        let norm = (1.65f64 * 1.65 + 4.).sqrt();
        near(reduced(2, both, gradient, weighting).unwrap(), [1.65 / norm, 2. / norm]);
        let both =
            |o: Optimizer<Sgd>| o.after_reduce(Transform::clip_by_norm(1.))?.after_reduce(clip.clone());
        near(reduced(2, both, gradient, weighting).unwrap(), [0.6, 0.8]);
    });
}

#[test]
fn before_the_reduction_it_is_the_gradient_of_the_mean_that_is_changed() {
    watched(|| {
        // 4 examples of gradient 0.75 each, and 1 of 2, which is clipped to 1: (4 · 0.75 + 1 · 1) / 5.
        let clip = |o: Optimizer<Sgd>| o.before_reduce(Transform::clip_by_value(-1., 1.));
        let mean = |replica: usize| Some(vec![[0.75, 2.][replica]]);
        let sum = |replica: usize| Some(vec![[3., 2.][replica]]);
        let n = |replica: usize| [4, 1][replica];
        let got = reduced(2, clip, mean, |r| Weighting::MeanOver(n(r))).unwrap();
        assert!((got[0] - 0.8).abs() < 1e-15, "{got:?}");
        assert_eq!(reduced(2, clip, sum, |r| Weighting::SumOver(n(r))).unwrap(), got);
    });
}

#[test]
fn norms_are_of_each_variable_or_of_all_together() {
    watched(|| {
        for n in COUNTS {
            let step = |transform: Transform| {
                let strategy = replicas(n);
                let model = model(&strategy);
                let before = numbers(&model);
                let optimizer = Optimizer::with_rule(Sgd, &model.variables, 1.).unwrap();
                let optimizer = optimizer.after_reduce(transform).unwrap();
                let run = strategy.run((), |ctx, ()| {
                    let mut gradients = Gradients::new(&optimizer);
                    gradients.insert("a", vector(&[2., 1., 2.]))?;
                    // By row: twice the same, of norm 4 in all.
                    let values = HostTensor::new(vec![1., 1., 1., 1., 1., 1., 2., 0., 0.], [3, 3])?;
                    gradients
                        .insert("b", IndexedSlices::new(values, HostTensor::vector(vec![3, 3, 0]), None)?)?;
                    optimizer.apply_gradients(ctx, gradients, ReduceOp::Mean)
                });
                run.unwrap();
                before.iter().zip(numbers(&model)).map(|(a, b)| a - b).collect::<Vec<_>>()
            };
            let near = |got: Vec<f64>, want: [f64; 15]| {
                assert!(
                    got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-14),
                    "{n}: {got:?}, not {want:?}"
                );
            };
            let b = |x: f64| [2. * x, 0., 0., 0., 0., 0., 0., 0., 0., 2. * x, 2. * x, 2. * x];
            let all = |a: f64, x: f64| -> [f64; 15] {
                [[2. * a, a, 2. * a].as_slice(), &b(x)].concat().try_into().unwrap()
            };
            near(step(Transform::clip_by_norm(1.)), all(1. / 3., 0.25));
            near(step(Transform::clip_by_global_norm(1.)), all(0.2, 0.2));
            near(step(Transform::clip_by_global_norm(5.)), all(1., 1.));
        }
    });
}

#[test]
fn weight_decay_is_added_to_the_gradients_that_are_there() {
    watched(|| {
        for before_reduce in [true, false] {
            let strategy = replicas(3);
            let model = model(&strategy);
            let before = numbers(&model);
            let optimizer = Optimizer::with_rule(Sgd, &model.variables, 1.).unwrap();
            let decay = Transform::weight_decay(0.25);
            let optimizer = match before_reduce {
                true => optimizer.before_reduce(decay).unwrap(),
                false => optimizer.after_reduce(decay).unwrap(),
            };
            let run = strategy.run((), |ctx, ()| {
                let mut gradients = Gradients::new(&optimizer);
                let values = HostTensor::new(vec![1., 2., 3.], [1, 3])?;
                gradients.insert("b", IndexedSlices::new(values, HostTensor::vector(vec![2]), None)?)?;
                optimizer.apply_gradients(ctx, gradients, 5)
            });
            run.unwrap();
            let after = numbers(&model);
            for i in 0..15 {
                let gradient = if (9..12).contains(&i) { (i - 8) as f64 + 0.25 * before[i] } else { 0. };
                assert!((before[i] - after[i] - gradient).abs() < 1e-14, "{i}");
            }
        }
    });
}

#[test]
fn a_closure_sees_whole_gradients_once_after_the_reduction_and_on_each_replica_before() {
    watched(|| {
        let calls = Arc::new((AtomicUsize::new(0), Mutex::new(Vec::new())));
        let counted = calls.clone();
        let halve = Transform::each(move |name, gradient| {
            assert_eq!(name, "w");
            counted.0.fetch_add(1, Ordering::Relaxed);
            let Gradient::Dense(gradient) = gradient else { panic!("not dense") };
            counted.1.lock().unwrap().push(gradient.to_vec1::<f64>().unwrap());
            Ok((gradient * 0.5)?.into())
        });
        let gradient = |replica: usize| Some(vec![2. + 4. * replica as f64]);
        let weighting = |_| ReduceOp::Mean.into();
        let twice = |o: Optimizer<Sgd>| {
            let o = o.after_reduce(Transform::clip_by_value(-3., 3.))?.after_reduce(halve.clone())?;
            o.after_reduce(Transform::clip_by_value(-1., 1.))
        };
        assert_eq!(reduced(2, twice, gradient, weighting).unwrap(), [1.]);
        assert_eq!(
            (calls.0.swap(0, Ordering::Relaxed), calls.1.lock().unwrap().as_slice()),
            (1, &[vec![3.]][..])
        );
        assert_eq!(reduced(2, |o| o.before_reduce(halve.clone()), gradient, weighting).unwrap(), [2.]);
        assert_eq!(calls.0.load(Ordering::Relaxed), 2);
        // Those by row come by row: duplicates added up, ascending.
        let strategy = replicas(2);
        let model = one_weight(&strategy, (5, 1));
        let seen = Transform::each(|_, gradient| {
            let Gradient::Rows(rows) = &gradient else { panic!("not by row") };
            assert_eq!(rows.to_rows()?, [1, 4]);
            assert_eq!(rows.values.to_vec::<f64>()?, [2., 4.]);
            Ok(gradient)
        });
        let optimizer = Optimizer::with_rule(Sgd, &model.variables, 1.).unwrap().after_reduce(seen).unwrap();
        let run = strategy.run((), |ctx, ()| {
            let mut gradients = Gradients::new(&optimizer);
            let values = HostTensor::new(vec![1., 1., 1.], [3, 1])?;
            gradients.insert("w", IndexedSlices::new(values, HostTensor::vector(vec![4, 1, 4]), None)?)?;
            optimizer.apply_gradients(ctx, gradients, ReduceOp::Sum)
        });
        run.unwrap();
        assert_eq!(numbers(&model), [0., -2., 0., 0., -4.]);
    });
}

#[test]
fn a_closure_that_fails_or_panics_fails_the_step_and_changes_nothing() {
    watched(|| {
        let gradient = |_| Some(vec![1.]);
        let fail = Transform::each(|_, _| Err(Error::other("not this one")));
        let panic = Transform::each(|_, _| panic!("not this one"));
        let shape = Transform::each(|_, _| Ok(vector(&[1., 2.]).into()));
        for (transform, text) in
            [(fail, "not this one"), (panic, "not this one"), (shape, "the gradient of w is F64[2]")]
        {
            for before in [true, false] {
                let add = |o: Optimizer<Sgd>| match before {
                    true => o.before_reduce(transform.clone()),
                    false => o.after_reduce(transform.clone()),
                };
                let error = reduced(3, add, gradient, |_| 1.into()).unwrap_err().to_string();
                assert!(error.contains(text), "{error}");
            }
        }
    });
}

#[test]
fn the_bits_after_a_clip_do_not_depend_on_who_owns_what() {
    // All replicas bring the same: their number changes the cut of the parameters, but not the reduced gradient.
    watched(|| {
        let train = |n: usize| {
            let strategy = replicas(n);
            let build = |vb: VarBuilder| -> candle_core::Result<_> {
                let init = Init::Uniform { lo: -1., up: 1. };
                Ok((vb.get_with_hints((501, 13), "rows", init)?, vb.get_with_hints(9_001, "dense", init)?))
            };
            let model = strategy.replicate_seeded(3, build).unwrap();
            let optimizer = Optimizer::with_rule(Momentum::new(0.5), &model.variables, 0.1).unwrap();
            let optimizer = optimizer
                .after_reduce(Transform::weight_decay(0.1))
                .and_then(|o| o.after_reduce(Transform::clip_by_norm(20.)))
                .and_then(|o| o.after_reduce(Transform::clip_by_global_norm(1.)))
                .unwrap();
            for step in 0..3 {
                let run = strategy.run((), |ctx, ()| {
                    let mut gradients = Gradients::new(&optimizer);
                    let value = |i: usize| ((i * 7919 + step) % 101) as f32 / 50. - 1.;
                    let dense: Vec<f32> = (0..9_001).map(value).collect();
                    gradients.insert("dense", Tensor::from_vec(dense, 9_001, &Device::Cpu)?)?;
                    let rows = HostTensor::new((0..100 * 13).map(value).collect(), [100, 13])?;
                    let indices = (0..100).map(|i| (i * 37 + step as i64) % 501).collect();
                    gradients.insert("rows", IndexedSlices::new(rows, HostTensor::vector(indices), None)?)?;
                    // The others bring nothing, so that sums are of one.
                    let examples = usize::from(ctx.replica_id_in_sync_group() == 0);
                    optimizer.apply_gradients(ctx, gradients, examples)
                });
                run.unwrap();
            }
            model.variables.sha256().unwrap()
        };
        let expected = train(1);
        for n in COUNTS {
            assert_eq!(train(n), expected, "{n} replicas");
        }
    });
}

#[test]
fn the_learning_rate_follows_the_finished_steps() {
    watched(|| {
        let strategy = replicas(2);
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

/// What one replica brings for a table: row numbers, and a value for each; or nothing; or a dense gradient.
#[derive(Clone, Debug)]
enum Brought {
    Nothing,
    Rows(Vec<usize>),
    Dense,
}

const HEIGHT: usize = 23;
const WIDTH: usize = 2;

fn value(seed: usize) -> f32 {
    ((seed * 7919 + 13) % 1009) as f32 / 500. - 1.
}

impl Brought {
    fn dense(&self, seed: usize) -> Option<Tensor> {
        let mut all = vec![0f32; HEIGHT * WIDTH];
        match self {
            Brought::Nothing => return None,
            Brought::Dense => all.iter_mut().enumerate().for_each(|(i, x)| *x = value(seed + i)),
            Brought::Rows(rows) => {
                for (i, row) in rows.iter().enumerate() {
                    for j in 0..WIDTH {
                        all[row * WIDTH + j] += value(seed + i * WIDTH + j);
                    }
                }
            }
        }
        Some(Tensor::from_vec(all, (HEIGHT, WIDTH), &Device::Cpu).unwrap())
    }

    fn gradient(&self, seed: usize) -> Option<Gradient> {
        let Brought::Rows(rows) = self else { return self.dense(seed).map(Gradient::from) };
        let values = (0..rows.len() * WIDTH).map(|i| value(seed + i)).collect();
        let indices = HostTensor::vector(rows.iter().map(|row| *row as i32).collect());
        let slices = IndexedSlices::new(HostTensor::new(values, [rows.len(), WIDTH]).unwrap(), indices, None);
        Some(slices.unwrap().into())
    }
}

/// Trains a table and a vector, by what the replicas bring for the table in each step.
fn train_table<R: Rule + Clone>(
    rule: &R,
    transforms: &[Transform],
    steps: &[Vec<Brought>],
    by_row: bool,
) -> (String, Vec<f64>) {
    let strategy = replicas(steps[0].len());
    let build = |vb: VarBuilder| -> candle_core::Result<_> {
        let init = Init::Uniform { lo: -1., up: 1. };
        Ok((vb.get_with_hints((HEIGHT, WIDTH), "table", init)?, vb.get_with_hints(7, "bias", init)?))
    };
    let model = strategy.replicate_seeded(3, build).unwrap();
    let mut optimizer = Optimizer::with_rule(rule.clone(), &model.variables, 0.1).unwrap();
    for transform in transforms {
        optimizer = optimizer.after_reduce(transform.clone()).unwrap();
    }
    for (step, brought) in steps.iter().enumerate() {
        let run = strategy.run((), |ctx, ()| {
            let replica = ctx.replica_id_in_sync_group();
            let (brought, seed) = (&brought[replica], step * 1000 + replica * 100);
            let mut gradients = Gradients::new(&optimizer);
            let table = if by_row { brought.gradient(seed) } else { brought.dense(seed).map(Gradient::from) };
            if let Some(table) = table {
                gradients.insert("table", table)?;
            }
            let bias: Vec<f32> = (0..7).map(|i| value(seed + i + 50)).collect();
            gradients.insert("bias", Tensor::from_vec(bias, 7, &Device::Cpu)?)?;
            optimizer.apply_gradients(ctx, gradients, 1 + replica)
        });
        run.unwrap();
    }
    let mut values = numbers(&model);
    for slot in optimizer.slot_names() {
        let slot = optimizer.slot("table", slot).unwrap().flatten_all().unwrap();
        values.extend(slot.to_vec1::<f32>().unwrap().into_iter().map(f64::from));
    }
    (model.variables.sha256().unwrap(), values)
}

/// What each replica brings in each step, on any number of replicas.
fn steps() -> BoxedStrategy<Vec<Vec<Brought>>> {
    let one = prop_oneof![
        1 => Just(Brought::Nothing),
        1 => Just(Brought::Rows(Vec::new())),
        6 => prop::collection::vec(0..HEIGHT, 1..12).prop_map(Brought::Rows),
    ];
    let steps = move |n| prop::collection::vec(prop::collection::vec(one.clone(), n..=n), 1..4);
    prop::sample::select(COUNTS.to_vec()).prop_flat_map(steps).boxed()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn by_row_is_as_dense_to_the_bit_where_a_gradient_of_zero_changes_nothing(steps in steps()) {
        watched(move || {
            assert_eq!(train_table(&Sgd, &[], &steps, true), train_table(&Sgd, &[], &steps, false));
            let rule = Adagrad::default();
            assert_eq!(train_table(&rule, &[], &steps, true), train_table(&rule, &[], &steps, false));
            // It moves absent rows, in both.
            let rule = Adam::default();
            assert_eq!(train_table(&rule, &[], &steps, true), train_table(&rule, &[], &steps, false));
        });
    }

    #[test]
    fn a_clip_of_rows_is_that_of_the_same_dense(steps in steps(), norm in 0.01f64..3.) {
        watched(move || {
            for clip in [Transform::clip_by_norm(norm), Transform::clip_by_global_norm(norm), Transform::clip_by_value(-norm, norm)] {
                let transforms = [clip, Transform::each(|_, gradient| Ok(gradient))];
                let (_, rows) = train_table(&Sgd, &transforms, &steps, true);
                let (_, dense) = train_table(&Sgd, &transforms, &steps, false);
                for (a, b) in rows.iter().zip(&dense) {
                    // Squares are added in another order.
                    assert!((a - b).abs() < 1e-5, "{transforms:?}: {a} {b}");
                }
            }
        });
    }

    #[test]
    fn rows_on_one_replica_and_dense_on_another_are_dense(
        mut steps in steps(),
        at in 0usize..8,
    ) {
        watched(move || {
            for step in &mut steps {
                let n = step.len();
                step[at % n] = Brought::Dense;
            }
            // Momentum moves every row of a dense gradient, also those of zero.
            let rule = Momentum::new(0.9);
            assert_eq!(train_table(&rule, &[], &steps, true), train_table(&rule, &[], &steps, false));
        });
    }
}

/// The rule of sparse gradients in the oracle: only the rows present change, in the variable and in all slots.
#[test]
fn only_rows_that_are_there_change_in_the_table_and_its_slots() {
    fn check<R: Rule + Clone>(rule: &R) {
        for n in COUNTS {
            let step = (0..n).map(|r| Brought::Rows(vec![2 * r, 2 * r, 3])).collect::<Vec<_>>();
            let (_, start) = train_table(rule, &[], &[vec![Brought::Nothing; n]], true);
            let (_, got) = train_table(rule, &[], &vec![step; 3], true);
            // The bias comes first, then the table and its slots.
            for (i, (start, got)) in start[7..].chunks(WIDTH).zip(got[7..].chunks(WIDTH)).enumerate() {
                let row = i % HEIGHT;
                let present = row == 3 || (row.is_multiple_of(2) && row < 2 * n);
                assert_eq!(start != got, present, "{}: row {row} with {n} replicas", rule.name());
            }
        }
    }
    watched(|| {
        check(&Sgd);
        check(&Momentum::new(0.9));
        check(&Momentum::nesterov(0.9));
        check(&Adam::lazy());
        check(&Adagrad::default());
        check(&RmsProp::default());
        check(&Ftrl::default());
    });
}

#[test]
fn empty_slices_are_a_gradient_of_zero_and_none_is_no_gradient() {
    watched(|| {
        for n in COUNTS {
            let first = vec![Brought::Rows(vec![1, 5]); n];
            let train =
                |then: Brought| train_table(&Adam::default(), &[], &[first.clone(), vec![then; n]], true).1;
            let (none, empty) = (train(Brought::Nothing), train(Brought::Rows(Vec::new())));
            let once = train_table(&Adam::default(), &[], std::slice::from_ref(&first), true).1;
            assert_eq!(none[7..], once[7..], "without gradients the table and its slots stay");
            assert_ne!(empty[7..], once[7..], "Adam goes on where the gradient is zero");
            // With a rule that does not, the step is made but the table stays.
            let lazy = |steps: &[Vec<Brought>]| train_table(&Adam::lazy(), &[], steps, true).1;
            let empty = vec![Brought::Rows(Vec::new()); n];
            assert_eq!(lazy(&[first.clone(), empty])[7..], lazy(std::slice::from_ref(&first))[7..]);
        }
    });
}

#[test]
fn gradients_add_up_over_micro_batches_dense_and_by_row() {
    watched(|| {
        let strategy = replicas(2);
        let (rows, more, dense) = (Brought::Rows(vec![3, 1, 3]), Brought::Rows(vec![0, 3]), Brought::Dense);
        for (a, b) in [
            (&rows, &more),
            (&rows, &dense),
            (&dense, &rows),
            (&rows, &Brought::Nothing),
            (&Brought::Nothing, &rows),
        ] {
            let build = |vb: VarBuilder| vb.get_with_hints((HEIGHT, WIDTH), "table", Init::Const(0.));
            let model = strategy.replicate(build).unwrap();
            let optimizer = Optimizer::with_rule(Sgd, &model.variables, 1.).unwrap();
            let run = strategy.run((), |ctx, ()| {
                let mut sum = Gradients::new(&optimizer);
                for (brought, seed) in [(a, 7), (b, 77)] {
                    let mut gradients = Gradients::new(&optimizer);
                    if let Some(gradient) = brought.gradient(seed) {
                        gradients.insert("table", gradient)?;
                    }
                    assert_eq!(gradients.get("table").is_some(), gradients.iter().count() == 1);
                    sum.add(gradients)?;
                }
                optimizer.apply_gradients(ctx, sum, ReduceOp::Mean)
            });
            run.unwrap();
            let zero = || Tensor::zeros((HEIGHT, WIDTH), DType::F32, &Device::Cpu).unwrap();
            let want = (a.dense(7).unwrap_or_else(zero) + b.dense(77).unwrap_or_else(zero)).unwrap();
            let got = model.variables.get("table").unwrap();
            let off = (got + want).unwrap().abs().unwrap().flatten_all().unwrap().max(0).unwrap();
            assert!(off.to_scalar::<f32>().unwrap() < 1e-6);
        }
    });
}
