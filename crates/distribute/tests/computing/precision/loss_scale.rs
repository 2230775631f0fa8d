//! The loss scale: exact powers of 2, skipped steps, and checkpoints.

use crate::everywhere::everywhere;
use candle_core::{DType, Device, Tensor};
use distribute::optimizer::{LossScale, NotFinite, Transform};
use distribute::prelude::*;
use distribute::{Error, Result};
use distribute_testing::watched;

fn model(strategy: &Strategy) -> Result<distribute::Replicated<Tensor>> {
    strategy.replicate(|vb| vb.get_with_hints(4, "w", candle_nn::Init::Const(0.5)))
}

/// Trains with each kind of call, with or without transforms. Returns the checksum of the weights and the last loss.
fn train(strategy: &Strategy, scale: Option<LossScale>, transform: bool) -> Result<(String, f32)> {
    let model = model(strategy)?;
    let mut optimizer = Adam::new(&model.variables, 0.1)?;
    if transform {
        optimizer = optimizer.before_reduce(Transform::clip_by_norm(0.3))?;
        optimizer = optimizer.after_reduce(Transform::clip_by_norm(0.2))?;
    }
    if let Some(scale) = scale {
        optimizer = optimizer.with_loss_scale(scale)?;
    }
    let mut last = 0.;
    for step in 0..4 {
        let losses = strategy.run(&model, |ctx, w| {
            let x = (1 + ctx.replica_id_in_sync_group() + step) as f64;
            let loss = |x: f64| -> Result<Tensor> { Ok(((w * x)? - 1.)?.sqr()?.mean_all()?) };
            match step {
                0 => optimizer.minimize(ctx, loss(x)?, 3),
                1 => optimizer.minimize_each(ctx, [x, x + 1.].map(|x| Ok((loss(x)?, 2)))),
                2 if ctx.replica_id_in_sync_group() == 1 => optimizer.skip(ctx),
                2 => optimizer.minimize(ctx, loss(x)?, 1),
                _ => {
                    let mut gradients = distribute::optimizer::Gradients::new(&optimizer);
                    gradients.insert("w", Tensor::new(&[0.1f32, 0.2, 0.3, 0.4], &Device::Cpu)?)?;
                    optimizer.apply_gradients(ctx, gradients, ReduceOp::Mean)?;
                    Ok(loss(x)?.detach())
                }
            }
        })?;
        last = losses.values()[0].to_scalar::<f32>()?;
    }
    Ok((model.variables.sha256()?, last))
}

#[test]
fn powers_of_2_change_no_bit_under_any_strategy() {
    watched(|| {
        for transform in [false, true] {
            let of_all = everywhere(|strategy| {
                let plain = train(strategy, None, transform).unwrap();
                for scale in [LossScale::Fixed(1024.), LossScale::dynamic()] {
                    assert_eq!(train(strategy, Some(scale), transform).unwrap(), plain, "{scale:?}");
                }
            });
            assert!(of_all.len() > 9);
        }
    });
}

#[test]
fn small_gradients_of_f16_are_kept() {
    watched(|| {
        let trained = |scale: Option<LossScale>| {
            let strategy = MirroredStrategy::cpus(2).unwrap();
            let model = model(&strategy).unwrap();
            let optimizer = Sgd::new(&model.variables, 1e8).unwrap();
            let optimizer = match scale {
                Some(scale) => optimizer.with_loss_scale(scale).unwrap(),
                None => optimizer,
            };
            let run = strategy.run(&model, |ctx, w| {
                // Its gradient, 1e-8, is 0 in f16.
                let loss = w.to_dtype(DType::F16)?.sum_all()?.to_dtype(DType::F32)?.affine(1e-8, 0.)?;
                optimizer.minimize(ctx, loss, 1)
            });
            run.unwrap();
            model.variables.get("w").unwrap().to_vec1::<f32>().unwrap()[0]
        };
        assert_eq!(trained(None), 0.5, "lost");
        let kept = trained(Some(LossScale::Fixed(65_536.)));
        assert!((kept + 0.5).abs() < 1e-2, "{kept}");
    });
}

#[test]
fn an_overflow_on_one_replica_skips_the_step_on_all_and_halves_the_factor() {
    watched(|| {
        let of_all = everywhere(|strategy| {
            let model = model(strategy).unwrap();
            let scale = LossScale::Dynamic { initial: 1024., growth_steps: 2 };
            let optimizer = Sgd::new(&model.variables, 0.1).unwrap().with_loss_scale(scale).unwrap();
            let last = strategy.num_replicas_in_sync() - 1;
            let mut factors = Vec::new();
            for step in 0..6 {
                let run = strategy.run(&model, |ctx, w| {
                    let loss = w.to_dtype(DType::F16)?.sum_all()?.to_dtype(DType::F32)?;
                    // A gradient of 100 · 1024 exceeds the range of f16; a smaller scale does not.
                    let slope = if step < 2 && ctx.replica_id_in_sync_group() == last { 100. } else { 1. };
                    optimizer.minimize(ctx, (loss * slope)?, 1)
                });
                let loss = run.unwrap().into_values().remove(0).to_scalar::<f32>().unwrap();
                assert!(loss.is_finite());
                factors.push(optimizer.loss_scale().unwrap());
            }
            let counts = (optimizer.finished_steps(), optimizer.skipped_steps());
            (factors, counts)
        });
        for (name, workers) in of_all {
            for (factors, counts) in workers {
                // Skipped once; then two finite steps, and two more.
                assert_eq!(factors, [512., 512., 1024., 1024., 2048., 2048.], "{name}");
                assert_eq!(counts, (5, 1), "{name}");
            }
        }
    });
}

/// Checks the smallest factor, which cannot be halved. The step is still skipped, regardless of the setting for other
/// NaN.
#[test]
fn a_gradient_that_is_not_finite_is_skipped_with_the_smallest_factor() {
    watched(|| {
        let strategy = MirroredStrategy::cpus(2).unwrap();
        let model = model(&strategy).unwrap();
        let scale = LossScale::Dynamic { initial: 1., growth_steps: 9 };
        let optimizer = Sgd::new(&model.variables, 0.1).unwrap().with_loss_scale(scale).unwrap();
        let optimizer = optimizer.on_not_finite(NotFinite::Ignore);
        let before = model.variables.sha256().unwrap();
        strategy.run(&model, |ctx, w| optimizer.minimize(ctx, (w.sum_all()? * f64::NAN)?, 1)).unwrap();
        assert_eq!((optimizer.finished_steps(), optimizer.skipped_steps()), (0, 1));
        assert_eq!(model.variables.sha256().unwrap(), before);
    });
}

#[test]
fn the_factor_is_saved_and_restored() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("step");
        let scale = LossScale::Dynamic { initial: 4., growth_steps: 3 };
        let made = || {
            let strategy = MirroredStrategy::cpus(2).unwrap();
            let model = model(&strategy).unwrap();
            let optimizer = Sgd::new(&model.variables, 0.1).unwrap().with_loss_scale(scale).unwrap();
            (strategy, model, optimizer)
        };
        let steps = |(strategy, model, optimizer): &(Strategy, distribute::Replicated<Tensor>, Sgd),
                     count| {
            for _ in 0..count {
                strategy.run(model, |ctx, w| optimizer.minimize(ctx, w.sum_all()?, 1)).unwrap();
            }
        };
        let first = made();
        steps(&first, 5);
        assert_eq!(first.2.loss_scale(), Some(8.));
        Checkpoint::new().part("optimizer", &first.2).save(&path).unwrap();
        let second = made();
        Checkpoint::new().part("optimizer", &second.2).restore(&path).unwrap();
        assert_eq!(second.2.loss_scale(), Some(8.));
        steps(&second, 1);
        assert_eq!(second.2.loss_scale(), Some(16.), "the third finite step");
    });
}

#[test]
fn factors_out_of_range_are_refused() {
    let strategy = MirroredStrategy::cpus(1).unwrap();
    let model = model(&strategy).unwrap();
    let refused = |scale| {
        let error = Sgd::new(&model.variables, 0.1).unwrap().with_loss_scale(scale).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
        error.to_string()
    };
    for factor in [0., -1., 0.5, f64::NAN, f64::INFINITY, 1e40] {
        assert!(refused(LossScale::Fixed(factor)).contains("the factor is"));
    }
    assert!(refused(LossScale::Dynamic { initial: 2., growth_steps: 0 }).contains("growth_steps is 0"));
}
