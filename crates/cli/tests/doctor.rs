//! `distribute doctor` as users start it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// What it prints where `CANDLE_NUM_THREADS` is so. It is killed after five minutes.
fn doctor(threads: Option<&str>) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_distribute"));
    command.arg("doctor").env_remove("CANDLE_NUM_THREADS").env_remove("RAYON_NUM_THREADS");
    command.envs(threads.map(|threads| ("CANDLE_NUM_THREADS", threads)));
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut pipe = child.stdout.take().unwrap();
    let (done, wait) = mpsc::channel();
    std::thread::spawn(move || done.send(std::io::read_to_string(&mut pipe)));
    let text = wait.recv_timeout(Duration::from_secs(300));
    if text.is_err() {
        child.kill().unwrap();
    }
    let status = child.wait().unwrap();
    let text = text.expect("doctor hangs").unwrap();
    assert!(status.success(), "{status}: {text}");
    text
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
