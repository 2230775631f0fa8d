//! Operations that are only allowed outside `run`, because inside, every replica would apply them to shared state.

use crate::optimizer::{mirrored, vector, vectors};
use distribute::{Error, Result, prelude::*};
use distribute_testing::watched;

#[test]
fn actions_that_every_replica_would_repeat_are_refused_with_advice() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("model.safetensors");
        for n in [1, 2] {
            let strategy = mirrored(n);
            let model = vectors(&strategy, &["w"]);
            let optimizer = Sgd::new(&model.variables, 0.5).unwrap();
            let variables = &model.variables;
            let save = || Checkpoint::new().part("model", variables).save(folder.path().join("whole"));
            let before = variables.sha256().unwrap();
            type Call<'a> = &'a (dyn Fn(usize) -> Result<()> + Sync);
            let calls: [(&str, Call<'_>, &str); 7] = [
                ("set_learning_rate", &|r| optimizer.set_learning_rate(r as f64), "schedule"),
                ("Optimizer::new", &|_| Sgd::new(variables, 0.1).map(drop), "create it outside run"),
                ("Variables::trainable", &|_| variables.trainable().map(drop), "distribute's optimizers"),
                ("Variables::save", &|_| variables.save(&file), "between runs"),
                ("Variables::load", &|_| variables.load(&file), "between runs"),
                ("Variables::set", &|_| variables.set("w", &vector(&[0.; 3])), "between runs"),
                ("Checkpoint::save", &|_| save(), "between runs"),
            ];
            for (name, call, advice) in calls {
                let error = strategy.run((), |ctx, ()| call(ctx.replica_id_in_sync_group())).unwrap_err();
                let Error::WrongContext { operation, .. } = error.root_cause() else { panic!("{error}") };
                assert_eq!(*operation, name);
                assert!(error.to_string().contains(advice), "{error}");
            }
            assert!(!file.exists() && optimizer.learning_rate() == 0.5);
            assert_eq!(variables.sha256().unwrap(), before);
            // In a merge function, which runs once for all replicas, and outside of runs it is possible.
            let merged = strategy.run((), |ctx, ()| {
                ctx.merge_call((), |_, _| {
                    optimizer.set_learning_rate(0.25)?;
                    variables.save(&file)
                })
            });
            merged.unwrap();
            assert!(optimizer.learning_rate() == 0.25 && variables.trainable().unwrap().len() == 1);
            variables.load(&file).unwrap();
            std::fs::remove_file(&file).unwrap();
        }
    });
}

#[test]
fn if_one_replica_forgets_its_step_the_error_names_the_call() {
    watched(|| {
        let strategy = mirrored(2);
        let model = vectors(&strategy, &["w"]);
        let optimizer = Sgd::new(&model.variables, 0.5).unwrap();
        let error = strategy.run(&model, |ctx, model| match ctx.replica_id_in_sync_group() {
            0 => optimizer.minimize(ctx, model[0].sum_all()?, 1).map(drop),
            _ => Ok(()),
        });
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains("replica 1 returned") && error.contains("calls the optimizer's skip"),
            "{error}"
        );
    });
}
