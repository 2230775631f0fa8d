//! Mixed precision: activations in half precision, variables in f32, and the loss scale.

mod layers;
mod loss_scale;

use crate::everywhere::everywhere;
use candle_core::{DType, Device, Module, Tensor};
use distribute::Result;
use distribute::nn::{self, MixedPrecision};
use distribute::prelude::*;
use distribute_testing::watched;

/// The half precisions, each with the distance between 1 and the next number.
const HALVES: [(MixedPrecision, DType, f64); 2] =
    [(MixedPrecision::Bf16, DType::BF16, 1. / 128.), (MixedPrecision::F16, DType::F16, 1. / 1024.)];

/// A model of an embedding, norms and linear layers.
struct Model {
    table: nn::Embedding,
    norm: nn::LayerNorm,
    hidden: nn::Linear,
    root: nn::RmsNorm,
    out: nn::Linear,
}

impl Model {
    fn new(vb: nn::VarBuilder) -> candle_core::Result<Self> {
        let hidden = nn::linear(8, 16, vb.pp("hidden"))?;
        Ok(Self {
            table: nn::embedding(10, 8, vb.pp("table"))?,
            norm: nn::layer_norm(8, 1e-5, vb.pp("norm"))?,
            hidden: hidden.with_activation(candle_nn::Activation::Relu),
            root: nn::rms_norm(16, 1e-5, vb.pp("root"))?,
            out: nn::linear(16, 3, vb.pp("out"))?,
        })
    }
}

impl Module for Model {
    fn forward(&self, ids: &Tensor) -> candle_core::Result<Tensor> {
        let x = self.hidden.forward(&self.norm.forward(&self.table.forward(ids)?)?)?;
        self.out.forward(&self.root.forward(&x)?)
    }
}

/// Trains for some steps. Returns the dtype of the logits, and the losses.
fn train(strategy: &Strategy) -> Result<(DType, Vec<f64>)> {
    let model = strategy.replicate(Model::new)?;
    for name in model.variables.names() {
        // The same values under all strategies and precisions.
        let before = model.variables.get(&name)?;
        let values = (0..before.elem_count()).map(|at| ((at * 7 + name.len()) as f32).sin() * 0.5);
        model.variables.set(&name, &Tensor::from_iter(values, &Device::Cpu)?.reshape(before.shape())?)?;
    }
    let optimizer = Adam::new(&model.variables, 0.01)?;
    let ids = Tensor::new(&[0u32, 3, 9, 3], &Device::Cpu)?;
    let labels = Tensor::new(&[0u32, 2, 1, 2], &Device::Cpu)?;
    let mut losses = Vec::new();
    let mut dtype = DType::F32;
    for _ in 0..12 {
        let all = strategy.run(&model, |ctx, model| {
            let logits = model.forward(&ids)?;
            let loss = nn::loss::cross_entropy(&logits, &labels)?;
            assert_eq!(loss.dtype(), DType::F32);
            Ok((logits.dtype(), optimizer.minimize(ctx, loss, 4)?))
        })?;
        let (found, loss) = &all.values()[0];
        dtype = *found;
        losses.push(f64::from(loss.to_scalar::<f32>()?));
    }
    for name in model.variables.names() {
        assert_eq!(model.variables.get(&name)?.dtype(), DType::F32, "{name}");
    }
    Ok((dtype, losses))
}

#[test]
fn losses_with_half_precision_are_close_to_those_of_f32_under_all_strategies() {
    watched(|| {
        let full = train(&MirroredStrategy::cpus(1).unwrap()).unwrap();
        assert_eq!(full.0, DType::F32);
        assert!(full.1[11] < 0.6 * full.1[0], "{:?}", full.1);
        for (precision, dtype, epsilon) in HALVES {
            let of_all = everywhere(|strategy| {
                // Other tests use the default strategy at the same time.
                if strategy.is_default() {
                    return None;
                }
                strategy.set_mixed_precision(precision);
                Some(train(strategy).unwrap())
            });
            for (name, workers) in of_all {
                assert!(name == "the default strategy" || workers.iter().all(Option::is_some), "{name}");
                for (found, losses) in workers.into_iter().flatten() {
                    assert_eq!(found, dtype, "{name}");
                    for (loss, full) in losses.iter().zip(&full.1) {
                        assert!((loss - full).abs() < 4. * epsilon, "{name}: {losses:?}, not {:?}", full);
                    }
                }
            }
        }
    });
}

#[test]
fn precision_is_that_of_the_strategy_inside_run_and_off_outside() {
    watched(|| {
        let strategy = MirroredStrategy::cpus(2).unwrap();
        strategy.set_mixed_precision(MixedPrecision::Bf16);
        assert_eq!(strategy.mixed_precision(), MixedPrecision::Bf16);
        let model = strategy.replicate(|vb| nn::linear(2, 2, vb)).unwrap();
        let x = Tensor::ones((1, 2), DType::F32, &Device::Cpu).unwrap();
        let inside = strategy.run(&model, |_, model| Ok(model.forward(&x)?.dtype())).unwrap();
        assert_eq!(inside.values(), [DType::BF16; 2]);
        let outside = &model.models().values()[0];
        assert_eq!(outside.forward(&x).unwrap().dtype(), DType::F32);
        MixedPrecision::F16.scope(|| assert_eq!(outside.forward(&x).unwrap().dtype(), DType::F16));
    });
}

#[test]
fn workers_with_different_precisions_get_an_error_that_names_both() {
    watched(|| {
        let errors = MultiWorkerMirroredStrategy::on_threads(2, 1, |strategy| {
            let precision = [MixedPrecision::Off, MixedPrecision::Bf16][strategy.world().worker()];
            strategy.set_mixed_precision(precision);
            let model = strategy.replicate(|vb| nn::linear(2, 2, vb))?;
            let optimizer = Sgd::new(&model.variables, 0.1)?;
            let x = Tensor::ones((1, 2), DType::F32, &Device::Cpu)?;
            let step = strategy.run(&model, |ctx, model| {
                optimizer.minimize(ctx, model.forward(&x)?.to_dtype(DType::F32)?.sum_all()?, 1)
            });
            Ok(step.unwrap_err().to_string())
        });
        for error in errors.unwrap() {
            assert!(error.contains("mixed precision: Off on worker 0, Bf16 on worker 1"), "{error}");
        }
    });
}
