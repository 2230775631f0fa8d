//! Checks that models of fast layers train to the same weights as models of candle's layers: with plain, tied, scaled
//! and frozen weights, and with layers that are used twice, in every kind of step.

use crate::fused::{assert_same, numbers};
use candle_core::{D, DType, Device, Module, Result, Tensor};
use candle_nn::{Conv2dConfig, Init, VarBuilder};
use distribute::optimizer::rules::{Adam, Momentum, Rule};
use distribute::optimizer::{Gradients, Transform};
use distribute::{MirroredStrategy, Optimizer, Strategy, nn};
use distribute_testing::watched;

const CLASSES: usize = 5;

/// A model of named weights and the layers that use them.
struct Net {
    fast: bool,
    kernel: Tensor,
    kernel_bias: Tensor,
    norm: Tensor,
    norm_bias: Tensor,
    rms: Tensor,
    inner: Tensor,
    inner_bias: Tensor,
    frozen: Tensor,
    out: Tensor,
}

impl Net {
    fn new(fast: bool, vb: VarBuilder<'_>) -> Result<Self> {
        let init = Init::Uniform { lo: -0.5, up: 0.5 };
        let of = |name: &str, shape: &[usize]| vb.get_with_hints(shape, name, init);
        Ok(Self {
            fast,
            kernel: of("kernel", &[3, 2, 3, 3])?,
            kernel_bias: of("kernel_bias", &[3])?,
            norm: of("norm", &[6])?,
            norm_bias: of("norm_bias", &[6])?,
            rms: of("rms", &[6])?,
            inner: of("inner", &[6, 6])?,
            inner_bias: of("inner_bias", &[6])?,
            frozen: of("frozen", &[6])?,
            out: of("out", &[CLASSES, 6])?,
        })
    }

    fn linear(&self, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        if self.fast {
            nn::Linear::new(weight.clone(), bias.cloned()).forward(x)
        } else {
            let y = x.broadcast_matmul(&weight.t()?)?;
            bias.map_or(Ok(y.clone()), |bias| y.broadcast_add(bias))
        }
    }

    fn norm(&self, x: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
        if self.fast {
            nn::LayerNorm::new(weight.clone(), bias.clone(), 1e-3).forward(x)
        } else {
            candle_nn::LayerNorm::new_no_bias(weight.clone(), 1e-3).forward(x)?.broadcast_add(bias)
        }
    }

    /// Returns the logits of `x`, which is `[n, 2, 4, 3]`.
    fn logits(&self, x: &Tensor) -> Result<Tensor> {
        let config = Conv2dConfig { padding: 1, ..Default::default() };
        let (kernel, bias) = (self.kernel.clone(), Some(self.kernel_bias.clone()));
        let y = if self.fast {
            nn::Conv2d::new(kernel, bias, config).forward(x)?
        } else {
            candle_nn::Conv2d::new(kernel, bias, config).forward(x)?
        };
        // [n, 6, 6], and not contiguous.
        let y = y.reshape((x.dim(0)?, 6, 6))?.transpose(1, 2)?;
        let y = self.norm(&y, &self.norm, &self.norm_bias)?.tanh()?;
        let rms = if self.fast {
            nn::RmsNorm::new(self.rms.clone(), 1e-3).forward(&y)?
        } else {
            candle_nn::LayerNorm::rms_norm(self.rms.clone(), 1e-3).forward(&y)?
        };
        // Twice the same layer; then its transpose, its half, and itself without gradient.
        let y = self.linear(&rms, &self.inner, Some(&self.inner_bias))?.tanh()?;
        let y = self.linear(&y, &self.inner, Some(&self.inner_bias))?.tanh()?;
        let y = self.linear(&y, &self.inner.t()?, None)?.tanh()?;
        let y = self.linear(&y, &(&self.inner * 0.5)?, Some(&self.frozen.detach()))?.tanh()?;
        let y = self.linear(&y, &self.inner.detach(), None)?;
        // The variables are also used in an operation that is no layer.
        let y = (y.broadcast_mul(&self.norm)? + self.inner.sum_all()?.broadcast_as(y.dims())?)?;
        self.linear(&y.mean(1)?, &self.out, None)
    }

    fn loss(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        let logits = self.logits(x)?;
        let hot = logits.narrow(D::Minus1, 0, 2)?;
        let targets = (hot.zeros_like()? + 0.25)?;
        use {candle_nn::loss as stock, nn::loss as fast};
        let losses = if self.fast {
            [
                fast::cross_entropy(&logits, y)?,
                fast::binary_cross_entropy_with_logit(&hot, &targets)?,
                fast::mse(&hot, &targets)?,
            ]
        } else {
            [
                stock::cross_entropy(&logits, y)?,
                stock::binary_cross_entropy_with_logit(&hot, &targets)?,
                stock::mse(&hot, &targets)?,
            ]
        };
        (&losses[0] + (&losses[1] * 0.5)?)? + &losses[2]
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    Minimize,
    /// Two micro-batches: one with 1 example, and one with the others.
    Each,
    Before,
    After,
    /// The step with `Gradients::of` and `apply_gradients`.
    Apply,
    /// The loss in half precision.
    Half,
}

/// Trains for three steps; replica r has `rows[r]` rows. A replica without rows skips the step. Returns losses and
/// weights.
fn train<R: Rule>(fast: bool, rows: &'static [usize], how: How, dtype: DType, rule: R) -> Vec<Tensor> {
    let strategy: Strategy = MirroredStrategy::cpus(rows.len()).unwrap();
    let build = move |vb: VarBuilder| Net::new(fast, vb.to_dtype(dtype));
    let model = strategy.replicate_seeded(11, build).unwrap();
    let mut optimizer = Optimizer::with_rule(rule, &model.variables, 0.05).unwrap();
    let each = Transform::each(|_, gradient| Ok(gradient));
    for transform in [each, Transform::clip_by_global_norm(0.3), Transform::weight_decay(0.1)] {
        optimizer = match how {
            How::Before => optimizer.before_reduce(transform).unwrap(),
            How::After => optimizer.after_reduce(transform).unwrap(),
            _ => optimizer,
        };
    }
    let mut all = Vec::new();
    for step in 0..3 {
        let losses = strategy.run(&model, |ctx, model| {
            let replica = ctx.replica_id_in_sync_group();
            let n = rows[replica];
            let x = numbers(&[n, 2, 4, 3], dtype, step * 10 + replica);
            let y = (0..n).map(|row| ((row + replica + step) % CLASSES) as u32).collect::<Vec<_>>();
            let y = Tensor::from_vec(y, n, &Device::Cpu)?;
            if n == 0 {
                return optimizer.skip(ctx);
            }
            match how {
                How::Each => {
                    let parts = [(0, 1), (1, n - 1)].into_iter().filter(|(_, n)| *n > 0);
                    let losses = parts.map(|(start, n)| {
                        Ok((model.loss(&x.narrow(0, start, n)?, &y.narrow(0, start, n)?)?, n))
                    });
                    optimizer.minimize_each(ctx, losses)
                }
                How::Apply => {
                    let loss = model.loss(&x, &y)?;
                    optimizer.apply_gradients(ctx, Gradients::of(&optimizer, &loss)?, n)?;
                    Ok(loss.detach())
                }
                How::Half => optimizer.minimize(ctx, model.loss(&x, &y)?.to_dtype(DType::F16)?, n),
                _ => optimizer.minimize(ctx, model.loss(&x, &y)?, n),
            }
        });
        all.extend(losses.unwrap().iter().cloned());
    }
    let names = model.variables.names();
    assert_eq!(names.len(), 9);
    all.extend(names.iter().map(|name| model.variables.get(name).unwrap()));
    all
}

#[test]
fn models_train_as_candles_do() {
    watched(|| {
        for how in [How::Minimize, How::Each, How::Before, How::After, How::Apply, How::Half] {
            for rows in [&[5usize][..], &[3, 4], &[2, 1, 4], &[1, 0, 2]] {
                let make = |fast| train(fast, rows, how, DType::F64, Momentum::new(0.9));
                assert_same(&make(true), &make(false), &format!("{how:?} {rows:?}"));
            }
        }
    });
}

#[test]
fn models_of_f32_and_with_other_rules_resume_identically() {
    watched(|| {
        let rows = &[2usize, 3];
        let make = |fast| train(fast, rows, How::Minimize, DType::F32, Momentum::new(0.9));
        assert_same(&make(true), &make(false), "f32");
        let make = |fast| train(fast, rows, How::Minimize, DType::F64, Adam::default());
        // Adam divides gradients by their size, and so it magnifies rounding errors of small ones.
        let near = |(a, b): (&Tensor, &Tensor)| {
            let apart = (a - b).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f64>().unwrap();
            assert!(apart < 1e-9, "{apart}");
        };
        make(true).iter().zip(&make(false)).for_each(near);
    });
}

#[test]
fn replicas_train_to_the_same_bits_each_time() {
    watched(|| {
        let make = || train(true, &[2, 1, 4], How::Minimize, DType::F64, Momentum::new(0.9));
        for (a, b) in make().iter().zip(make()) {
            assert_eq!(crate::fused::flat(a), crate::fused::flat(&b));
        }
    });
}

// INV-9
#[test]
fn a_model_of_fast_layers_accepts_zero_rows() {
    watched(|| {
        let strategy: Strategy = MirroredStrategy::cpus(2).unwrap();
        let build = |vb: VarBuilder| -> Result<_> {
            Ok((
                nn::linear(3, 4, vb.pp("a"))?,
                nn::layer_norm(4, 1e-5, vb.pp("b"))?,
                nn::linear(4, 2, vb.pp("c"))?,
            ))
        };
        let train = |empty: bool| {
            let model = strategy.replicate_seeded(1, build).unwrap();
            let optimizer = Optimizer::with_rule(Momentum::new(0.9), &model.variables, 0.1).unwrap();
            let run = strategy.run(&model, |ctx, (a, norm, c)| {
                let n = if ctx.replica_id_in_sync_group() == 0 { 3 } else { 0 };
                if n == 0 && !empty {
                    return optimizer.skip(ctx);
                }
                let x = numbers(&[n, 3], DType::F32, 1);
                let y = Tensor::zeros(n, DType::U32, &Device::Cpu)?;
                let logits = c.forward(&norm.forward(&a.forward(&x)?)?)?;
                optimizer.minimize(ctx, nn::loss::cross_entropy(&logits, &y)?, n)
            });
            run.unwrap();
            let names = model.variables.names();
            names
                .iter()
                .map(|name| crate::fused::flat(&model.variables.get(name).unwrap()))
                .collect::<Vec<_>>()
        };
        assert_eq!(train(true), train(false));
    });
}
