//! A stuck replica is logged with its last call, while it is stuck. A program of its own: the log is the process's.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/watched.rs"]
mod watched;

use distribute::prelude::*;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use tracing_subscriber::fmt::MakeWriter;
use watched::watched;

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

#[test]
fn the_log_names_the_stuck_replica_and_its_last_call_while_it_is_stuck() {
    watched(|| {
        let strategy = MirroredStrategy::with_timeout(["cpu:0", "cpu:1"], Duration::from_millis(50)).unwrap();
        let log = Log::default();
        let (tell, gave_up) = mpsc::channel();
        let (tell, gave_up) = (Mutex::new(tell), Mutex::new(gave_up));
        tracing_subscriber::fmt().with_writer(log.clone()).with_ansi(false).init();
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
