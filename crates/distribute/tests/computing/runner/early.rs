//! Trainings that end before their last epoch, the best weights, and errors.

use super::*;
use distribute::Checkpoint;
use distribute::checkpoint::CheckpointManager;
use distribute::runner::{Batching, End};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

/// Trains eight steps per epoch, with the given losses as the results of validations. Returns the validated losses, the
/// reason for the end, the weights, and the number of steps.
fn scripted(
    strategy: &Strategy,
    losses: &[f32],
    trainer: Trainer<'_>,
) -> Result<(Vec<f64>, End, String, u64)> {
    let (model, optimizer) = made(strategy, 7);
    let history = runner::run(&trainer, &model, &optimizer, &datasets(), |net, batch, phase| {
        let (loss, examples) = net.loss(&batch)?;
        if phase.is_training() {
            return Ok((loss, examples));
        }
        let epoch = optimizer.finished_steps() as usize / 8 - 1;
        Ok((Tensor::new(losses[epoch], &Device::Cpu)?, examples))
    })?;
    let validated = history.epochs.iter().filter_map(|epoch| epoch.validation_loss).collect();
    Ok((validated, history.end, model.variables.sha256()?, optimizer.finished_steps()))
}

const LOSSES: [f32; 6] = [3., 2., 2.5, 2.25, 1., 0.5];

/// Checks that a training ends after the fourth epoch with the weights of the second one, even if it was interrupted.
fn early(strategy: &Strategy, folder: &Path) -> Result<()> {
    let [best, backup] = ["best", "backup"].map(|name| folder.join(name));
    let (_, end, second, _) = scripted(strategy, &LOSSES, Trainer::new(GLOBAL_BATCH).epochs(2))?;
    assert_eq!(end, End::Epochs);
    let trainer = || {
        let trainer = Trainer::new(GLOBAL_BATCH).epochs(6).patience(2).backup(&backup);
        trainer.save_best(&best).restore_best()
    };
    // As if it were interrupted behind the third.
    let stops = trainer().on_epoch(|epoch| match epoch.epoch {
        3 => Err(Error::other("the machine is switched off")),
        _ => Ok(ControlFlow::Continue(())),
    });
    assert!(scripted(strategy, &LOSSES, stops).is_err());
    for _ in 0..2 {
        let (validated, end, weights, steps) = scripted(strategy, &LOSSES, trainer())?;
        assert_eq!((validated, end), (vec![3., 2., 2.5, 2.25], End::Patience), "{strategy}");
        assert_eq!((weights, steps), (second.clone(), 32), "{strategy}");
    }
    // The folder is a checkpoint like others.
    let (model, _) = made(strategy, 1);
    let manager = CheckpointManager::new(&best)?;
    let saved = Checkpoint::new().part("model", &model.variables).restore_latest(&manager)?.unwrap();
    assert_eq!((saved.number("epoch"), saved.number("validation_loss")), (Some(1.), Some(2.)));
    assert_eq!(model.variables.sha256()?, second);
    Ok(())
}

// GNN-7
#[test]
fn gnn_7_a_training_stops_without_improvement_and_keeps_the_best_weights() {
    watched(|| {
        let mirrored: Strategy = MirroredStrategy::cpus(2).unwrap();
        for strategy in [mirrored, servers()] {
            early(&strategy, tempfile::tempdir().unwrap().path()).unwrap();
        }
        let folder = tempfile::tempdir().unwrap();
        MultiWorkerMirroredStrategy::on_threads(2, 1, |strategy| early(strategy, folder.path())).unwrap();
    });
}

#[test]
fn a_minimum_improvement_stops_a_training_that_improves_too_slowly() {
    watched(|| {
        let strategy: Strategy = MirroredStrategy::cpus(2).unwrap();
        let trainer = || Trainer::new(GLOBAL_BATCH).epochs(6).patience(1);
        let losses = [3., 2., 1.75, 1.5, 1.25, 1.];
        let epochs = |trainer| scripted(&strategy, &losses, trainer).unwrap().0.len();
        assert_eq!((epochs(trainer()), epochs(trainer().min_delta(0.5))), (6, 3));
    });
}

// GNN-7
#[test]
fn gnn_7_validations_within_an_epoch_equal_those_of_shorter_epochs() {
    watched(|| {
        let strategy: Strategy = MirroredStrategy::cpus(2).unwrap();
        let train = |trainer: Trainer<'_>| {
            let (model, optimizer) = made(&strategy, 7);
            let history =
                runner::run(&trainer, &model, &optimizer, &datasets(), |net, batch, _| net.loss(&batch));
            outcome(&history.unwrap(), &model)
        };
        let parts = train(Trainer::new(GLOBAL_BATCH).epochs(2).steps_per_epoch(6).validate_per_epoch(3));
        assert_eq!(parts, train(Trainer::new(GLOBAL_BATCH).epochs(6).steps_per_epoch(2)));
        assert!(parts.0.len() == 6 && parts.0.iter().all(|epoch| epoch.0 == 2 && epoch.2.is_some()));
    });
}

// GNN-5, GNN-6
#[test]
fn gnn_5_a_function_makes_batches_of_the_size_of_a_replicas() {
    watched(|| {
        let train = |strategy: &Strategy| {
            let (model, optimizer) = made(strategy, 7);
            let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
            let told = seen.clone();
            let datasets = datasets().batched(move |examples, batching: Batching| {
                told.lock().unwrap().push((batching.per_replica, batching.drop_remainder));
                Ok(examples.batch_exact(batching.per_replica))
            });
            let trainer = Trainer::new(GLOBAL_BATCH).drop_remainder();
            let history =
                runner::run(&trainer, &model, &optimizer, &datasets, |net, batch, _| net.loss(&batch));
            let seen = seen.lock().unwrap().clone();
            (history.unwrap().epochs[0].steps, seen)
        };
        let (steps, seen) = train(&MirroredStrategy::cpus(3).unwrap());
        // 22 whole batches of 4.
        assert_eq!(steps, (ROWS / 4).div_ceil(3));
        assert!(!seen.is_empty() && seen.iter().all(|one| *one == (4, true)), "{seen:?}");
        // One replica: its batch is the global batch.
        assert!(train(&servers()).1.iter().all(|one| *one == (GLOBAL_BATCH, true)));
    });
}

#[test]
fn a_callback_ends_the_training_and_that_holds_for_the_next_start() {
    watched(|| {
        let strategy: Strategy = MirroredStrategy::cpus(2).unwrap();
        let folder = tempfile::tempdir().unwrap();
        for seen in [2, 0] {
            let (model, optimizer) = made(&strategy, 7);
            let told = AtomicUsize::new(0);
            let trainer = Trainer::new(GLOBAL_BATCH).epochs(9).backup(folder.path()).on_epoch(|epoch| {
                assert_eq!(epoch.epoch, told.fetch_add(1, Ordering::Relaxed));
                Ok(if epoch.epoch == 1 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            });
            let history =
                runner::run(&trainer, &model, &optimizer, &datasets(), |net, batch, _| net.loss(&batch))
                    .unwrap();
            assert_eq!((history.epochs.len(), told.load(Ordering::Relaxed)), (2, seen));
            assert_eq!(history.end, End::Callback);
        }
    });
}

// GNN-4, GNN-7
#[test]
fn gnn_7_contradictory_settings_are_refused_before_training() {
    watched(|| {
        let strategy: Strategy = MirroredStrategy::cpus(2).unwrap();
        let (model, optimizer) = made(&strategy, 7);
        let endless = || Datasets::new(|context| Ok(mine(context).repeat_forever()));
        let unending = || {
            Datasets::new(|context| Ok(mine(context)))
                .validation(|context| Ok(held_out(context).repeat_forever()))
        };
        let only = || Datasets::new(|context| Ok(mine(context)));
        let empty = || Datasets::new(|context| Ok(mine(context).take(0)));
        for (trainer, datasets, text) in [
            (Trainer::new(13), datasets(), "13 is not divisible by the 2 replicas"),
            (Trainer::new(0), datasets(), "a global batch of 0"),
            (Trainer::new(12).steps_per_epoch(0), datasets(), "steps_per_epoch"),
            (Trainer::new(12).validation_steps(0), datasets(), "validation_steps"),
            (Trainer::new(12).validate_every(0), datasets(), "validate_every"),
            (Trainer::new(12).validation_steps(2), only(), "Datasets::validation"),
            (
                Trainer::new(12).validate_every(2).validate_per_epoch(2).steps_per_epoch(4),
                datasets(),
                "validate_every",
            ),
            (Trainer::new(12).validate_per_epoch(2), datasets(), "Trainer::steps_per_epoch"),
            (Trainer::new(12).validate_per_epoch(3).steps_per_epoch(4), datasets(), "not equal"),
            (
                Trainer::new(12).validate_per_epoch(0).steps_per_epoch(4),
                datasets(),
                "a number of validations of 0",
            ),
            (Trainer::new(12).patience(0), datasets(), "Trainer::patience"),
            (Trainer::new(12).patience(1), only(), "Datasets::validation"),
            (Trainer::new(12).patience(1).min_delta(-1.), datasets(), "Trainer::min_delta"),
            (Trainer::new(12).patience(1).min_delta(f64::NAN), datasets(), "Trainer::min_delta"),
            (Trainer::new(12).save_best("never"), only(), "Datasets::validation"),
            (Trainer::new(12).restore_best(), datasets(), "Trainer::save_best"),
            (Trainer::new(12).backup_every(3), datasets(), "Trainer::backup"),
            (Trainer::new(12).backup("never").backup_every(0), datasets(), "Trainer::backup_every"),
            (Trainer::new(12).backup("never").keep_backups(0), datasets(), "Trainer::keep_backups"),
            (Trainer::new(12).save_on_notice(Duration::from_secs(1)), datasets(), "Trainer::backup"),
            (Trainer::new(12), endless(), "Trainer::steps_per_epoch"),
            (Trainer::new(12), unending(), "Trainer::validation_steps"),
            (Trainer::new(12), empty(), "the epoch had no batch"),
        ] {
            let error =
                runner::run(&trainer, &model, &optimizer, &datasets, |net, batch, _| net.loss(&batch));
            let error = error.unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
            assert_eq!(optimizer.finished_steps(), 0, "{error}");
        }
    });
}
