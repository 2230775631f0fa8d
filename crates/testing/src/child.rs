//! Tests in a separate process: the test program is started again to run one test, under a watchdog.

use crate::watched;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// The environment variable that contains the part, in a process started by [`command`].
const PART: &str = "DISTRIBUTE_TEST_PART";

/// Returns the part of a test that this process must run; `None` if no test has started it.
pub fn part() -> Option<String> {
    std::env::var(PART).ok()
}

/// Creates a command that runs only `part` of `test` in this test program. Settings of threads and logging are not
/// inherited. Standard input, output and error are pipes.
pub fn command(test: &str, part: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(PART, part);
    for name in ["CANDLE_NUM_THREADS", "RAYON_NUM_THREADS", "DISTRIBUTE_LOG", "RUST_LOG"] {
        command.env_remove(name);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs a test in a separate process. This is for tests of things that exist once per process: a log, a trace, or
/// threads that the test counts. `test` is the full name of the test.
pub fn alone(test: &str, body: impl FnOnce() + Send + 'static) {
    match part() {
        Some(_) => watched(body),
        None => drop(output(command(test, "alone"), Duration::from_secs(90))),
    }
}

/// A process that is killed when this is dropped.
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a process that must succeed, and returns its standard output and standard error. Panics if it fails, or has not
/// closed its output after `patience`.
pub fn output(command: Command, patience: Duration) -> (String, String) {
    ended(command, patience, true)
}

/// Runs a process that must fail, and returns its standard output and standard error. Panics if it succeeds, or has not
/// closed its output after `patience`.
pub fn refused(command: Command, patience: Duration) -> (String, String) {
    ended(command, patience, false)
}

fn ended(mut command: Command, patience: Duration, well: bool) -> (String, String) {
    let mut child = Killed(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let (out, err) = (read(child.0.stdout.take().unwrap()), read(child.0.stderr.take().unwrap()));
    let text = |pipe: mpsc::Receiver<String>| pipe.recv_timeout(patience);
    match (text(out), text(err)) {
        (Ok(out), Ok(err)) => {
            let status = child.0.wait().unwrap();
            assert_eq!(status.success(), well, "{command:?}: {status}\n{out}\n{err}");
            // Otherwise a renamed test would pass from then on.
            assert!(!out.contains("running 0 tests"), "{command:?}: there is no such test");
            (out, err)
        }
        _ => panic!("{command:?} hangs"),
    }
}

/// Reads a pipe to its end, on a thread.
fn read(mut pipe: impl std::io::Read + Send + 'static) -> mpsc::Receiver<String> {
    let (done, wait) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        let _ = done.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    wait
}
