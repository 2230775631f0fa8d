//! Transforms: their effects, and when they run.

use crate::gradients::{COUNTS, mirrored, model, numbers, one_weight, reduced, vector};
use candle_core::{Device, Tensor};
use candle_nn::{Init, VarBuilder};
use distribute::optimizer::rules::{Momentum, Sgd};
use distribute::optimizer::{Gradient, Gradients, Transform, Weighting};
use distribute::tensor::IndexedSlices;
use distribute::{Error, HostTensor, Optimizer, ReduceOp};
use distribute_testing::watched;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

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
fn norms_are_of_each_variable_or_of_all() {
    watched(|| {
        for n in COUNTS {
            let step = |transform: Transform| {
                let strategy = mirrored(n);
                let model = model(&strategy);
                let before = numbers(&model);
                let optimizer = Optimizer::with_rule(Sgd, &model.variables, 1.).unwrap();
                let optimizer = optimizer.after_reduce(transform).unwrap();
                let run = strategy.run((), |ctx, ()| {
                    let mut gradients = Gradients::new(&optimizer);
                    gradients.insert("a", vector(&[2., 1., 2.]))?;
                    // Rows with a duplicate: the gradient has the norm 4.
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
            let strategy = mirrored(3);
            let model = model(&strategy);
            let before = numbers(&model);
            let optimizer = Optimizer::with_rule(Sgd, &model.variables, 1.).unwrap();
            let decay = Transform::weight_decay(0.25);
            let optimizer = if before_reduce {
                optimizer.before_reduce(decay).unwrap()
            } else {
                optimizer.after_reduce(decay).unwrap()
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
fn a_transform_sees_complete_gradients_once_after_the_reduction_and_on_each_replica_before() {
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
        // A function receives gradients by row with ascending indices, and duplicates are added up.
        let strategy = mirrored(2);
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
                let add = |o: Optimizer<Sgd>| {
                    if before {
                        o.before_reduce(transform.clone())
                    } else {
                        o.after_reduce(transform.clone())
                    }
                };
                let error = reduced(3, add, gradient, |_| 1.into()).unwrap_err().to_string();
                assert!(error.contains(text), "{error}");
            }
        }
    });
}

#[test]
fn the_bits_after_a_clip_do_not_depend_on_the_partition() {
    // All replicas have equal gradients, so their number changes the partition but not the reduced gradient.
    watched(|| {
        let train = |n: usize| {
            let strategy = mirrored(n);
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
                    let rows = HostTensor::new((0..700 * 13).map(value).collect(), [700, 13])?;
                    let indices = (0..700).map(|i| (i * 37 + step as i64) % 501).collect();
                    gradients.insert("rows", IndexedSlices::new(rows, HostTensor::vector(indices), None)?)?;
                    // Only replica 0 has examples, so each sum has one term.
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
