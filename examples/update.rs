//! A line through noisy points without an optimizer: the standard way to update variables with values
//! computed by replicas, run → merge_call → batch_reduce_to → update.

mod common;
use candle_core::{Device, Tensor};
use common::{Options, progress::Progress};
use distribute::{Variable, data::Dataset, nn::loss, optimizer::backward, prelude::*};

const POINTS: usize = 1000;
const BATCH: usize = 100;
const LEARNING_RATE: f64 = 0.2;

#[distribute::main]
fn main() -> distribute::Result<()> {
    let options: Options = common::parse(
        "Fits a line through noisy points without an optimizer: by what replicas have computed, reduced in merge_call",
    );
    let epochs = options.epochs(20);

    let x =
        Tensor::arange(0f32, POINTS as f32, &Device::Cpu)?.affine(2. / POINTS as f64, -1.)?.unsqueeze(1)?;
    let y = x.affine(3., 2.)?;

    // Mirrored variables: a copy on each replica's device.
    let strategy = options.strategy()?;
    let zero = Tensor::zeros(1, candle_core::DType::F32, &Device::Cpu)?;
    let [slope, intercept] =
        ["slope", "intercept"].map(|name| strategy.scope(|| Variable::new(name, zero.clone())));
    let (slope, intercept) = (slope?, intercept?);
    // A variable that belongs to no other: the number of steps, on the devices for such variables.
    let devices = strategy.non_slot_devices(&[&slope, &intercept])?;
    let steps = strategy.scope(|| strategy.colocate_vars_with(&devices, || Variable::new("steps", 0i64)))?;

    let batches = strategy
        .distribute_dataset(Dataset::from_slices((x, y))?.shuffle(POINTS, options.seed).batch_exact(BATCH))?;
    let _trace = options.trace()?;
    let mut progress = Progress::start(&options, &strategy, epochs, POINTS, BATCH)?;
    for _ in 0..epochs {
        for batch in &batches {
            let losses = strategy.run(batch?, |ctx, (x, y)| {
                // On each replica: the gradients of its own part of the batch.
                let (a, b) = (slope.as_tensor()?, intercept.as_tensor()?);
                let loss = loss::mse(&x.broadcast_mul(&a)?.broadcast_add(&b)?, &y)?;
                let mut found = backward(&loss)?;
                let none = || distribute::Error::other("the loss does not depend on the line");
                let gradients = [found.remove(&a).ok_or_else(none)?, found.remove(&b).ok_or_else(none)?];

                // Once for all replicas: reduce the mean onto the variables' devices, and update each copy
                // with it. All parts have the same size here, so a plain mean is right.
                ctx.merge_call(gradients, |strategy, gradients| {
                    let of = |i: usize| gradients.clone().map(|both| both[i].clone());
                    let pairs = [(of(0), &slope), (of(1), &intercept)];
                    let means = strategy.batch_reduce_to(ReduceOp::Mean, pairs)?;
                    for (variable, mean) in [&slope, &intercept].into_iter().zip(means) {
                        strategy
                            .update(variable, mean, |copy, mean| copy.assign_sub((mean * LEARNING_RATE)?))?;
                    }
                    strategy.update_non_slot(&devices, (), |()| steps.assign_add(1i64))?;
                    Ok(())
                })?;
                ctx.all_reduce(ReduceOp::Mean, loss.detach())
            })?;
            progress.step(&losses)?;
        }
    }

    let pace = progress.finish()?;
    let number = |variable: &Variable| distribute::Ok(variable.read::<Tensor>()?.to_vec1::<f32>()?[0]);
    let (a, b, steps) = (number(&slope)?, number(&intercept)?, steps.read::<i64>()?);
    let figures = [
        ("example", "update".into()),
        ("slope", a.into()),
        ("intercept", b.into()),
        ("steps", steps.into()),
        ("seconds", pace.seconds.into()),
        ("examples_per_s", pace.examples_per_s.into()),
        ("replicas", strategy.num_replicas_in_sync().into()),
    ];
    let text = format!("y = {a:.3} x + {b:.3} after {steps} steps, drawn as y = 3 x + 2\n{slope}");
    options.finish(&text, &figures);
    Ok(())
}
