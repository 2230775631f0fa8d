//! A notice to one worker: all workers receive it in the same step and save one checkpoint. A restarted training
//! continues from that checkpoint.

use candle_core::{Device, Tensor};
use candle_nn::{Init, VarBuilder};
use distribute::checkpoint::CheckpointManager;
use distribute::training::Preemption;
use distribute::{Adam, Checkpoint, Error, Result, Strategy};
use std::path::Path;
use std::time::Duration;

/// Trains until the notice or for `steps` steps. Worker 1 gets the notice after step `noticed`. Returns the number of
/// steps and the weights.
fn train(
    strategy: &Strategy,
    folder: &Path,
    steps: u64,
    noticed: Option<u64>,
    grace: Duration,
) -> Result<(u64, Vec<f32>)> {
    let model = strategy.replicate(|vb: VarBuilder| vb.get_with_hints(3, "w", Init::Const(1.)))?;
    let optimizer = Adam::new(&model.variables, 0.1)?;
    let training = Checkpoint::new()
        .part("model", &model.variables)
        .part("optimizer", &optimizer)
        .part("steps", strategy);
    let manager = CheckpointManager::new(folder)?;
    training.restore_latest(&manager)?;
    let preemption = Preemption::watch(strategy)?.grace_period(grace);
    while strategy.steps() < steps {
        if noticed == Some(strategy.steps()) && strategy.world().worker() == 1 {
            preemption.notify();
        }
        assert!(!preemption.requested(), "of which not all have heard");
        strategy.run(&model, |ctx, w| {
            let slope = Tensor::arange(0f32, 3., &Device::Cpu)?;
            optimizer.minimize(ctx, (w * slope)?.sqr()?.sum_all()?, 1)
        })?;
        if preemption.requested() {
            let saved = preemption.save(&training, &manager)?;
            assert_eq!(saved.as_deref().and_then(Path::parent), Some(folder));
            break;
        }
    }
    Ok((strategy.steps(), model.variables.get("w")?.to_vec1()?))
}

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn a_notice_to_one_worker_stops_all_after_one_step_and_they_resume_to_the_same_weights() {
    for (workers, replicas) in [(2, 1), (3, 2)] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_path_buf();
        let ended =
            super::on_workers(workers, replicas, move |strategy| train(strategy, &path, 20, Some(7), MINUTE));
        assert!(ended.iter().all(|(steps, weights)| (*steps, weights) == (8, &ended[0].1)), "{ended:?}");
        let path = folder.path().to_path_buf();
        let again =
            super::on_workers(workers, replicas, move |strategy| train(strategy, &path, 20, None, MINUTE));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_path_buf();
        let through =
            super::on_workers(workers, replicas, move |strategy| train(strategy, &path, 20, None, MINUTE));
        assert_eq!(through[0].0, 20);
        assert_eq!(again, through);
    }
}

#[test]
fn a_checkpoint_finished_after_the_grace_period_is_an_error_on_all_and_is_complete() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_path_buf();
    let errors =
        super::errors(2, 1, move |strategy| train(strategy, &path, 20, Some(0), Duration::from_nanos(1)));
    for error in &errors {
        assert!(matches!(error, Error::GracePeriod { step: 1, .. }), "{error}");
        assert!(error.to_string().contains("was saved after step 1, "), "{error}");
    }
    let path = folder.path().to_path_buf();
    let again = super::on_workers(2, 1, move |strategy| train(strategy, &path, 1, None, MINUTE));
    assert_eq!(again[0].0, 1, "restored");
}
