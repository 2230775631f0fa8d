//! What is stuck is logged with its call, while it is stuck. A program of its own: the log is the process's.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use candle_nn::{Init, VarBuilder};
use distribute::optimizer::Transform;
use distribute::prelude::*;
use distribute_testing::watched;
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::Duration;
use tracing_subscriber::fmt::MakeWriter;

const MINUTE: Duration = Duration::from_secs(60);

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Log;
    fn make_writer(&'a self) -> Log {
        self.clone()
    }
}

/// That of all tests here.
fn log() -> Log {
    static LOG: OnceLock<Log> = OnceLock::new();
    let start = || {
        let log = Log::default();
        tracing_subscriber::fmt().with_writer(log.clone()).with_ansi(false).init();
        log
    };
    LOG.get_or_init(start).clone()
}

#[test]
fn the_log_names_the_call_whose_closure_for_all_replicas_takes_too_long_while_it_does() {
    watched(|| {
        let strategy =
            MirroredStrategy::with_timeout(["cpu:0", "cpu:1", "cpu:2"], Duration::from_millis(500)).unwrap();
        let log = log();
        let lines = move || {
            let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
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
                && line.contains("replica 0 has not come")
                && line.contains("minimize")
                && line.contains("stuck.rs:"),
            "{line}"
        );
    });
}

#[test]
fn the_log_names_the_stuck_replica_and_its_last_call_while_it_is_stuck() {
    watched(|| {
        let strategy = MirroredStrategy::with_timeout(["cpu:0", "cpu:1"], Duration::from_millis(50)).unwrap();
        let log = log();
        let (tell, gave_up) = mpsc::channel();
        let (tell, gave_up) = (Mutex::new(tell), Mutex::new(gave_up));
        let text = || String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
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
        assert!(error.unwrap_err().to_string().contains("replica 1 has not come"));
        let text = text();
        let line = |with: &str| {
            text.lines().find(|l| l.contains(with)).unwrap_or_else(|| panic!("no {with}: {text}"))
        };
        let given_up = line("replica 1 has not come");
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
