//! An evaluator during a training: it evaluates each checkpoint once, even if the evaluator is restarted.

use super::*;
use distribute::Checkpoint;
use distribute::checkpoint::CheckpointManager;
use distribute::runner::{Evaluated, Evaluator};
use std::path::Path;
use std::time::Duration;

fn train(strategy: &Strategy, folder: &Path, epochs: usize) {
    let (model, optimizer) = made(strategy, 7);
    let trainer = Trainer::new(GLOBAL_BATCH).epochs(epochs).backup(folder).keep_backups(9);
    runner::run(&trainer, &model, &optimizer, &datasets(), |net, batch, _| net.loss(&batch)).unwrap();
}

/// Runs the evaluator, which fails after `most` evaluations. Returns its result, and the checkpoints that it evaluated.
fn evaluate(evaluator: &Evaluator, most: usize) -> (Result<Vec<Evaluated>>, Vec<String>) {
    let strategy: Strategy = OneDeviceStrategy::new("cpu:0").unwrap();
    let (model, _) = made(&strategy, 1);
    let batches = strategy.distribute_dataset(rows(31, 4).batch(31)).unwrap();
    let mut asked = Vec::new();
    let all = evaluator.run(&Checkpoint::new().part("model", &model.variables), |checkpoint| {
        if asked.len() >= most {
            return Err(Error::other("the machine is switched off"));
        }
        asked.push(checkpoint.path().file_name().unwrap().to_string_lossy().into_owned());
        let loss = runner::evaluate(&model, &batches, |net, batch| net.loss(&batch))?;
        Ok(vec![("loss".into(), loss)])
    });
    (all, asked)
}

// INV-67
#[test]
fn each_checkpoint_is_evaluated_once_even_by_a_restarted_evaluator() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let [run, results, summaries] =
            ["run", "results.jsonl", "events"].map(|name| folder.path().join(name));
        let evaluator = Evaluator::new(&run, &results).summaries(&summaries);
        let training = {
            let run = run.clone();
            std::thread::spawn(move || train(&MirroredStrategy::cpus(2).unwrap(), &run, 3))
        };
        // This evaluator may start before the first checkpoint, and stops during the training.
        let (ended, first) = evaluate(&evaluator, 1);
        assert!(ended.is_err());
        training.join().unwrap();
        let (all, rest) = evaluate(&evaluator, usize::MAX);
        assert_eq!(
            (first, rest),
            (vec!["ckpt-000001".into()], vec!["ckpt-000002".into(), "ckpt-000003".into()])
        );
        let all = all.unwrap();
        let found: Vec<_> = all.iter().map(|one| (one.step, one.last)).collect();
        assert_eq!(found, [(8, false), (16, false), (24, true)]);
        assert!(all[2].metrics[0].1 < all[0].metrics[0].1, "{all:?}");
        // The training has ended, so a second evaluator ends as well.
        let (again, none) = evaluate(&evaluator, 0);
        assert_eq!((again.unwrap(), none), (all.clone(), vec![]));
        // A line for each, and an event file for each start.
        let text = std::fs::read_to_string(&results).unwrap();
        assert!(text.lines().count() == 3 && text.contains(r#""metrics":{"loss":"#), "{text}");
        assert_eq!(std::fs::read_dir(&summaries).unwrap().count(), 3);
        // The checkpoints of another training in the same folder have the same names, and are evaluated.
        std::fs::remove_dir_all(&run).unwrap();
        train(&MirroredStrategy::cpus(3).unwrap(), &run, 1);
        assert_eq!(evaluate(&evaluator, usize::MAX).1, ["ckpt-000001"]);
    });
}

// parameter servers T3
#[test]
fn t3_an_evaluator_that_times_out_names_the_folder_and_the_checkpoint() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("run");
        let evaluator =
            Evaluator::new(&run, folder.path().join("results")).patience(Duration::from_millis(1));
        let (nothing, _) = evaluate(&evaluator, usize::MAX);
        let error = nothing.unwrap_err();
        assert!(
            matches!(&error, Error::NoCheckpoint { folder, after: None, .. } if *folder == run),
            "{error}"
        );

        // A checkpoint that is not marked as the last one.
        let (model, _) = made(&OneDeviceStrategy::new("cpu:0").unwrap(), 7);
        let manager = CheckpointManager::new(&run).unwrap();
        let part = Checkpoint::new().part("model", &model.variables);
        part.save_to(&manager).unwrap();
        let (vain, asked) = evaluate(&evaluator, usize::MAX);
        let error = vain.unwrap_err().to_string();
        assert!(error.contains("since ckpt-000001") && error.contains(&run.display().to_string()), "{error}");
        assert_eq!(asked, ["ckpt-000001"]);
        // A loop of one's own marks its last.
        part.metadata(runner::LAST, true).metadata(runner::STEP, 5).save_to(&manager).unwrap();
        let (all, asked) = evaluate(&evaluator, usize::MAX);
        let steps: Vec<_> = all.unwrap().iter().map(|one| (one.step, one.last)).collect();
        assert_eq!((steps, asked), (vec![(1, false), (5, true)], vec!["ckpt-000002".to_string()]));
    });
}
