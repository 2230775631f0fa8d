//! Saves in the background: the chief writes while the others do not wait, and the outcome is the same on all workers.

use super::{model, value};
use crate::multi_worker::on_workers;
use crate::support::gate::Gate;
use distribute::Error;
use distribute::checkpoint::CheckpointManager;
use distribute::prelude::*;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

// INV-96
#[test]
fn workers_train_while_the_chief_saves() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_path_buf();
    let values = on_workers(3, 2, move |strategy| {
        let model = model(strategy, 7.)?;
        let optimizer = Adam::new(&model.variables, 0.5)?;
        let manager = CheckpointManager::new(&path)?;
        let (gate, permit) = Gate::new();
        // The gate has the last name: when it is reached, the variables are copied and nothing is written yet.
        let parts = Checkpoint::new().part("model", &model.variables).part("steps", strategy);
        let parts = parts.part("optimizer", &optimizer);
        let saving = parts.clone().part("z", &gate).save_async(&manager)?;
        assert_eq!(saving.is_finished(), !strategy.is_chief());
        for _ in 0..5 {
            strategy.run(&model, |ctx, w| optimizer.minimize(ctx, w.sum_all()?, 1))?;
        }
        assert_eq!((strategy.steps(), manager.paths()?), (5, vec![]));
        let trained = value(&model)?;
        permit.send(Ok(())).ok();
        let saved = saving.wait(LIMIT)?;
        assert_eq!((saved.file_name().unwrap(), &*saved), ("ckpt-000001".as_ref(), saving.path()));
        parts.restore(&saved)?;
        assert_eq!((strategy.steps(), optimizer.finished_steps(), value(&model)?), (0, 0, 7.));
        Ok(trained)
    });
    assert!(values.iter().all(|value| *value < 6. && *value == values[0]), "{values:?}");
}

// INV-96, INV-2
#[test]
fn a_failure_on_the_chief_is_the_error_of_all_by_the_handle_or_the_next_save() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_path_buf();
    let errors = on_workers(2, 1, move |strategy| {
        let model = model(strategy, 1.)?;
        let manager = CheckpointManager::new(&path)?;
        let parts = Checkpoint::new().part("model", &model.variables);
        let fail = || {
            let (gate, permit) = Gate::new();
            let saving = parts.clone().part("z", &gate).save_async(&manager)?;
            permit.send(Err("the memory is gone".into())).ok();
            Ok::<_, Error>(saving)
        };
        let waited = fail()?.wait(LIMIT).unwrap_err();
        // `wait` has reported the failure, so the next save does not.
        let first = parts.save_to(&manager)?;
        drop(fail()?);
        let next = parts.save_async(&manager).unwrap_err();
        // The save that returned the earlier error was made nevertheless; the next one waits for it.
        let third = parts.save_to(&manager)?;
        let names = [first, third].map(|path| path.file_name().unwrap().to_string_lossy().into_owned());
        assert_eq!(names, ["ckpt-000001", "ckpt-000003"]);
        assert_eq!(strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, 1f32))?.values(), [2.]);
        Ok([waited, next])
    });
    let errors: [Vec<_>; 2] = errors.into_iter().map(Vec::from).collect::<Vec<_>>().try_into().unwrap();
    for (number, says) in
        [(0, "in the background failed: \"z/0\""), (1, "worker 0 failed: the earlier save of ")]
    {
        let errors = [errors[0][number].to_string(), errors[1][number].to_string()];
        assert!(errors[0] == errors[1] && errors[0].contains(says), "{errors:?}");
        assert!(errors[0].contains("the memory is gone"), "{errors:?}");
    }
    assert_eq!(names(folder.path()), ["ckpt-000001", "ckpt-000002", "ckpt-000003"]);
}

fn names(folder: &std::path::Path) -> Vec<String> {
    let mut names = distribute_testing::names_in(folder);
    names.retain(|name| name.starts_with("ckpt"));
    names
}
