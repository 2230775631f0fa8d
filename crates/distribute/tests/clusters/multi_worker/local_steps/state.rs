//! Local steps as a part of the training's state.

use super::{DILOCO, bits, local, loss, model, on, weights};
use distribute::checkpoint::Reader;
use distribute::optimizer::{LossScale, NotFinite};
use distribute::strategy::{LocalSteps, Outer};
use distribute::{Adam, Checkpoint, Error, ErrorKind, MirroredStrategy, Result, Strategy};
use distribute_testing::watched;
use std::ops::RangeInclusive;
use std::path::Path;

/// A section of a training: the checkpoint that it resumes from, its steps, and where it saves.
#[derive(Clone)]
struct Run<'a> {
    from: Option<&'a Path>,
    steps: RangeInclusive<u64>,
    to: Option<&'a Path>,
    /// Whether an outer step that is not due is made before the training is saved.
    finishes: bool,
}

/// Trains as `run` says, and returns the bits of this worker's weights. In some steps, the loss of one worker is NaN.
fn train(strategy: &Strategy, run: &Run<'_>) -> Result<Vec<u32>> {
    let model = model(strategy)?;
    let optimizer = Adam::new(&model.variables, 0.01)?
        .on_not_finite(NotFinite::Skip)
        .with_loss_scale(LossScale::Dynamic { initial: 256., growth_steps: 2 })?;
    let parts = Checkpoint::new()
        .part("strategy", strategy)
        .part("model", &model.variables)
        .part("optimizer", &optimizer);
    run.from.map_or(Ok(()), |path| parts.restore(path).map(drop))?;
    for step in run.steps.clone() {
        strategy.run(&model, |ctx, layers| {
            let id = ctx.replica_id_in_sync_group();
            let (loss, rows) = loss(layers, step, id)?;
            let loss = if step == 2 && id == 0 { (loss * f64::NAN)? } else { loss };
            optimizer.minimize(ctx, loss, rows)
        })?;
    }
    if run.finishes {
        optimizer.finish_local_steps()?;
    }
    run.to.map_or(Ok(()), |path| parts.save(path))?;
    Ok(bits(&weights(&model)?))
}

const fn run(steps: RangeInclusive<u64>) -> Run<'static> {
    Run { from: None, steps, to: None, finishes: false }
}

fn trained(world: (usize, usize), of: LocalSteps, run: &Run<'_>) -> Vec<Vec<u32>> {
    on(world, of, |strategy| train(strategy, run))
}

// INV-98
#[test]
fn a_training_that_is_resumed_after_an_outer_step_is_one_without_interruption() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        for world in [(1, 2), (2, 1), (2, 2), (3, 1)] {
            for of in [local(3, Outer::Average), local(3, DILOCO), local(1, DILOCO)] {
                // Local steps after the last outer step differ between the workers.
                let undisturbed = trained(world, of, &run(1..=8));
                let path = folder.path().join(format!("{world:?}-{}-{}", of.steps, of.outer));
                trained(world, of, &Run { to: Some(&path), ..run(1..=6) });
                let resumed = trained(world, of, &Run { from: Some(&path), ..run(7..=8) });
                assert!(resumed == undisturbed, "{world:?}, {of:?}");
            }
        }
    });
}

#[test]
fn a_single_worker_saves_and_resumes_between_outer_steps() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        for (world, of) in [((1, 1), local(3, DILOCO)), ((1, 2), local(3, Outer::Average))] {
            let undisturbed = trained(world, of, &run(1..=8));
            for at in 4..=5 {
                let path = folder.path().join(format!("{world:?}-{at}"));
                trained(world, of, &Run { to: Some(&path), ..run(1..=at) });
                let resumed = trained(world, of, &Run { from: Some(&path), ..run(at + 1..=8) });
                assert!(resumed == undisturbed, "{world:?}, after {at}");
            }
        }
    });
}

#[test]
fn several_workers_save_after_an_outer_step_only() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        for at in [1, 2, 4] {
            let path = folder.path().join(format!("middle-{at}"));
            let to = Run { to: Some(&path), ..run(1..=at) };
            for error in on((2, 2), local(3, DILOCO), |strategy| Ok(train(strategy, &to).unwrap_err())) {
                assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
                assert!(error.to_string().contains("finish_local_steps"), "{error}");
                assert!(!path.exists());
            }
            let finished = trained((2, 2), local(3, DILOCO), &Run { finishes: true, ..to.clone() });
            assert!(finished[0] == finished[1]);
            // The next outer step follows after as many steps as usual.
            let undisturbed = on((2, 2), local(3, DILOCO), |strategy| {
                let first = Run { finishes: true, ..run(1..=at) };
                let restored = Run { from: Some(&path), ..run(at + 1..=at + 3) };
                assert!(train(strategy, &first)? == finished[0]);
                train(strategy, &restored)
            });
            assert!(undisturbed[0] == undisturbed[1]);
        }
    });
}

#[test]
fn another_number_of_workers_and_lock_step_continue_from_the_checkpoint() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("two");
        let of = local(2, DILOCO);
        let two = trained((2, 1), of, &Run { to: Some(&path), ..run(1..=4) });
        let reader = Reader::open(&path).unwrap();
        for name in ["optimizer/m/a.weight", "optimizer/local_steps/worker/1/m/a.weight"] {
            assert_eq!(reader.tensor(name).unwrap().dims(), [7, 5], "{name}");
        }
        assert_eq!(reader.tensor("optimizer/local_steps/momentum/a.weight").unwrap().dims(), [7, 5]);
        let from = Run { from: Some(&path), ..run(RangeInclusive::new(5, 4)) };
        for world in [(1, 1), (3, 1), (1, 2)] {
            assert!(trained(world, of, &from).iter().all(|weights| *weights == two[0]), "{world:?}");
            let after = trained(world, of, &Run { steps: 5..=6, ..from.clone() });
            assert!(after.iter().all(|weights| *weights == after[0]), "{world:?}");
        }
        let lock_step = MirroredStrategy::cpus(2).unwrap();
        assert!(train(&lock_step, &from).unwrap() == two[0]);
        // And the other way round.
        let lock_step = folder.path().join("lock-step");
        train(&MirroredStrategy::cpus(2).unwrap(), &Run { to: Some(&lock_step), ..run(1..=4) }).unwrap();
        let after = trained((2, 1), of, &Run { from: Some(&lock_step), ..run(5..=8) });
        assert!(after[0] == after[1]);
    });
}

#[test]
fn a_checkpoint_in_the_middle_of_averaging_does_not_continue_with_momentum() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("average");
        trained((1, 1), local(3, Outer::Average), &Run { to: Some(&path), ..run(1..=4) });
        let from = Run { from: Some(&path), ..run(5..=6) };
        let errors = on((1, 1), local(3, DILOCO), |strategy| Ok(train(strategy, &from).unwrap_err()));
        assert!(matches!(errors[0].root_cause(), Error::InvalidArgument { .. }), "{}", errors[0]);
        assert!(errors[0].to_string().contains("without momentum"), "{}", errors[0]);
    });
}
