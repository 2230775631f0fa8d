//! Tests that need a process of their own: the same test, started again by itself, under a watchdog.

use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Set in a process that was started by [`command`]: what it is to do.
const PART: &str = "DISTRIBUTE_TEST_PART";

/// What this process is to do, if it was started by a test.
pub fn part() -> Option<String> {
    std::env::var(PART).ok()
}

/// This test program, to run `test` alone and do `part` in it, with none of the settings of threads and logging.
pub fn command(test: &str, part: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(PART, part);
    for name in ["CANDLE_NUM_THREADS", "RAYON_NUM_THREADS", "DISTRIBUTE_LOG", "RUST_LOG"] {
        command.env_remove(name);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A process that is killed when this is dropped.
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a process has written, on standard output and on standard error, when it has ended well.
pub fn output(command: Command, patience: Duration) -> (String, String) {
    ended(command, patience, true)
}

/// The same of a process that has to fail.
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
            // A test that was renamed would pass from then on.
            assert!(!out.contains("running 0 tests"), "{command:?}: there is no such test");
            (out, err)
        }
        _ => panic!("{command:?} hangs"),
    }
}

/// All that comes out of a pipe, on a thread.
fn read(mut pipe: impl std::io::Read + Send + 'static) -> mpsc::Receiver<String> {
    let (done, wait) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        let _ = done.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    wait
}
