//! Models that were written for inference, and the warnings in their first steps.

use crate::optimizer::{Log, mirrored};
use candle_core::{DType, Device, Module, ModuleT, Tensor};
use candle_nn::{BatchNorm, Conv2d, Conv2dConfig, Func, Linear, VarBuilder, linear};
use candle_transformers::models::{mobileone, resnet};
use distribute::nn::loss;
use distribute::prelude::*;
use distribute_testing::{watched, watched_for};
use std::time::Duration;

fn images(rows: usize, size: usize) -> Tensor {
    let pixels = Tensor::arange(0f32, (rows * 3 * size * size) as f32, &Device::Cpu).unwrap();
    pixels.sin().unwrap().reshape((rows, 3, size, size)).unwrap()
}

/// Makes some steps with `forward` on four images, and returns the losses.
fn steps<M: Send + Sync>(
    strategy: &Strategy,
    model: &Replicated<M>,
    optimizer: &Sgd,
    forward: impl Fn(&M, &Tensor) -> candle_core::Result<Tensor> + Sync,
    (count, size): (usize, usize),
) -> Vec<f32> {
    let labels = Tensor::new(&[0u32, 1, 2, 1], &Device::Cpu).unwrap();
    let data = Dataset::from_slices((images(4, size), labels)).unwrap().batch(4).repeat(count);
    let mut losses = Vec::new();
    for batch in &strategy.distribute_dataset(data).unwrap() {
        let run = strategy.run((model, batch.unwrap()), |ctx, (model, (x, y))| {
            optimizer.minimize(ctx, loss::cross_entropy(&forward(model, &x)?, &y)?, y.dim(0)?)
        });
        losses.push(run.unwrap().values()[0].to_scalar().unwrap());
    }
    losses
}

/// A model of a convolution with batch norm, and a layer after it whose names have a separate path.
struct Small {
    conv: Conv2d,
    norm: BatchNorm,
    out: Linear,
}

impl Small {
    fn new(vb: VarBuilder) -> candle_core::Result<Self> {
        let config = Conv2dConfig { stride: 4, ..Default::default() };
        let conv = candle_nn::conv2d_no_bias(3, 2, 4, config, vb.pp("conv"))?;
        Ok(Self {
            conv,
            norm: candle_nn::batch_norm(2, 1e-5, vb.pp("norm"))?,
            out: linear(8, 3, vb.pp("out"))?,
        })
    }

    fn forward(&self, x: &Tensor, train: bool) -> candle_core::Result<Tensor> {
        let y = self.norm.forward_t(&x.apply(&self.conv)?, train)?.relu()?;
        y.flatten_from(1)?.apply(&self.out)
    }
}

fn small(strategy: &Strategy, name: &'static str) -> Replicated<Small> {
    strategy.replicate(move |vb: VarBuilder| Small::new(vb.pp(name))).unwrap()
}

#[test]
fn batch_norm_that_a_training_evaluates_gets_one_warning_by_name() {
    watched(|| {
        let log = Log::of_process();
        for (n, name) in [(1, "bn_alone"), (3, "bn_three")] {
            let strategy = mirrored(n);
            let model = small(&strategy, name);
            let optimizer = Sgd::new(&model.variables, 0.01).unwrap();
            steps(&strategy, &model, &optimizer, |model, x| model.forward(x, false), (3, 8));
            let lines = log.lines(&format!("{name}.norm"));
            assert_eq!(lines.len(), 1, "{lines:?}");
            for part in [
                "WARN",
                "minimize: a layer of batch-norm was evaluated",
                "train = true",
                "docs/train/from-candle.md",
            ] {
                assert!(lines[0].contains(part), "{part:?} is not in {}", lines[0]);
            }
        }
    });
}

#[test]
fn batch_norm_that_is_trained_frozen_loaded_or_unused_gets_no_warning() {
    watched(|| {
        let (log, strategy) = (Log::of_process(), mirrored(2));
        let step = |model: &Replicated<Small>, optimizer: &Sgd, train: bool| {
            steps(&strategy, model, optimizer, |model, x| model.forward(x, train), (2, 8))
        };
        let optimizer = |model: &Replicated<Small>| Sgd::new(&model.variables, 0.01).unwrap();
        let trained = small(&strategy, "bn_trained");
        step(&trained, &optimizer(&trained), true);
        let frozen = small(&strategy, "bn_frozen");
        step(&frozen, &optimizer(&frozen).freeze(|name| name.contains(".norm.")).unwrap(), false);
        // Statistics of a trained model, which fine-tuning keeps.
        let loaded = small(&strategy, "bn_loaded");
        let mean = Tensor::new(&[0.1f32, 0.2], &Device::Cpu).unwrap();
        loaded.variables.set("bn_loaded.norm.running_mean", &mean).unwrap();
        step(&loaded, &optimizer(&loaded), false);
        // In the first step, no loss depends on the layer.
        let unused = small(&strategy, "bn_unused");
        let quiet = optimizer(&unused).on_missing_gradients(distribute::optimizer::MissingGradients::Quiet);
        let without_norm =
            |model: &Small, x: &Tensor| x.apply(&model.conv)?.flatten_from(1)?.apply(&model.out);
        steps(&strategy, &unused, &quiet, without_norm, (2, 8));
        // Only one replica has rows. The statistics of the other one change with it.
        let one_row = small(&strategy, "bn_one_row");
        let optimizer = optimizer(&one_row);
        let x = images(1, 8);
        let run = strategy.run(&one_row, |ctx, model| {
            if ctx.replica_id_in_sync_group() == 1 {
                return optimizer.skip(ctx);
            }
            optimizer.minimize(ctx, model.forward(&x, true)?.sqr()?.mean_all()?, 1)
        });
        run.unwrap();
        for name in ["bn_trained", "bn_frozen", "bn_loaded", "bn_unused", "bn_one_row"] {
            let lines = log.lines(name);
            assert!(lines.is_empty(), "{lines:?}");
        }
    });
}

#[test]
fn candles_resnet_gets_a_warning_in_the_first_step() {
    watched_for(Duration::from_secs(180), || {
        let (log, strategy) = (Log::of_process(), mirrored(2));
        let model =
            strategy.replicate(|vb: VarBuilder<'static>| resnet::resnet18(3, vb.pp("res18"))).unwrap();
        let optimizer = Sgd::new(&model.variables, 1e-6).unwrap();
        steps(&strategy, &model, &optimizer, |model: &Func, x| model.forward(x), (1, 32));
        let lines = log.lines("res18.");
        assert_eq!(lines.len(), 1, "{lines:?}");
        for part in ["20 layers of batch-norm were evaluated", "res18.bn1", "resnet", "10 more"] {
            assert!(lines[0].contains(part), "{part:?} is not in {}", lines[0]);
        }
    });
}

#[test]
fn candles_mobileone_gets_a_warning_because_it_computes_its_weights_once() {
    watched_for(Duration::from_secs(180), || {
        let (log, strategy) = (Log::of_process(), mirrored(2));
        let build = |vb: VarBuilder<'static>| mobileone::mobileone(&mobileone::Config::s1(), 3, vb.pp("one"));
        let model = strategy.replicate(build).unwrap();
        let optimizer = Sgd::new(&model.variables, 1e-9).unwrap();
        steps(&strategy, &model, &optimizer, |model: &Func, x| model.forward(x), (2, 32));
        let lines = log.lines("one.stages.0.0.");
        let [of_norms, stale] = &lines[..] else { panic!("{lines:?}") };
        assert!(of_norms.contains("layers of batch-norm were evaluated"), "{of_norms}");
        for part in ["WARN", "step=2", "when the model was built", "mobileone", "more"] {
            assert!(stale.contains(part), "{part:?} is not in {stale}");
        }
        assert!(!stale.contains("head.fc"), "{stale}");
    });
}

/// A model that computes with a weight, and with a tensor that was computed from another weight when the model was
/// built.
struct Once {
    weight: Tensor,
    made: Tensor,
}

fn once(
    strategy: &Strategy,
    name: &'static str,
    make: fn(&Tensor) -> candle_core::Result<Tensor>,
) -> Replicated<Once> {
    let build = move |vb: VarBuilder| -> candle_core::Result<Once> {
        let vb = vb.pp(name);
        let ones = |part: &str| vb.get_with_hints((3, 3), part, candle_nn::Init::Const(1.));
        Ok(Once { weight: ones("weight")?, made: make(&ones("of_made")?)? })
    };
    strategy.replicate(build).unwrap()
}

#[test]
fn tensors_computed_once_get_a_warning_in_the_second_step_and_views_do_not() {
    watched(|| {
        let log = Log::of_process();
        for n in [1, 2] {
            let strategy = mirrored(n);
            let step = |model: &Replicated<Once>, optimizer: &Sgd| {
                let x = Tensor::ones((2, 3), DType::F32, &Device::Cpu).unwrap();
                let run = strategy.run(model, |ctx, model| {
                    let loss = || x.matmul(&model.weight)?.matmul(&model.made)?.sqr()?.mean_all();
                    // Two losses of one step may share what they are made of.
                    optimizer.minimize_each(ctx, [Ok((loss()?, 1)), Ok((loss()?, 1))])
                });
                run.unwrap()
            };
            let names = ["once_scaled", "once_turned", "once_cut"];
            let scaled = once(&strategy, names[0], |made| made * 2.);
            let optimizer = Sgd::new(&scaled.variables, 0.01).unwrap();
            step(&scaled, &optimizer);
            assert!(log.lines(names[0]).len() < n, "{:?}", log.lines(names[0]));
            (0..3).for_each(|_| drop(step(&scaled, &optimizer)));
            let lines = log.lines(names[0]);
            assert_eq!(lines.len(), n, "{lines:?}");
            for part in ["WARN", "once_scaled.of_made: training changes", "forward"] {
                assert!(lines[n - 1].contains(part), "{part:?} is not in {}", lines[n - 1]);
            }
            assert!(!lines[n - 1].contains("once_scaled.weight"));
            // A frozen variable does not change, so the tensor that was computed from it stays right.
            let optimizer = Sgd::new(&scaled.variables, 0.01).unwrap();
            let optimizer = optimizer.freeze(|name| name.ends_with("of_made")).unwrap();
            (0..3).for_each(|_| drop(step(&scaled, &optimizer)));
            assert_eq!(log.lines(names[0]).len(), n);
            // What shares the variable's memory changes with it.
            let views: [fn(&Tensor) -> candle_core::Result<Tensor>; 2] =
                [|made| made.t(), |made| made.narrow(1, 0, 2)];
            for (name, view) in names[1..].iter().zip(views) {
                let model = once(&strategy, name, view);
                let optimizer = Sgd::new(&model.variables, 0.01).unwrap();
                (0..3).for_each(|_| drop(step(&model, &optimizer)));
                assert!(log.lines(name).is_empty(), "{:?}", log.lines(name));
            }
        }
    });
}
