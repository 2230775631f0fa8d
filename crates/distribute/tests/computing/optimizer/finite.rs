//! NaN and infinity: the error or warning names the replica, the step and the variable.

use crate::optimizer::{Log, mirrored, value, vectors};
use candle_core::Tensor;
use distribute::optimizer::NotFinite;
use distribute::prelude::*;
use distribute::{Error, Result};
use distribute_testing::watched;

/// Returns a loss of two variables. In run number `bad`, the last replica's gradient of the second one is infinite, but
/// the loss is finite.
fn loss(ctx: &ReplicaContext, model: &[Tensor], bad: u64) -> Result<Tensor> {
    let replica = ctx.num_replicas_in_sync() - 1;
    let second = if ctx.step() == bad && ctx.replica_id_in_sync_group() == replica {
        // The value underflows to 0, and its gradient overflows.
        ((((&model[1] * 1e-200)? * 1e-200)? * 1e200)? * 1e200)?
    } else {
        model[1].clone()
    };
    Ok((model[0].sum_all()? + second.sum_all()?)?)
}

fn error(n: usize) -> Error {
    let strategy = mirrored(n);
    let model = vectors(&strategy, &["first", "second"]);
    let optimizer = Adam::new(&model.variables, 0.1).unwrap().on_not_finite(NotFinite::Error);
    let step = |bad| strategy.run(&model, |ctx, model| optimizer.minimize(ctx, loss(ctx, model, bad)?, 1));
    step(0).unwrap();
    let before =
        (model.variables.sha256().unwrap(), optimizer.slot("second", "m").unwrap().to_vec1::<f64>().unwrap());
    let error = step(2).unwrap_err();
    let after =
        (model.variables.sha256().unwrap(), optimizer.slot("second", "m").unwrap().to_vec1::<f64>().unwrap());
    assert_eq!((after, optimizer.finished_steps()), (before, 1));
    // The optimizer can be used again.
    step(0).unwrap();
    assert_eq!(optimizer.finished_steps(), 2);
    error
}

#[test]
fn as_an_error_it_names_replica_step_and_variable_and_nothing_has_changed() {
    watched(|| {
        for n in [1, 2, 3] {
            let error = error(n);
            let Error::NotFinite { replica, step: 2, variable: Some(name), .. } = error.root_cause() else {
                panic!("{error}")
            };
            assert_eq!((*replica, name.as_str()), (n - 1, "second"));
            for part in [
                &format!("on replica {}, in step 2 (number 2 of this optimizer)", n - 1),
                "the gradients of 1 of 2 variables",
                "second: ",
                "at element 0",
                "all variables are finite",
            ] {
                assert!(error.to_string().contains(part), "{part:?} is not in {error}");
            }
        }
    });
}

#[test]
fn steps_that_are_not_finite_can_be_skipped_by_all_replicas() {
    watched(|| {
        let log = Log::of_process();
        let strategy = mirrored(2);
        let model = vectors(&strategy, &["left_a", "left_b"]);
        let optimizer = Sgd::new(&model.variables, 0.5).unwrap().on_not_finite(NotFinite::Skip);
        for _ in 0..4 {
            let run = strategy.run(&model, |ctx, model| {
                let bad = if matches!(ctx.step(), 2 | 3) { ctx.step() } else { 0 };
                optimizer.minimize(ctx, loss(ctx, model, bad)?, 1)
            });
            run.unwrap();
        }
        // Steps 2 and 3 of 4.
        assert_eq!((optimizer.finished_steps(), optimizer.skipped_steps()), (2, 2));
        assert_eq!(value(&model, "left_a"), [0.; 3]);
        assert_eq!(value(&model, "left_b"), [0.; 3]);
        let lines = log.lines("left_b");
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains("the step is skipped") && lines[0].contains("in step 2"), "{}", lines[0]);
    });
}

#[test]
fn by_default_a_loss_is_warned_of_and_a_variable_that_is_not_finite_is_named() {
    watched(|| {
        let log = Log::of_process();
        let strategy = mirrored(2);
        let model = vectors(&strategy, &["sick_a", "sick_b"]);
        let optimizer = Sgd::new(&model.variables, 0.5).unwrap();
        let step = || {
            strategy.run(&model, |ctx, model| optimizer.minimize(ctx, loss(ctx, model, 1)?, 1)).unwrap();
        };
        // This gradient is infinite, but only losses are checked. Then the variable, and so the losses, are NaN.
        step();
        assert!(log.lines("sick_b").is_empty());
        (0..12).for_each(|_| step());
        let lines = log.lines("sick_b");
        // The first in a row, and the tenth.
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].contains("WARN") && lines[0].contains("on replica 0, in step 2 "), "{}", lines[0]);
        assert!(
            lines[0].contains("the loss is ") && lines[0].contains("variable sick_b itself is"),
            "{}",
            lines[0]
        );
        assert_eq!(optimizer.finished_steps(), 13);
        let model = vectors(&strategy, &["mute"]);
        let optimizer = Sgd::new(&model.variables, 0.5).unwrap().on_not_finite(NotFinite::Ignore);
        let nan = |ctx: &ReplicaContext, model: &Vec<Tensor>| {
            optimizer.minimize(ctx, (model[0].sum_all()? * f64::NAN)?, 1)
        };
        strategy.run(&model, nan).unwrap();
        assert!(log.lines("mute").is_empty());
    });
}
