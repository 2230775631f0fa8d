//! Existing models, which train without changes to the same weights on one replica and on two: layers, recurrent
//! networks and sequences of boxed layers of candle_nn, a block of candle_transformers, and batch norm with its running
//! statistics.

use crate::support::{assert_close, flat, mirrored, one_device};
use candle_core::{DType, Device, IndexOp, Module, ModuleT, Tensor};
use candle_nn::rnn::{LSTM, LSTMConfig, RNN, lstm};
use candle_nn::{BatchNorm, Conv2d, Conv2dConfig, Embedding, Func, GRU, GRUConfig, Linear, VarBuilder};
use candle_transformers::models::stable_diffusion::resnet::{ResnetBlock2D, ResnetBlock2DConfig};
use distribute::data::Dataset;
use distribute::nn::{PerThread, per_thread};
use distribute::{Adam, Replicated, Sgd, Strategy, nn::loss};
use distribute_testing::watched;

/// Returns numbers between -1 and 1. The same shape results in the same numbers.
fn numbers(shape: &[usize]) -> Tensor {
    let n: usize = shape.iter().product();
    let values: Vec<f64> = (0..n).map(|i| ((i * 7919 + 13) % 101) as f64 / 50. - 1.).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

fn labels(rows: usize, classes: u32) -> Tensor {
    Tensor::from_vec((0..rows as u32).map(|i| (i * 5 + 1) % classes).collect::<Vec<_>>(), rows, &Device::Cpu)
        .unwrap()
}

/// Trains a model that returns logits of three classes. Returns the losses of the first and the last epoch, and the
/// model.
fn train<M: Send + Sync + 'static>(
    strategy: &Strategy,
    inputs: &Tensor,
    build: fn(VarBuilder<'static>) -> candle_core::Result<M>,
    logits: fn(&M, &Tensor) -> candle_core::Result<Tensor>,
) -> (f64, f64, Replicated<M>) {
    let model =
        strategy.replicate_seeded(3, move |vb: VarBuilder<'static>| build(vb.to_dtype(DType::F64))).unwrap();
    let optimizer = Adam::new(&model.variables, 0.02).unwrap();
    let rows = inputs.dim(0).unwrap();
    let dataset =
        Dataset::from_slices((inputs.clone(), labels(rows, 3))).unwrap().batch(rows.div_ceil(2) + 1);
    let batches = strategy.distribute_dataset(dataset).unwrap();
    let mut losses = Vec::new();
    for _ in 0..25 {
        for batch in &batches {
            let loss = strategy.run((&model, batch.unwrap()), |ctx, (model, (x, y))| {
                let n = y.dim(0)?;
                if n == 0 {
                    return optimizer.skip(ctx);
                }
                optimizer.minimize(ctx, loss::cross_entropy(&logits(model, &x)?, &y)?, n)
            });
            losses.push(loss.unwrap().values()[0].to_scalar::<f64>().unwrap());
        }
    }
    // Two batches an epoch.
    let epoch = |losses: &[f64]| losses.iter().sum::<f64>() / 2.;
    (epoch(&losses[..2]), epoch(&losses[losses.len() - 2..]), model)
}

/// Checks that one device and one, two and three replicas reach the same weights, and that the loss falls.
fn trains_everywhere<M: Send + Sync + 'static>(
    inputs: Tensor,
    build: fn(VarBuilder<'static>) -> candle_core::Result<M>,
    logits: fn(&M, &Tensor) -> candle_core::Result<Tensor>,
) {
    watched(move || {
        let (first, last, expected) = train(&one_device(), &inputs, build, logits);
        assert!(last < 0.8 * first, "the loss went from {first} to {last}");
        for n in [1, 2, 3] {
            let (_, _, model) = train(&mirrored(n), &inputs, build, logits);
            assert_eq!(model.variables.names(), expected.variables.names());
            for name in model.variables.names() {
                let (a, b) = (model.variables.get(&name).unwrap(), expected.variables.get(&name).unwrap());
                assert_close(&a, &b, 1e-9, &format!("{name} on {n} replicas"));
            }
            // The merged model is the model.
            let merged = model.merged().unwrap();
            let a = logits(&merged, &inputs).unwrap();
            let b = logits(&model.models().values()[n - 1], &inputs).unwrap();
            assert_close(&a, &b, 0., "merged");
        }
    });
}

#[test]
fn a_model_of_closures_trains() {
    fn build(vb: VarBuilder<'_>) -> candle_core::Result<Func<'static>> {
        let (a, b) = (candle_nn::linear(4, 6, vb.pp("0"))?, candle_nn::linear_no_bias(6, 3, vb.pp("1"))?);
        Ok(candle_nn::func(move |x| x.apply(&a)?.apply(&candle_nn::Activation::Gelu)?.apply(&b)))
    }
    trains_everywhere(numbers(&[10, 4]), build, |model, x| model.forward(x));
}

/// Builds a model like those of tutorials: layers of candle_nn in its `Sequential`, which is neither `Send` nor
/// `Sync`.
fn stack(vb: &VarBuilder<'_>) -> candle_core::Result<candle_nn::Sequential> {
    let stack = candle_nn::seq().add(candle_nn::linear(4, 6, vb.pp("0"))?).add(candle_nn::Activation::Gelu);
    Ok(stack.add(candle_nn::linear_no_bias(6, 3, vb.pp("1"))?).add_fn(|x| x * 1.5))
}

#[test]
fn candles_sequential_trains() {
    fn build(vb: VarBuilder<'static>) -> candle_core::Result<PerThread<candle_nn::Sequential>> {
        per_thread(vb, |vb| stack(&vb))
    }
    trains_everywhere(numbers(&[10, 4]), build, |model, x| model.forward(x));
}

struct Part {
    body: PerThread<Vec<Box<dyn Module>>>,
    out: Linear,
}

#[test]
fn a_model_with_boxed_modules_in_it_trains() {
    fn build(vb: VarBuilder<'static>) -> candle_core::Result<Part> {
        let body = per_thread(vb.pp("body"), |vb| -> candle_core::Result<Vec<Box<dyn Module>>> {
            Ok(vec![Box::new(stack(&vb)?), Box::new(candle_nn::Activation::Relu)])
        })?;
        Ok(Part { body, out: candle_nn::linear(3, 3, vb.pp("out"))? })
    }
    fn logits(model: &Part, x: &Tensor) -> candle_core::Result<Tensor> {
        let body = model.body.get()?;
        body.iter().try_fold(x.clone(), |x, layer| layer.forward(&x))?.apply(&model.out)
    }
    trains_everywhere(numbers(&[10, 4]), build, logits);
}

struct Recurrent {
    embedding: Embedding,
    lstm: LSTM,
    gru: GRU,
    out: Linear,
}

#[test]
fn an_embedding_with_lstm_and_gru_trains() {
    fn build(vb: VarBuilder<'_>) -> candle_core::Result<Recurrent> {
        Ok(Recurrent {
            embedding: candle_nn::embedding(11, 4, vb.pp("embedding"))?,
            lstm: lstm(4, 5, LSTMConfig::default(), vb.pp("lstm"))?,
            gru: candle_nn::gru(5, 4, GRUConfig::default(), vb.pp("gru"))?,
            out: candle_nn::linear(4, 3, vb.pp("out"))?,
        })
    }
    fn logits(model: &Recurrent, x: &Tensor) -> candle_core::Result<Tensor> {
        let words = ((x + 1.)? * 5.)?.to_dtype(DType::U32)?;
        let states = model.lstm.seq(&model.embedding.forward(&words)?)?;
        let sequence = model.lstm.states_to_tensor(&states)?;
        let states = model.gru.seq(&sequence)?;
        let last = states.last().map(|state| state.h().clone()).ok_or(candle_core::Error::msg("no word"))?;
        model.out.forward(&last)
    }
    trains_everywhere(numbers(&[9, 4]), build, logits);
}

struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    norm: candle_nn::LayerNorm,
    out: Linear,
}

#[test]
fn attention_as_in_candles_examples_trains() {
    fn build(vb: VarBuilder<'_>) -> candle_core::Result<Attention> {
        let linear = |name: &str| candle_nn::linear(4, 4, vb.pp(name));
        Ok(Attention {
            query: linear("query")?,
            key: linear("key")?,
            value: linear("value")?,
            // candle's layer norm with a bias has no gradient, because its kernel is fused.
            norm: candle_nn::layer_norm_no_bias(4, 1e-5, vb.pp("norm"))?,
            out: candle_nn::linear(4, 3, vb.pp("out"))?,
        })
    }
    fn logits(model: &Attention, x: &Tensor) -> candle_core::Result<Tensor> {
        let (q, k, v) = (model.query.forward(x)?, model.key.forward(x)?, model.value.forward(x)?);
        let weights = candle_nn::ops::softmax(&(q.matmul(&k.t()?)? * 0.5)?, candle_core::D::Minus1)?;
        let mixed = (weights.matmul(&v)? + x)?;
        model.out.forward(&model.norm.forward(&mixed)?.mean(1)?)
    }
    trains_everywhere(numbers(&[8, 5, 4]), build, logits);
}

struct Diffusion {
    block: ResnetBlock2D,
    out: Linear,
}

#[test]
fn the_residual_block_of_candle_transformers_stable_diffusion_trains() {
    fn build(vb: VarBuilder<'_>) -> candle_core::Result<Diffusion> {
        let config = ResnetBlock2DConfig {
            out_channels: Some(4),
            temb_channels: Some(3),
            groups: 2,
            ..ResnetBlock2DConfig::default()
        };
        Ok(Diffusion {
            block: ResnetBlock2D::new(vb.pp("block"), 2, config)?,
            out: candle_nn::linear(4, 3, vb.pp("out"))?,
        })
    }
    fn logits(model: &Diffusion, x: &Tensor) -> candle_core::Result<Tensor> {
        let time = x.i((.., 0, 0, 0..3))?.contiguous()?;
        let features = model.block.forward(x, Some(&time))?;
        model.out.forward(&features.flatten_from(2)?.mean(2)?)
    }
    trains_everywhere(numbers(&[7, 2, 5, 5]), build, logits);
}

struct Convolutional {
    conv: Conv2d,
    norm: BatchNorm,
    out: Linear,
}

impl Convolutional {
    fn new(vb: VarBuilder<'_>) -> candle_core::Result<Self> {
        let vb = vb.to_dtype(DType::F64);
        Ok(Self {
            conv: candle_nn::conv2d(1, 2, 3, Conv2dConfig::default(), vb.pp("conv"))?,
            norm: candle_nn::batch_norm(2, 1e-5, vb.pp("norm"))?,
            out: candle_nn::linear(2 * 3 * 3, 3, vb.pp("out"))?,
        })
    }

    fn forward_t(&self, x: &Tensor, train: bool) -> candle_core::Result<Tensor> {
        let x = self.norm.forward_t(&self.conv.forward(x)?, train)?.relu()?;
        self.out.forward(&x.flatten_from(1)?)
    }
}

const MEAN: &str = "norm.running_mean";
const VAR: &str = "norm.running_var";

/// Runs the forward pass in training mode once for each step. Replica r gets the rows `pieces[r]`.
fn forward(strategy: &Strategy, pieces: &[Tensor], steps: usize) -> Replicated<Convolutional> {
    let model = strategy.replicate(Convolutional::new).unwrap();
    for _ in 0..steps {
        let pieces = distribute::PerReplica::from_values(pieces.to_vec());
        strategy.run((&model, pieces), |_, (model, x)| Ok(model.forward_t(&x, true)?)).unwrap();
    }
    model
}

#[test]
fn each_replica_keeps_separate_running_statistics_and_a_read_from_outside_is_their_mean() {
    watched(|| {
        let data = numbers(&[6, 1, 5, 5]);
        let pieces = [data.narrow(0, 0, 3).unwrap(), data.narrow(0, 3, 3).unwrap()];
        let both = forward(&mirrored(2), &pieces, 3);
        let alone: Vec<_> =
            pieces.iter().map(|piece| forward(&one_device(), std::slice::from_ref(piece), 3)).collect();
        for (replica, alone) in both.models().iter().zip(&alone) {
            let alone = &alone.models().values()[0].norm;
            assert_close(replica.norm.running_mean(), alone.running_mean(), 0., "a replica's own mean");
            assert_close(replica.norm.running_var(), alone.running_var(), 0., "a replica's own variance");
        }
        for name in [MEAN, VAR] {
            let [a, b] = [0, 1].map(|r| alone[r].variables.get(name).unwrap());
            assert!(flat(&a) != flat(&b), "pieces that are equal show nothing");
            assert_close(&both.variables.get(name).unwrap(), &((a + b).unwrap() * 0.5).unwrap(), 1e-15, name);
        }
        // The mean of means over equal shards is the mean over the batch.
        let whole = forward(&one_device(), &[data], 3);
        assert_close(&both.variables.get(MEAN).unwrap(), &whole.variables.get(MEAN).unwrap(), 1e-14, MEAN);
        // And where all shards are the same, so are all statistics.
        let same = forward(&mirrored(2), &[pieces[0].clone(), pieces[0].clone()], 3);
        for name in [MEAN, VAR] {
            assert_close(
                &same.variables.get(name).unwrap(),
                &alone[0].variables.get(name).unwrap(),
                1e-14,
                name,
            );
        }
    });
}

#[test]
fn replicas_that_have_seen_no_rows_do_not_count_in_the_mean() {
    watched(|| {
        let strategy = mirrored(3);
        let model = strategy.replicate(Convolutional::new).unwrap();
        let data = numbers(&[4, 1, 5, 5]);
        // Two replicas get two rows each; the third none.
        let pieces = [(0, 2), (2, 2), (4, 0)].map(|(start, len)| data.narrow(0, start, len).unwrap());
        let pieces = distribute::PerReplica::from_values(pieces.to_vec());
        strategy
            .run((&model, pieces), |_, (model, x)| {
                if x.dim(0)? > 0 {
                    model.forward_t(&x, true)?;
                }
                Ok(())
            })
            .unwrap();
        let [a, b] = [0, 1].map(|r| model.models().values()[r].norm.running_mean().clone());
        let mean = ((a + b).unwrap() * 0.5).unwrap();
        assert_close(&model.variables.get(MEAN).unwrap(), &mean, 1e-15, MEAN);
        // Set from outside, all have the same again.
        model.variables.set(MEAN, &mean).unwrap();
        assert_close(&model.variables.get(MEAN).unwrap(), &mean, 0., MEAN);
    });
}

// INV-9
#[test]
fn an_empty_batch_leaves_running_statistics_unchanged() {
    watched(|| {
        let strategy = mirrored(2);
        let model = strategy.replicate(Convolutional::new).unwrap();
        let optimizer = Sgd::new(&model.variables, 0.1).unwrap();
        // Three batches of 2, then one of a single row: replica 1 gets none of it.
        let data = Dataset::from_slices((numbers(&[7, 1, 5, 5]), labels(7, 3))).unwrap().batch(2);
        let mut before_last = Vec::new();
        for batch in &strategy.distribute_dataset(data).unwrap() {
            let second = &model.models().values()[1].norm;
            before_last = flat(&second.running_mean().copy().unwrap());
            strategy
                .run((&model, batch.unwrap()), |ctx, (model, (x, y))| {
                    let loss = loss::cross_entropy(&model.forward_t(&x, true)?, &y)?;
                    optimizer.minimize(ctx, loss, y.dim(0)?)
                })
                .unwrap();
        }
        let second = &model.models().values()[1].norm;
        assert_eq!(flat(second.running_mean()), before_last);
        assert!(before_last.iter().any(|x| *x != 0.), "it has seen rows before");
        assert!(flat(&model.variables.get(VAR).unwrap()).iter().all(|x| x.is_finite()));
    });
}

#[test]
fn running_statistics_are_not_trained_and_set_reaches_every_replica() {
    watched(|| {
        let model = mirrored(2).replicate(Convolutional::new).unwrap();
        let trained: Vec<String> =
            model.variables.trainable().unwrap().into_iter().map(|(name, _)| name).collect();
        assert!(
            trained.iter().all(|name| !name.contains("running"))
                && trained.contains(&"norm.weight".to_string())
        );
        let value = Tensor::new(&[3f64, 4.], &Device::Cpu).unwrap();
        model.variables.set(MEAN, &value).unwrap();
        for replica in model.models() {
            assert_close(replica.norm.running_mean(), &value, 0., MEAN);
        }
    });
}

#[test]
fn a_model_with_batch_norm_trains_and_its_merged_form_evaluates() {
    watched(|| {
        let data = numbers(&[8, 1, 5, 5]);
        let train = |strategy: &Strategy, halves: bool| {
            let model = strategy.replicate(Convolutional::new).unwrap();
            let optimizer = Sgd::new(&model.variables, 0.1).unwrap();
            let batches = Dataset::from_slices((data.clone(), labels(8, 3))).unwrap().batch(8);
            let batches = strategy.distribute_dataset(batches).unwrap();
            let mut losses = Vec::new();
            for _ in 0..30 {
                for batch in &batches {
                    let loss = strategy.run((&model, batch.unwrap()), |ctx, (model, (x, y))| {
                        if !halves {
                            let loss = loss::cross_entropy(&model.forward_t(&x, true)?, &y)?;
                            return optimizer.minimize(ctx, loss, y.dim(0)?);
                        }
                        // One device computes the same as two replicas, because each half is normalized separately.
                        optimizer.minimize_each(
                            ctx,
                            [0, 4].map(|start| {
                                let (x, y) = (x.narrow(0, start, 4)?, y.narrow(0, start, 4)?);
                                Ok((loss::cross_entropy(&model.forward_t(&x, true)?, &y)?, 4))
                            }),
                        )
                    });
                    losses.push(loss.unwrap().values()[0].to_scalar::<f64>().unwrap());
                }
            }
            (losses, model)
        };
        let (losses, two) = train(&mirrored(2), false);
        assert!(losses[losses.len() - 1] < 0.7 * losses[0], "{losses:?}");
        let (_, halves) = train(&one_device(), true);
        for name in two.variables.trainable().unwrap().into_iter().map(|(name, _)| name) {
            let (a, b) = (two.variables.get(&name).unwrap(), halves.variables.get(&name).unwrap());
            assert_close(&a, &b, 1e-10, &name);
        }
        // Evaluation: a snapshot with the mean statistics, which training on does not change.
        let merged = two.merged().unwrap();
        assert_close(merged.norm.running_var(), &two.variables.get(VAR).unwrap(), 0., VAR);
        let before = merged.forward_t(&data, false).unwrap();
        let (mean, weight) = (two.variables.get(MEAN).unwrap(), two.variables.get("out.weight").unwrap());
        two.variables.set(MEAN, &mean.zeros_like().unwrap()).unwrap();
        two.variables.set("out.weight", &weight.zeros_like().unwrap()).unwrap();
        assert_close(&merged.forward_t(&data, false).unwrap(), &before, 0., "a snapshot");
        // By hand: what eval mode computes from those statistics.
        let by_hand = one_device().replicate(Convolutional::new).unwrap();
        for name in two.variables.names() {
            by_hand.variables.set(&name, &two.variables.get(&name).unwrap()).unwrap();
        }
        by_hand.variables.set(MEAN, &mean).unwrap();
        by_hand.variables.set("out.weight", &weight).unwrap();
        assert_close(&by_hand.models().values()[0].forward_t(&data, false).unwrap(), &before, 0., "by hand");
    });
}
