//! Checks that models of candle's own operations train with correct gradients, even if candle's backward pass is wrong.

use super::{by_differences, flat, mirrored, numbers, one_device};
use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Module, Result, Shape, Tensor, Var};
use candle_nn::{Conv1dConfig, Conv2dConfig, Init, VarBuilder, VarMap, loss};
use distribute::optimizer::{Gradients, backward};
use distribute::{Dataset, Sgd, Strategy, nn};
use distribute_testing::{SplitMix, watched};

/// A small network of images, `[n, 1, 9, 9]`, with all operations whose gradients are wrong in candle.
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

/// Trains in the same way with finite differences instead of gradients.
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
fn a_network_of_candles_operations_trains_by_right_gradients() {
    watched(|| {
        let (expected, losses) = by_hand();
        for (strategy, ours) in
            [(one_device(), false), (mirrored(2), false), (one_device(), true), (mirrored(3), true)]
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
        // The inputs are -w, -2w, …: the largest is now -4w, and -2 - 4 = -6.
        assert_eq!(step(|x| nn::max_pool2d(&x.neg()?, 2)), 2.);
    });
}

/// Returns numbers between -1 and 1, which depend on the seed.
fn random(shape: &Shape, seed: u64) -> Tensor {
    let mut random = SplitMix(seed);
    let number = |_| random.bits() as f64 / 2f64.powi(63) - 1.;
    Tensor::from_vec((0..shape.elem_count()).map(number).collect::<Vec<f64>>(), shape, &Device::Cpu).unwrap()
}

/// Returns the slope of a loss in one direction, computed from the gradients in `store` and by finite differences.
fn slopes(loss: &dyn Fn() -> Result<Tensor>, store: &GradStore, vars: &[Var]) -> [f64; 2] {
    const H: f64 = 1e-6;
    let moved: Vec<_> = vars
        .iter()
        .zip(1..)
        .filter_map(|(var, seed)| {
            let fan_in = (var.elem_count() / var.dims()[0]) as f64;
            let by = (random(var.shape(), seed) / fan_in.sqrt()).unwrap();
            Some((var, var.as_tensor().copy().unwrap(), by, store.get(var)?))
        })
        .collect();
    let at = |h: f64| {
        moved
            .iter()
            .for_each(|(var, before, by, _)| var.set(&(before + (by * h).unwrap()).unwrap()).unwrap());
        loss().unwrap().to_scalar::<f64>().unwrap()
    };
    let expected = (at(H) - at(-H)) / (2. * H);
    at(0.);
    let along = |by: &Tensor, gradient: &Tensor| (by * gradient)?.sum_all()?.to_scalar::<f64>();
    [moved.iter().map(|(_, _, by, gradient)| along(by, gradient).unwrap()).sum(), expected]
}

// INV-74
#[test]
fn a_resnet_of_candle_transformers_has_the_slope_of_differences() {
    watched(|| {
        let map = VarMap::new();
        let vb = VarBuilder::from_varmap(&map, DType::F64, &Device::Cpu);
        let model = candle_transformers::models::resnet::resnet18(5, vb).unwrap();
        let mut named: Vec<_> = map.data().lock().unwrap().clone().into_iter().collect();
        named.sort_by(|(name, _), (other, _)| name.cmp(other));
        // The biases and running statistics are random, so that no element is exactly 0 before a relu, where the slope
        // is undefined.
        for ((name, var), seed) in named.iter().zip(1000..) {
            let fan_in = (var.elem_count() / var.dims()[0]) as f64;
            let random = random(var.shape(), seed);
            let values = match name.rsplit('.').next() {
                _ if var.rank() > 1 => random * (3. / fan_in).sqrt(),
                Some("weight" | "running_var") => random.affine(0.25, 1.),
                _ => random * 0.3,
            };
            var.set(&values.unwrap()).unwrap();
        }
        let x = random(&Shape::from((2, 3, 32, 32)), 1);
        let y = Tensor::new(&[1u32, 3], &Device::Cpu).unwrap();
        let loss = || loss::cross_entropy(&model.forward(&x)?, &y);
        // In evaluation candle's batch-norm takes its running statistics as constants.
        let store = backward(&loss().unwrap()).unwrap();
        for (name, var) in &named {
            assert_eq!(store.get(var).is_none(), name.contains(".running_"), "{name}");
        }
        let vars: Vec<Var> = named.into_iter().map(|(_, var)| var).collect();
        let [found, expected] = slopes(&loss, &store, &vars);
        assert!(
            expected.abs() > 0.01 && (found - expected).abs() < 1e-7 * expected.abs(),
            "{found}, not {expected}"
        );
    });
}

#[test]
fn gradients_of_a_loss_are_right_and_those_that_candle_drops_are_refused() {
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
        // NaN is not taken for another scale.
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
        assert!(text.contains("call distribute::nn::upsample_bilinear2d(&x, 3, 4, false)?"), "{text}");
    });
}
