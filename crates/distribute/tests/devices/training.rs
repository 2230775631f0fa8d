//! Trainings of a model with a layer of each kind. The weights must not depend on the devices of the replicas.

use candle_core::{DType, Device, Tensor};
use candle_nn::{BatchNormConfig, Conv2dConfig, Module, ModuleT, VarBuilder};
use distribute::data::Dataset;
use distribute::nn::{
    self, BagMode, BatchNorm, Conv2d, Dropout, Embedding, EmbeddingBag, LayerNorm, Linear, loss,
};
use distribute::optimizer::Transform;
use distribute::optimizer::rules::{
    Adafactor, Adagrad, Adam, AdamW, Ftrl, Lamb, Momentum, RmsProp, RowAdagrad, Rule, Sgd,
};
use distribute::{Optimizer, Result, Strategy, Variables};

const ROWS: usize = 11;

/// A model with one layer of each kind.
struct Model {
    words: Embedding,
    bag: EmbeddingBag,
    image: Conv2d,
    norm: BatchNorm,
    hidden: Linear,
    layer_norm: LayerNorm,
    dropout: Dropout,
    out: Linear,
}

impl Model {
    fn new(vb: VarBuilder<'_>) -> candle_core::Result<Self> {
        Ok(Self {
            words: nn::embedding(9, 8, vb.pp("words"))?,
            bag: nn::embedding_bag(9, 8, BagMode::Mean, vb.pp("bag"))?,
            // The last row and column of an image are at no position of the kernel. The gradient of a bias before the
            // norm would be a rounding error, by which Adam would divide.
            image: nn::conv2d_no_bias(
                1,
                2,
                2,
                Conv2dConfig { stride: 2, ..Default::default() },
                vb.pp("image"),
            )?,
            norm: nn::batch_norm(2, BatchNormConfig::default(), vb.pp("norm"))?,
            hidden: nn::linear(8, 6, vb.pp("hidden"))?,
            layer_norm: nn::layer_norm(6, 1e-5, vb.pp("layer_norm"))?,
            dropout: Dropout::new(0.25, 7, "dropout")?,
            out: nn::linear(6, 3, vb.pp("out"))?,
        })
    }

    fn forward(&self, ids: &Tensor, images: &Tensor) -> candle_core::Result<Tensor> {
        let words = self.words.forward(&ids.narrow(1, 0, 1)?.squeeze(1)?)?;
        let bag = self.bag.forward(ids)?;
        let image = self.norm.forward_t(&self.image.forward(images)?, true)?.flatten_from(1)?;
        // Not Tensor::cat, which fails on a GPU for a replica without rows.
        let all = ((words + bag)? + image)?;
        // No relu: a kink would turn a difference of one bit into one of another path.
        let hidden = self.layer_norm.forward(&self.hidden.forward(&all)?.tanh()?)?;
        self.out.forward(&self.dropout.forward(&hidden, true)?)
    }
}

type Examples = (Tensor, Tensor, Tensor);

fn examples(dtype: DType) -> Examples {
    let ids: Vec<u32> = (0..ROWS as u32 * 3).map(|i| (i * i + 3) % 9).collect();
    let pixels: Vec<f64> = (0..ROWS * 25).map(|i| ((i * 37 + 11) % 41) as f64 / 20. - 1.).collect();
    let labels: Vec<u32> = (0..ROWS as u32).map(|i| (i * 7 + 3) % 3).collect();
    let of = &Device::Cpu;
    let pixels = Tensor::from_vec(pixels, (ROWS, 1, 5, 5), of).unwrap().to_dtype(dtype).unwrap();
    (Tensor::from_vec(ids, (ROWS, 3), of).unwrap(), pixels, Tensor::from_vec(labels, ROWS, of).unwrap())
}

/// The weights with their names.
pub type Weights = Vec<(String, Vec<f64>)>;

/// Returns the weights after two epochs of uneven batches, each with its name.
pub fn train<R: Rule>(strategy: &Strategy, rule: R, rate: f64, clips: bool, dtype: DType) -> Result<Weights> {
    let model = strategy.replicate_seeded(3, move |vb: VarBuilder| Model::new(vb.to_dtype(dtype)))?;
    let mut optimizer = Optimizer::with_rule(rule, &model.variables, rate)?;
    if clips {
        optimizer = optimizer.after_reduce(Transform::clip_by_global_norm(0.5))?;
    }
    // The last batch has one row: another replica has none.
    let batches = strategy.distribute_dataset(Dataset::from_slices(examples(dtype))?.batch(5))?;
    for _ in 0..2 {
        for batch in &batches {
            strategy.run((&model, batch?), |ctx, (model, (ids, images, labels))| {
                let rows = labels.dim(0)?;
                let logits = model.forward(&ids, &images)?;
                optimizer.minimize(ctx, loss::cross_entropy(&logits, &labels)?, rows)
            })?;
        }
    }
    values(&model.variables)
}

fn values(variables: &Variables) -> Result<Weights> {
    let of = |name: String| {
        let value = variables.get(&name)?.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?;
        Ok((name, value))
    };
    variables.names().into_iter().map(of).collect()
}

/// Trains on one replica, whose gradients and losses stay on its device, with all transforms of gradients.
pub fn train_alone<R: Rule>(strategy: &Strategy, rule: R, rate: f64, dtype: DType) -> Result<Weights> {
    let model = strategy.replicate_seeded(3, move |vb: VarBuilder| Model::new(vb.to_dtype(dtype)))?;
    let optimizer = Optimizer::with_rule(rule, &model.variables, rate)?
        .before_reduce(Transform::clip_by_value(-0.3, 0.4))?
        .after_reduce(Transform::weight_decay(1e-2))?
        .after_reduce(Transform::clip_by_norm(0.5))?
        .after_reduce(Transform::clip_by_global_norm(0.7))?
        .rate_factor(|name| name.ends_with("bias"), 0.5)?;
    let batches = strategy.distribute_dataset(Dataset::from_slices(examples(dtype))?.batch(5))?;
    for epoch in 0..2 {
        for batch in &batches {
            let mean = strategy.run((&model, batch?), |ctx, (model, (ids, images, labels))| {
                let loss = |from, rows| -> Result<(Tensor, usize)> {
                    let part = |of: &Tensor| of.narrow(0, from, rows);
                    let logits = model.forward(&part(&ids)?, &part(&images)?)?;
                    Ok((loss::cross_entropy(&logits, &part(&labels)?)?, rows))
                };
                let rows = labels.dim(0)?;
                match (epoch, rows) {
                    // In micro-batches.
                    (1, 5) => optimizer.minimize_each(ctx, [loss(0, 3), loss(3, 2)]),
                    _ => loss(0, rows).and_then(|(loss, rows)| optimizer.minimize(ctx, loss, rows)),
                }
            })?;
            assert!(mean.values()[0].to_dtype(DType::F64)?.to_scalar::<f64>()?.is_finite());
        }
    }
    values(&model.variables)
}

/// A model without gradients by row.
struct Dense {
    image: Conv2d,
    hidden: Linear,
    layer_norm: LayerNorm,
    out: Linear,
}

impl Dense {
    fn new(vb: VarBuilder<'_>) -> candle_core::Result<Self> {
        let config = Conv2dConfig { stride: 2, ..Default::default() };
        Ok(Self {
            image: nn::conv2d(1, 2, 2, config, vb.pp("image"))?,
            hidden: nn::linear(8, 6, vb.pp("hidden"))?,
            layer_norm: nn::layer_norm(6, 1e-5, vb.pp("layer_norm"))?,
            out: nn::linear(6, 3, vb.pp("out"))?,
        })
    }

    fn forward(&self, images: &Tensor) -> candle_core::Result<Tensor> {
        let hidden = self.hidden.forward(&self.image.forward(images)?.flatten_from(1)?)?;
        self.out.forward(&self.layer_norm.forward(&hidden.tanh()?)?)
    }
}

/// The number of steps of [`train_dense`].
pub const DENSE_STEPS: usize = 6;

/// Trains a model whose gradients are all dense, with all transforms that need several gradients at once.
fn train_dense<R: Rule>(strategy: &Strategy, rule: R, rate: f64, dtype: DType) -> Result<Weights> {
    let model = strategy.replicate_seeded(5, move |vb: VarBuilder| Dense::new(vb.to_dtype(dtype)))?;
    let optimizer = Optimizer::with_rule(rule, &model.variables, rate)?
        .after_reduce(Transform::weight_decay(1e-2))?
        .after_reduce(Transform::clip_by_global_norm(0.5))?;
    let (_, images, labels) = examples(dtype);
    let batches = strategy.distribute_dataset(Dataset::from_slices((images, labels))?.batch(5))?;
    for _ in 0..2 {
        for batch in &batches {
            strategy.run((&model, batch?), |ctx, (model, (images, labels))| {
                let rows = labels.dim(0)?;
                optimizer.minimize(ctx, loss::cross_entropy(&model.forward(&images)?, &labels)?, rows)
            })?;
        }
    }
    values(&model.variables)
}

/// Trains with two replicas, without gradients by row.
pub fn dense_by_two(strategy: &Strategy) -> Vec<Trained> {
    let mut all = Vec::new();
    for (dtype, limit) in TYPES {
        let mut add = |what: &str, made: Result<Weights>| {
            all.push((format!("dense, {what} {dtype:?}"), limit, made.unwrap()));
        };
        add("sgd", train_dense(strategy, Sgd, 0.1, dtype));
        add("momentum", train_dense(strategy, Momentum::default(), 0.1, dtype));
        if dtype == DType::F64 {
            add("adam", train_dense(strategy, Adam::default(), 0.01, dtype));
        }
    }
    all
}

/// The name of a training, the maximum difference of its weights on other devices, and the weights.
pub type Trained = (String, f64, Weights);

/// The dtypes of trainings, with the tolerance of their weights.
pub const TYPES: [(DType, f64); 2] = [(DType::F64, 1e-12), (DType::F32, 1e-5)];

/// Runs the trainings of two replicas.
pub fn by_two(strategy: &Strategy) -> Vec<Trained> {
    let mut all = Vec::new();
    for (dtype, limit) in TYPES {
        let mut add = |what: &str, made: Result<Weights>| {
            all.push((format!("{what} {dtype:?}"), limit, made.unwrap()));
        };
        add("sgd", train(strategy, Sgd, 0.1, false, dtype));
        add("clipped", train(strategy, Sgd, 0.1, true, dtype));
        add("momentum", train(strategy, Momentum::default(), 0.1, false, dtype));
        add("adagrad", train(strategy, Adagrad::default(), 0.1, false, dtype));
        add("row_adagrad", train(strategy, RowAdagrad::default(), 0.1, false, dtype));
        add("ftrl", train(strategy, Ftrl::default(), 0.1, false, dtype));
        if dtype == DType::F64 {
            // These divide gradients by their size, which magnifies rounding errors of small ones.
            add("adafactor", train(strategy, Adafactor::default(), 0.01, false, dtype));
            add("lamb", train(strategy, Lamb::default(), 0.01, false, dtype));
            add("adam", train(strategy, Adam::default(), 0.01, false, dtype));
            add("adamw", train(strategy, AdamW::default(), 0.01, false, dtype));
            add("rmsprop", train(strategy, RmsProp::default(), 0.01, false, dtype));
        }
    }
    all
}

/// Runs the trainings of one replica.
pub fn by_one(strategy: &Strategy) -> Vec<Trained> {
    let mut all = Vec::new();
    for (dtype, limit) in TYPES {
        let mut add = |what: &str, made: Result<Weights>| {
            all.push((format!("alone, {what} {dtype:?}"), limit, made.unwrap()));
        };
        add("sgd", train_alone(strategy, Sgd, 0.1, dtype));
        add("momentum", train_alone(strategy, Momentum::nesterov(0.9), 0.1, dtype));
        add("adagrad", train_alone(strategy, Adagrad::default(), 0.1, dtype));
        add("row_adagrad", train_alone(strategy, RowAdagrad::default(), 0.1, dtype));
        add("ftrl", train_alone(strategy, Ftrl { l1: 1e-3, ..Ftrl::default() }, 0.1, dtype));
        if dtype == DType::F64 {
            add("adafactor", train_alone(strategy, Adafactor::default(), 0.01, dtype));
            add("lamb", train_alone(strategy, Lamb::default(), 0.01, dtype));
            add("adam", train_alone(strategy, Adam::default(), 0.01, dtype));
            add("lazy adam", train_alone(strategy, Adam::lazy(), 0.01, dtype));
            add("adamw", train_alone(strategy, AdamW::default(), 0.01, dtype));
            add("rmsprop", train_alone(strategy, RmsProp::default(), 0.01, dtype));
        }
    }
    all
}

/// Returns the number of weights whose bits differ.
///
/// # Panics
///
/// Panics if the trainings are not the same, or if weights differ by more than their limits.
pub fn differing(expected: &[Trained], found: &[Trained]) -> usize {
    assert!(!expected.is_empty() && expected.len() == found.len());
    let mut differing = 0;
    for ((what, limit, expected), (found_what, _, found)) in expected.iter().zip(found) {
        assert_eq!(what, found_what);
        assert_eq!(expected.len(), found.len(), "{what}");
        for ((name, expected), (found_name, found)) in expected.iter().zip(found) {
            assert_eq!((name, expected.len()), (found_name, found.len()), "{what}");
            for (a, b) in found.iter().zip(expected) {
                assert!((a - b).abs() <= limit * b.abs().max(1.), "{what} {name}: {a}, not {b}");
                differing += usize::from(a != b);
            }
        }
    }
    differing
}
