//! Checks that models whose replicas share a graph, by collectives in forward, train like one device. Also checks how
//! `minimize` handles losses and rules that cannot work.

use candle_core::{DType, Device, Tensor};
use candle_nn::{Init, VarBuilder};
use distribute::data::Dataset;
use distribute::optimizer::rules::{Float, Formula, Sgd as SgdRule, SlotSpec, Step};
use distribute::strategy::CommunicationOptions;
use distribute::{Error, MirroredStrategy, OneDeviceStrategy, Optimizer, ReduceOp, Sgd, Strategy};
use distribute_testing::watched;

fn numbers(n: usize) -> Tensor {
    let values: Vec<f64> = (0..n * 3).map(|i| ((i * 7 + 3) as f64 * 0.37).sin()).collect();
    Tensor::from_vec(values, (n, 3), &Device::Cpu).unwrap()
}

/// Returns the weights after training. With y = w x, the loss is the mean of (y - m)^4 + y, where m is the sum of y
/// over the global batch divided by `global`.
fn weights(
    strategy: &Strategy,
    examples: usize,
    batch: usize,
    epochs: usize,
) -> distribute::Result<Vec<f64>> {
    let model = strategy
        .replicate(|vb: VarBuilder| {
            vb.to_dtype(DType::F64).get_with_hints((3, 2), "w", Init::Randn { mean: 0., stdev: 1. })
        })
        .unwrap();
    let optimizer = Sgd::new(&model.variables, 0.05).unwrap();
    let data = Dataset::from_slices(numbers(examples)).unwrap().batch(batch);
    let batches = strategy.distribute_dataset(data).unwrap();
    for _ in 0..epochs {
        for batch in &batches {
            strategy.run((&model, batch?), |ctx, (w, x)| {
                let y = x.matmul(w)?;
                let count = Tensor::new(x.dim(0)? as f64, &Device::Cpu)?;
                let global = ctx.all_reduce(ReduceOp::Sum, count)?.to_scalar::<f64>()?;
                let sum = ctx.all_reduce(ReduceOp::Sum, y.sum(0)?)?;
                let far = y.broadcast_sub(&(sum / global)?)?.sqr()?.sqr()?;
                let each = (far + &y)?.sum(1)?;
                optimizer.minimize(ctx, each.mean_all()?, x.dim(0)?)
            })?;
        }
    }
    Ok(model.variables.get("w")?.flatten_all()?.to_vec1()?)
}

#[test]
fn a_collective_in_forward_trains_like_one_device_for_every_remainder() {
    watched(|| {
        for remainder in 1..=6 {
            let one = weights(&OneDeviceStrategy::new("cpu:0").unwrap(), 6 + remainder, 6, 3).unwrap();
            for replicas in [1, 2, 3, 4, 8] {
                // Where the remainder is smaller, some replicas get empty pieces.
                let many = weights(&MirroredStrategy::cpus(replicas).unwrap(), 6 + remainder, 6, 3).unwrap();
                for (a, b) in one.iter().zip(&many) {
                    assert!(
                        (a - b).abs() < 1e-11,
                        "{replicas} replicas, remainder {remainder}: {one:?} {many:?}"
                    );
                }
            }
        }
    });
}

/// Checks a regulariser that is a mean over replicas, so that the loss of every replica depends on the variables of
/// all.
#[test]
fn contributions_of_a_replica_without_weight_count_in_the_losses_of_the_others() {
    watched(|| {
        let step = |strategy: Strategy, gives: bool| {
            let model =
                strategy.replicate(|vb: VarBuilder| vb.get_with_hints(1, "w", Init::Const(3.))).unwrap();
            let optimizer = Sgd::new(&model.variables, 0.5).unwrap();
            let run = strategy.run(&model, |ctx, w: &Tensor| {
                let size = ctx.all_reduce(ReduceOp::Mean, w.sqr()?.sum_all()?)?;
                let examples = if ctx.replica_id_in_sync_group() == 0 { 4 } else { 0 };
                // A mean over no examples is NaN.
                let loss = if examples == 0 { (&size * f64::NAN)? } else { size };
                let loss = if gives || examples > 0 { loss } else { loss.detach() };
                optimizer.minimize(ctx, loss, examples)
            });
            run.map(|_| model.variables.get("w").unwrap().to_vec1::<f32>().unwrap())
        };
        for n in [1, 2, 4] {
            assert_eq!(step(MirroredStrategy::cpus(n).unwrap(), true).unwrap(), [0.], "{n} replicas");
        }
        let error = step(MirroredStrategy::cpus(2).unwrap(), false).unwrap_err();
        assert!(matches!(error.root_cause(), Error::InvalidArgument { .. }), "{error}");
        assert!(
            error.to_string().contains("the value that replica 1 contributed to collective 1"),
            "{error}"
        );
    });
}

#[test]
fn an_empty_batch_participates_as_the_forward_call_communicated() {
    watched(|| {
        for (forward, backward) in [(0, 0), (8, 0), (0, 8), (8, 8), (8, 16)] {
            let strategy = MirroredStrategy::cpus(2).unwrap();
            let model = strategy.replicate(|vb: VarBuilder| vb.get((3, 1), "w")).unwrap();
            let optimizer = Sgd::new(&model.variables, 1.).unwrap();
            let data = Dataset::from_slices(numbers(1).to_dtype(DType::F32).unwrap()).unwrap().batch(1);
            for batch in &strategy.distribute_dataset(data).unwrap() {
                let step = strategy.run((&model, batch.unwrap()), |ctx, (w, x)| {
                    let packs = |bytes| CommunicationOptions { bytes_per_pack: bytes, ..Default::default() };
                    let sum = ctx
                        .with_options(packs(forward))?
                        .all_reduce(ReduceOp::Sum, x.matmul(w)?.sum_all()?)?;
                    let loss = if x.dim(0)? == 0 { sum.zeros_like()? } else { sum };
                    optimizer.minimize(&ctx.with_options(packs(backward))?, loss, x.dim(0)?)
                });
                step.unwrap_or_else(|error| panic!("packs of {forward}, then {backward}: {error}"));
            }
        }
    });
}

/// Makes one step on a half-precision loss whose gradient is 1, optionally in micro-batches and with a collective in
/// the graph.
fn half(
    n: usize,
    dtype: DType,
    examples: usize,
    in_parts: bool,
    collective: bool,
) -> distribute::Result<f32> {
    let strategy = MirroredStrategy::cpus(n).unwrap();
    let model = strategy.replicate(|vb: VarBuilder| vb.get_with_hints(1, "w", Init::Const(1.))).unwrap();
    let optimizer = Sgd::new(&model.variables, 1.).unwrap();
    strategy.run(&model, |ctx, w: &Tensor| {
        let mut loss = w.to_dtype(dtype)?.sum_all()?;
        if collective {
            loss = ctx.all_reduce(ReduceOp::Mean, loss.to_dtype(DType::F32)?)?.to_dtype(dtype)?;
        }
        if in_parts {
            optimizer.minimize_each(ctx, [Ok((loss.clone(), examples)), Ok((loss, examples))])
        } else {
            optimizer.minimize(ctx, loss, examples)
        }
    })?;
    Ok(model.variables.get("w")?.to_vec1::<f32>()?[0])
}

#[test]
fn losses_in_half_precision_weigh_by_their_exact_number_of_examples() {
    watched(|| {
        for (dtype, examples) in [(DType::BF16, 257), (DType::F16, 2049), (DType::F16, 70_000)] {
            for (n, in_parts) in [(1, false), (2, false), (2, true), (3, false)] {
                let left = half(n, dtype, examples, in_parts, false).unwrap();
                assert!(left.abs() < 1e-6, "{n} replicas, {examples} examples, in parts: {in_parts}: {left}");
            }
            // If there are gradients of other parameters as well, only the loss can be weighted.
            let error = half(2, dtype, examples, false, true).unwrap_err();
            assert!(matches!(error.root_cause(), Error::InvalidArgument { .. }), "{error}");
            assert!(
                error.to_string().contains(&format!("cannot represent its weight {examples}")),
                "{error}"
            );
            assert_eq!(half(2, dtype, 256, false, true).unwrap(), 0.);
        }
    });
}

#[test]
fn a_loss_that_depends_on_no_variable_is_an_error_and_not_a_step() {
    watched(|| {
        for strategy in [MirroredStrategy::cpus(1).unwrap(), MirroredStrategy::cpus(2).unwrap()] {
            let model = strategy.replicate(|vb: VarBuilder| vb.get(2, "w")).unwrap();
            let optimizer = Sgd::new(&model.variables, 0.1).unwrap();
            let error = strategy
                .run(&model, |ctx, w: &Tensor| optimizer.minimize(ctx, w.detach().sum_all()?, 1))
                .unwrap_err();
            assert!(error.to_string().contains("minimize: no replica has a gradient"), "{error}");
            assert_eq!(optimizer.finished_steps(), 0);
            strategy.run(&model, |ctx, w: &Tensor| optimizer.minimize(ctx, w.sum_all()?, 1)).unwrap();
        }
    });
}

#[test]
fn models_variables_and_optimizers_can_be_printed() {
    watched(|| {
        let strategy = MirroredStrategy::cpus(2).unwrap();
        let model = strategy.replicate(|vb: VarBuilder| vb.get((2, 3), "w")).unwrap();
        assert_eq!(format!("{model:?}"), "Replicated(2 replicas, Variables(1 variables, 6 elements))");
    });
}

/// A custom rule that panics in its first update.
#[derive(Debug)]
struct Panics;

impl Formula for Panics {
    type Slots<T: Copy> = [T; 0];

    fn label(&self) -> &'static str {
        "panics"
    }

    fn layout(&self) -> [SlotSpec; 0] {
        []
    }

    fn kernel<F: Float>(&self, _: Step) -> impl Fn(F, F, [F; 0]) -> (F, [F; 0]) {
        |_, _, _| panic!("the rule's own panic")
    }
}

#[test]
fn a_rule_that_panics_is_an_error_and_the_model_survives() {
    watched(|| {
        let strategy = MirroredStrategy::cpus(2).unwrap();
        let model = strategy.replicate(|vb: VarBuilder| vb.get(2, "w")).unwrap();
        let broken = Optimizer::with_rule(Panics, &model.variables, 0.1).unwrap();
        let error =
            strategy.run(&model, |ctx, w: &Tensor| broken.minimize(ctx, w.sum_all()?, 1)).unwrap_err();
        assert!(matches!(error.root_cause(), Error::Panicked { .. }), "{error}");
        assert!(error.to_string().contains("the rule's own panic"), "{error}");
        let works = Optimizer::with_rule(SgdRule, &model.variables, 0.1).unwrap();
        strategy.run(&model, |ctx, w: &Tensor| works.minimize(ctx, w.sum_all()?, 1)).unwrap();
        assert_eq!(model.variables.get("w").unwrap().to_vec1::<f32>().unwrap(), [-0.1, -0.1]);
    });
}
