//! Trainings that are interrupted, and resume from their backups with the same history.

use super::*;
use distribute::runner::End;
use distribute::training::Preemption;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

/// Trains with backups until the loss has been requested `calls` times.
fn interrupted(
    strategy: &Strategy,
    trainer: &dyn Fn() -> Trainer<'static>,
    seed: u64,
    folder: &Path,
    calls: usize,
) -> Result<Outcome> {
    let (model, optimizer) = made(strategy, seed);
    let asked = AtomicUsize::new(0);
    let history =
        runner::run(&trainer().backup(folder), &model, &optimizer, &datasets(), |net, batch, phase| {
            if phase.is_training() && asked.fetch_add(1, Ordering::Relaxed) >= calls {
                return Err(Error::other("the machine is switched off"));
            }
            net.loss(&batch)
        })?;
    Ok(outcome(&history, &model))
}

// GNN-4, INV-66
#[test]
fn gnn_4_a_training_that_is_interrupted_and_resumed_has_the_same_history() {
    fn plain() -> Trainer<'static> {
        Trainer::new(GLOBAL_BATCH).epochs(EPOCHS)
    }
    // Epochs that end within a pass.
    fn counted() -> Trainer<'static> {
        plain().steps_per_epoch(5).validation_steps(2)
    }
    watched(move || {
        // Backups within epochs.
        fn within() -> Trainer<'static> {
            plain().backup_every(3)
        }
        fn counted_within() -> Trainer<'static> {
            counted().backup_every(2)
        }
        for trainer in [plain as fn() -> Trainer<'static>, counted, within, counted_within] {
            let folders = Mutex::new(Vec::new());
            let folder = || {
                let folder = tempfile::tempdir().unwrap();
                let path = folder.path().to_path_buf();
                folders.lock().unwrap().push(folder);
                path
            };
            let mirrored: Strategy = MirroredStrategy::cpus(2).unwrap();
            for strategy in [mirrored, servers()] {
                let through = interrupted(&strategy, &trainer, 7, &folder(), usize::MAX).unwrap();
                let saved = folder();
                // With a backup, another seed changes nothing. Nine steps are more than an epoch, so the training is
                // interrupted in the next one.
                for (seed, calls) in
                    [(7, 9 * strategy.num_replicas_in_sync()), (8, 9 * strategy.num_replicas_in_sync())]
                {
                    let error = interrupted(&strategy, &trainer, seed, &saved, calls).unwrap_err();
                    assert!(error.to_string().contains("failed"), "{error}");
                }
                let resumed = interrupted(&strategy, &trainer, 9, &saved, usize::MAX).unwrap();
                assert_eq!(resumed, through, "{strategy}");
                // The training has ended, so the next call makes no step.
                assert_eq!(interrupted(&strategy, &trainer, 3, &saved, 0).unwrap(), through, "{strategy}");
            }
        }
    });
}

// GNN-4
#[test]
fn gnn_4_workers_that_are_interrupted_and_resumed_have_the_same_history() {
    watched(|| {
        let plain = || Trainer::new(GLOBAL_BATCH).epochs(EPOCHS);
        let train = |seed, folder: &Path, steps| {
            MultiWorkerMirroredStrategy::on_threads(2, 1, |strategy| {
                interrupted(strategy, &plain, seed, folder, steps)
            })
        };
        let (saved, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let through = train(7, other.path(), usize::MAX).unwrap();
        train(7, saved.path(), 9).unwrap_err();
        assert_eq!(train(8, saved.path(), usize::MAX).unwrap(), through);
        assert_eq!(through[0], through[1]);
    });
}

/// Checks a training with backups within epochs, which repeats the steps since its last backup when it resumes.
#[test]
fn a_training_resumes_in_the_middle_of_an_epoch() {
    watched(|| {
        let strategy: Strategy = OneDeviceStrategy::new("cpu:0").unwrap();
        let steps = |folder: &Path, last: usize| {
            let (model, optimizer) = made(&strategy, 7);
            let asked = AtomicUsize::new(0);
            let trainer = Trainer::new(GLOBAL_BATCH).epochs(2).backup(folder).backup_every(3);
            let history = runner::run(&trainer, &model, &optimizer, &datasets(), |net, batch, phase| {
                if phase.is_training() && asked.fetch_add(1, Ordering::Relaxed) >= last {
                    return Err(Error::other("the machine is switched off"));
                }
                net.loss(&batch)
            });
            (history.ok(), asked.into_inner())
        };
        let folder = tempfile::tempdir().unwrap();
        // An epoch has 8 steps: the 8th is made, the 9th fails, and the last backup is that of the epoch.
        assert_eq!(steps(folder.path(), 8).1, 9);
        // It makes the steps from 8 to 13. The last backup is that of step 12.
        assert_eq!(steps(folder.path(), 5), (None, 6));
        let (history, made) = steps(folder.path(), usize::MAX);
        assert_eq!((history.unwrap().epochs[1].steps, made), (8, 4));
    });
}

// GNN-4
#[test]
fn gnn_4_a_backup_with_another_global_batch_and_a_file_that_is_no_backup_are_refused() {
    watched(|| {
        let strategy: Strategy = MirroredStrategy::cpus(2).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let train = |batch: usize, folder: &Path| {
            let (model, optimizer) = made(&strategy, 7);
            let trainer = Trainer::new(batch).backup(folder);
            let error =
                runner::run(&trainer, &model, &optimizer, &datasets(), |net, batch, _| net.loss(&batch));
            error.err().map(|error| (error.root_cause().to_string(), optimizer.finished_steps()))
        };
        assert_eq!(train(12, folder.path()), None);
        let (error, steps) = train(10, folder.path()).unwrap();
        assert!(
            error.contains("ckpt-000001 is the backup of a training with a global batch of 12"),
            "{error}"
        );
        assert!(error.contains("train with 12, or use another folder") && steps == 0, "{error}");

        let other = tempfile::tempdir().unwrap();
        let manager = distribute::checkpoint::CheckpointManager::new(other.path()).unwrap();
        distribute::Checkpoint::new().part("strategy", &strategy).save_to(&manager).unwrap();
        let (error, _) = train(12, other.path()).unwrap();
        assert!(error.contains("lacks") || error.contains("is not a backup of a runner"), "{error}");
    });
}

/// Trains. If `tells` is `true`, a notice arrives after the fifth step.
fn train_with_notice(strategy: &Strategy, folder: &Path, tells: bool) -> (End, Outcome) {
    let (model, optimizer) = made(strategy, 7);
    let preemption = Preemption::watch(strategy).unwrap();
    let made = AtomicUsize::new(0);
    let trainer =
        Trainer::new(GLOBAL_BATCH).epochs(EPOCHS).backup(folder).save_on_notice(Duration::from_secs(60));
    let trainer = trainer.on_step(|step| {
        if tells && made.fetch_add(1, Ordering::Relaxed) == 4 {
            assert_eq!((step.epoch, step.step), (0, 4));
            preemption.notify();
        }
        Ok(())
    });
    let history =
        runner::run(&trainer, &model, &optimizer, &datasets(), |net, batch, _| net.loss(&batch)).unwrap();
    (history.end, outcome(&history, &model))
}

#[test]
fn a_training_that_gets_a_notice_saves_and_resumes_with_the_same_history() {
    watched(|| {
        let strategy = || -> Strategy { MirroredStrategy::cpus(2).unwrap() };
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let through = train_with_notice(&strategy(), folders[0].path(), false);
        assert_eq!(through.0, End::Epochs);
        let (end, so_far) = train_with_notice(&strategy(), folders[1].path(), true);
        assert_eq!((end, so_far.0.len()), (End::Notice, 0));
        assert_eq!(train_with_notice(&strategy(), folders[1].path(), false), through);
    });
}

/// Checks that both workers end after the same step if one of them gets a notice.
#[test]
fn a_notice_to_one_worker_ends_the_training_of_all() {
    watched(|| {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let train = |folder: &Path, tells: bool| {
            MultiWorkerMirroredStrategy::on_threads(2, 1, |strategy| {
                Ok(train_with_notice(strategy, folder, tells && strategy.world().worker() == 1))
            })
            .unwrap()
        };
        let through = train(folders[0].path(), false);
        let ends: Vec<_> = train(folders[1].path(), true).into_iter().map(|(end, _)| end).collect();
        assert_eq!(ends, [End::Notice, End::Notice]);
        assert_eq!(train(folders[1].path(), false), through);
    });
}

// GNN-4, CKPT-1
#[test]
fn gnn_4_a_backup_resumes_with_another_number_of_replicas() {
    watched(|| {
        let train = |strategy: &Strategy, folder: &std::path::Path, epochs: usize| {
            let (model, optimizer) = made(strategy, 7);
            let trainer = Trainer::new(GLOBAL_BATCH).epochs(epochs).backup(folder);
            let history =
                runner::run(&trainer, &model, &optimizer, &datasets(), |net, batch, _| net.loss(&batch))
                    .unwrap();
            let losses: Vec<_> = history
                .epochs
                .iter()
                .flat_map(|epoch| [Some(epoch.loss), epoch.validation_loss])
                .flatten()
                .collect();
            losses
        };
        let (through, moved) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let one = OneDeviceStrategy::new("cpu:0").unwrap();
        let expected = train(&one, through.path(), 4);
        for (replicas, epochs) in [(2, 1), (3, 2), (1, 3), (4, 4)] {
            let strategy = MirroredStrategy::cpus(replicas).unwrap();
            let found = train(&strategy, moved.path(), epochs);
            assert_eq!(found.len(), 2 * epochs);
            for (found, expected) in found.iter().zip(&expected) {
                assert!((found - expected).abs() < 1e-5, "{replicas}: {found}, not {expected}");
            }
        }
        // In the middle of an epoch: of the examples that are left each is used once, or the loss would be another.
        let folder = tempfile::tempdir().unwrap();
        let within = || Trainer::new(GLOBAL_BATCH).epochs(4).backup_every(3);
        let two: Strategy = MirroredStrategy::cpus(2).unwrap();
        interrupted(&two, &within, 7, folder.path(), 2 * 11).unwrap_err();
        let found = train(&MirroredStrategy::cpus(3).unwrap(), folder.path(), 4);
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(&expected) {
            assert!((found - expected).abs() < 1e-5, "{found}, not {expected}");
        }
    });
}
