//! Weights in half precision and integers below the trained layers.

use crate::optimizer::{mirrored, value};
use candle_core::{DType, Device, Tensor};
use candle_nn::{Init, VarBuilder};
use distribute::optimizer::{Gradients, MissingGradients};
use distribute::{Error, nn, prelude::*};
use distribute_testing::watched;

/// A model with a weight in bf16, scales in f16, integers, and an adapter in f32.
struct Adapted {
    base: nn::Linear,
    scale: Tensor,
    quantized: Tensor,
    down: nn::Linear,
    up: nn::Linear,
}

const UNFIT: [&str; 3] = ["base.quantized", "base.scale", "base.weight"];

impl Adapted {
    fn new(vb: VarBuilder<'_>) -> candle_core::Result<Self> {
        let base = vb.pp("base");
        let weight = Init::Randn { mean: 0., stdev: 0.5 };
        Ok(Self {
            base: nn::Linear::new(base.get_with_hints_dtype((4, 6), "weight", weight, DType::BF16)?, None),
            scale: base.get_with_hints_dtype(4, "scale", Init::Const(0.5), DType::F16)?,
            quantized: base.get_with_hints_dtype((4, 6), "quantized", Init::Const(3.), DType::U8)?,
            down: nn::linear_no_bias(6, 2, vb.pp("down"))?,
            up: nn::linear_no_bias(2, 4, vb.pp("up"))?,
        })
    }

    fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        let wide = |x: &Tensor| x.to_dtype(DType::F32);
        // candle multiplies no bf16 on CPUs.
        let y = x.matmul(&wide(self.base.weight())?.t()?)?;
        let quantized = x.matmul(&wide(&self.quantized)?.t()?)?.broadcast_mul(&wide(&self.scale)?)?;
        (y + quantized)? + x.apply(&self.down)?.apply(&self.up)?
    }
}

fn data() -> (Tensor, Tensor) {
    let x = Tensor::arange(0f32, 42., &Device::Cpu).unwrap().sin().unwrap().reshape((7, 6)).unwrap();
    (x.clone(), x.narrow(1, 1, 4).unwrap().contiguous().unwrap())
}

fn train(strategy: &Strategy, model: &Replicated<Adapted>, optimizer: &Adam) -> distribute::Result<Vec<f32>> {
    let mut losses = Vec::new();
    for batch in &strategy.distribute_dataset(Dataset::from_slices(data())?.batch(7).repeat(30))? {
        let run = strategy.run((model, batch?), |ctx, (model, (x, y))| {
            let loss = (model.forward(&x)? - &y)?.sqr()?.mean_all()?;
            optimizer.minimize(ctx, loss, y.dim(0)?)
        })?;
        losses.push(run.values()[0].to_scalar()?);
    }
    Ok(losses)
}

// INV-9
#[test]
fn adapters_train_over_frozen_weights_of_any_dtype() {
    watched(|| {
        let trained = |n: usize| {
            let strategy = mirrored(n);
            let model = strategy.replicate(Adapted::new).unwrap();
            let frozen = || UNFIT.map(|name| value(&model, name));
            let before = frozen();
            let optimizer = Adam::new(&model.variables, 0.05).unwrap();
            let optimizer = optimizer.freeze(|name| name.starts_with("base.")).unwrap();
            let optimizer = optimizer.on_missing_gradients(MissingGradients::Error);
            assert!(optimizer.variable_names().eq(["down.weight", "up.weight"]));
            let losses = train(&strategy, &model, &optimizer).unwrap();
            assert!(losses[29] < 0.5 * losses[0], "{losses:?}");
            assert_eq!(frozen(), before);

            // Saved and restored as any other, dtypes included.
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("saved");
            Checkpoint::new().part("m", &model.variables).part("o", &optimizer).save(&path).unwrap();
            let again = strategy.replicate_seeded(9, Adapted::new).unwrap();
            let of_again = Adam::new(&again.variables, 0.02).unwrap();
            let of_again = of_again.freeze(|name| name.starts_with("base.")).unwrap();
            Checkpoint::new().part("m", &again.variables).part("o", &of_again).restore(&path).unwrap();
            assert_eq!(again.variables.sha256().unwrap(), model.variables.sha256().unwrap());
            assert_eq!(of_again.finished_steps(), 30);
            ["down.weight", "up.weight"].map(|name| value(&model, name))
        };
        let one = trained(1);
        for (a, b) in trained(3).iter().flatten().zip(one.iter().flatten()) {
            assert!((a - b).abs() < 1e-3, "{a}, not {b}");
        }
    });
}

#[test]
fn the_first_step_refuses_untrainable_variables_by_name() {
    watched(|| {
        let strategy = mirrored(2);
        let model = strategy.replicate(Adapted::new).unwrap();
        let before = model.variables.sha256().unwrap();
        let optimizer = || Adam::new(&model.variables, 0.02).unwrap();
        let refused = |optimizer: &Adam, names: &[&str]| {
            let error = train(&strategy, &model, optimizer).unwrap_err();
            assert!(
                matches!(error.root_cause(), Error::InvalidArgument { operation: "minimize", .. }),
                "{error}"
            );
            let text = error.to_string();
            for part in names.iter().chain(&["freeze", "f32"]) {
                assert!(text.contains(part), "{part:?} is not in {text}");
            }
            assert_eq!(UNFIT.iter().filter(|name| text.contains(*name)).count(), names.len() - 1, "{text}");
        };
        refused(&optimizer(), &["BF16 and F16 and U8", UNFIT[0], UNFIT[1], UNFIT[2]]);
        // It is not enough to freeze other variables or some of these. They can be frozen one after another.
        let some = optimizer().freeze(|name| ["base.scale", "up.weight"].contains(&name)).unwrap();
        refused(&some, &["BF16 and U8", UNFIT[0], UNFIT[2]]);
        assert!(some.variable_names().eq(["down.weight"]));
        let more = some.freeze(|name| name == "base.quantized").unwrap();
        refused(&more, &["BF16", UNFIT[2]]);
        let run = strategy.run((), |ctx, ()| {
            let error = more.skip(ctx).unwrap_err().to_string();
            Ok(error.contains("base.weight"))
        });
        assert_eq!(run.unwrap().values(), [true, true]);
        assert_eq!((more.finished_steps(), model.variables.sha256().unwrap()), (0, before));
        let all = more.freeze(|name| name == "base.weight").unwrap();
        train(&strategy, &model, &all).unwrap();

        // Other settings are refused for these variables, and the error has the reason.
        for error in [
            optimizer().rate_factor(|name| name == "base.weight", 0.5).unwrap_err(),
            Gradients::new(&optimizer())
                .insert("base.weight", Tensor::new(0f32, &Device::Cpu).unwrap())
                .unwrap_err(),
        ] {
            let text = error.to_string();
            assert!(
                text.contains("base.weight") && (text.contains("f32") || text.contains("BF16")),
                "{text}"
            );
        }
        let error = all.freeze(|name| name.starts_with("base.")).unwrap_err().to_string();
        assert!(error.contains("only frozen variables"), "{error}");
    });
}

#[test]
fn a_model_without_any_number_to_train_is_refused_at_once() {
    let strategy = mirrored(1);
    let half =
        strategy.replicate(|vb: VarBuilder| candle_nn::linear(2, 1, vb.to_dtype(DType::BF16))).unwrap();
    let error = Sgd::new(&half.variables, 0.1).unwrap_err().to_string();
    for part in ["BF16: bias, weight", "vb.to_dtype(DType::F32)"] {
        assert!(error.contains(part), "{part:?} is not in {error}");
    }
}
