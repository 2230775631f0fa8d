//! Whole trainings of W workers with R replicas each: to the bit those of one process with W·R replicas, and so of one device.

use candle_core::{DType, Device, Tensor};
use candle_nn::{Linear, Module, ModuleT, VarBuilder, linear};
use distribute::data::Dataset;
use distribute::nn::{BatchNorm, Dropout, Embedding, batch_norm, embedding, loss};
use distribute::optimizer::rules::{Adagrad, Adam, Momentum, Rule, Sgd};
use distribute::optimizer::{NotFinite, Transform};
use distribute::{
    MirroredStrategy, MultiWorkerMirroredStrategy, OneDeviceStrategy, Optimizer, Result, Strategy,
};
use distribute_testing::watched;

const WORDS: usize = 11;

/// What the model has besides two layers.
#[derive(Clone, Copy, Debug, Default)]
struct Parts {
    table: bool,
    norm: bool,
    dropout: bool,
    collective: bool,
}

/// How one training is done.
#[derive(Clone, Copy, Debug)]
struct Plan {
    dtype: DType,
    rows: usize,
    batch: usize,
    parts: Parts,
    clip: bool,
    micro: bool,
}

impl Plan {
    fn new(rows: usize, batch: usize) -> Self {
        Self { dtype: DType::F32, rows, batch, parts: Parts::default(), clip: false, micro: false }
    }
}

struct Model {
    table: Option<Embedding>,
    hidden: Linear,
    norm: Option<BatchNorm>,
    dropout: Option<Dropout>,
    out: Linear,
}

impl Model {
    fn new(vb: VarBuilder<'_>, parts: Parts) -> candle_core::Result<Self> {
        let width = if parts.table { 6 } else { 3 };
        Ok(Self {
            table: parts.table.then(|| embedding(WORDS, 3, vb.pp("table"))).transpose()?,
            hidden: linear(width, 5, vb.pp("hidden"))?,
            norm: parts.norm.then(|| batch_norm(5, 1e-5, vb.pp("norm"))).transpose()?,
            dropout: parts.dropout.then(|| Dropout::new(0.4, 3, "drop")).transpose()?,
            out: linear(5, 3, vb.pp("out"))?,
        })
    }

    fn loss(
        &self,
        ctx: &distribute::ReplicaContext,
        collective: bool,
        x: &Tensor,
        words: &Tensor,
        y: &Tensor,
    ) -> Result<Tensor> {
        let mut x = x.clone();
        if let Some(table) = &self.table {
            x = Tensor::cat(&[x, table.forward(words)?], 1)?;
        }
        let mut x = self.hidden.forward(&x)?;
        if let Some(norm) = &self.norm {
            x = norm.forward_t(&x, true)?;
        }
        x = x.tanh()?;
        if let Some(dropout) = &self.dropout {
            x = dropout.forward(&x, true)?;
        }
        if collective {
            let all = ctx.all_reduce(distribute::ReduceOp::Sum, x.sum(0)?)?;
            x = x.broadcast_add(&(all * 0.01)?)?;
        }
        Ok(loss::cross_entropy(&self.out.forward(&x)?, y)?)
    }
}

/// `rows` examples, the same for all strategies.
fn examples(rows: usize, dtype: DType) -> (Tensor, Tensor, Tensor) {
    let x: Vec<f64> = (0..rows * 3).map(|i| ((i * 37 + 11) % 41) as f64 / 20. - 1.).collect();
    let words: Vec<u32> = (0..rows).map(|i| ((i * 5 + i / 3) % WORDS) as u32).collect();
    let y: Vec<u32> = (0..rows).map(|i| ((i * 7 + 3) % 3) as u32).collect();
    let x = Tensor::from_vec(x, (rows, 3), &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
    let vector = |v| Tensor::from_vec(v, rows, &Device::Cpu).unwrap();
    (x, vector(words), vector(y))
}

/// Losses, and all weights as they are.
type Outcome = (Vec<u64>, Vec<(String, Vec<u64>)>);

fn train<R: Rule + Clone + 'static>(strategy: &Strategy, plan: Plan, rule: &R) -> Result<Outcome> {
    let parts = plan.parts;
    let model =
        strategy.replicate_seeded(7, move |vb: VarBuilder| Model::new(vb.to_dtype(plan.dtype), parts))?;
    let mut optimizer = Optimizer::with_rule(rule.clone(), &model.variables, 0.05)?;
    if plan.clip {
        optimizer =
            optimizer.after_reduce(Transform::clip_by_global_norm(0.05))?.on_not_finite(NotFinite::Error);
    }
    let dataset = Dataset::from_slices(examples(plan.rows, plan.dtype))?.batch(plan.batch);
    let batches = strategy.distribute_dataset(dataset)?;
    let mut losses = Vec::new();
    for _ in 0..2 {
        for batch in &batches {
            let loss = strategy.run((&model, batch?), |ctx, (model, (x, words, y))| {
                let n = y.dim(0)?;
                if plan.micro {
                    let micro = [(0, n / 2), (n / 2, n - n / 2)].into_iter().map(|(start, len)| {
                        let cut = |t: &Tensor| t.narrow(0, start, len);
                        let loss = model.loss(ctx, parts.collective, &cut(&x)?, &cut(&words)?, &cut(&y)?)?;
                        Ok((loss, len))
                    });
                    return optimizer.minimize_each(ctx, micro);
                }
                optimizer.minimize(ctx, model.loss(ctx, parts.collective, &x, &words, &y)?, n)
            })?;
            let loss: f64 = loss.values()[0].to_dtype(DType::F64)?.to_scalar()?;
            losses.push(loss.to_bits());
        }
    }
    let bits = |name: String| {
        let tensor = model.variables.get(&name)?.flatten_all()?.to_dtype(DType::F64)?;
        Ok((name, tensor.to_vec1::<f64>()?.into_iter().map(f64::to_bits).collect()))
    };
    Ok((losses, model.variables.names().into_iter().map(bits).collect::<Result<_>>()?))
}

fn on_workers<R: Rule + Clone + 'static>(workers: usize, replicas: usize, plan: Plan, rule: &R) -> Outcome {
    let outcomes =
        MultiWorkerMirroredStrategy::on_threads(workers, replicas, |strategy| train(strategy, plan, rule))
            .unwrap();
    for other in &outcomes[1..] {
        assert!(*other == outcomes[0], "all workers have the same weights: {plan:?}");
    }
    outcomes.into_iter().next().unwrap()
}

fn largest_difference(a: &Outcome, b: &Outcome) -> f64 {
    let numbers = |outcome: &Outcome| -> Vec<f64> {
        outcome.1.iter().flat_map(|(_, bits)| bits).map(|bits| f64::from_bits(*bits)).collect()
    };
    numbers(a).iter().zip(numbers(b)).map(|(a, b)| (a - b).abs()).fold(0., f64::max)
}

/// Every cut into workers and replicas of one number of replicas, and one device, train alike.
fn all_alike<R: Rule + Clone + 'static>(plan: Plan, rule: R) {
    let one = train(&OneDeviceStrategy::new("cpu:0").unwrap(), plan, &rule).unwrap();
    for replicas_in_all in [1, 2, 3, 4, 6] {
        let alone = train(&MirroredStrategy::cpus(replicas_in_all).unwrap(), plan, &rule).unwrap();
        let tolerance = if plan.dtype == DType::F64 { 1e-12 } else { 1e-5 };
        assert!(largest_difference(&one, &alone) <= tolerance, "{replicas_in_all} replicas: {plan:?}");
        for workers in 1..=replicas_in_all {
            if replicas_in_all % workers != 0 || replicas_in_all / workers > 3 {
                continue;
            }
            let replicas = replicas_in_all / workers;
            let outcome = on_workers(workers, replicas, plan, &rule);
            assert_eq!(outcome.0, alone.0, "losses of {workers} workers of {replicas} replicas: {plan:?}");
            for (mine, theirs) in outcome.1.iter().zip(&alone.1) {
                assert!(mine == theirs, "{} of {workers} workers of {replicas} replicas: {plan:?}", mine.0);
            }
        }
    }
}

// INV-27
#[test]
fn every_remainder_of_the_last_batch_gives_the_same_bits() {
    watched(|| {
        for rows in 12..=18 {
            all_alike(Plan::new(rows, 6), Sgd);
        }
    });
}

#[test]
fn workers_that_get_nothing_change_nothing() {
    watched(|| {
        all_alike(Plan::new(7, 2), Adam::default());
        all_alike(Plan::new(1, 1), Momentum::default());
    });
}

#[test]
fn every_part_of_a_model_gives_the_same_bits() {
    watched(|| {
        let plan = Plan::new(13, 6);
        for parts in [
            Parts { table: true, ..Parts::default() },
            Parts { norm: true, ..Parts::default() },
            Parts { dropout: true, ..Parts::default() },
            Parts { collective: true, ..Parts::default() },
            Parts { table: true, norm: true, dropout: true, collective: true },
        ] {
            all_alike(Plan { parts, ..plan }, Adagrad::default());
        }
    });
}

#[test]
fn clipping_micro_batches_and_doubles_give_the_same_bits() {
    watched(|| {
        let plan = Plan { parts: Parts { table: true, ..Parts::default() }, ..Plan::new(13, 6) };
        all_alike(Plan { clip: true, ..plan }, Sgd);
        all_alike(Plan { micro: true, ..plan }, Adam::default());
        all_alike(Plan { dtype: DType::F64, clip: true, ..plan }, Adam::default());
    });
}
