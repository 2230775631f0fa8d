//! A call that hangs is logged while it hangs. This is a separate program, because the log belongs to the process.

use crate::support::Log;
use candle_nn::{Init, VarBuilder};
use distribute::optimizer::Transform;
use distribute::prelude::*;
use distribute_testing::child::alone;
use std::sync::{Mutex, mpsc};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn the_log_names_a_call_whose_leader_takes_too_long() {
    alone("stuck::the_log_names_a_call_whose_leader_takes_too_long", || {
        let strategy = MirroredStrategy::builder()
            .devices(["cpu:0", "cpu:1", "cpu:2"])
            .timeout(Duration::from_millis(500))
            .build()
            .unwrap();
        let log = Log::of_process();
        let lines = move || {
            let text = log.text();
            let of = |line: &&str| line.contains("a closure of after_reduce on replica 0");
            text.lines().filter(of).map(String::from).collect::<Vec<_>>()
        };
        let seen = lines.clone();
        let slow = Transform::each(move |_, gradient| {
            let deadline = distribute::cluster::Deadline::after(MINUTE);
            while seen().is_empty() {
                assert!(!deadline.has_passed(), "no such line");
                std::thread::yield_now();
            }
            Ok(gradient)
        });
        let model = strategy.replicate(|vb: VarBuilder| vb.get_with_hints(1, "w", Init::Const(0.))).unwrap();
        let optimizer = Sgd::new(&model.variables, 1.).unwrap().after_reduce(slow).unwrap();
        strategy.run(&model, |ctx, w| optimizer.minimize(ctx, w.sum_all()?, 1)).unwrap_err();
        assert_eq!(model.variables.get("w").unwrap().to_vec1::<f32>().unwrap(), [0.]);
        let line = lines().remove(0);
        assert!(
            line.contains("ERROR")
                && line.contains("replica 0 did not arrive")
                && line.contains("minimize")
                && line.contains("stuck.rs:"),
            "{line}"
        );
    });
}

#[test]
fn the_log_names_a_hung_replica_and_its_last_call() {
    alone("stuck::the_log_names_a_hung_replica_and_its_last_call", || {
        let strategy = MirroredStrategy::builder()
            .devices(["cpu:0", "cpu:1"])
            .timeout(Duration::from_millis(50))
            .build()
            .unwrap();
        let log = Log::of_process();
        let (tell, gave_up) = mpsc::channel();
        let (tell, gave_up) = (Mutex::new(tell), Mutex::new(gave_up));
        let text = || log.text();
        let error = {
            strategy.run((), |ctx, ()| {
                ctx.all_reduce(ReduceOp::Sum, 1i32)?;
                if ctx.replica_id_in_sync_group() == 1 {
                    // Stuck until replica 0 has given up and the team has said that this one still runs.
                    gave_up.lock().unwrap().recv_timeout(MINUTE).unwrap();
                    let deadline = distribute::cluster::Deadline::after(MINUTE);
                    while !text().contains("still running") {
                        assert!(!deadline.has_passed(), "no such line: {}", text());
                        std::thread::yield_now();
                    }
                    return Ok(0);
                }
                let result = ctx.all_reduce(ReduceOp::Sum, 2i32);
                tell.lock().unwrap().send(()).unwrap();
                result
            })
        };
        assert!(error.unwrap_err().to_string().contains("replica 1 did not arrive"));
        let text = text();
        let line = |with: &str| {
            text.lines().find(|l| l.contains(with)).unwrap_or_else(|| panic!("no {with}: {text}"))
        };
        let given_up = line("replica 1 did not arrive");
        assert!(
            given_up.contains("ERROR")
                && given_up.contains("its last call was all_reduce")
                && given_up.contains("stuck.rs:")
        );
        let stuck = line("still running");
        assert!(
            stuck.contains("replica=1")
                && stuck.contains("last_call=all_reduce")
                && stuck.contains("stuck.rs:"),
            "{stuck}"
        );
    });
}
