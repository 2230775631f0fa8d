//! Batch norm over the global batch.

use super::{assert_close, flat, mirrored, numbers, one_device};
use candle_core::{DType, Device, Module, ModuleT, Tensor, Var};
use candle_nn::{BatchNormConfig, Conv2d, Conv2dConfig, Linear, VarBuilder, VarMap};
use distribute::data::Dataset;
use distribute::nn::{BatchNorm, batch_norm, loss};
use distribute::{Error, Replicated, Sgd, Strategy};
use distribute_testing::watched;

/// A trait that both layers implement, so that one model can use either.
trait Norm: ModuleT + Send + Sync + Sized + 'static {
    fn build(channels: usize, config: BatchNormConfig, vb: VarBuilder) -> candle_core::Result<Self>;
}

impl Norm for BatchNorm {
    fn build(channels: usize, config: BatchNormConfig, vb: VarBuilder) -> candle_core::Result<Self> {
        batch_norm(channels, config, vb)
    }
}

impl Norm for candle_nn::BatchNorm {
    fn build(channels: usize, config: BatchNormConfig, vb: VarBuilder) -> candle_core::Result<Self> {
        candle_nn::batch_norm(channels, config, vb)
    }
}

/// A model with two batch norms, of images and of vectors, and a branch whose graph is traversed in a different order
/// than it was created.
struct Model<N> {
    conv: Conv2d,
    images: N,
    branch: N,
    vectors: N,
    out: Linear,
}

impl<N: Norm> Model<N> {
    fn new(vb: VarBuilder<'_>) -> candle_core::Result<Self> {
        let config = BatchNormConfig { momentum: 0.3, ..Default::default() };
        Ok(Self {
            conv: candle_nn::conv2d(1, 2, 3, Conv2dConfig::default(), vb.pp("conv"))?,
            images: N::build(2, config, vb.pp("images"))?,
            branch: N::build(2, BatchNormConfig { affine: false, ..config }, vb.pp("branch"))?,
            vectors: N::build(8, config, vb.pp("vectors"))?,
            out: candle_nn::linear(8, 3, vb.pp("out"))?,
        })
    }

    fn forward(&self, x: &Tensor, train: bool) -> candle_core::Result<Tensor> {
        let x = self.conv.forward(x)?;
        let straight = self.images.forward_t(&x, train)?.sqr()?;
        let branch = self.branch.forward_t(&x.sqr()?, train)?.tanh()?;
        let x = (branch + straight)?.flatten_from(1)?;
        self.out.forward(&self.vectors.forward_t(&x, train)?.tanh()?)
    }
}

/// Trains for two epochs on a batch of 6 rows and one of `remainder` rows.
fn train<N: Norm>(strategy: &Strategy, dtype: DType, remainder: usize) -> Replicated<Model<N>> {
    let model =
        strategy.replicate_seeded(1, move |vb: VarBuilder| Model::<N>::new(vb.to_dtype(dtype))).unwrap();
    let optimizer = Sgd::new(&model.variables, 0.1).unwrap();
    let rows = 6 + remainder;
    let labels = Tensor::from_vec((0..rows as u32).map(|i| i * 5 % 3).collect(), rows, &Device::Cpu).unwrap();
    let data = Dataset::from_slices((numbers(&[rows, 1, 4, 4], dtype), labels)).unwrap().batch(6);
    for _ in 0..2 {
        for batch in &strategy.distribute_dataset(data.clone()).unwrap() {
            strategy
                .run((&model, batch.unwrap()), |ctx, (model, (x, y))| {
                    let loss = loss::cross_entropy(&model.forward(&x, true)?, &y)?;
                    optimizer.minimize(ctx, loss, y.dim(0)?)
                })
                .unwrap();
        }
    }
    model
}

fn furthest<A, B>(a: &Replicated<A>, b: &Replicated<B>) -> f64 {
    let of = |name: &String| {
        let (a, b) = (flat(&a.variables.get(name).unwrap()), flat(&b.variables.get(name).unwrap()));
        let far = a.iter().zip(&b).map(|(a, b)| (a - b).abs() / b.abs().max(1.));
        // `max` would ignore NaN.
        far.map(|far| if far.is_nan() { f64::INFINITY } else { far }).fold(0., f64::max)
    };
    a.variables.names().iter().map(of).fold(0., f64::max)
}

/// Checks all sizes of the last batch, including those that leave some replicas without rows.
fn trains_like_one_device(dtype: DType, limit: f64) {
    for remainder in [1, 2, 3, 5, 6] {
        let expected = train::<BatchNorm>(&one_device(), dtype, remainder);
        // With one row, candle_nn's layer gives NaN. It sums in f32, so its differences are larger.
        if remainder > 1 {
            let far = furthest(&expected, &train::<candle_nn::BatchNorm>(&one_device(), dtype, remainder));
            assert!(far <= 5. * limit, "candle_nn's, {remainder} rows at last: {far:e} away");
        }
        for n in [1, 2, 3, 4] {
            let model = train::<BatchNorm>(&mirrored(n), dtype, remainder);
            assert_eq!(model.variables.names(), expected.variables.names());
            let far = furthest(&model, &expected);
            assert!(far <= limit, "{n} replicas, {remainder} rows at last: {far:e} away");
            // Every replica has the same running statistics.
            let [first, last] = [0, n - 1].map(|r| &model.models().values()[r].vectors);
            assert_eq!(flat(first.running_mean()), flat(last.running_mean()));
            assert_eq!(flat(first.running_var()), flat(last.running_var()));
            // Evaluation of the snapshot and of each replica's model magnifies the differences between weights.
            let limit = 10. * limit;
            let x = numbers(&[4, 1, 4, 4], dtype);
            let by_one = expected.merged().unwrap().forward(&x, false).unwrap();
            assert_close(&model.merged().unwrap().forward(&x, false).unwrap(), &by_one, limit, "merged");
            for replica in model.models() {
                assert_close(&replica.forward(&x, false).unwrap(), &by_one, limit, "evaluation");
            }
        }
    }
}

#[test]
fn n_replicas_train_and_evaluate_like_one_device_on_the_global_batch_f64() {
    watched(|| trains_like_one_device(DType::F64, 1e-12));
}

#[test]
fn n_replicas_train_and_evaluate_like_one_device_on_the_global_batch_f32() {
    watched(|| trains_like_one_device(DType::F32, 1e-5));
}

#[test]
fn stock_batch_norm_depends_on_the_number_of_replicas() {
    watched(|| {
        let one = train::<candle_nn::BatchNorm>(&one_device(), DType::F64, 6);
        let two = train::<candle_nn::BatchNorm>(&mirrored(2), DType::F64, 6);
        let far = furthest(&two, &one);
        assert!(far > 1e-3, "only {far:e}");
    });
}

/// Returns the results of the forward pass, the gradients of the input, the weight and the bias, and the running
/// statistics, for the complete batch.
fn gradients<N: Norm>(config: BatchNormConfig, x: &Var, dtype: DType) -> Vec<Tensor> {
    let variables = VarMap::new();
    let vb = VarBuilder::from_varmap(&variables, dtype, &Device::Cpu);
    let norm = N::build(3, config, vb).unwrap();
    let y = norm.forward_t(x, true).unwrap();
    let grads = (y.powf(3.).unwrap() * x.as_tensor()).unwrap().sum_all().unwrap().backward().unwrap();
    let variables = variables.data().lock().unwrap();
    let of = ["weight", "bias"].into_iter().filter_map(|name| grads.get(variables.get(name)?).cloned());
    let running = ["running_mean", "running_var"].map(|name| variables[name].as_tensor().clone());
    [y, grads.get(x).unwrap().clone()].into_iter().chain(of).chain(running).collect()
}

#[test]
fn outside_run_batch_norm_equals_candles() {
    for (dtype, limit) in [(DType::F64, 1e-12), (DType::F32, 1e-4)] {
        for shape in [&[5, 3][..], &[4, 3, 2], &[2, 3, 3, 5]] {
            for (remove_mean, affine) in [(true, true), (true, false), (false, true)] {
                let config = BatchNormConfig { eps: 1e-3, remove_mean, affine, momentum: 0.4 };
                let x = Var::from_tensor(&(numbers(shape, dtype) - 4.5).unwrap()).unwrap();
                let ours = gradients::<BatchNorm>(config, &x, dtype);
                let candles = gradients::<candle_nn::BatchNorm>(config, &x, dtype);
                assert_eq!((ours.len(), candles.len()), if affine { (6, 6) } else { (4, 4) });
                for (i, (a, b)) in ours.iter().zip(&candles).enumerate() {
                    assert_close(a, b, limit, &format!("{dtype:?} {shape:?} {config:?} {i}"));
                }
            }
        }
    }
}

#[test]
fn a_mean_far_from_zero_costs_no_precision() {
    watched(|| {
        let strategy = mirrored(3);
        let model = strategy
            .replicate(|vb: VarBuilder| batch_norm(1, BatchNormConfig::default(), vb.pp("bn")))
            .unwrap();
        let far: Vec<f32> = (0..7).map(|i| 1e6 + [0., 1., 2.][i % 3]).collect();
        let data =
            Dataset::from_slices(Tensor::from_vec(far, (7, 1), &Device::Cpu).unwrap()).unwrap().batch(7);
        let mut normalized = Vec::new();
        for batch in &strategy.distribute_dataset(data).unwrap() {
            let pieces =
                strategy.run((&model, batch.unwrap()), |_, (bn, x)| Ok(bn.forward_t(&x, true)?)).unwrap();
            normalized = pieces.iter().flat_map(flat).collect();
        }
        // Of 0, 1, 2, 0, 1, 2, 0: 34 / 7 / 6.
        let variance = flat(&model.variables.get("bn.running_var").unwrap())[0];
        assert!((variance - (0.9 + 0.1 * 34. / 42.)).abs() < 1e-6, "{variance}");
        for (i, y) in normalized.iter().enumerate() {
            let exact = ([0., 1., 2.][i % 3] - 6. / 7.) / (34f64 / 49. + 1e-5).sqrt();
            assert!((y - exact).abs() < 1e-6, "{y}, not {exact}");
        }
    });
}

#[test]
fn one_element_or_none_leaves_statistics_unchanged() {
    watched(|| {
        for strategy in [one_device(), mirrored(2)] {
            let model = strategy
                .replicate(|vb: VarBuilder| batch_norm(2, BatchNormConfig::default(), vb.pp("bn")))
                .unwrap();
            let forward = |rows: usize| {
                let piece = |r: usize| Tensor::full(3f32, (if r == 0 { rows } else { 0 }, 2), &Device::Cpu);
                let pieces = strategy
                    .distribute_values_from_function(|ctx| Ok(piece(ctx.replica_id_in_sync_group)?))
                    .unwrap();
                let out = strategy.run((&model, pieces), |_, (bn, x)| Ok(bn.forward_t(&x, true)?)).unwrap();
                assert_eq!(out.values()[0].dims(), [rows, 2]);
                ["bn.running_mean", "bn.running_var"].map(|name| flat(&model.variables.get(name).unwrap())[0])
            };
            assert_eq!(forward(0), [0., 1.]);
            assert_eq!(forward(1).map(|x| x as f32), [0.3, 1.]);
        }
    });
}

#[test]
fn half_precision_computes_in_f32() {
    let vb = VarBuilder::zeros(DType::F32, &Device::Cpu);
    let norm = batch_norm(3, BatchNormConfig { affine: false, ..Default::default() }, vb).unwrap();
    let x = numbers(&[8, 3], DType::F32);
    let half = norm.forward_t(&x.to_dtype(DType::F16).unwrap(), true).unwrap();
    assert_eq!(half.dtype(), DType::F16);
    assert_close(&half, &norm.forward_t(&x, true).unwrap(), 0.02, "f16");
}

#[test]
fn variables_and_inputs_of_any_float_dtypes_train_and_evaluate() {
    use DType::{BF16, F16, F32, F64};
    let x = numbers(&[8, 3], F64);
    let both = |variables: DType, input: DType| {
        let map = VarMap::new();
        let vb = VarBuilder::from_varmap(&map, variables, &Device::Cpu);
        let norm = batch_norm(3, BatchNormConfig::default(), vb).unwrap();
        let x = x.to_dtype(input).unwrap();
        [true, false].map(|train| {
            let y = norm.forward_t(&x, train).unwrap();
            assert_eq!(y.dtype(), input, "{variables:?} variables, train: {train}");
            y
        })
    };
    let expected = both(F64, F64);
    for (variables, input) in [(F32, BF16), (F32, F16), (F32, F64), (F64, F32), (BF16, BF16), (BF16, F32)] {
        for (y, expected) in both(variables, input).iter().zip(&expected) {
            assert_close(y, expected, 0.05, &format!("{variables:?} variables, {input:?} input"));
        }
    }
}

#[test]
fn a_replica_that_does_not_normalise_is_named_and_the_next_run_works() {
    watched(|| {
        let strategy = mirrored(2);
        let model = strategy
            .replicate(|vb: VarBuilder| batch_norm(2, BatchNormConfig::default(), vb.pp("bn")))
            .unwrap();
        let x = numbers(&[4, 2], DType::F32);
        let run = |leaves_out: bool| {
            strategy.run(&model, |ctx, bn: &BatchNorm| {
                if leaves_out && ctx.replica_id_in_sync_group() == 1 {
                    Ok(x.clone())
                } else {
                    Ok(bn.forward_train(&x)?)
                }
            })
        };
        let error = run(true).unwrap_err();
        assert!(matches!(error.root_cause(), Error::Collective(_)), "{error}");
        let text = error.to_string();
        assert!(text.contains("replica 1") && text.contains("layers/batch_norm.rs"), "{text}");
        run(false).unwrap();
    });
}

#[test]
fn shapes_and_settings_that_do_not_fit_are_errors() {
    let build = |config| batch_norm(3, config, VarBuilder::zeros(DType::F32, &Device::Cpu));
    let norm = build(BatchNormConfig::default()).unwrap();
    for x in [numbers(&[3], DType::F32), numbers(&[2, 4], DType::F32)] {
        let error = norm.forward_train(&x).unwrap_err().to_string();
        assert!(error.contains("[rows, 3, ...]"), "{error}");
    }
    let error = norm.forward_train(&Tensor::zeros((2, 3), DType::U32, &Device::Cpu).unwrap()).unwrap_err();
    assert!(error.to_string().contains("a float dtype"), "{error}");
    let error = build(BatchNormConfig { momentum: 2., ..Default::default() }).unwrap_err().to_string();
    assert!(error.contains("momentum"), "{error}");
    build(BatchNormConfig { eps: -1., ..Default::default() }).unwrap_err();
}

/// Checks the losses and gradients of several micro-batches in one step, some of them empty.
#[test]
fn micro_batches_participate_in_their_order() {
    watched(|| {
        let train = |strategy: Strategy| {
            let model = strategy
                .replicate_seeded(1, |vb: VarBuilder| Model::<BatchNorm>::new(vb.to_dtype(DType::F64)))
                .unwrap();
            let optimizer = Sgd::new(&model.variables, 0.1).unwrap();
            let x = numbers(&[8, 1, 4, 4], DType::F64);
            let y = Tensor::new(&[0u32, 1, 2, 0, 2, 2, 1, 0], &Device::Cpu).unwrap();
            strategy
                .run(&model, |ctx, model: &Model<BatchNorm>| {
                    let (id, n) = (ctx.replica_id_in_sync_group(), ctx.num_replicas_in_sync());
                    // Each replica has all rows of one micro-batch; both graphs are made before.
                    let losses = [0, 1].map(|part| {
                        let rows = if part % n == id { 4 } else { 0 };
                        let (x, y) = (x.narrow(0, 4 * part, rows)?, y.narrow(0, 4 * part, rows)?);
                        Ok((loss::cross_entropy(&model.forward(&x, true)?, &y)?, rows))
                    });
                    optimizer.minimize_each(ctx, losses)
                })
                .unwrap();
            model
        };
        let far = furthest(&train(mirrored(2)), &train(one_device()));
        assert!(far < 1e-12, "{far:e}");
    });
}

/// Trains a linear layer and a batch-norm for one step on 4 rows, some of which are masked out of the loss.
fn masked(strategy: &Strategy, mask: [f64; 4], in_parts: bool) -> (Vec<f64>, Vec<f64>) {
    let model = strategy
        .replicate(|vb: VarBuilder| {
            let vb = vb.to_dtype(DType::F64);
            let weight = vb.get_with_hints((3, 2), "weight", candle_nn::Init::Const(0.5))?;
            let [first, second] = ["first", "second"].map(|name| {
                batch_norm(2, BatchNormConfig { affine: name == "second", ..Default::default() }, vb.pp(name))
            });
            candle_core::Result::Ok((weight, first?, second?))
        })
        .unwrap();
    let optimizer = Sgd::new(&model.variables, 1.).unwrap();
    let mask = Tensor::new(&mask, &Device::Cpu).unwrap();
    let data = Dataset::from_slices((numbers(&[4, 3], DType::F64), mask)).unwrap().batch(4);
    for batch in &strategy.distribute_dataset(data).unwrap() {
        strategy
            .run((&model, batch.unwrap()), |ctx, ((weight, first, second), (x, mask))| {
                let x = x.matmul(weight)?;
                let branch = first.forward_t(&x.sqr()?, true)?;
                let y = second.forward_t(&(x + branch)?, true)?;
                let far = y.powf(3.)?.broadcast_mul(&Tensor::new(&[1f64, 2.], &Device::Cpu)?)?;
                let examples = mask.sum_all()?.to_scalar::<f64>()?;
                // Without examples, the mean is NaN.
                let loss = (far.sum(1)?.mul(&mask)?.sum_all()? / examples)?;
                if in_parts {
                    optimizer.minimize_each(ctx, [Ok((loss, examples as usize))])
                } else {
                    optimizer.minimize(ctx, loss, examples as usize)
                }
            })
            .unwrap();
    }
    ["weight", "second.weight"].map(|name| flat(&model.variables.get(name).unwrap())).into()
}

// INV-9: rows without weight still are in the statistics, by which the others' losses are normalised.
#[test]
fn rows_without_a_weight_get_the_gradients_of_the_others() {
    watched(|| {
        for mask in [[1., 1., 1., 0.], [1., 1., 0., 0.], [0., 0., 1., 1.], [0., 1., 0., 0.]] {
            let expected = masked(&one_device(), mask, false);
            assert!(expected.0.iter().any(|w| (w - 0.5).abs() > 0.01), "{expected:?}");
            for (n, in_parts) in [(2, false), (2, true), (3, false), (4, true)] {
                let got = masked(&mirrored(n), mask, in_parts);
                let pairs = expected.0.iter().zip(&got.0).chain(expected.1.iter().zip(&got.1));
                let far = pairs
                    .map(|(a, b)| (a - b).abs())
                    .fold(0., |a: f64, b| if b > a || b.is_nan() { b } else { a });
                assert!(far < 1e-11, "{n} replicas, {mask:?}: {got:?}, not {expected:?}");
            }
        }
    });
}

#[test]
fn a_replica_that_skips_normalized_rows_gets_an_error() {
    watched(|| {
        let strategy = mirrored(2);
        let model = strategy
            .replicate(|vb: VarBuilder| batch_norm(2, BatchNormConfig::default(), vb.pp("bn")))
            .unwrap();
        let optimizer = Sgd::new(&model.variables, 1.).unwrap();
        let step = |rows: usize| {
            strategy.run(&model, |ctx, bn: &BatchNorm| {
                let skips = ctx.replica_id_in_sync_group() == 1;
                let x = numbers(&[if skips { rows } else { 2 }, 2], DType::F32);
                let loss = bn
                    .forward_t(&Var::from_tensor(&x)?.as_tensor().affine(2., 0.)?, true)?
                    .sqr()?
                    .sum_all()?;
                if skips { optimizer.skip(ctx) } else { optimizer.minimize(ctx, loss, 2) }
            })
        };
        let error = step(2).unwrap_err();
        assert!(matches!(error.root_cause(), Error::InvalidArgument { .. }), "{error}");
        assert!(error.to_string().contains("the value that replica 1 contributed"), "{error}");
        step(0).unwrap();
    });
}

#[test]
fn in_cross_replica_context_it_evaluates_only() {
    watched(|| {
        let strategy = mirrored(2);
        let model = strategy
            .replicate(|vb: VarBuilder| batch_norm(1, BatchNormConfig::default(), vb.pp("bn")))
            .unwrap();
        let x = numbers(&[4, 1], DType::F32);
        let merged = |train: bool| {
            strategy.run(&model, |ctx, bn: &BatchNorm| {
                ctx.merge_call((), |_, _| Ok(bn.forward_t(&x, train).map(drop)?))
            })
        };
        let error = merged(true).unwrap_err().to_string();
        assert!(error.contains("call it inside run"), "{error}");
        for bn in model.models() {
            assert_eq!(flat(bn.running_mean()), [0.]);
        }
        merged(false).unwrap();
        // With a single replica, statistics need no other replicas.
        let alone = one_device();
        alone.scope(|| Ok(model.models().values()[0].forward_t(&x, true)?)).unwrap();
    });
}
