//! Callbacks of `runner::run`, and validation with averaged weights.

use super::*;
use distribute::optimizer::schedules::CosineDecay;
use distribute::runner::{Callback, CallbackContext, CsvLog, ReduceOnPlateau, Step};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Mutex;

/// The rates of a run whose validation loss improves only in the first epoch.
const RATES: [f64; EPOCHS] = [0.05, 0.05, 0.025, 0.0125];

/// Returns a callback that halves the rate after the second, third and fourth validation.
fn halves() -> ReduceOnPlateau {
    ReduceOnPlateau::new(0.5, 1).min_delta(100.)
}

/// Trains with a log and a rate that is reduced. Returns the rates, the log, the history and the weights. The loss
/// fails after it was requested `calls` times.
fn trained(
    strategy: &Strategy,
    folder: &Path,
    change: impl Fn(Trainer<'static>) -> Trainer<'static>,
    calls: usize,
) -> Result<(Vec<f64>, String, Outcome)> {
    let (model, optimizer) = made(strategy, 7);
    let (log, asked) = (folder.join("training.csv"), AtomicUsize::new(0));
    let trainer = Trainer::new(GLOBAL_BATCH).epochs(EPOCHS).callback(CsvLog::new(&log)).callback(halves());
    let trainer = change(trainer);
    let history = runner::run(&trainer, &model, &optimizer, &datasets(), |net, batch, phase| {
        if phase.is_training() && asked.fetch_add(1, Ordering::Relaxed) >= calls {
            return Err(Error::other("the machine is switched off"));
        }
        net.loss(&batch)
    })?;
    let rates = history.epochs.iter().map(|epoch| epoch.learning_rate).collect();
    assert_eq!(optimizer.learning_rate(), 0.00625);
    let log = if strategy.is_chief() { std::fs::read_to_string(log).unwrap() } else { String::new() };
    Ok((rates, log, outcome(&history, &model)))
}

/// Returns the expected log of a history.
fn log_of((epochs, _): &Outcome, rates: &[f64]) -> String {
    let line = |(epoch, rate): (usize, &f64)| {
        let (steps, loss, validation) = epochs[epoch];
        let (loss, validation) = (f64::from_bits(loss), f64::from_bits(validation.unwrap()));
        format!("{epoch},{steps},{loss},{validation},{rate}\n")
    };
    let lines: String = rates.iter().enumerate().map(line).collect();
    format!("epoch,steps,loss,validation_loss,learning_rate\n{lines}")
}

#[test]
fn the_log_and_the_reduced_rates_are_the_same_under_all_strategies() {
    watched(|| {
        let every = everywhere(|strategy| {
            let folder = tempfile::tempdir().unwrap();
            trained(strategy, folder.path(), |trainer| trainer.without_progress(), usize::MAX).unwrap()
        });
        for (strategy, workers) in every {
            for (worker, (rates, log, outcome)) in workers.iter().enumerate() {
                assert_eq!(rates, &RATES, "{strategy}");
                assert_eq!(outcome, &workers[0].2, "{strategy}");
                // Of several workers, the chief alone writes.
                let expected = if worker == 0 { log_of(outcome, &RATES) } else { String::new() };
                assert_eq!(log, &expected, "{strategy}");
            }
        }
    });
}

// INV-66
#[test]
fn a_training_that_resumes_has_the_same_log_and_the_same_rates() {
    watched(|| {
        let mirrored: Strategy = MirroredStrategy::cpus(2).unwrap();
        for strategy in [mirrored, servers()] {
            let replicas = strategy.num_replicas_in_sync();
            let (through, interrupted) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let expected = trained(&strategy, through.path(), |trainer| trainer, usize::MAX).unwrap();
            let backup = interrupted.path().join("backup");
            let change =
                |trainer: Trainer<'static>| trainer.backup(&backup).backup_every(3).without_progress();
            // In the third epoch, and in the last.
            for calls in [20, 8] {
                trained(&strategy, interrupted.path(), change, calls * replicas).unwrap_err();
            }
            assert_eq!(
                trained(&strategy, interrupted.path(), change, usize::MAX).unwrap(),
                expected,
                "{strategy}"
            );
        }
    });
}

/// A callback that records its calls.
#[derive(Default)]
struct Seen(Mutex<Vec<String>>);

impl Callback for &Seen {
    fn on_begin(&self, context: &CallbackContext<'_>) -> Result<()> {
        let (epochs, steps) = (context.epochs(), context.steps_per_epoch());
        self.0
            .lock()
            .unwrap()
            .push(format!("begin {} of {epochs} of {steps:?}", context.history().epochs.len()));
        assert!(context.is_chief() && context.has_validation());
        Ok(())
    }

    fn on_step(&self, context: &CallbackContext<'_>, step: &Step) -> Result<()> {
        assert_eq!((step.epoch, context.learning_rate()), (context.history().epochs.len(), 0.05));
        self.0.lock().unwrap().push(format!("step {}", step.step));
        Ok(())
    }

    fn on_epoch(&self, context: &CallbackContext<'_>, epoch: &Epoch) -> Result<ControlFlow<()>> {
        assert_eq!(context.history().epochs.last(), Some(epoch));
        assert_eq!(context.variables().names().len(), 4);
        self.0.lock().unwrap().push(format!("epoch {}", epoch.epoch));
        Ok(if epoch.epoch == 1 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }

    fn on_end(&self, context: &CallbackContext<'_>) -> Result<()> {
        self.0.lock().unwrap().push(format!("end {:?}", context.history().end));
        Ok(())
    }
}

#[test]
fn a_custom_callback_is_called_in_order_and_can_end_the_training() {
    watched(|| {
        let strategy: Strategy = MirroredStrategy::cpus(2).unwrap();
        let (model, optimizer) = made(&strategy, 7);
        let (seen, other) = (Seen::default(), Seen::default());
        let trainer =
            Trainer::new(GLOBAL_BATCH).epochs(9).steps_per_epoch(2).callback(&seen).callback(&other);
        runner::run(&trainer, &model, &optimizer, &datasets(), |net, batch, _| net.loss(&batch)).unwrap();
        let expected = [
            "begin 0 of 9 of Some(2)",
            "step 0",
            "step 1",
            "epoch 0",
            "step 0",
            "step 1",
            "epoch 1",
            "end Callback",
        ];
        // The second one is called even if the first one ends the training.
        assert_eq!(*seen.0.lock().unwrap(), expected);
        assert_eq!(*other.0.lock().unwrap(), expected);
    });
}

#[test]
fn a_rate_that_follows_a_schedule_is_not_reduced_and_that_is_an_error_before_training() {
    watched(|| {
        let strategy: Strategy = MirroredStrategy::cpus(2).unwrap();
        let (model, optimizer) = made(&strategy, 7);
        let optimizer = optimizer.with_schedule(CosineDecay::new(0.1, 100)).unwrap();
        let train = |trainer: Trainer<'_>| {
            runner::run(&trainer, &model, &optimizer, &datasets(), |net, batch, _| net.loss(&batch))
        };
        let error = train(Trainer::new(GLOBAL_BATCH).callback(halves())).unwrap_err().to_string();
        assert!(error.contains("follows a schedule") && optimizer.finished_steps() == 0, "{error}");
        // The rate of the next step is logged.
        let history = train(Trainer::new(GLOBAL_BATCH)).unwrap();
        assert_eq!(history.epochs[0].learning_rate, optimizer.learning_rate());
        let error = train(Trainer::new(GLOBAL_BATCH).validate_ema()).unwrap_err().to_string();
        assert!(error.contains("validate_ema") && error.contains("Optimizer::with_ema"), "{error}");
    });
}

/// Trains and validates with averaged weights. Returns the history with the weights, and the best weights.
fn averaged(strategy: &Strategy, folder: &Path) -> Result<(Outcome, String)> {
    let (model, optimizer) = made(strategy, 7);
    let optimizer = optimizer.with_ema(0.75)?;
    let trainer = Trainer::new(GLOBAL_BATCH).epochs(1).validate_ema().save_best(folder).without_progress();
    let history = runner::run(&trainer, &model, &optimizer, &datasets(), |net, batch, _| net.loss(&batch))?;
    assert_eq!(history.best().unwrap().epoch, 0);
    let (saved, _) = made(strategy, 1);
    let manager = distribute::checkpoint::CheckpointManager::new(folder)?;
    distribute::Checkpoint::new().part("model", &saved.variables).restore_latest(&manager)?;
    // The best weights are the averages.
    let of_averages = optimizer.use_ema(|| model.variables.sha256())?;
    assert_eq!(saved.variables.sha256()?, of_averages);
    assert_ne!(of_averages, model.variables.sha256()?);
    Ok((outcome(&history, &model), of_averages))
}

#[test]
fn averages_are_validated_and_saved_under_all_strategies_and_the_weights_are_those_without() {
    watched(|| {
        // Workers of one strategy share the folder of the best weights.
        let folders = Mutex::new(std::collections::HashMap::new());
        let folder = |strategy: &Strategy| {
            let mut folders = folders.lock().unwrap();
            let world = (strategy.world().workers() > 1)
                .then(|| (strategy.world().workers(), strategy.num_replicas_in_sync()));
            let key =
                world.map_or_else(|| format!("{}", folders.len()), |world| format!("workers {world:?}"));
            folders.entry(key).or_insert_with(|| tempfile::tempdir().unwrap()).path().to_path_buf()
        };
        let every = everywhere(|strategy| {
            let (model, optimizer) = made(strategy, 7);
            let trainer = Trainer::new(GLOBAL_BATCH).epochs(1).without_progress();
            let plain =
                runner::run(&trainer, &model, &optimizer, &datasets(), |net, batch, _| net.loss(&batch));
            let plain = outcome(&plain.unwrap(), &model);
            (plain, averaged(strategy, &folder(strategy)).unwrap())
        });
        for (strategy, workers) in every {
            for (plain, (found, averages)) in &workers {
                assert_eq!(found.1, plain.1, "{strategy}");
                assert_ne!(found.0[0].2, plain.0[0].2, "{strategy}");
                assert_eq!((found, averages), (&workers[0].1.0, &workers[0].1.1), "{strategy}");
            }
        }
    });
}
