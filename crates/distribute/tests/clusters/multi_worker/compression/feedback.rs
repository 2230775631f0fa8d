//! The residuals of compressed gradients as a part of the training's state.

use super::{LOSSY, alone, on_groups};
use candle_core::{Device, Module, Tensor};
use candle_nn::linear;
use distribute::checkpoint::Reader;
use distribute::optimizer::{LossScale, NotFinite};
use distribute::strategy::Compression;
use distribute::{Adam, Checkpoint, Error, MirroredStrategy, Result, Strategy};
use distribute_collective::group::local;
use distribute_testing::watched;
use std::path::Path;

/// A section of a training: the checkpoint that it resumes from, its steps, and where it saves.
#[derive(Clone, Copy, Default)]
struct Run<'a> {
    from: Option<&'a Path>,
    /// The steps to make. For `None`, gradients are NaN, and the step is skipped.
    steps: &'a [Option<u32>],
    to: Option<&'a Path>,
}

/// Trains as `run` says, and returns the bits of the weights.
fn train(strategy: &Strategy, run: Run<'_>) -> Result<Vec<u32>> {
    let model = strategy.replicate_seeded(3, |vb| {
        Ok::<_, Error>((linear(40, 64, vb.pp("a"))?, linear(64, 40, vb.pp("b"))?))
    })?;
    let optimizer = Adam::new(&model.variables, 0.01)?
        .on_not_finite(NotFinite::Skip)
        .with_loss_scale(LossScale::Dynamic { initial: 256., growth_steps: 3 })?;
    let parts = Checkpoint::new().part("model", &model.variables).part("optimizer", &optimizer);
    run.from.map_or(Ok(()), |path| parts.restore(path).map(drop))?;
    for step in run.steps {
        strategy.run(&model, |ctx, (a, b)| {
            let id = ctx.replica_id_in_sync_group() as f32;
            let at = step.unwrap_or(0) as f32 * 7.3 + id;
            let x =
                Tensor::arange(0f32, 120., &Device::Cpu)?.affine(0.37, at.into())?.sin()?.reshape((3, 40))?;
            let loss = (b.forward(&a.forward(&x)?.tanh()?)? - &x)?.sqr()?.mean_all()?;
            let loss = if step.is_none() && id == 1. { (loss * f64::NAN)? } else { loss };
            optimizer.minimize(ctx, loss, 3)
        })?;
    }
    run.to.map_or(Ok(()), |path| parts.save(path))?;
    let mut bits = Vec::new();
    for name in model.variables.names() {
        let values = model.variables.get(&name)?.flatten_all()?.to_vec1::<f32>()?;
        bits.extend(values.into_iter().map(f32::to_bits));
    }
    Ok(bits)
}

fn on(form: Compression, workers: usize, replicas: usize, run: Run<'_>) -> Vec<u32> {
    if workers == 1 {
        return train(&alone(form, replicas), run).unwrap();
    }
    let links = crate::multi_worker::links(workers, replicas);
    let groups = local::groups(links, workers, replicas).unwrap();
    let all = on_groups(groups, |_| form, |strategy| train(strategy, run));
    assert!(all.iter().all(|other| *other == all[0]), "{workers} workers of {replicas} replicas, {form}");
    all.into_iter().next().unwrap()
}

const STEPS: [Option<u32>; 8] = [Some(0), Some(1), Some(2), Some(3), Some(4), Some(5), Some(6), Some(7)];

// INV-94
#[test]
fn a_resumed_training_is_one_without_interruption_for_any_spread_of_the_replicas() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        for form in LOSSY {
            let undisturbed = on(form, 1, 4, Run { steps: &STEPS, ..Run::default() });
            for (workers, replicas) in [(1, 4), (2, 2), (4, 1)] {
                let path = folder.path().join(format!("{form}-{workers}"));
                on(form, workers, replicas, Run { steps: &STEPS[..5], to: Some(&path), ..Run::default() });
                for (workers, replicas) in [(1, 4), (2, 2), (4, 1)] {
                    let run = Run { from: Some(&path), steps: &STEPS[5..], to: None };
                    assert!(
                        on(form, workers, replicas, run) == undisturbed,
                        "{form}: {workers} × {replicas}"
                    );
                }
            }
        }
    });
}

// INV-94
#[test]
fn a_step_that_is_skipped_changes_no_residual() {
    watched(|| {
        let with_nan = [Some(0), Some(1), None, Some(2), None, Some(3)];
        for form in LOSSY {
            let skipped = on(form, 2, 1, Run { steps: &with_nan, ..Run::default() });
            assert!(skipped == on(form, 2, 1, Run { steps: &STEPS[..4], ..Run::default() }), "{form}");
        }
    });
}

/// Returns the sum of a variable's residuals over all replicas, and their number.
fn residuals(path: &Path, variable: &str) -> (Vec<f64>, usize) {
    let reader = Reader::open(path).unwrap();
    let (start, end) = ("optimizer/compression/residual/", format!("/{variable}"));
    let names: Vec<_> =
        reader.names().filter(|name| name.starts_with(start) && name.ends_with(&end)).collect();
    let mut sum = Vec::new();
    for name in &names {
        let one = reader.tensor(name).unwrap().into_vec::<f32>().unwrap();
        sum.resize(one.len(), 0.);
        sum.iter_mut().zip(one).for_each(|(sum, x)| *sum += f64::from(x));
    }
    (sum, names.len())
}

#[test]
fn another_number_of_replicas_keeps_the_sum_of_the_residuals() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        for form in LOSSY {
            let path = |what: &str| folder.path().join(format!("{form}-{what}"));
            on(form, 4, 1, Run { steps: &STEPS, to: Some(&path("4")), ..Run::default() });
            let (four, count) = residuals(&path("4"), "b.weight");
            assert!(count == 4 && four.iter().any(|x| *x != 0.));
            for (workers, replicas) in [(1, 3), (2, 1), (1, 1), (3, 2)] {
                let name = format!("{workers}-{replicas}");
                on(
                    form,
                    workers,
                    replicas,
                    Run { from: Some(&path("4")), steps: &[], to: Some(&path(&name)) },
                );
                let (sum, count) = residuals(&path(&name), "b.weight");
                // A replica without a residual has zeros if another replica of its worker, or on another, has some.
                assert!(count >= (workers * replicas).min(4), "{form}: {count} of {workers} × {replicas}");
                let close = four.iter().zip(&sum).all(|(before, after)| (before - after).abs() < 1e-6);
                assert!(close && sum.len() == four.len(), "{form}: {workers} × {replicas}");
            }
        }
    });
}

#[test]
fn a_training_can_be_compressed_from_a_checkpoint_on_and_no_longer() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let (plain, compressed) = (folder.path().join("plain"), folder.path().join("compressed"));
        let first = Run { steps: &STEPS[..4], ..Run::default() };
        on(Compression::None, 2, 1, Run { to: Some(&plain), ..first });
        on(Compression::EightBits, 2, 1, Run { to: Some(&compressed), ..first });
        for form in [Compression::EightBits, Compression::None] {
            for path in [&plain, &compressed] {
                let run = Run { from: Some(path), steps: &STEPS[4..], to: None };
                assert!(on(form, 2, 1, run) == on(form, 1, 2, run), "{form} from {}", path.display());
            }
        }
        // Another strategy ignores residuals.
        let run = Run { from: Some(&compressed), steps: &STEPS[4..], to: None };
        assert!(train(&MirroredStrategy::cpus(2).unwrap(), run).unwrap() == on(Compression::None, 2, 1, run));
    });
}
