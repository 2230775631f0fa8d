//! Models of candle's own operations train by right gradients: those that candle's backward has wrong, too.

use super::{by_differences, flat, numbers, one_device, replicas};
use candle_core::{DType, Device, Module, Result, Tensor, Var};
use candle_nn::{Conv1dConfig, Conv2dConfig, Init, VarBuilder, loss};
use distribute::optimizer::Gradients;
use distribute::{Dataset, Sgd, Strategy, nn};
use distribute_testing::watched;

/// A small network of images, `[n, 1, 9, 9]`, with everything that candle has a wrong gradient of.
struct Net {
    ours: bool,
    first: candle_nn::Conv2d,
    second: candle_nn::Conv2d,
    line: candle_nn::Conv1d,
    head: candle_nn::Linear,
}

impl Net {
    fn new(ours: bool, vb: VarBuilder) -> Result<Self> {
        let of = |name: &str, shape: &[usize]| {
            vb.get_with_hints(shape, name, Init::Uniform { lo: -0.7, up: 0.7 })?.to_dtype(DType::F64)
        };
        let padded = Conv2dConfig { padding: 1, ..Default::default() };
        Ok(Self {
            ours,
            first: candle_nn::Conv2d::new(
                of("first.weight", &[3, 1, 3, 3])?,
                Some(of("first.bias", &[3])?),
                padded,
            ),
            second: candle_nn::Conv2d::new(of("second.weight", &[2, 3, 3, 3])?, None, padded),
            line: candle_nn::Conv1d::new(of("line.weight", &[4, 2, 3])?, None, Conv1dConfig::default()),
            head: candle_nn::Linear::new(of("head.weight", &[3, 8])?, Some(of("head.bias", &[3])?)),
        })
    }

    fn logits(&self, x: &Tensor) -> Result<Tensor> {
        let n = x.dim(0)?;
        // 9 is no multiple of 2: 4 x 4.
        let y = self.first.forward(x)?.relu()?;
        let y = if self.ours { nn::max_pool2d(&y, 2)? } else { y.max_pool2d(2)? };
        let up = if self.ours { nn::upsample_nearest2d(&y, 8, 8)? } else { y.upsample_nearest2d(8, 8)? };
        // [n, 2, 4, 4] and [n, 3, 4, 4], which was upsampled, too.
        let y = (self.second.forward(&y)? + up.narrow(1, 0, 2)?.narrow(2, 0, 4)?.narrow(3, 0, 4)?)?;
        let y = if self.ours { nn::avg_pool2d(&y, (1, 3))? } else { y.avg_pool2d((1, 3))? };
        let y = y.reshape((n, 2, 4))?;
        let y = if self.ours {
            nn::Conv1d::from(self.line.clone()).forward(&y)?
        } else {
            self.line.forward(&y)?
        };
        self.head.forward(&y.reshape((n, 8))?)
    }
}

fn examples() -> (Tensor, Tensor) {
    let x = (numbers(&[6, 1, 9, 9], DType::F64) - 5.).unwrap();
    (x, Tensor::new(&[0u32, 2, 1, 1, 0, 2], &Device::Cpu).unwrap())
}

const RATE: f64 = 0.3;
const STEPS: usize = 4;

/// The weights of a model after some steps, and its losses.
type Trained = (Vec<(String, Vec<f64>)>, Vec<f64>);

fn trained(strategy: &Strategy, ours: bool) -> Trained {
    let model = strategy.replicate_seeded(3, move |vb| Net::new(ours, vb.to_dtype(DType::F64))).unwrap();
    let optimizer = Sgd::new(&model.variables, RATE).unwrap();
    let (x, y) = examples();
    let batches = Dataset::from_slices((x, y)).unwrap().repeat(STEPS).batch(6);
    let mut losses = Vec::new();
    for batch in &strategy.distribute_dataset(batches).unwrap() {
        let loss = strategy
            .run((&model, batch.unwrap()), |ctx, (model, (x, y))| {
                let loss = loss::cross_entropy(&model.logits(&x)?, &y)?;
                optimizer.minimize(ctx, loss, y.dim(0)?)
            })
            .unwrap();
        losses.push(flat(&loss.into_values()[0])[0]);
    }
    (weights(&model.variables), losses)
}

fn weights(variables: &distribute::Variables) -> Vec<(String, Vec<f64>)> {
    variables.names().iter().map(|name| (name.to_string(), flat(&variables.get(name).unwrap()))).collect()
}

/// The same training, with differences of losses in place of gradients.
fn by_hand() -> Trained {
    let strategy = one_device();
    let model = strategy.replicate_seeded(3, |vb| Net::new(false, vb.to_dtype(DType::F64))).unwrap();
    let vars: Vec<(String, Var)> = model
        .variables
        .names()
        .iter()
        .map(|name| (name.to_string(), Var::from_tensor(&model.variables.get(name).unwrap()).unwrap()))
        .collect();
    let of = vars.iter().map(|(name, var)| (name.clone(), var.as_tensor().clone())).collect();
    let net = Net::new(false, VarBuilder::from_tensors(of, DType::F64, &Device::Cpu)).unwrap();
    let (x, y) = examples();
    let loss = || loss::cross_entropy(&net.logits(&x)?, &y);
    let mut losses = Vec::new();
    for _ in 0..STEPS {
        losses.push(flat(&loss().unwrap())[0]);
        let gradients: Vec<Vec<f64>> = vars.iter().map(|(_, var)| by_differences(var, &loss)).collect();
        for ((_, var), gradient) in vars.iter().zip(gradients) {
            let gradient = Tensor::from_vec(gradient, var.shape(), &Device::Cpu).unwrap();
            var.set(&(var.as_tensor() - (gradient * RATE).unwrap()).unwrap()).unwrap();
        }
    }
    (vars.iter().map(|(name, var)| (name.clone(), flat(var))).collect(), losses)
}

// INV-74
#[test]
fn a_network_of_candles_operations_trains_as_differences_say() {
    watched(|| {
        let (expected, losses) = by_hand();
        for (strategy, ours) in
            [(one_device(), false), (replicas(2), false), (one_device(), true), (replicas(3), true)]
        {
            let found = trained(&strategy, ours);
            for (found, expected) in found.1.iter().zip(&losses) {
                assert!((found - expected).abs() < 1e-6, "losses {:?}, not {losses:?}", found);
            }
            for ((name, found), (other, expected)) in found.0.iter().zip(&expected) {
                assert_eq!(name, other);
                for (found, expected) in found.iter().zip(expected) {
                    assert!((found - expected).abs() < 1e-6, "{name}: {found}, not {expected}");
                }
            }
        }
    });
}

#[test]
fn one_step_over_a_pool_moves_a_weight_by_the_largest_element() {
    watched(|| {
        let strategy = one_device();
        let model = strategy.replicate(|vb| vb.get_with_hints((), "w", Init::Const(2.))).unwrap();
        let optimizer = Sgd::new(&model.variables, 1.).unwrap();
        let x = Tensor::new(&[[[[1f32, 2.], [3., 4.]]]], &Device::Cpu).unwrap();
        let step = |function: fn(&Tensor) -> Result<Tensor>| {
            strategy
                .run(&model, |ctx, w| optimizer.minimize(ctx, function(&x.broadcast_mul(w)?)?.mean_all()?, 1))
                .unwrap();
            model.variables.get("w").unwrap().to_scalar::<f32>().unwrap()
        };
        assert_eq!(step(|x| x.max_pool2d(2)), -2.);
        // Of -w, -2w, …: the largest is -w · 4 now, and -2 - 4 = -6.
        assert_eq!(step(|x| nn::max_pool2d(&x.neg()?, 2)), 2.);
    });
}

#[test]
fn gradients_of_a_loss_are_right_and_what_candle_does_not_keep_is_refused() {
    watched(|| {
        let strategy = one_device();
        let model = strategy.replicate(|vb| vb.get_with_hints((1, 1, 2, 3), "x", Init::Const(1.))).unwrap();
        let optimizer = Sgd::new(&model.variables, 1.).unwrap();
        let gradients = |function: fn(&Tensor) -> Result<Tensor>| {
            let gradients = strategy.run(&model, |_, x| Gradients::of(&optimizer, &function(x)?.sum_all()?));
            gradients.map(|gradients| gradients.into_values().remove(0))
        };
        let found = gradients(|x| x.max_pool2d(2)).unwrap();
        let Some(distribute::optimizer::Gradient::Dense(of_x)) = found.get("x") else {
            panic!("no gradient")
        };
        assert_eq!(flat(of_x), [1., 0., 0., 0., 0., 0.]);
        assert!(gradients(|x| x.upsample_bilinear2d_with_scale(2., 2., false)).is_ok());
        // NaN is no sign of another scale.
        assert!(gradients(|x| (x * f64::NAN)?.upsample_bilinear2d(5, 4, true)).is_ok());
        // 1.4 · 3 is 4.2, which is no size.
        let ramp = |x: &Tensor| {
            let ramp = Tensor::arange(0f32, 6., &Device::Cpu)?.reshape((1, 1, 2, 3))?;
            (x * ramp)?.upsample_bilinear2d_with_scale(1.5, 1.4, false)
        };
        let error = gradients(ramp).unwrap_err();
        assert!(matches!(error.root_cause(), distribute::Error::InvalidArgument { .. }), "{error}");
        let text = error.to_string() + &error.root_cause().to_string();
        assert!(text.contains("upsample_bilinear2d_with_scale on [1, 1, 2, 3]"), "{text}");
        assert!(text.contains("write distribute::nn::upsample_bilinear2d(&x, 3, 4, false)?"), "{text}");
    });
}
