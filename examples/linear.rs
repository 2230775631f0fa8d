//! A line through noisy points: the smallest training. `replicate`, an optimizer, a dataset, `run` and `minimize`.

mod common;
use candle_core::{Device, Tensor};
use candle_nn::{Module, linear};
use common::{Options, progress::Progress};
use distribute::{data::Dataset, nn::loss, prelude::*};

const POINTS: usize = 1000;
const BATCH: usize = 100;

#[distribute::main]
fn main() -> distribute::Result<()> {
    let options: Options = common::parse("Fits a line through noisy points: the smallest training");
    let epochs = options.epochs(20);

    let x =
        Tensor::arange(0f32, POINTS as f32, &Device::Cpu)?.affine(2. / POINTS as f64, -1.)?.unsqueeze(1)?;
    let noise = (&x * 1e3)?.sin()?;
    let y = (x.affine(3., 2.)? + noise * 0.1)?;

    let strategy = options.strategy()?;
    let line = strategy.replicate_seeded(options.seed, |vb| linear(1, 1, vb))?;
    let optimizer = Sgd::new(&line.variables, 0.2)?;
    let batches = strategy
        .distribute_dataset(Dataset::from_slices((x, y))?.shuffle(POINTS, options.seed).batch(BATCH))?;

    let _trace = options.trace()?;
    let mut progress =
        Progress::start(&options, &strategy, epochs, POINTS, BATCH)?.variables(&line.variables);
    for _ in 0..epochs {
        for batch in &batches {
            let losses = strategy.run((&line, batch?), |ctx, (line, (x, y))| {
                let loss = loss::mse(&line.forward(&x)?, &y)?;
                optimizer.minimize(ctx, loss, x.dim(0)?)
            })?;
            progress.step(&losses)?;
        }
    }

    let pace = progress.finish()?;
    let number = |name| distribute::Ok(line.variables.get(name)?.flatten_all()?.to_vec1::<f32>()?[0]);
    let (slope, intercept) = (number("weight")?, number("bias")?);
    let figures = [
        ("example", "linear".into()),
        ("slope", slope.into()),
        ("intercept", intercept.into()),
        ("seconds", pace.seconds.into()),
        ("examples_per_s", pace.examples_per_s.into()),
        ("replicas", strategy.num_replicas_in_sync().into()),
        ("weights_sha256", line.variables.sha256()?.into()),
    ];
    options.finish(&format!("y = {slope:.3} x + {intercept:.3}, drawn as y = 3 x + 2"), &figures);
    Ok(())
}
