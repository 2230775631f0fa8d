//! `distribute doctor` as users start it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use distribute_testing::child;
use std::process::Command;
use std::time::Duration;

/// What it prints where `CANDLE_NUM_THREADS` is so. It is killed after five minutes.
fn doctor(threads: Option<&str>) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_distribute"));
    command.arg("doctor").env_remove("CANDLE_NUM_THREADS").env_remove("RAYON_NUM_THREADS");
    command.envs(threads.map(|threads| ("CANDLE_NUM_THREADS", threads)));
    child::output(command, Duration::from_secs(300)).0
}

#[test]
fn it_says_what_the_machine_is_like_and_what_to_change() {
    let text = doctor(None);
    for found in
        ["cores   ", "CANDLE_NUM_THREADS  1, set by", "RAYON_NUM_THREADS   1, set by", "memory, 1 thread    "]
    {
        assert!(text.contains(found), "{found}: {text}");
    }
    // Tests are built so.
    assert!(!cfg!(debug_assertions) || text.contains("built without optimisation"), "{text}");
    assert!(!text.contains("CANDLE_NUM_THREADS="), "{text}");
    // A pipe is no terminal.
    assert!(!text.contains('\x1b'), "{text:?}");

    let text = doctor(Some("8"));
    assert!(text.contains("CANDLE_NUM_THREADS  8, from the environment"), "{text}");
    assert!(text.contains("warning: CANDLE_NUM_THREADS=8: ") && text.contains("Unset it"), "{text}");
}
