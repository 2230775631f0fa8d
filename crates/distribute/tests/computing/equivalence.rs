//! Checks that N replicas reach the weights of one device on the same global batches, with any optimizer, any remainder
//! of the last batch and any split into micro-batches. Runs with the same number of replicas are bit-identical (DESIGN
//! 1, promise 4).

use crate::support::{mirrored, one_device};
use candle_core::{DType, Device, Tensor};
use candle_nn::{Linear, Module, VarBuilder, linear};
use distribute::data::Dataset;
use distribute::optimizer::Transform;
use distribute::optimizer::rules::{
    Adafactor, Adagrad, Adam, AdamW, Ftrl, Lamb, Momentum, RmsProp, RowAdagrad, Rule, Sgd,
};
use distribute::{MirroredStrategy, ReduceOp};
use distribute::{Optimizer, PerReplica, Replicated, Result, Strategy, nn::loss};
use distribute_testing::watched;
use proptest::prelude::*;

const FEATURES: usize = 3;
const CLASSES: usize = 3;

struct Mlp {
    hidden: Linear,
    out: Linear,
}

impl Mlp {
    fn new(vb: VarBuilder<'_>) -> candle_core::Result<Self> {
        Ok(Self { hidden: linear(FEATURES, 5, vb.pp("hidden"))?, out: linear(5, CLASSES, vb.pp("out"))? })
    }

    fn loss(&self, x: &Tensor, y: &Tensor) -> candle_core::Result<Tensor> {
        // tanh and not relu: a kink would turn a difference of one bit into one of another path.
        loss::cross_entropy(&self.out.forward(&self.hidden.forward(x)?.tanh()?)?, y)
    }
}

/// Returns `rows` examples, the same for all strategies.
fn examples(rows: usize, dtype: DType) -> (Tensor, Tensor) {
    let x: Vec<f64> = (0..rows * FEATURES).map(|i| ((i * 37 + 11) % 41) as f64 / 20. - 1.).collect();
    let y: Vec<u32> = (0..rows).map(|i| ((i * 7 + 3) % CLASSES) as u32).collect();
    let x = Tensor::from_vec(x, (rows, FEATURES), &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
    (x, Tensor::from_vec(y, rows, &Device::Cpu).unwrap())
}

/// The options of one training.
#[derive(Clone, Debug)]
struct Plan {
    dtype: DType,
    rows: usize,
    batch: usize,
    epochs: usize,
    clip: Option<f64>,
    /// The positions at which a replica's batch is split into micro-batches, in thousandths of its rows.
    cuts: Vec<usize>,
    /// Whether replicas with an empty batch skip the step instead of running the model with 0 rows.
    skip: bool,
}

impl Plan {
    fn new(dtype: DType, rows: usize, batch: usize) -> Self {
        Self { dtype, rows, batch, epochs: 2, clip: None, cuts: Vec::new(), skip: false }
    }

    fn model(&self, strategy: &Strategy) -> Replicated<Mlp> {
        let dtype = self.dtype;
        strategy.replicate_seeded(7, move |vb: VarBuilder| Mlp::new(vb.to_dtype(dtype))).unwrap()
    }

    /// Trains, and returns the losses and the model.
    fn train<R: Rule + Clone + 'static>(&self, strategy: &Strategy, rule: &R) -> (Vec<f64>, Replicated<Mlp>) {
        let model = self.model(strategy);
        let mut optimizer = Optimizer::with_rule(rule.clone(), &model.variables, 0.05).unwrap();
        if let Some(norm) = self.clip {
            optimizer = optimizer.after_reduce(Transform::clip_by_global_norm(norm)).unwrap();
        }
        let dataset = Dataset::from_slices(examples(self.rows, self.dtype)).unwrap().batch(self.batch);
        let batches = strategy.distribute_dataset(dataset).unwrap();
        let mut losses = Vec::new();
        for _ in 0..self.epochs {
            for batch in &batches {
                let loss = strategy.run((&model, batch.unwrap()), |ctx, (model, (x, y))| {
                    let n = y.dim(0)?;
                    if n == 0 && self.skip {
                        return optimizer.skip(ctx);
                    }
                    if self.cuts.is_empty() {
                        return optimizer.minimize(ctx, model.loss(&x, &y)?, n);
                    }
                    let micro = cut(n, &self.cuts).into_iter().map(|(start, len)| {
                        let (x, y) = (x.narrow(0, start, len)?, y.narrow(0, start, len)?);
                        Ok((model.loss(&x, &y)?, len))
                    });
                    optimizer.minimize_each(ctx, micro)
                });
                let loss = loss.unwrap();
                let all: Vec<f64> = loss.iter().map(scalar).collect();
                assert!(all.iter().all(|one| one == &all[0]), "every replica gets the global mean: {all:?}");
                losses.push(all[0]);
            }
        }
        assert_eq!(optimizer.finished_steps(), losses.len() as u64);
        (losses, model)
    }
}

/// Returns the starts and lengths of the ranges into which `n` rows are split at the positions `cuts`, in thousandths.
/// Some ranges may be empty.
fn cut(n: usize, cuts: &[usize]) -> Vec<(usize, usize)> {
    let mut borders: Vec<usize> = cuts.iter().map(|cut| cut * n / 1000).chain([0, n]).collect();
    borders.sort_unstable();
    borders.windows(2).map(|pair| (pair[0], pair[1] - pair[0])).collect()
}

fn scalar(tensor: &Tensor) -> f64 {
    tensor.to_dtype(DType::F64).unwrap().to_scalar().unwrap()
}

/// Returns the largest difference of two models' weights, relative to the largest weight.
fn difference<M>(a: &Replicated<M>, b: &Replicated<M>) -> f64 {
    assert_eq!(a.variables.names(), b.variables.names());
    let flat = |model: &Replicated<M>, name: &str| -> Vec<f64> {
        let value = model.variables.get(name).unwrap().to_dtype(DType::F64).unwrap();
        value.flatten_all().unwrap().to_vec1().unwrap()
    };
    let (mut worst, mut largest) = (0f64, 0f64);
    for name in a.variables.names() {
        for (a, b) in flat(a, &name).into_iter().zip(flat(b, &name)) {
            assert!(a.is_finite() && b.is_finite(), "{name}");
            worst = worst.max((a - b).abs());
            largest = largest.max(a.abs());
        }
    }
    worst / largest
}

/// Returns the tolerance for sums in another order. Adam and similar rules divide by a root, which magnifies rounding
/// errors of small gradients.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-12,
        _ => 1e-5,
    }
}

fn same_as_one_device<R: Rule + Clone + 'static>(plan: &Plan, rule: &R, counts: &[usize]) {
    let (expected_losses, expected) = plan.train(&one_device(), rule);
    for n in counts {
        let (losses, model) = plan.train(&mirrored(*n), rule);
        let limit = tolerance(plan.dtype);
        let difference = difference(&model, &expected);
        assert!(
            difference <= limit,
            "{} on {n} replicas, {plan:?}: weights differ by {difference}",
            rule.name()
        );
        for (a, b) in losses.iter().zip(&expected_losses) {
            assert!(
                (a - b).abs() <= limit * b.abs().max(1.),
                "{} on {n} replicas: loss {a}, not {b}",
                rule.name()
            );
        }
    }
}

/// Tests every remainder of the last batch with every number of replicas. Some replicas get no rows.
fn every_remainder<R: Rule + Clone + 'static>(rule: R) {
    watched(move || {
        let batch = 9;
        for remainder in 1..=batch {
            let mut plan = Plan::new(DType::F64, batch + remainder, batch);
            same_as_one_device(&plan, &rule, &[1, 2, 3, 4, 8]);
            plan.clip = Some(0.05);
            plan.skip = true;
            same_as_one_device(&plan, &rule, &[1, 2, 3, 4, 8]);
        }
        same_as_one_device(&Plan::new(DType::F32, 2 * batch + 2, batch), &rule, &[1, 2, 3, 4, 8]);
    });
}

macro_rules! every_remainder {
    ($($name:ident: $rule:expr,)*) => {$(
        #[test]
        fn $name() {
            every_remainder($rule);
        }
    )*};
}
every_remainder! {
    sgd_on_any_replicas_with_any_remainder: Sgd,
    momentum_on_any_replicas_with_any_remainder: Momentum::new(0.9),
    nesterov_on_any_replicas_with_any_remainder: Momentum::nesterov(0.9),
    adam_on_any_replicas_with_any_remainder: Adam::default(),
    adamw_on_any_replicas_with_any_remainder: AdamW::default(),
    adagrad_on_any_replicas_with_any_remainder: Adagrad::default(),
    row_adagrad_on_any_replicas_with_any_remainder: RowAdagrad { initial_accumulator_value: 0.1, ..RowAdagrad::default() },
    adafactor_on_any_replicas_with_any_remainder: Adafactor::default(),
    lamb_on_any_replicas_with_any_remainder: Lamb { weight_decay: 0.1, ..Lamb::default() },
    rmsprop_on_any_replicas_with_any_remainder: RmsProp { momentum: 0.5, ..RmsProp::default() },
    ftrl_on_any_replicas_with_any_remainder: Ftrl { l1: 0.001, l2: 0.01, ..Ftrl::default() },
}

#[test]
fn the_clip_applies_to_the_reduced_gradient_and_has_an_effect() {
    watched(|| {
        let plan = Plan::new(DType::F64, 11, 4);
        let clipped = Plan { clip: Some(0.05), ..plan.clone() };
        let (_, free) = plan.train(&mirrored(3), &Sgd);
        let (_, bound) = clipped.train(&mirrored(3), &Sgd);
        assert!(difference(&free, &bound) > 1e-3, "a clip that changes nothing shows nothing");
        // Without momentum and with rate 1, the weights move by the norm of the clipped gradient.
        let one = Plan { epochs: 1, rows: 4, ..clipped };
        for n in [1, 2, 3, 8] {
            let (strategy, before) = (mirrored(n), one.model(&one_device()));
            let (_, after) = one.train(&strategy, &Sgd);
            let squares = after.variables.names().into_iter().map(|name| {
                let step =
                    (after.variables.get(&name).unwrap() - before.variables.get(&name).unwrap()).unwrap();
                scalar(&step.sqr().unwrap().sum_all().unwrap())
            });
            let norm = squares.sum::<f64>().sqrt();
            assert!((norm - 0.05 * 0.05).abs() < 1e-12, "{n} replicas moved by {norm}");
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sizes_any_micro_batches_any_clip(
        rows in 1usize..25,
        batch in 1usize..12,
        n in prop::sample::select(vec![1usize, 2, 3, 4, 8]),
        cuts in prop::collection::vec(0usize..=1000, 0..4),
        clip in prop::option::of(0.01f64..2.),
        skip: bool,
        adam: bool,
    ) {
        watched(move || {
            let whole = Plan { clip, ..Plan::new(DType::F64, rows, batch) };
            let parts = Plan { cuts, skip, ..whole.clone() };
            let difference = if adam {
                difference(&parts.train(&mirrored(n), &Adam::default()).1, &whole.train(&one_device(), &Adam::default()).1)
            } else {
                difference(&parts.train(&mirrored(n), &Sgd).1, &whole.train(&one_device(), &Sgd).1)
            };
            // Micro-batches scale by examples and back, which rounds once more.
            assert!(difference <= 1e-11, "{parts:?} on {n} replicas: {difference}");
        });
    }
}

/// A model of several parts, of which an example uses one or none.
struct Branches {
    left: Linear,
    right: Linear,
    never: Linear,
}

impl Branches {
    fn new(vb: VarBuilder<'_>) -> candle_core::Result<Self> {
        let vb = vb.to_dtype(DType::F64);
        let part = |name: &str| linear(FEATURES, CLASSES, vb.pp(name));
        Ok(Self { left: part("left")?, right: part("right")?, never: part("never")? })
    }
}

/// Trains replicas, of which replica r uses the left part if `left[r]` is `true` and otherwise the right one, and one
/// device on the mean of the same losses. Returns the initial model and both trained ones.
fn train_branches<R: Rule + Clone + 'static>(
    rule: R,
    left: &[bool],
) -> (Replicated<Branches>, Replicated<Branches>, Replicated<Branches>) {
    let rows = 2;
    let (x, y) = examples(rows * left.len(), DType::F64);
    let piece = |r: usize| (x.narrow(0, r * rows, rows).unwrap(), y.narrow(0, r * rows, rows).unwrap());
    let part = |model: &Branches, r: usize| -> Result<Tensor> {
        let (x, y) = piece(r);
        let part = if left[r] { &model.left } else { &model.right };
        assert_eq!(model.never.weight().dims(), [CLASSES, FEATURES]);
        Ok(loss::cross_entropy(&part.forward(&x)?, &y)?)
    };

    let strategy = mirrored(left.len());
    let fresh = strategy.replicate(Branches::new).unwrap();
    let many = strategy.replicate(Branches::new).unwrap();
    let optimizer = Optimizer::with_rule(rule.clone(), &many.variables, 0.1).unwrap();
    for _ in 0..3 {
        strategy
            .run(&many, |ctx, model| {
                optimizer.minimize(ctx, part(model, ctx.replica_id_in_sync_group())?, rows)
            })
            .unwrap();
    }

    let strategy = one_device();
    let one = strategy.replicate(Branches::new).unwrap();
    let optimizer = Optimizer::with_rule(rule, &one.variables, 0.1).unwrap();
    for _ in 0..3 {
        strategy
            .run(&one, |ctx, model| {
                let parts = (0..left.len()).map(|r| part(model, r)).collect::<Result<Vec<_>>>()?;
                let mean = Tensor::stack(&parts, 0)?.mean(0)?;
                optimizer.minimize(ctx, mean, rows * left.len())
            })
            .unwrap();
    }
    (fresh, many, one)
}

#[test]
fn a_variable_without_gradient_on_some_replicas_counts_as_zero_there() {
    watched(|| {
        for left in [vec![true, false], vec![false, true, true], vec![true, false, false, false]] {
            let (_, many, one) = train_branches(Adam::default(), &left);
            assert!(difference(&many, &one) <= 1e-12, "{left:?}");
            let (_, many, one) = train_branches(Momentum::new(0.9), &left);
            assert!(difference(&many, &one) <= 1e-12, "{left:?}");
        }
    });
}

#[test]
fn a_variable_without_gradient_on_all_replicas_stays_untouched_with_its_slots() {
    watched(|| {
        let bits = |model: &Replicated<Branches>, name: &str| -> Vec<u64> {
            let value = model.variables.get(name).unwrap().flatten_all().unwrap();
            value.to_vec1::<f64>().unwrap().into_iter().map(f64::to_bits).collect()
        };
        // With a gradient of zero, AdamW still decays weights and applies momentum, so a missing gradient is not zero.
        let (fresh, many, _) = train_branches(AdamW::default(), &[true, true]);
        for name in ["right.weight", "right.bias", "never.weight", "never.bias"] {
            assert_eq!(bits(&fresh, name), bits(&many, name), "{name}");
        }
        assert_ne!(bits(&fresh, "left.weight"), bits(&many, "left.weight"));

        // A step without a gradient neither applies momentum of earlier steps nor lets it decay.
        let strategy = mirrored(2);
        let (x, y) = examples(2, DType::F64);
        let step = |model: &Replicated<Branches>, optimizer: &Optimizer<Momentum>, left: bool| {
            let run = strategy.run(model, |ctx, model| {
                let part = if left { &model.left } else { &model.right };
                optimizer.minimize(ctx, loss::cross_entropy(&part.forward(&x)?, &y)?, 2)
            });
            run.unwrap();
        };
        let make = || {
            let model = strategy.replicate(Branches::new).unwrap();
            let optimizer = Optimizer::with_rule(Momentum::new(0.9), &model.variables, 0.1).unwrap();
            (model, optimizer)
        };
        let (straight, optimizer) = make();
        [true, true].into_iter().for_each(|left| step(&straight, &optimizer, left));
        let (paused, optimizer) = make();
        [true, false, false, true].into_iter().for_each(|left| step(&paused, &optimizer, left));
        assert_eq!(bits(&straight, "left.weight"), bits(&paused, "left.weight"));
    });
}

// INV-9
#[test]
fn skip_participates_without_running_the_model() {
    watched(|| {
        let plan = Plan { skip: true, ..Plan::new(DType::F64, 2, 2) };
        for n in [3, 4, 8] {
            same_as_one_device(&plan, &Adam::default(), &[n]);
        }
        // If no replica has an example, all get an error, and nothing changes.
        let strategy = mirrored(2);
        let model = plan.model(&strategy);
        let optimizer = Optimizer::with_rule(Sgd, &model.variables, 0.1).unwrap();
        let before = model.variables.sha256().unwrap();
        let error = strategy.run((), |ctx, ()| optimizer.skip(ctx)).unwrap_err().to_string();
        assert!(error.contains("no replica has an example"), "{error}");
        assert_eq!((model.variables.sha256().unwrap(), optimizer.finished_steps()), (before, 0));
    });
}

#[test]
fn the_same_seed_and_replicas_give_the_same_bits_next_to_another_strategy() {
    watched(|| {
        let plan = Plan { clip: Some(0.3), cuts: vec![300, 600], ..Plan::new(DType::F32, 23, 10) };
        for n in [1, 2, 3, 4, 8] {
            let train = || plan.train(&mirrored(n), &Adam::default()).1.variables.sha256().unwrap();
            let first = train();
            assert!((0..3).all(|_| train() == first), "{n} replicas");
            std::thread::scope(|scope| {
                let other =
                    scope.spawn(|| plan.train(&mirrored(3), &AdamW::default()).1.variables.sha256().unwrap());
                let same = scope.spawn(train);
                assert_eq!(train(), first, "{n} replicas, beside another strategy");
                assert_eq!(same.join().unwrap(), first, "{n} replicas, on another thread");
                assert_ne!(other.join().unwrap(), first);
            });
        }
    });
}

#[test]
fn initial_values_depend_on_neither_the_strategy_nor_the_number_of_replicas() {
    watched(|| {
        let plan = Plan::new(DType::F32, 1, 1);
        let expected = plan.model(&one_device()).variables.sha256().unwrap();
        for n in [1, 2, 3, 8] {
            assert_eq!(plan.model(&mirrored(n)).variables.sha256().unwrap(), expected);
        }
    });
}

/// Sums values in the order of all sums over replicas, written by hand: values are split at the largest power of two.
fn tree(values: &[f32]) -> f32 {
    match values {
        [one] => *one,
        [a, b] => a + b,
        [a, b, c] => (a + b) + c,
        [a, b, c, d] => (a + b) + (c + d),
        [a, b, c, d, rest @ ..] => ((a + b) + (c + d)) + tree(rest),
        [] => 0.,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sums_over_replicas_are_folded_by_a_tree_to_the_bit(
        values in prop::collection::vec(-1e6f32..1e6, 2..=8),
    ) {
        let strategy = mirrored(values.len());
        let expected = tree(&values);
        let sums = strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, values[ctx.replica_id_in_sync_group()]));
        for sum in sums.unwrap() {
            prop_assert_eq!(sum.to_bits(), expected.to_bits());
        }
        let reduced = strategy.reduce(ReduceOp::Sum, PerReplica::from_values(values.clone()), None).unwrap();
        prop_assert_eq!(reduced.to_bits(), expected.to_bits());

        // The gradients of a step: weights 1/n, then the same tree.
        let model = strategy.replicate(|vb: VarBuilder| vb.get_with_hints(1, "w", candle_nn::Init::Const(0.))).unwrap();
        let optimizer = Optimizer::with_rule(Sgd, &model.variables, 1.).unwrap();
        strategy
            .run(&model, |ctx, w| {
                let loss = (w.sum_all()? * f64::from(values[ctx.replica_id_in_sync_group()]))?;
                optimizer.minimize(ctx, loss, 1)
            })
            .unwrap();
        let weight = 1. / values.len() as f32;
        let scaled: Vec<f32> = values.iter().map(|v| v * weight).collect();
        let w = model.variables.get("w").unwrap().to_vec1::<f32>().unwrap()[0];
        prop_assert_eq!(w.to_bits(), (0. - tree(&scaled)).to_bits());
    }
}

#[test]
fn three_are_summed_as_a_plus_b_plus_c() {
    watched(|| {
        // (a + b) + c = 1, a + (b + c) = 0 and a + c + b = 0 in f32.
        let values = [1e8f32, -1e8, 1.];
        let strategy = mirrored(3);
        let sums =
            strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, values[ctx.replica_id_in_sync_group()]));
        assert_eq!(sums.unwrap().values(), [1., 1., 1.]);
        let sums = strategy
            .run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, values[2 - ctx.replica_id_in_sync_group()]));
        assert_eq!(sums.unwrap().values(), [0., 0., 0.]);
    });
}

#[test]
fn a_model_of_thousands_of_variables_fits_the_stack_of_any_thread() {
    // Replica 0 runs on the thread of the caller, here a thread of a test with 2 MiB of stack.
    watched(|| {
        let strategy = MirroredStrategy::cpus(2).unwrap();
        let model = strategy
            .replicate(|vb: VarBuilder| {
                (0..2_000)
                    .map(|i| vb.get_with_hints(1, &format!("w{i}"), candle_nn::Init::Const(1.)))
                    .collect::<candle_core::Result<Vec<_>>>()
            })
            .unwrap();
        let optimizer = Optimizer::with_rule(Sgd, &model.variables, 0.5).unwrap();
        strategy
            .run(&model, |ctx, weights| optimizer.minimize(ctx, Tensor::cat(weights, 0)?.sum_all()?, 1))
            .unwrap();
        assert_eq!(model.variables.get("w1999").unwrap().to_vec1::<f32>().unwrap(), [0.5]);
    });
}
